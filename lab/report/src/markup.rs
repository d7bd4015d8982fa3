//! Common parts of HTML and SVG: escaped text, and its estimated width.

use std::fmt::Write;

/// Text for an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            // Not characters of XML: a page with one in it is no page for a strict reader.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// About how wide a text is at a font size, in the same unit: fonts differ, so this errs to the
/// wide side.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | '(' | ')' | '['
        | ']' | ' ' | '-' | '/' => 0.34,
        'f' | 't' | 'r' => 0.4,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
        '\u{202f}' | '\u{2008}' => 0.25,
        c if c.is_ascii_uppercase() => 0.68,
        c if c.is_ascii() => 0.58,
        // East Asian wide letters, and other letters of unknown width.
        c if c >= '\u{1100}' => 1.02,
        _ => 0.66,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// The text, or as much of it as fits with an ellipsis.
pub(super) fn shorten(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_string();
    }
    let mut out = String::new();
    // The ellipsis needs its place too.
    let mut left = width - text_width("\u{2026}", size);
    for c in text.chars() {
        left -= text_width(c.encode_utf8(&mut [0; 4]), size);
        if left < 0.0 {
            break;
        }
        out.push(c);
    }
    out.truncate(out.trim_end().len());
    out + "\u{2026}"
}

/// The text in lines that fit, broken between words; a word that does not fit is shortened.
pub(super) fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let lines = wrap_by(text, |line| text_width(line, size) <= width);
    lines.iter().map(|line| shorten(line, size, width)).collect()
}

/// The text in lines that fit, broken between words; a word that does not fit is a line.
pub(super) fn wrap_by(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let longer = lines.last().map(|line| format!("{line} {word}"));
        match (lines.last_mut(), longer.filter(|line| fits(line))) {
            (Some(line), Some(longer)) => *line = longer,
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A document being written, element by element.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    pub(super) out: String,
}

impl Canvas {
    pub(super) fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = write!(
            self.out,
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            num(from.0),
            num(from.1),
            num(to.0),
            num(to.1)
        );
    }

    /// A text; `anchor` says where it is held: `start`, `middle`, `end`.
    pub(super) fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let _ = write!(
            self.out,
            r#"<text class="{class}" text-anchor="{anchor}" x="{}" y="{}">{}</text>"#,
            num(x),
            num(y),
            escape(text)
        );
    }

    /// A rectangle; `hint` is what a pointer on it shows.
    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64), hint: &str) {
        let _ = write!(
            self.out,
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}">{}</rect>"#,
            num(x),
            num(y),
            num(w),
            num(h),
            title(hint)
        );
    }

    pub(super) fn path(&mut self, class: &str, d: &str, hint: &str) {
        let _ = write!(self.out, r#"<path class="{class}" d="{d}">{}</path>"#, title(hint));
    }
}

fn title(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("<title>{}</title>", escape(hint)) }
}

/// A coordinate: a tenth of a pixel is enough.
pub(super) fn num(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escape("<a href=\"x\">'&\u{0}\u{1b}"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{fffd}\u{fffd}"
        );
        assert_eq!((num(1.0), num(-0.01), num(2.345)), ("1".into(), "0".into(), "2.3".into()));
    }

    proptest! {
        #[test]
        fn escaped_text_survives_xml(text in "\\PC*") {
            let xml = format!("<a b=\"{0}\">{0}</a>", escape(&text));
            let document = roxmltree::Document::parse(&xml).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(document.root_element().text().unwrap_or(""), &text);
            prop_assert_eq!(document.root_element().attribute("b").unwrap_or(""), &text);
        }

        #[test]
        fn shortened_and_wrapped_texts_fit(text in "\\PC{0,80}", width in 20.0..300.0_f64) {
            prop_assert!(text_width(&shorten(&text, 12.0, width), 12.0) <= width + 1e-9);
            for line in wrap(&text, 12.0, width) {
                prop_assert!(text_width(&line, 12.0) <= width + 1e-9);
            }
        }
    }
}
