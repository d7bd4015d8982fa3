/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One vCPU's account: what crates/policy/src/loan/account.rs decides, step by step and in the same order, in the
 * integers that a BPF program has. Whoever changes one changes both. Nothing here is of BPF's or of the kernel's, so
 * a test compiles it for the host and compares the two on random events; the running program exports its steps to be
 * compared as well.
 *
 * Includers bring u8, u32, u64, s64 and `always_inline`.
 */
#ifndef VLANE_ACCOUNT_H
#define VLANE_ACCOUNT_H

#define PERMILLE 1000ULL
#define PPM 1000000ULL

enum policy { POLICY_CREDIT, POLICY_ALWAYS_BOOST, POLICY_LOAN };	/* adaptive is a loan whose terms change */
enum payment { PAY_LOAN, PAY_SHARE };
enum redemption { REDEEM_WHEN_SPENT, REDEEM_ALWAYS };
enum doing { BLOCKED, WAITING, RUNNING };
enum boosted { NOT_BOOSTED, BY_WAKE, BY_LOAN, BY_NOBODY };
enum class { CLASS_BOOST, CLASS_UNDER, CLASS_OVER, CLASSES };
enum decision { BOOST, ALREADY, IS_RUNNING, DENIED_WAITING, DENIED_OVER, DENIED_REDEEMING, DENIED_OVERDRAWN };

struct params {
	u64 line_ns, line_min_ns, line_max_ns;
	u64 cm_ref_ppm;
	u64 redemption_permille;
	u64 boost_max_ns, charge_max_ns;
	u64 review_ns;
	u64 credit_max_ns, overdraft_ns, credit_min_ns;
	u32 policy, payment, redemption, pad;
};

struct loan {
	u64 line_ns, spent_ns, carried_ns, redeemed_ns;
	u64 boosts;
	u64 since;
	u64 cm_ppm, cb_ns, next_line_ns;
	u32 has_since, redeeming;
};

struct totals {
	u64 allotted_ns, used_ns, boosted_ns, uncharged_ns, expired_ns, forgiven_ns, lent_ns, clamped_ns, redeemed_ns;
	u64 events, wake_boosts, boosts, denied, spent;
};

struct account {
	s64 credit_ns;
	struct loan loan;
	u64 base_line_ns, redemption_permille;
	u64 boost_used_ns;
	u32 boosted, pad;
	struct totals totals;
};

/*
 * a * b / c; c of 0 counts as 1. There are no 128-bit integers in BPF: a product that does not fit into 64 bits is
 * rounded, which the policy's is not. It takes five hours of boosted CPU time in one loan to get there.
 */
static always_inline u64 mul_div(u64 a, u64 b, u64 c)
{
	if (!c)
		c = 1;
	if (b && a > ~0ULL / b)
		return a / c > ~0ULL / b ? ~0ULL : a / c * b;
	return a * b / c;
}

