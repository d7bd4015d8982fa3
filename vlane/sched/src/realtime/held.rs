//! The groups that are held back, each noted in the table before it is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::RealTime;
use super::groups::{Group, GroupEntry, is_gone};
use super::table::Table;

/// The groups that are held back.
#[derive(Debug, Default)]
pub(super) struct Groups {
    held: Vec<(GroupEntry, usize)>,
}

impl Groups {
    /// Holds back these groups, and lets all others go.
    ///
    /// # Errors
    ///
    /// The first refusal of the system; the other groups are still changed.
    pub(super) fn hold(&mut self, groups: &BTreeSet<Group>, table: &mut Table) -> io::Result<()> {
        let mut result = Ok(());
        let mut keep = Vec::with_capacity(groups.len());
        for (entry, slot) in std::mem::take(&mut self.held) {
            if groups.contains(&entry.group) {
                keep.push((entry, slot));
                continue;
            }
            match entry.restore() {
                Ok(_) => result = result.and(table.strike_group(slot)),
                Err(error) => {
                    result = Err(error);
                    keep.push((entry, slot));
                }
            }
        }
        self.held = keep;
        for group in groups {
            if !self.held.iter().any(|(entry, _)| entry.group == *group) {
                result = result.and(self.hold_one(group, table));
            }
        }
        result
    }

    fn hold_one(&mut self, group: &Group, table: &mut Table) -> io::Result<()> {
        let Some(was) = group.value()? else { return Ok(()) };
        let entry = GroupEntry { group: group.clone(), was };
        let bytes = entry.to_bytes().ok_or(io::ErrorKind::InvalidFilename)?;
        let slot = table.enter_group(&bytes)?;
        if let Err(error) = group.hold_back() {
            table.strike_group(slot)?;
            return if is_gone(&error) { Ok(()) } else { Err(error) };
        }
        self.held.push((entry, slot));
        Ok(())
    }
}

impl RealTime {
    /// Holds back the groups in which all vCPUs are held back, and no others.
    pub(super) fn hold_groups(&mut self) {
        let mut groups = BTreeMap::new();
        for managed in self.vcpus.iter().flatten() {
            for group in &managed.groups.0 {
                *groups.entry(group.clone()).or_insert(true) &= managed.held_back;
            }
        }
        let held = groups.into_iter().filter_map(|(group, held)| held.then_some(group)).collect();
        if let Err(error) = self.groups.hold(&held, &mut self.table)
            && !std::mem::replace(&mut self.groups_complained, true)
        {
            tracing::warn!(
                "vCPUs are not held back against other groups: {error}; run the scheduler as root, \
                 or put the machines into one group"
            );
        }
    }
}
