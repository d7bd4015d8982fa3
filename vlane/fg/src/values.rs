//! The raised values: a thread's nice value and its I/O priority.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The I/O priority of a thread as `ioprio_get(2)` gives it: a class and a level.
///
/// A thread without one is not the same as one with `be/4`: the first one's follows its nice value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IoPriority(u16);

impl IoPriority {
    /// No priority was set.
    pub const NONE: Self = Self(0);
    /// Best effort, level 0: the best that needs no privilege.
    pub const BEST: Self = Self(2 << 13);
    /// Best effort, level 4: what the kernel takes where none was set.
    const DEFAULT: Self = Self((2 << 13) | 4);

    /// The priority in the kernel's form. Old kernels say `none` with a level, which they do not
    /// accept back.
    pub fn of(raw: u32) -> Self {
        match u16::try_from(raw & 0xffff).unwrap_or(0) {
            raw if raw >> 13 == 0 => Self::NONE,
            raw => Self(raw),
        }
    }

    /// The number for `ioprio_set(2)`.
    pub fn raw(self) -> u32 {
        u32::from(self.0)
    }

    /// Returns true if it was not chosen: none, or the default's own value.
    pub fn is_default(self) -> bool {
        self == Self::NONE || self == Self::DEFAULT
    }

    /// Returns true for real time: it runs before all others of the machine.
    pub fn is_real_time(self) -> bool {
        self.0 >> 13 == 1
    }
}

impl fmt::Display for IoPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.0 & 0x1fff;
        match self.0 >> 13 {
            0 => f.write_str("none"),
            1 => write!(f, "rt/{level}"),
            2 => write!(f, "be/{level}"),
            3 => f.write_str("idle"),
            class => write!(f, "{class}/{level}"),
        }
    }
}

impl FromStr for IoPriority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("\"{text}\" is not an I/O priority: be/0 to be/7, rt/0 to rt/7, idle, none");
        let (class, level) = match text.split_once('/') {
            None if text == "none" => return Ok(Self::NONE),
            None if text == "idle" => return Ok(Self(3 << 13)),
            None => return Err(wrong()),
            Some(("rt", level)) => (1, level),
            Some(("be", level)) => (2, level),
            // A later kernel's value, as it is printed above.
            Some((class, level)) => (class.parse::<u16>().map_err(|_| wrong())?, level),
        };
        let level: u16 = level.parse().map_err(|_| wrong())?;
        if class > 7 || level > 0x1fff {
            return Err(wrong());
        }
        Ok(Self::of(u32::from((class << 13) | level)))
    }
}

impl TryFrom<String> for IoPriority {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<IoPriority> for String {
    fn from(priority: IoPriority) -> Self {
        priority.to_string()
    }
}

/// Both values of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    /// -20 (first) to 19.
    pub nice: i32,
    /// Its I/O priority.
    pub io: IoPriority,
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nice {} io {}", self.nice, self.io)
    }
}

/// The values to which the foreground is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raise {
    /// Added to the nice value, as nice(1) does; below zero raises.
    pub nice: i32,
    /// The I/O priority; none leaves it alone.
    pub io: Option<IoPriority>,
}

impl Raise {
    /// Returns the values of such a thread in the foreground. A chosen I/O priority stays.
    pub fn of(self, own: Values) -> Values {
        Values {
            nice: clamp(own.nice + self.nice),
            io: self.io.filter(|_| own.io.is_default()).unwrap_or(own.io),
        }
    }
}

/// A nice value that the kernel takes.
pub fn clamp(nice: i32) -> i32 {
    nice.clamp(-20, 19)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn no_priority_differs_from_default() {
        assert_ne!(IoPriority::NONE, IoPriority::of(2 << 13 | 4));
        assert_eq!(IoPriority::of(4), IoPriority::NONE, "what old kernels say");
        assert_eq!(IoPriority::NONE.raw(), 0, "the only one of its class that the kernel accepts");
    }

    #[test]
    fn every_number_round_trips() {
        for raw in 0..=0xffff {
            let priority = IoPriority::of(raw);
            assert_eq!(
                priority.to_string().parse::<IoPriority>(),
                Ok(priority).map(|p: IoPriority| {
                    // Idle has levels without a meaning.
                    if p.raw() >> 13 == 3 { IoPriority(3 << 13) } else { p }
                })
            );
        }
        for wrong in ["", "be", "be/", "best/0", "8/0", "be/x", "/"] {
            assert!(wrong.parse::<IoPriority>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn chosen_values_are_not_raised() {
        let raise = Raise { nice: -10, io: Some(IoPriority::BEST) };
        let of = |nice, io: &str| raise.of(Values { nice, io: io.parse().unwrap() }).to_string();
        assert_eq!(of(0, "none"), "nice -10 io be/0");
        assert_eq!(of(5, "be/4"), "nice -5 io be/0");
        assert_eq!(of(0, "idle"), "nice -10 io idle");
        assert_eq!(of(0, "rt/4"), "nice -10 io rt/4");
        assert_eq!(of(-15, "be/7"), "nice -20 io be/7");
    }
}