static always_inline u64 at_least_zero(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

static always_inline u64 smaller(u64 a, u64 b)
{
	return a < b ? a : b;
}

static always_inline u64 larger(u64 a, u64 b)
{
	return a > b ? a : b;
}

static always_inline void account_open(struct account *a, const volatile struct params *p)
{
	*a = (struct account){};
	a->loan.line_ns = p->line_ns;
	a->loan.next_line_ns = p->line_ns;
	a->base_line_ns = p->line_ns;
	a->redemption_permille = p->redemption_permille;
}

static always_inline u32 account_class(const struct account *a)
{
	if (a->boosted)
		return CLASS_BOOST;
	return a->credit_ns > 0 ? CLASS_UNDER : CLASS_OVER;
}

static always_inline u64 loan_debt(const struct loan *l)
{
	return at_least_zero(l->spent_ns, l->redeemed_ns);
}

static always_inline u64 loan_left(const struct loan *l)
{
	return l->redeeming ? 0 : at_least_zero(l->line_ns, loan_debt(l));
}

/* cb and cm of the time since the first boost, and the next line from cm. */
static always_inline void loan_rate(struct loan *l, u64 now, u64 base_line_ns, const volatile struct params *p)
{
	u64 spent = at_least_zero(l->spent_ns, l->carried_ns), next;

	if (!l->has_since)
		return;
	l->cb_ns = spent / larger(l->boosts, 1);
	l->cm_ppm = mul_div(spent, PPM, larger(at_least_zero(now, l->since), 1));
	next = mul_div(base_line_ns, p->cm_ref_ppm, larger(l->cm_ppm, 1));
	l->next_line_ns = smaller(larger(next, p->line_min_ns), p->line_max_ns);
}

static always_inline void loan_renew(struct loan *l)
{
	l->line_ns = l->next_line_ns;
	l->spent_ns = loan_debt(l);
	l->carried_ns = l->spent_ns;
	l->redeemed_ns = 0;
	l->boosts = 0;
	l->has_since = 0;
	l->redeeming = 0;
}

static always_inline u32 account_boost(struct account *a, u32 kind)
{
	a->boosted = kind;
	a->boost_used_ns = 0;
	return BOOST;
}

static always_inline u32 account_event(struct account *a, u64 now, u32 doing, const volatile struct params *p)
{
	u32 denied = BOOST;

	a->totals.events++;
	if (doing == RUNNING)
		return IS_RUNNING;
	if (a->boosted)
		return ALREADY;
	if (doing == BLOCKED && a->credit_ns > 0) {
		a->totals.wake_boosts++;
		return account_boost(a, BY_WAKE);
	}
	if (p->policy == POLICY_CREDIT)
		denied = doing == BLOCKED ? DENIED_OVER : DENIED_WAITING;
	else if (p->policy == POLICY_LOAN && !loan_left(&a->loan))
		denied = DENIED_REDEEMING;
	else if (p->policy == POLICY_LOAN && p->payment == PAY_SHARE && a->credit_ns <= -(s64)p->overdraft_ns)
		denied = DENIED_OVERDRAWN;
	if (denied != BOOST) {
		a->totals.denied++;
		return denied;
	}
	a->totals.boosts++;
	if (p->policy == POLICY_ALWAYS_BOOST)
		return account_boost(a, BY_NOBODY);
	a->loan.boosts++;
	if (!a->loan.has_since) {
		a->loan.has_since = 1;
		a->loan.since = now;
	}
	return account_boost(a, BY_LOAN);
}

static always_inline void account_charge(struct account *a, u64 ns, const volatile struct params *p)
{
	s64 floor = -(s64)p->credit_min_ns;

	a->credit_ns -= (s64)ns;
	if (a->credit_ns < floor) {
		a->totals.forgiven_ns += (u64)(floor - a->credit_ns);
		a->credit_ns = floor;
	}
}

static always_inline void account_ran(struct account *a, u64 now, u64 ns, const volatile struct params *p)
{
	u64 before = a->boost_used_ns;
	u32 kind = a->boosted;

	a->totals.used_ns += ns;
	if (!kind) {
		account_charge(a, ns, p);
		return;
	}
	a->boost_used_ns += ns;
	a->totals.boosted_ns += ns;
	if (kind == BY_WAKE || (kind == BY_LOAN && p->payment == PAY_SHARE))
		account_charge(a, ns, p);
	else
		a->totals.uncharged_ns += ns;
	if (kind == BY_LOAN) {
		u64 charge = smaller(ns, at_least_zero(p->charge_max_ns, before));

		a->totals.clamped_ns += ns - charge;
		a->totals.lent_ns += charge;
		a->loan.spent_ns += charge;
		if (loan_debt(&a->loan) >= a->loan.line_ns) {
			a->totals.spent++;
			loan_rate(&a->loan, now, a->base_line_ns, p);
			a->loan.redeeming = 1;
			a->boosted = NOT_BOOSTED;
		}
	}
	if (a->boost_used_ns >= p->boost_max_ns)
		a->boosted = NOT_BOOSTED;
}

static always_inline void account_served(struct account *a)
{
	a->boosted = NOT_BOOSTED;
}

static always_inline void account_allot(struct account *a, u64 now, u64 allotment_ns, const volatile struct params *p)
{
	u64 keeps = allotment_ns, share = allotment_ns * a->redemption_permille / PERMILLE;

	a->totals.allotted_ns += allotment_ns;
	if (a->loan.redeeming || p->redemption == REDEEM_ALWAYS) {
		u64 redeems = smaller(share, loan_debt(&a->loan));

		a->loan.redeemed_ns += redeems;
		a->totals.redeemed_ns += redeems;
		if (p->payment == PAY_LOAN)
			keeps -= redeems;
	}
	a->credit_ns += (s64)keeps;
	if (a->credit_ns > (s64)p->credit_max_ns) {
		a->totals.expired_ns += (u64)(a->credit_ns - (s64)p->credit_max_ns);
		a->credit_ns = (s64)p->credit_max_ns;
	}
	if (a->loan.redeeming) {
		if (!loan_debt(&a->loan))
			loan_renew(&a->loan);
	} else if (p->review_ns && a->loan.has_since && at_least_zero(now, a->loan.since) >= p->review_ns) {
		loan_rate(&a->loan, now, a->base_line_ns, p);
		loan_renew(&a->loan);
	}
	if (p->redemption == REDEEM_ALWAYS)
		a->loan.line_ns = larger(a->loan.line_ns, smaller(share, p->line_max_ns));
}

#endif
