//! Figures in the texts of an experiment: placeholders, and the figures of a result that they
//! stand for.
//!
//! `answer`, `lead` and `discussion` name figures, so no figure of a text is older than the result:
//!
//! - `{goal N}` and `{figure N}`: the measured figure of the goal or the published figure with this
//!   number, from 1.
//! - `{value NAME}`: the figure that `[value.NAME]` describes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vlane_report::Report;

use crate::claim::{Figure, Goal, Place, Rows, measured};
use crate::published::Interval;

/// The forms of placeholders.
const FORMS: &str = "{goal N}, {figure N} or {value NAME}";

/// A figure of the result with a name: of one place, over another, or of several rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Value {
    /// The place of the figure.
    of: Option<Place>,
    /// The place of the figure that it is a ratio to.
    over: Option<Place>,
    /// Several rows of a table instead of one place.
    rows: Option<Rows>,
    /// Digits after the point, where the usual ones hide the difference.
    digits: Option<usize>,
}

impl Value {
    /// Its fault, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.of.is_some() == self.rows.is_some() {
            return Some("give either `of` or `rows`");
        }
        (self.over.is_some() && self.of.is_none()).then_some("`over` needs `of`")
    }

    fn measured(&self, report: &Report) -> Option<Interval> {
        match (&self.of, &self.rows) {
            (Some(of), _) => measured(of, self.over.as_ref(), report),
            (None, Some(rows)) => rows.find(report).map(|spread| Interval::of(&spread)),
            (None, None) => None,
        }
    }
}

/// Figures of an experiment that its texts can name.
pub(crate) struct Named<'a> {
    pub(crate) goals: &'a [Goal],
    pub(crate) figures: &'a [Figure],
    pub(crate) values: &'a BTreeMap<String, Value>,
    pub(crate) report: &'a Report,
}

impl Named<'_> {
    /// The measured figure of a name such as `goal 2` or `value fsync`, and its digits if it asks
    /// for some.
    pub(crate) fn figure(&self, name: &str) -> Result<(Interval, Option<usize>)> {
        let Some((kind, which)) = name.split_once(' ') else {
            bail!("`{{{name}}}` is no placeholder; write {FORMS}");
        };
        let index = |count: usize| {
            let index = which.parse::<usize>().ok().filter(|n| (1..=count).contains(n));
            index.map(|n| n - 1).with_context(|| {
                format!("`{{{name}}}` is not there; the experiment has {kind} 1 to {count}")
            })
        };
        let (found, digits) = match kind {
            "goal" => {
                let goal = &self.goals[index(self.goals.len())?];
                (goal.judge(self.report).map(|(here, _)| here), None)
            }
            "figure" => {
                let figure = &self.figures[index(self.figures.len())?];
                (figure.row(self.report).here.ok(), None)
            }
            "value" => {
                let value = self.values.get(which).with_context(|| {
                    let names: Vec<_> = self.values.keys().map(String::as_str).collect();
                    let names = names.join(", ");
                    format!("`{{{name}}}` is unknown; add [value.{which}], or name one of: {names}")
                })?;
                (value.measured(self.report), value.digits)
            }
            _ => bail!("`{{{name}}}` is unknown; write {FORMS}"),
        };
        let found = found.with_context(|| {
            format!("`{{{name}}}` is not in the result; correct its place, or measure it")
        })?;
        Ok((found, digits))
    }

    /// A text with the figures of the result in the place of its placeholders.
    pub(crate) fn fill(&self, text: &str) -> Result<String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').with_context(|| {
                format!("`{{` before `{}` has no `}}`; add it", first_word(after))
            })?;
            let (here, digits) = self.figure(name)?;
            filled += before;
            filled += &shown(&here, digits);
            rest = after;
        }
        Ok(filled + rest)
    }
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// `2.55 (2.40-2.61)`; of a single number only the number.
pub(crate) fn shown(here: &Interval, digits: Option<usize>) -> String {
    let ends = [here.middle, here.low, here.high];
    let is_whole = ends.iter().all(|value| value.fract() == 0.0);
    let number = |value: f64| match digits.or(is_whole.then_some(0)) {
        Some(digits) => format!("{value:.digits$}"),
        None => number(value),
    };
    let [middle, low, high] = ends.map(number);
    if here.runs < 2 {
        return middle;
    }
    let to = if here.low < 0.0 { " to " } else { "-" };
    format!("{middle} ({low}{to}{high}{})", here.pairing())
}

/// Three significant digits or so.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
#[path = "texts_tests.rs"]
pub(crate) mod tests;
