/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler keeps, in maps and beside them, and the one way to change an account. Included once, by loan.bpf.c.
 */
#ifndef VLANE_STATE_H
#define VLANE_STATE_H

#include "kernel.h"
#include "account.h"

enum { MAX_VCPUS = 4096, MAX_CPUS = 1024, MAX_THREADS = 16 };
/* How many waiting threads a CPU looks at, at most, for one that it may run. */
enum { MAX_LOOKED_AT = 64 };
/* How far a waiting thread's credits take it from its place before it is moved. */
enum { MOVES_NS = 500000 };
/* Who is boosted and found no CPU, first in, first out; and all others, by their keys. */
enum { BOOSTED = 0x76000, TURNS };
/* What sched_ext does not run cannot be displaced. */
enum { CLASS_ABOVE = CLASS_BOOST, CLASS_IDLE = CLASSES };

/* Set by the loader before the program is loaded. */
/* volatile: they are not what they are initialized to. */
const volatile struct settings {
	struct params params;
	u64 slice_ns;
	u32 nr_cpus, recording;
} settings = {};
#define THE_PARAMS (&settings.params)

enum what { RAN, EVENT, SERVED, ALLOT, TERMS };

/* One step of an account, as user space reads it. `seq` counts the account's steps without gaps. */
struct step {
	u64 seq, now;
	u64 ran_ns;		/* used since the step before, charged before what follows */
	u64 ns;			/* of the allotment, or the new base line */
	u64 redemption_permille;
	s64 credit_ns;		/* the account afterwards */
	u64 debt_ns, line_ns;
	u32 vcpu;
	u8 what, doing, decision;
	u8 boosted;		/* after what it ran, before what follows */
};

struct vcpu {
	struct account account;
	u64 charged_until;
	u64 seq;
	u64 waits_since;	/* has threads that could run, and none that does; 0: no */
	struct bpf_spin_lock lock;
	u32 open;
	u32 running, runnable;	/* of its threads */
	s32 cpu;		/* where one of them ran last */
	s32 tids[MAX_THREADS];
	u32 untracked;		/* threads that had no place in tids */
	u32 pad;
};

struct allotment {
	u64 ns, base_line_ns, redemption_permille;
};

struct thread {
	s32 vcpu;		/* -1: of nobody that we know */
	u32 boosted;		/* when it was put on a CPU */
	u64 began;
	u64 slice;		/* that it still has, when it began */
	u64 left;		/* for another time at its old place in the queue */
	u64 key;		/* its place in TURNS */
};

struct told {
	s64 exit_code;
	s32 exit_kind;
	u32 exited;
	u64 lost;		/* steps that did not fit into the ring */
	u64 moved, missed;	/* threads that an event moved, and could not */
	u64 overtime;		/* boosts that the timer ended */
	u64 foreign;		/* threads of SCHED_EXT that nobody gave us */
	char reason[128];
	char message[256];
};

/* User space reads these by their layout (step.rs, notices.rs). */
_Static_assert(sizeof(struct step) == 72, "step");
_Static_assert(sizeof(struct vcpu) == 352, "vcpu");
_Static_assert(sizeof(struct told) == 440, "told");
_Static_assert(sizeof(struct settings) == 120, "settings");

struct timer {
	struct bpf_timer timer;
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, MAX_VCPUS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct vcpu);
} vcpus SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, MAX_VCPUS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct allotment);
} allotments SEC(".maps");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_VCPUS *MAX_THREADS);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, s32);
	MAP_TYPE(value, u32);
} vcpu_of_tid SEC(".maps");

struct {
	MAP_UINT(type, MAP_TASK_STORAGE);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct thread);
} threads SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, MAX_CPUS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct timer);
} timers SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct told);
} told SEC(".maps");

struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 1 << 23);
} steps SEC(".maps");

/* What runs on each CPU, as far as it is ours. */
struct cpu {
	u8 class, offline;
	u8 pad[2];
	s32 vcpu;
};
static struct cpu cpus[MAX_CPUS];

/*
 * What an account that gets usual allotments has got so far. A key is this less the credits: two that wait get the same
 * allotments meanwhile, so their keys stay comparable without being written again; those that got others are put right by
 * the accounting.
 */
static u64 level;

static struct vcpu *vcpu_at(u32 place)
{
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);

	return v && v->open ? v : NULL;
}

static struct told *the_told(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&told, &zero);
}

static struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, NULL, 0);
}

/*
 * The one way to change an account: begin() locks it and charges what its threads have used, end() unlocks it and
 * exports the step. Between them there is no call, as the verifier wants it.
 */
static always_inline u64 begin(struct vcpu *v, u64 now, struct step *s)
{
	u64 ns;

	bpf_spin_lock(&v->lock);
	/* CPUs may come here in another order than they read the clock. */
	if (now < v->charged_until)
		now = v->charged_until;
	ns = (now - v->charged_until) * v->running;
	v->charged_until = now;
	if (ns)
		account_ran(&v->account, now, ns, THE_PARAMS);
	s->now = now;
	s->ran_ns = ns;
	s->boosted = v->account.boosted != NOT_BOOSTED;
	return now;
}

static always_inline void end(struct vcpu *v, u32 place, struct step *s)
{
	bool tells = s->ran_ns || s->what != RAN;

	if (tells)
		s->seq = v->seq++;
	s->vcpu = place;
	s->credit_ns = v->account.credit_ns;
	s->debt_ns = loan_debt(&v->account.loan);
	s->line_ns = v->account.loan.line_ns;
	bpf_spin_unlock(&v->lock);
	if (settings.recording && tells && bpf_ringbuf_output(&steps, s, sizeof(*s), RINGBUF_NO_WAKEUP)) {
		struct told *t = the_told();

		if (t)
			__sync_fetch_and_add(&t->lost, 1);
	}
}

#endif
