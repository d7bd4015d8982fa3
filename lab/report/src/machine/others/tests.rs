use super::*;

const ME: i32 = 50;

/// A process of its own group, with such a parent and these ticks.
fn process(pid: i32, parent: i32, ticks: u64) -> (i32, Process) {
    let of =
        Process { parent, group: pid, session: 1, start: 7, is_kernel: false, ticks, reaped: 0 };
    (pid, of)
}

/// Ticks of others between two looks.
fn used(before: &[(i32, Process)], after: &[(i32, Process)]) -> u64 {
    let mut looks = Looks::default();
    for all in [before, after] {
        let usual = [process(1, 0, 900), process(9, 1, 80), process(ME, 9, 500)];
        looks.add(ME, usual.into_iter().chain(all.iter().copied()).collect());
    }
    looks.used
}

#[test]
fn only_other_programs_count() {
    let of = |ticks| {
        let (kernel, worker) = process(3, 2, ticks);
        let worker = (kernel, Process { is_kernel: true, ..worker });
        [worker, process(60, ME, ticks), process(61, 60, ticks), process(70, 9, ticks)]
    };
    assert_eq!(used(&of(10), &of(30)), 20, "of process 70");
    // A number that is used again is another process.
    let again = (70, Process { start: 8, ..process(70, 9, 5).1 });
    assert_eq!(used(&of(10), &[again]), 5);
}

/// Process 60 was own and has ended; the others have its group, its session, or neither.
#[test]
fn detached_process_stays_own() {
    let of = |parent, ticks| {
        let (_, child) = process(61, parent, ticks);
        let in_group = (61, Process { group: 60, ..child });
        [in_group, (62, Process { group: 62, session: 60, ..child }), process(63, parent, ticks)]
    };
    let mut before = vec![process(60, ME, 1)];
    before.extend(of(60, 10));
    assert_eq!(used(&before, &of(1, 300)), 0, "all were seen as own");
    assert_eq!(used(&of(1, 10), &of(1, 300)), 3 * 290, "own ones were never seen");
}

#[test]
fn ended_children_count_once() {
    let parent = |reaped| (70, Process { reaped, ..process(70, 9, 5).1 });
    // Of process 71 and its child 40 ticks were known; 11 more are those of a process in between.
    let before = [parent(100), process(71, 70, 30), process(72, 71, 10)];
    assert_eq!(used(&before, &[parent(151)]), 11);
    // Own processes that detach end as children of an ancestor.
    let (pid, ancestor) = process(1, 0, 900);
    let reaped = (pid, Process { reaped: 400, ..ancestor });
    assert_eq!(used(&[], &[reaped]), 0);
}

#[test]
fn short_time_has_no_figure() {
    let begin = Instant::now();
    let between = |time| between(((3.0, begin), (6.0, begin + time)));
    assert_eq!(between(Duration::from_secs(4)), None);
    assert_eq!(between(Duration::from_secs(6)), Some(0.5));
    assert!(look().is_some());
}
