//! Rows at a fixed load: groups, one for each medium or guest, and a row for each depth and rate.

use super::super::plan::Medium;
use vlane_testbed::guests::Machines;

/// The client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// fio with libblkio, on a CPU of its own.
    Native,
    /// fio in a guest.
    Guest(Machines),
}

/// Rows with the same medium and client.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name for `--rows`.
    pub id: &'static str,
    /// Its subject.
    pub title: &'static str,
    pub(super) client: Client,
    pub(super) medium: Medium,
    pub(super) depths: &'static [u16],
    pub(super) rates: &'static [u32],
}

/// One load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub(super) group: &'static Group,
    /// Most requests out at once.
    pub(super) depth: u16,
    /// Requests asked for per second; 0: as many as there can be.
    pub(super) rate: u32,
}

const NATIVE_RATES: &[u32] = &[1_000, 10_000, 50_000, 100_000];
const GUEST_RATES: &[u32] = &[1_000, 3_000, 10_000];

const fn native(id: &'static str, title: &'static str, medium: Medium) -> Group {
    Group { id, title, client: Client::Native, medium, depths: &[4, 1], rates: NATIVE_RATES }
}

/// Every group.
static GROUPS: [Group; 9] = [
    native("null", "null", Medium::Null),
    native("null-25us", "null that takes 25 us", Medium::Slow { us: 25 }),
    native("null-100us", "null that takes 100 us", Medium::Slow { us: 100 }),
    native("ram", "RAM disk", Medium::Ram),
    native("disk", "disk, direct", Medium::Disk),
    Group {
        id: "uml",
        title: "User-Mode Linux guest, null",
        client: Client::Guest(Machines::Uml),
        medium: Medium::Null,
        depths: &[4, 1],
        rates: GUEST_RATES,
    },
    Group {
        id: "uml-fast",
        title: "User-Mode Linux guest, null",
        client: Client::Guest(Machines::Uml),
        medium: Medium::Null,
        depths: &[32, 1],
        rates: &[0],
    },
    Group {
        id: "qemu",
        title: "QEMU guest, null",
        client: Client::Guest(Machines::Qemu),
        medium: Medium::Null,
        depths: &[4],
        rates: GUEST_RATES,
    },
    Group {
        id: "qemu-fast",
        title: "QEMU guest, null",
        client: Client::Guest(Machines::Qemu),
        medium: Medium::Null,
        depths: &[32],
        rates: &[0],
    },
];

/// Every group.
pub fn groups() -> &'static [Group] {
    &GROUPS
}

/// Every row, those of a group together.
pub fn rows() -> Vec<Row> {
    let rows = |group: &'static Group| {
        let rates =
            move |depth: u16| group.rates.iter().map(move |rate| Row { group, depth, rate: *rate });
        group.depths.iter().flat_map(move |depth| rates(*depth))
    };
    GROUPS.iter().flat_map(rows).collect()
}

/// `50k` of 50,000.
pub(super) fn short(rate: u32) -> String {
    if rate == 0 {
        "all".into()
    } else if rate.is_multiple_of(1000) {
        format!("{}k", rate / 1000)
    } else {
        rate.to_string()
    }
}

impl Row {
    /// Its name for `--rows`.
    pub fn id(self) -> String {
        format!("{}-{}-d{}", self.group.id, short(self.rate), self.depth)
    }

    /// Its subject.
    pub fn title(self) -> String {
        match self.rate {
            0 => format!("{}, as fast as it goes, depth {}", self.group.title, self.depth),
            rate => format!("{}, {} IOPS, depth {}", self.group.title, short(rate), self.depth),
        }
    }

    /// True if a name stands for it: its own, or its group's.
    pub fn is_called(self, name: &str) -> bool {
        name == self.group.id || name == self.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_rows_or_groups() {
        let all = rows();
        assert_eq!(all.len(), 5 * 8 + 6 + 2 + 3 + 1);
        for row in &all {
            let same = |other: &&Row| other.is_called(&row.id());
            assert_eq!(all.iter().filter(same).count(), 1, "{}", row.id());
        }
        for group in groups() {
            let named = all.iter().filter(|row| row.is_called(group.id)).count();
            assert_eq!(named, group.depths.len() * group.rates.len(), "{}", group.id);
        }
        assert_eq!((all[1].id().as_str(), short(1_500).as_str()), ("null-10k-d4", "1500"));
        assert!(all.iter().any(|row| row.id() == "uml-fast-all-d32"));
    }
}
