//! The shares to which weights entitle vCPUs, for people: machines share by weight, and the vCPUs
//! of one machine share its part.

use std::collections::BTreeMap;

use vlane_policy::loan::Claim;

/// The share that each vCPU is entitled to, percent, from claims and flags that say if the vCPU is
/// stopped. A stopped vCPU leaves its part to the others.
pub(super) fn percents(vcpus: &[(Claim, bool)]) -> Vec<f64> {
    let mut machines: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (claim, _) in vcpus.iter().filter(|(_, is_stopped)| !is_stopped) {
        machines.entry(claim.vm).or_insert((claim.weight, 0)).1 += 1;
    }
    let weights: f64 = machines.values().map(|&(weight, _)| f64::from(weight)).sum();
    let percent = |&(claim, is_stopped): &(Claim, bool)| match machines.get(&claim.vm) {
        Some(&(weight, members)) if !is_stopped => {
            f64::from(weight) / weights / f64::from(members) * 100.0
        }
        _ => 0.0,
    };
    vcpus.iter().map(percent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_vcpu_leaves_its_part_to_others() {
        let claim = |vm, weight| Claim { vm, weight, cap_permille: 0 };
        // Of two vCPUs one is stopped, and of another machine all are.
        let vcpus = [
            (claim(1, 100), false),
            (claim(1, 100), true),
            (claim(2, 300), false),
            (claim(3, 800), true),
        ];
        assert_eq!(percents(&vcpus), [25.0, 0.0, 75.0, 0.0]);
        let running = vcpus.map(|(claim, _)| (claim, false));
        let thousandths: Vec<f64> =
            percents(&running).iter().map(|p| (p * 1000.0).round()).collect();
        assert_eq!(thousandths, [4167.0, 4167.0, 25_000.0, 66_667.0]);
        assert_eq!(percents(&vcpus.map(|(claim, _)| (claim, true))), [0.0; 4]);
    }
}
