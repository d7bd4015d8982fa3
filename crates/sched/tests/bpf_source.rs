//! The BPF objects in the repository are of the present source, and the scheduler's account decides what the policy decides.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use vlane_policy::loan::{Account, Boosted, Decision, Denial, Doing, Params, Payment, Policy, Redemption};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ext/bpf")
}

#[test]
fn the_objects_were_made_from_the_present_source() {
    let watch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../watch/src/bpf");
    let programs = [
        (folder(), "loan.bpf.o", &["account.h", "kernel.h", "loan.bpf.c", "state.h"][..]),
        (watch, "watch.bpf.o", &["kernel.h", "watch.bpf.c"]),
    ];
    for (folder, object, sources) in programs {
        let mut source = Vec::new();
        for name in sources {
            source.extend(std::fs::read(folder.join(name)).unwrap());
        }
        let noted = std::fs::read_to_string(folder.join(format!("{object}.source"))).unwrap();
        let present = format!("{:016x}", twox_hash::XxHash3_64::oneshot(&source));
        assert_eq!(noted.trim(), present, "{object}: the source has changed: cargo xtask bpf");
    }
}

/// Reads operations, does them on one account, and writes its state after each.
const HARNESS: &str = r#"
#include <stdio.h>
typedef unsigned char u8; typedef int s32; typedef unsigned int u32; typedef long long s64; typedef unsigned long long u64;
#define always_inline inline __attribute__((always_inline))
#include "account.h"
int main(void)
{
	struct params p; struct account a; char op; u64 now, x, y;
	while (scanf(" %c %llu %llu %llu", &op, &now, &x, &y) == 4) {
		u32 decided = 0;
		if (op == 'P') {
			u64 v[14];
			for (int i = 0; i < 14; i++) if (scanf("%llu", &v[i]) != 1) return 1;
			p = (struct params){ v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], 0 };
			account_open(&a, &p);
		}
		if (op == 'E') decided = account_event(&a, now, x, &p);
		if (op == 'R') account_ran(&a, now, x, &p);
		if (op == 'S') account_served(&a);
		if (op == 'A') account_allot(&a, now, x, &p);
		if (op == 'T') { a.base_line_ns = x; a.redemption_permille = y; }
		printf("%u %u %lld %llu %llu %llu %llu %llu %u %llu %llu %llu %llu", decided, a.boosted, a.credit_ns, a.loan.line_ns,
		       loan_debt(&a.loan), loan_left(&a.loan), a.loan.cm_ppm, a.loan.next_line_ns, a.loan.redeeming, a.boost_used_ns,
		       a.loan.cb_ns, a.loan.boosts, a.loan.has_since ? a.loan.since : 0);
		printf(" %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %u\n", a.totals.allotted_ns, a.totals.used_ns,
		       a.totals.boosted_ns, a.totals.uncharged_ns, a.totals.expired_ns, a.totals.forgiven_ns, a.totals.lent_ns,
		       a.totals.clamped_ns, a.totals.redeemed_ns, a.totals.events, a.totals.wake_boosts, a.totals.boosts,
		       a.totals.denied, a.totals.spent, account_class(&a));
		fflush(stdout);
	}
	return 0;
}
"#;

fn state(decided: u32, a: &Account) -> String {
    let boosted = match a.boosted {
        None => 0,
        Some(Boosted::Wake) => 1,
        Some(Boosted::Loan) => 2,
        Some(Boosted::Free) => 3,
    };
    let (l, t) = (&a.loan, &a.totals);
    format!(
        "{decided} {boosted} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        a.credit_ns,
        l.line_ns,
        l.debt_ns(),
        l.left_ns(),
        l.cm_ppm,
        l.next_line_ns,
        u8::from(l.redeeming),
        a.boost_used_ns,
        l.cb_ns,
        l.boosts,
        l.since.unwrap_or(0),
        t.allotted_ns,
        t.used_ns,
        t.boosted_ns,
        t.uncharged_ns,
        t.expired_ns,
        t.forgiven_ns,
        t.lent_ns,
        t.clamped_ns,
        t.redeemed_ns,
        t.events,
        t.wake_boosts,
        t.boosts,
        t.denied,
        t.spent,
        a.priority() as u8
    )
}

