//! Names of other programs and files, made fit to print.
//!
//! Any process chooses its name, the names of its threads and its command line, and a virtual
//! machine's owner that of the machine. On a terminal some bytes are commands: they move the
//! cursor, change text that was printed before, or type an answer. So every foreign name goes
//! through [`printable`] before it is printed or logged.

use std::fmt::{self, Display, Write as _};

/// Characters of a name that are shown; the rest is left out, and `...` marks that.
const MOST: usize = 128;

/// A foreign name, as it may be printed: see [`printable`].
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(&'a str);

/// A foreign name, for people: one line, no control characters, no character that reorders or hides
/// the text around it, and no longer than 128 characters. A character that is not shown as it is,
/// is shown as Rust writes it: `\n`, `\u{1b}`. Bytes that are no text are the caller's to turn into
/// some ([`String::from_utf8_lossy`]).
pub const fn printable(name: &str) -> Printable<'_> {
    Printable(name)
}

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        for c in characters.by_ref().take(MOST) {
            if is_plain(c) {
                f.write_char(c)?;
            } else {
                write!(f, "{}", c.escape_default())?;
            }
        }
        if characters.next().is_some() {
            f.write_str("...")?;
        }
        Ok(())
    }
}

/// True if a character takes its place on a line, and has no other effect.
fn is_plain(c: char) -> bool {
    match c {
        // The sign of what is not shown as it is.
        '\\' => false,
        // C0, DEL, C1.
        _ if c.is_control() => false,
        // Line and paragraph separators; what has no width; what turns the direction of text; tags;
        // the byte order mark.
        '\u{2028}' | '\u{2029}' | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{feff}' => {
            false
        }
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => false,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(name: &str) -> String {
        printable(name).to_string()
    }

    /// Ordinary names stay as they are.
    #[test]
    fn terminal_commands_in_names_are_escaped() {
        for plain in ["CPU 0/KVM", "qemu-system-x86", "web server (old)", "Büro", "磁盘", ""] {
            assert_eq!(shown(plain), plain);
        }
        assert_eq!(shown("\x1b]0;owned\x07qemu"), "\\u{1b}]0;owned\\u{7}qemu");
        assert_eq!(shown("a\nvlane: all is well\r"), "a\\nvlane: all is well\\r");
        assert_eq!(shown("\u{9b}2J\u{202e}gnp.exe"), "\\u{9b}2J\\u{202e}gnp.exe");
        assert_eq!(shown("a\\nb"), "a\\\\nb", "what was shown is told from what was there");
    }

    #[test]
    fn long_name_is_cut() {
        assert_eq!(shown(&"x".repeat(MOST)).len(), MOST);
        assert_eq!(shown(&"x".repeat(100_000)), "x".repeat(MOST) + "...");
    }

    proptest! {
        /// It has no control characters.
        #[test]
        fn every_name_prints_as_one_line(name in any::<String>()) {
            let text = shown(&name);
            prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            prop_assert!(text.chars().count() <= MOST * 10 + 3);
        }
    }
}
