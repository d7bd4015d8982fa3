//! The vCPUs of a machine that a source has announced, and the differences when it finds others.
//! The vCPUs may be plugged in and out while their machine runs.

use std::collections::BTreeMap;

use vlane_policy::loan::Claim;

use super::source::Mark;
use crate::VcpuThreads;

/// The vCPUs of a machine that are known, by index: token and threads.
#[derive(Debug, Default)]
pub(super) struct Announced(BTreeMap<u32, (u64, Vec<u32>)>);

impl Announced {
    /// Compares with the machine's vCPUs now: which have left, which have other threads, which are
    /// new. `token` names a new one.
    pub(super) fn compare(
        &mut self,
        vcpus: &[VcpuThreads],
        mut token: impl FnMut() -> u64,
        claim: impl Fn() -> Claim,
        marks: &mut Vec<Mark>,
    ) {
        let stays = |index: u32, was: &[u32]| {
            let now = vcpus.iter().find(|vcpu| vcpu.index == index);
            // Another one in its place has none of its threads.
            now.is_some_and(|now| now.tids.iter().any(|tid| was.contains(tid)))
        };
        self.0.retain(|&index, (token, tids)| {
            let stays = stays(index, tids);
            if !stays {
                marks.push(Mark::Left { token: *token });
            }
            stays
        });
        for vcpu in vcpus {
            match self.0.get_mut(&vcpu.index) {
                None => {
                    let token = token();
                    self.0.insert(vcpu.index, (token, vcpu.tids.clone()));
                    marks.push(Mark::Joined { token, vcpu: vcpu.clone(), claim: claim() });
                }
                Some((token, tids)) if *tids != vcpu.tids => {
                    tids.clone_from(&vcpu.tids);
                    marks.push(Mark::Changed { token: *token, vcpu: vcpu.clone() });
                }
                Some(_) => {}
            }
        }
    }

    /// The token of the vCPU with this index.
    pub(super) fn token(&self, index: u32) -> Option<u64> {
        self.0.get(&index).map(|&(token, _)| token)
    }

    /// All of them.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u64> {
        self.0.values().map(|&(token, _)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpu(index: u32, tids: &[u32]) -> VcpuThreads {
        VcpuThreads { pid: 9, index, tids: tids.to_vec(), name: format!("vCPU {index}") }
    }

    #[test]
    fn only_changed_vcpus_are_announced() {
        let (mut known, mut next) = (Announced::default(), 0);
        let mut compare = |vcpus: &[VcpuThreads]| {
            let mut marks = Vec::new();
            let token = || {
                next += 1;
                next
            };
            known.compare(vcpus, token, || Claim::of(9), &mut marks);
            marks
        };
        let joined = |token, vcpu| Mark::Joined { token, vcpu, claim: Claim::of(9) };
        let (zero, one) = (vcpu(0, &[10]), vcpu(1, &[11]));
        assert_eq!(
            compare(&[zero.clone(), one.clone()]),
            [joined(1, zero.clone()), joined(2, one.clone())]
        );
        assert_eq!(compare(&[zero.clone(), one.clone()]), []);
        // A child of the first, as User-Mode Linux makes them.
        let more = vcpu(0, &[10, 20]);
        assert_eq!(compare(&[more.clone(), one]), [Mark::Changed { token: 1, vcpu: more.clone() }]);
        // Unplugged; and plugged in again, with another thread.
        assert_eq!(compare(std::slice::from_ref(&more)), [Mark::Left { token: 2 }]);
        let again = vcpu(1, &[12]);
        assert_eq!(compare(&[more.clone(), again.clone()]), [joined(3, again)]);
        // Both at once: it cannot be mistaken for the earlier one.
        let other = vcpu(1, &[13]);
        assert_eq!(compare(&[more, other.clone()]), [Mark::Left { token: 3 }, joined(4, other)]);
        assert_eq!((known.token(0), known.token(1), known.tokens().count()), (Some(1), Some(4), 2));
    }
}