const fn number(decision: Decision) -> u32 {
    match decision {
        Decision::Boost { .. } => 0,
        Decision::Already => 1,
        Decision::Running => 2,
        Decision::Denied(Denial::Waiting) => 3,
        Decision::Denied(Denial::Over) => 4,
        Decision::Denied(Denial::Redeeming) => 5,
        Decision::Denied(Denial::Overdrawn) => 6,
    }
}

#[derive(Debug, Clone)]
enum Op {
    Event(u64),
    Ran(u64),
    Served,
    Allot(u64),
    Terms(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..3).prop_map(Op::Event),
        4 => (0u64..6_000_000).prop_map(Op::Ran),
        2 => Just(Op::Served),
        2 => (0u64..30_000_000).prop_map(Op::Allot),
        1 => (500_000u64..10_000_000, 50u64..1000).prop_map(|(line, share)| Op::Terms(line, share)),
    ]
}

fn params() -> impl Strategy<Value = Params> {
    (0usize..4, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(policy, paper, share, always, review)| {
            let mut params = if paper { Params::paper() } else { Params::sound(Policy::Loan) };
            params.policy = Policy::ALL[policy];
            params.payment = if share { Payment::Share } else { Payment::Loan };
            params.redemption = if always { Redemption::Always } else { Redemption::WhenSpent };
            if !review {
                params.review_ns = 0;
            }
            params
        },
    )
}

#[test]
fn the_account_in_c_takes_every_step_as_the_policy_does() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("harness.c"), dir.path().join("harness"));
    std::fs::write(&source, HARNESS).unwrap();
    let cc =
        Command::new("cc").arg("-O1").arg("-I").arg(folder()).arg(&source).arg("-o").arg(&program).status();
    match cc {
        Ok(status) => assert!(status.success()),
        Err(e) => return vlane_testing::skip(format!("no C compiler: {e}")),
    }
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
    let mut runner = proptest::test_runner::TestRunner::default();
    let steps = prop::collection::vec((0u64..40_000_000, op()), 1..120);
    let pipe = std::cell::RefCell::new((to, from));
    let outcome = runner.run(&(params(), steps), |(p, steps)| {
        let (to, from) = &mut *pipe.borrow_mut();
        let policy = match p.policy {
            Policy::Credit => 0,
            Policy::AlwaysBoost => 1,
            Policy::Loan | Policy::Adaptive => 2,
        };
        let (pays, redeems) =
            (u64::from(p.payment == Payment::Share), u64::from(p.redemption == Redemption::Always));
        writeln!(
            to,
            "P 0 0 0 {} {} {} {} {} {} {} {} {} {} {} {policy} {pays} {redeems}",
            p.line_ns,
            p.line_min_ns,
            p.line_max_ns,
            p.cm_ref_ppm,
            p.redemption_permille,
            p.boost_max_ns,
            p.charge_max_ns,
            p.review_ns,
            p.credit_max_ns,
            p.overdraft_ns,
            p.credit_min_ns
        )
        .unwrap();
        let mut account = Account::new(&p);
        prop_assert_eq!(from.next().unwrap().unwrap(), state(0, &account));
        let mut now = 1;
        for (pause, op) in steps {
            now += pause;
            let mut decided = 0;
            match op {
                Op::Event(doing) => {
                    writeln!(to, "E {now} {doing} 0").unwrap();
                    let doing =
                        [Doing::Blocked, Doing::Waiting, Doing::Running][usize::try_from(doing).unwrap()];
                    decided = number(account.event(now, doing, &p));
                }
                Op::Ran(ns) => {
                    writeln!(to, "R {now} {ns} 0").unwrap();
                    account.ran(now, ns, &p);
                }
                Op::Served => {
                    writeln!(to, "S {now} 0 0").unwrap();
                    account.served();
                }
                Op::Allot(ns) => {
                    writeln!(to, "A {now} {ns} 0").unwrap();
                    account.allot(now, ns, &p);
                }
                Op::Terms(line, share) => {
                    writeln!(to, "T {now} {line} {share}").unwrap();
                    account.base_line_ns = line;
                    account.redemption_permille = share;
                }
            }
            prop_assert_eq!(from.next().unwrap().unwrap(), state(decided, &account));
        }
        Ok(())
    });
    drop(pipe);
    assert!(child.wait().unwrap().success());
    outcome.unwrap();
}
