#![allow(clippy::unwrap_used, reason = "tests")]

use procfs::FromRead;

use super::*;

const ME: i32 = 50;

/// A process of its own group, with such a parent and these ticks.
fn process(pid: i32, parent: i32, ticks: u64) -> Stat {
    let rest = "0 ".repeat(40);
    let text =
        format!("{pid} (x) S {parent} {pid} 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 0 0 1 0 7 {rest}");
    Stat::from_read(text.as_bytes()).unwrap()
}

fn with(mut process: Stat, set: impl FnOnce(&mut Stat)) -> Stat {
    set(&mut process);
    process
}

/// Ticks of others between two looks.
fn used(before: &[Stat], after: &[Stat]) -> u64 {
    let mut looks = Looks::default();
    for all in [before, after] {
        let usual = [process(1, 0, 900), process(9, 1, 80), process(ME, 9, 500)];
        let all = usual.iter().chain(all).map(|of| (of.pid, of.clone()));
        looks.add(ME, all.collect());
    }
    looks.used
}

#[test]
fn only_other_programs_count() {
    let of = |ticks| {
        let worker = with(process(3, 2, ticks), |of| of.flags = KERNEL_THREAD);
        [worker, process(60, ME, ticks), process(61, 60, ticks), process(70, 9, ticks)]
    };
    assert_eq!(used(&of(10), &of(30)), 20, "of process 70");
    // A number that is used again is another process.
    let again = with(process(70, 9, 5), |of| of.starttime = 8);
    assert_eq!(used(&of(10), &[again]), 5);
}

/// Process 60 was own and has ended; the others have its group, its session, or neither.
#[test]
fn detached_process_stays_own() {
    let of = |parent, ticks| {
        let in_group = with(process(61, parent, ticks), |of| of.pgrp = 60);
        let in_session = with(process(62, parent, ticks), |of| of.session = 60);
        [in_group, in_session, process(63, parent, ticks)]
    };
    let mut before = vec![process(60, ME, 1)];
    before.extend(of(60, 10));
    assert_eq!(used(&before, &of(1, 300)), 0, "all were seen as own");
    assert_eq!(used(&of(1, 10), &of(1, 300)), 3 * 290, "own ones were never seen");
}

#[test]
fn ended_children_count_once() {
    let parent = |cutime| with(process(70, 9, 5), |of| of.cutime = cutime);
    // Of process 71 and its child 40 ticks were known; 11 more are those of a process in between.
    let before = [parent(100), process(71, 70, 30), process(72, 71, 10)];
    assert_eq!(used(&before, &[parent(151)]), 11);
    // Own processes that detach end as children of an ancestor.
    assert_eq!(used(&[], &[with(process(1, 0, 900), |of| of.cutime = 400)]), 0);
}

#[test]
fn short_time_has_no_figure() {
    let begin = Instant::now();
    let between = |time| between(((3.0, begin), (6.0, begin + time)));
    assert_eq!(between(Duration::from_secs(4)), None);
    assert_eq!(between(Duration::from_secs(6)), Some(0.5));
    assert!(look().is_some());
}
