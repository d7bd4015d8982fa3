//! A guest's I/O priorities, and the classes that they are.
//!
//! | I/O priority (Linux) | class, unless configured otherwise |
//! |---|---|
//! | real time, any level | express |
//! | best effort 0 to 2 | express |
//! | best effort 3 and 4; none | normal |
//! | best effort 5 to 7 | background |
//! | idle | background |
//! | anything else | normal |
//!
//! Best effort 3 is not the foreground: ext4's journal thread has it on every mount with default
//! options (`journal_ioprio`), so each background fsync would be express. Some kernels give a task
//! without a priority of its own one by its nice value: -20 to -16 becomes best effort 0, -15 to
//! -11 becomes 1, and so on to 7.

use std::fmt;
use std::str::FromStr;

/// A request's place among the others of its volume. Never between volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// Before all others: a person waits for it.
    Express,
    /// An fsync of the foreground may wait for it: see [`super::inherits`].
    Promoted,
    /// In the order of their arrival.
    #[default]
    Normal,
    /// When no other waits.
    Background,
}

impl Class {
    /// All, the first one first.
    pub const ALL: [Class; 4] = [Class::Express, Class::Promoted, Class::Normal, Class::Background];

    /// True if a person waits for it, at least with some likelihood.
    #[inline]
    pub fn is_foreground(self) -> bool {
        matches!(self, Class::Express | Class::Promoted)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Class::Express => "express",
            Class::Promoted => "promoted",
            Class::Normal => "normal",
            Class::Background => "background",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The I/O priority in a request's header: any number that a guest can write. Linux has its class
/// in bits 13 to 15 (0 none, 1 real time, 2 best effort, 3 idle), and its level in bits 0 to 2 (0
/// the highest). The hints in bits 3 to 12 are ignored here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ioprio(pub u32);

impl Ioprio {
    /// Best effort 3: ext4's journal thread.
    pub const JOURNAL: Ioprio = Ioprio(2 << 13 | 3);

    /// The place of its class in a [`Classes`]; a number of more than 16 bits, or of an unknown
    /// class, counts as none.
    #[inline]
    fn place(self) -> usize {
        let class = if self.0 >> 16 == 0 { (self.0 >> 13) & 7 } else { 0 };
        // Levels mean something in two classes only.
        match class {
            1 | 2 => (class << 3 | self.0 & 7) as usize,
            3 => 3 << 3,
            _ => 0,
        }
    }
}

/// Which I/O priority is which class: real time and best effort 0 to 2 are express, best effort 5
/// to 7 and idle are background, unless configured otherwise.
///
/// Lists of priorities are written `rt,be0-2`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Classes([Class; 32]);

/// A text is no table of classes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no I/O priority: it is none, rt, rt0 to rt7, be, be0 to be7, be0-2 or idle")]
pub struct ClassesError {
    /// The word that was not understood.
    pub word: String,
}

impl Default for Classes {
    fn default() -> Classes {
        let mut classes = Classes::normal();
        for (list, class) in
            [(Classes::EXPRESS, Class::Express), (Classes::BACKGROUND, Class::Background)]
        {
            let understood = classes.put(list, class);
            debug_assert!(understood.is_ok(), "{list}");
        }
        classes
    }
}

impl Classes {
    /// The priorities that are express unless configured otherwise.
    pub const EXPRESS: &str = "rt,be0-2";
    /// The priorities that are background unless configured otherwise.
    pub const BACKGROUND: &str = "be5-7,idle";

    /// All are normal.
    pub fn normal() -> Classes {
        Classes([Class::Normal; 32])
    }

    /// The class of a priority.
    #[inline]
    pub fn of(&self, ioprio: Ioprio) -> Class {
        self.0[ioprio.place() & 31]
    }

    fn set(&mut self, class: usize, levels: std::ops::RangeInclusive<usize>, to: Class) {
        levels.for_each(|level| self.0[class << 3 | level] = to);
    }

    /// Gives the priorities of a list a class: `rt,be0-2`.
    ///
    /// # Errors
    /// [`ClassesError`].
    pub fn put(&mut self, list: &str, to: Class) -> Result<(), ClassesError> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let wrong = || ClassesError { word: word.to_owned() };
            let (class, rest) = match word {
                "none" => {
                    self.set(0, 0..=0, to);
                    continue;
                }
                "idle" => {
                    self.set(3, 0..=0, to);
                    continue;
                }
                _ if word.starts_with("rt") => (1, &word[2..]),
                _ if word.starts_with("be") => (2, &word[2..]),
                _ => return Err(wrong()),
            };
            let level = |text: &str| {
                usize::from_str(text).ok().filter(|level| *level <= 7).ok_or_else(wrong)
            };
            let levels = match rest.split_once('-') {
                None if rest.is_empty() => 0..=7,
                None => level(rest)?..=level(rest)?,
                Some((first, last)) => level(first)?..=level(last)?,
            };
            if levels.is_empty() {
                return Err(wrong());
            }
            self.set(class, levels, to);
        }
        Ok(())
    }
}

impl fmt::Debug for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["none", "rt", "be", "idle"];
        let mut list = f.debug_map();
        for (at, class) in self.0.iter().enumerate().filter(|(_, class)| **class != Class::Normal) {
            list.entry(&format_args!("{}{}", names[at >> 3], at & 7), &class.name());
        }
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn ioprio(class: u32, level: u32) -> Ioprio {
        Ioprio(class << 13 | level)
    }

    /// Express is real time and the best three of best effort by default; ext4's journal has the
    /// fourth.
    #[test]
    fn default_express_excludes_ext4_journal() {
        let classes = Classes::default();
        assert!((0..8).all(|level| classes.of(ioprio(1, level)) == Class::Express));
        let best_effort: Vec<Class> = (0..8).map(|level| classes.of(ioprio(2, level))).collect();
        let (express, normal, background) = (Class::Express, Class::Normal, Class::Background);
        assert_eq!(
            best_effort,
            [express, express, express, normal, normal, background, background, background]
        );
        assert_eq!(classes.of(Ioprio::JOURNAL), normal);
        assert_eq!(classes.of(ioprio(0, 0)), normal);
        assert_eq!(classes.of(ioprio(3, 7)), background);
    }

    #[test]
    fn listed_priorities_change_no_others() {
        let mut classes = Classes::normal();
        classes.put("rt, be0-2,none", Class::Express).unwrap();
        classes.put("idle,be7", Class::Background).unwrap();
        assert_eq!(classes.of(ioprio(2, 2)), Class::Express);
        assert_eq!(classes.of(ioprio(2, 3)), Class::Normal);
        assert_eq!(classes.of(ioprio(2, 7)), Class::Background);
        assert_eq!(classes.of(ioprio(0, 5)), Class::Express);
        for wrong in ["be8", "be2-1", "bee", "rt-", "0", "be0-9", "be-"] {
            assert_eq!(
                classes.put(wrong, Class::Express),
                Err(ClassesError { word: wrong.to_owned() })
            );
        }
    }

    proptest! {
        #[test]
        fn every_priority_number_has_a_class(number: u32) {
            let class = Classes::default().of(Ioprio(number));
            if number >> 16 != 0 || !(1..=3).contains(&(number >> 13)) {
                prop_assert_eq!(class, Class::Normal);
            }
        }
    }
}
