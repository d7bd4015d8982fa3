//! What the BPF program exports, as the policy's own types.

use vlane_policy::loan::record::{Entry, What};
use vlane_policy::loan::{
    Account, Boosted, Decision, Denial, Doing, Loan, Params, Payment, Policy, Redemption, Totals,
};

use super::bytes::Reader;
use crate::{Error, ErrorKind, Result};

/// `struct step`.
const STEP: usize = 72;
/// `struct vcpu`.
pub(crate) const VCPU: usize = 352;
/// `MAX_THREADS`.
pub(crate) const THREADS: usize = 16;

fn unknown<T>(what: &str, number: u32) -> Result<T> {
    Err(Error::new(
        ErrorKind::Protocol,
        format!("sched_ext: the BPF program told an unknown {what}: {number}"),
    ))
}

/// `enum decision`.
pub(crate) fn decision(number: u32, ns: u64) -> Result<Decision> {
    Ok(match number {
        0 => Decision::Boost { ns },
        1 => Decision::Already,
        2 => Decision::Running,
        3 => Decision::Denied(Denial::Waiting),
        4 => Decision::Denied(Denial::Over),
        5 => Decision::Denied(Denial::Redeeming),
        6 => Decision::Denied(Denial::Overdrawn),
        other => return unknown("decision", other),
    })
}

/// One exported step: its number among those of its account, and what happened, in order.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) vcpu: u32,
    pub(crate) seq: u64,
    pub(crate) entries: Vec<Entry>,
}

/// Reads a `struct step`.
pub(crate) fn step(bytes: &[u8], params: &Params) -> Result<Step> {
    let mut from = Reader::new(bytes, "step", STEP)?;
    let (seq, now, ran_ns, ns, redemption_permille) =
        (from.u64(), from.u64(), from.u64(), from.u64(), from.u64());
    let (credit_ns, debt_ns, line_ns) = (from.i64(), from.u64(), from.u64());
    let vcpu = from.u32();
    let (what, doing, decided, boosted) = (from.u8(), from.u8(), from.u8(), from.u8());
    let mut entries = Vec::with_capacity(2);
    let mut push = |what| entries.push(Entry { now, vcpu, what });
    if ran_ns > 0 {
        push(What::Ran { ns: ran_ns, boosted: boosted != 0 });
    }
    match what {
        0 => {}
        1 => {
            let doing = match doing {
                0 => Doing::Blocked,
                1 => Doing::Waiting,
                2 => Doing::Running,
                other => return unknown("doing", u32::from(other)),
            };
            push(What::Event { doing, decision: decision(u32::from(decided), params.boost_max_ns)? });
        }
        2 => push(What::Served),
        3 => push(What::Allot { ns, credit_ns, debt_ns, line_ns }),
        4 => push(What::Terms { base_line_ns: ns, redemption_permille }),
        other => return unknown("step", u32::from(other)),
    }
    Ok(Step { vcpu, seq, entries })
}

/// A `struct vcpu`, as far as user space looks at it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) account: Account,
    /// When it began to wait for a CPU, `CLOCK_MONOTONIC`; 0: it does not.
    pub(crate) waits_since: u64,
    pub(crate) tids: Vec<u32>,
    pub(crate) untracked: u32,
    pub(crate) seq: u64,
}

/// Reads a `struct vcpu`.
pub(crate) fn seen(bytes: &[u8]) -> Result<Seen> {
    let mut from = Reader::new(bytes, "vcpu", VCPU)?;
    let account = account(&mut from)?;
    let (_charged_until, seq, waits_since) = (from.u64(), from.u64(), from.u64());
    let _lock_open_running_runnable = [from.u32(), from.u32(), from.u32(), from.u32()];
    let _cpu = from.i32();
    let tids: Vec<i32> = (0..THREADS).map(|_| from.i32()).collect();
    let tids = tids.into_iter().filter(|tid| *tid > 0).map(i32::cast_unsigned).collect();
    Ok(Seen { account, waits_since, tids, untracked: from.u32(), seq })
}

/// Reads a `struct account`.
fn account(from: &mut Reader<'_>) -> Result<Account> {
    let credit_ns = from.i64();
    let (line_ns, spent_ns, carried_ns, redeemed_ns) = (from.u64(), from.u64(), from.u64(), from.u64());
    let (boosts, since) = (from.u64(), from.u64());
    let (cm_ppm, cb_ns, next_line_ns) = (from.u64(), from.u64(), from.u64());
    let (has_since, redeeming) = (from.u32() != 0, from.u32() != 0);
    let loan = Loan {
        line_ns,
        spent_ns,
        carried_ns,
        redeemed_ns,
        boosts,
        since: has_since.then_some(since),
        redeeming,
        cm_ppm,
        cb_ns,
        next_line_ns,
    };
    let (base_line_ns, redemption_permille, boost_used_ns) = (from.u64(), from.u64(), from.u64());
    let boosted = match from.u32() {
        0 => None,
        1 => Some(Boosted::Wake),
        2 => Some(Boosted::Loan),
        3 => Some(Boosted::Free),
        other => return unknown("boost", other),
    };
    let _pad = from.u32();
    let totals = Totals {
        allotted_ns: from.u64(),
        used_ns: from.u64(),
        boosted_ns: from.u64(),
        uncharged_ns: from.u64(),
        expired_ns: from.u64(),
        forgiven_ns: from.u64(),
        lent_ns: from.u64(),
        clamped_ns: from.u64(),
        redeemed_ns: from.u64(),
        events: from.u64(),
        wake_boosts: from.u64(),
        boosts: from.u64(),
        denied: from.u64(),
        spent: from.u64(),
    };
    Ok(Account { credit_ns, loan, base_line_ns, redemption_permille, boosted, boost_used_ns, totals })
}

/// `struct params`.
pub(crate) fn params(params: &Params) -> Vec<u8> {
    let policy = match params.policy {
        Policy::Credit => 0,
        Policy::AlwaysBoost => 1,
        // Adaptive is a loan whose terms user space changes.
        Policy::Loan | Policy::Adaptive => 2,
    };
    let payment = match params.payment {
        Payment::Loan => 0,
        Payment::Share => 1,
    };
    let redemption = match params.redemption {
        Redemption::WhenSpent => 0,
        Redemption::Always => 1,
    };
    let mut bytes = super::bytes::of_u64s(&[
        params.line_ns,
        params.line_min_ns,
        params.line_max_ns,
        params.cm_ref_ppm,
        params.redemption_permille,
        params.boost_max_ns,
        params.charge_max_ns,
        params.review_ns,
        params.credit_max_ns,
        params.overdraft_ns,
        params.credit_min_ns,
    ]);
    bytes.extend(super::bytes::of_u32s(&[policy, payment, redemption, 0]));
    bytes
}
