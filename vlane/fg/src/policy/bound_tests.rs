#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::bound::{TERMINALS, THREADS};
use super::*;

const RAISE: Raise = Raise { nice: -10, io: Some(IoPriority::BEST) };
const PLAIN: Values = Values { nice: 0, io: IoPriority::NONE };

/// A process in the foreground of a terminal.
fn seen(pid: i32, user: u32, terminal: i32, threads: usize) -> Seen {
    let stat = Stat {
        pid,
        name: String::new(),
        state: 'S',
        parent: 1,
        group: terminal,
        session: terminal,
        terminal,
        foreground: terminal,
        nice: 0,
        threads: u32::try_from(threads).unwrap(),
        start: 7,
        stack: 7,
    };
    let thread =
        |at: usize| Thread { tid: pid + i32::try_from(at).unwrap(), start: 7, values: PLAIN };
    Seen { stat, threads: (0..threads).map(thread).collect(), owner: Some(format!("{user} 0::/")) }
}

/// Threads that are raised, and terminals that have any, of a user.
fn raised(policy: &Policy, user: &str) -> (usize, usize) {
    let of_user: Vec<&Known> = policy
        .known
        .values()
        .filter(|known| known.owner.as_deref().map(user_of) == Some(user))
        .collect();
    let threads = of_user.iter().map(|known| known.entries().count()).sum();
    let terminals = of_user.iter().filter(|known| known.entries().next().is_some());
    (
        threads,
        terminals.map(|known| known.terminal).collect::<std::collections::BTreeSet<_>>().len(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// A user may open and start anything over several looks: no more than the limit is raised, and
    /// others' foreground is.
    #[test]
    fn users_share_of_raised_threads_is_limited(
        looks in prop::collection::vec(prop::collection::vec((0_i32..40, 1_usize..200), 1..25), 1..3),
    ) {
        let mut policy = Policy::new(RAISE);
        let mut pid = 1000;
        for (tick, look) in looks.iter().enumerate() {
            let mut all = Vec::new();
            for (terminal, threads) in look {
                pid += 1000;
                all.push(seen(pid, 1000, 34816 + terminal, *threads));
            }
            policy.decide(&all, 100 + tick as u64, LookReason::Look);
            let (threads, terminals) = raised(&policy, "1000");
            prop_assert!(threads <= THREADS && terminals <= TERMINALS, "{} in {}", threads, terminals);
            prop_assert!(threads > 0);
        }
        for (user, name) in [(0, "0"), (1001, "1001")] {
            pid += 1000;
            policy.decide(&[seen(pid, user, 40_000 + pid, 9)], 200, LookReason::Look);
            prop_assert_eq!(raised(&policy, name).0, 9);
        }
    }
}

#[test]
fn ended_process_frees_its_room() {
    let mut policy = Policy::new(RAISE);
    let full = seen(10_000, 1000, 34816, THREADS);
    assert_eq!(policy.decide(std::slice::from_ref(&full), 100, LookReason::Look).len(), THREADS);
    let next = seen(20_000, 1000, 34816, 1);
    assert!(policy.decide(std::slice::from_ref(&next), 101, LookReason::Look).is_empty());
    // A process that was raised and grows beyond its user's limit is restored.
    assert!(
        policy
            .decide(&[seen(10_000, 1000, 34816, THREADS + 1)], 102, LookReason::Look)
            .iter()
            .all(|c| !c.raise)
    );
    assert_eq!(raised(&policy, "1000").0, 0);
    policy.gone(10_000, 103);
    assert_eq!(policy.decide(&[next], 104, LookReason::Look).len(), 1);
}
