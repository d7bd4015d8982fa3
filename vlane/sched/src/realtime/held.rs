//! The groups that are held back, each noted in the table before it is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::groups::Group;
use super::table::Table;
use super::{Managed, RealTime};

/// Pause between two looks for groups: one may take milliseconds.
const LOOK_NS: u64 = 100_000_000;
/// A vCPU's groups are looked up anew after this time: other programs may have come into them.
const KNOWN_NS: u64 = 10_000_000_000;
/// The longest time for which a group is held back at once. Programs that are not scheduled here
/// compete with it, too, and a small debt may last.
const HELD_NS: u64 = 1_000_000_000;

/// The groups of one vCPU.
#[derive(Debug, Default)]
pub(super) struct VcpuGroups {
    all: Vec<Group>,
    /// When they are looked up next; 0: they were not yet.
    due: u64,
}

/// The groups that are held back, each with its place in the table.
#[derive(Debug, Default)]
pub(super) struct Groups {
    held: BTreeMap<Group, usize>,
    next_look: u64,
    /// The system has refused a change: no group is held back any more.
    is_refused: bool,
}

impl Groups {
    /// Holds back these groups, and lets all others go.
    ///
    /// # Errors
    ///
    /// The first refusal of the system; the other groups are still changed.
    fn hold(&mut self, groups: &BTreeSet<Group>, table: &mut Table) -> io::Result<()> {
        let mut result = Ok(());
        self.held.retain(|group, slot| {
            if groups.contains(group) {
                return true;
            }
            let done = group.restore().and_then(|_| table.strike_group(*slot));
            let is_left = done.is_err();
            result = std::mem::replace(&mut result, Ok(())).and(done);
            is_left
        });
        for group in groups {
            if !self.held.contains_key(group) {
                result = result.and(self.hold_one(group, table));
            }
        }
        result
    }

    fn hold_one(&mut self, group: &Group, table: &mut Table) -> io::Result<()> {
        // The weight of an administrator stays.
        let Some(note) = group.to_bytes().filter(|_| !self.is_refused) else { return Ok(()) };
        if group.is_usual()? {
            let slot = table.enter_group(&note)?;
            let held = group.hold_back();
            if held.is_err() {
                table.strike_group(slot)?;
            }
            held?;
            self.held.insert(group.clone(), slot);
        }
        Ok(())
    }
}

/// The process of a vCPU.
fn process(vcpu: &Managed) -> u32 {
    vcpu.members.first().map_or(0, |member| member.thread.pid())
}

impl RealTime {
    /// Holds back the groups in which all vCPUs are held back, and no others.
    pub(super) fn hold_groups(&mut self, now: u64) {
        let held = self.vcpus.iter().flatten().filter(|vcpu| vcpu.held_since.is_some());
        let owing: BTreeSet<u32> = held.map(process).collect();
        self.look_up_one(&owing, now);
        let all = || self.vcpus.iter().flatten();
        let unknown: BTreeSet<u32> =
            all().filter(|vcpu| vcpu.groups.due == 0).map(process).collect();
        let mut groups = BTreeMap::new();
        for vcpu in all().filter(|vcpu| !unknown.contains(&process(vcpu))) {
            let is_held = vcpu.held_since.is_some_and(|since| now < since + HELD_NS);
            for group in &vcpu.groups.all {
                *groups.entry(group.clone()).or_insert(true) &= is_held;
            }
        }
        let held = groups.into_iter().filter_map(|(group, held)| held.then_some(group)).collect();
        if let Err(error) = self.groups.hold(&held, &mut self.table)
            && !std::mem::replace(&mut self.groups.is_refused, true)
        {
            tracing::warn!(
                "vCPUs are not held back against other groups: {error}; run the scheduler as root, \
                 or put the machines into one group"
            );
        }
    }

    /// Looks up the groups of one vCPU of these processes, if that is due. Its owner pays.
    fn look_up_one(&mut self, processes: &BTreeSet<u32>, now: u64) {
        let is_due = |vcpu: &Managed| vcpu.groups.due <= now && processes.contains(&process(vcpu));
        let due = self.places().find(|&id| self.known(id).is_some_and(is_due));
        let Some(id) = due.filter(|_| self.groups.next_look <= now) else { return };
        self.groups.next_look = now + LOOK_NS;
        self.for_vcpu(id, |this| {
            let Ok(vcpu) = this.managed(id) else { return };
            let first = vcpu.members.iter().take(1);
            let all = first.flat_map(|member| Group::above(&member.thread)).collect();
            vcpu.groups = VcpuGroups { all, due: now + KNOWN_NS };
        });
    }
}
