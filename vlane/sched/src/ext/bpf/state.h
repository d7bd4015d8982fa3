/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler keeps, in maps and beside them, and the one way to count what a vCPU uses. Included once, by loan.bpf.c.
 *
 * Who is boosted, for how long, and what its credits are the daemon decides (vlane/policy/src/loan): here is what its queue and the end of
 * a boost need at every switch.
 */
#ifndef VLANE_STATE_H
#define VLANE_STATE_H

#include "kernel.h"

enum { MAX_VCPUS = 4096, MAX_CPUS = 1024, MAX_THREADS = 16 };
/* How many waiting threads a CPU looks at, at most, for one that it may run. */
enum { MAX_LOOKED_AT = 64 };
/* How far a waiting thread's credits take it from its place before it is moved. */
enum { MOVES_NS = 500000 };
/* Who is boosted and found no CPU, first in, first out; and all others, by their keys. */
enum { BOOSTED = 0x76000, TURNS };
enum class { CLASS_BOOST, CLASS_UNDER, CLASS_OVER, CLASSES };
/* What sched_ext does not run cannot be displaced. */
enum { CLASS_ABOVE = CLASS_BOOST, CLASS_IDLE = CLASSES };

/* Set by the loader before the program is loaded. */
/* volatile: they are not what they are initialized to. */
const volatile struct settings {
	u64 slice_ns;
	u32 nr_cpus, pad;
} settings = {};

struct vcpu {
	/* CPU time of its threads: all, that of boosts, and what was charged to its credits. They only grow. */
	u64 used_ns, boosted_ns, charged_ns;
	s64 base_ns;		/* its credits, as the daemon told them last, were nothing charged */
	u64 boost_left_ns;	/* of the boost that is on; 0: none is */
	u64 counted_until;
	u64 waits_since;	/* has threads that could run, and none that does; 0: no */
	struct bpf_spin_lock lock;
	u32 open;
	u32 running, runnable;	/* of its threads */
	s32 cpu;		/* where one of them ran last */
	u32 boost_is_charged;	/* to its credits */
	s32 tids[MAX_THREADS];
	u32 untracked;		/* threads that had no place in tids */
	u32 pad;
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
	u64 moved, missed;	/* threads that an event moved, and could not */
	u64 overtime;		/* boosts that the timer ended */
	u64 foreign;		/* threads of SCHED_EXT that nobody gave us */
	char reason[128];
	char message[256];
};

/* User space reads these by their layout (seen.rs, notices.rs). */
_Static_assert(sizeof(struct vcpu) == 152, "vcpu");
_Static_assert(sizeof(struct told) == 432, "told");
_Static_assert(sizeof(struct settings) == 16, "settings");

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
	MAP_TYPE(value, s64);
} bases SEC(".maps");

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

static always_inline u64 at_least_zero(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

static always_inline s64 credits(const struct vcpu *v)
{
	return v->base_ns - (s64)v->charged_ns;
}

static always_inline u32 class_of(const struct vcpu *v)
{
	if (v->boost_left_ns)
		return CLASS_BOOST;
	return credits(v) > 0 ? CLASS_UNDER : CLASS_OVER;
}

/* Counts what its threads have used until now, and ends a boost that has had its time. Its lock is held. */
static always_inline u64 count(struct vcpu *v, u64 now)
{
	u64 ns;

	/* CPUs may come here in another order than they read the clock. */
	if (now < v->counted_until)
		now = v->counted_until;
	ns = (now - v->counted_until) * v->running;
	v->counted_until = now;
	v->used_ns += ns;
	if (v->boost_left_ns)
		v->boosted_ns += ns;
	if (!v->boost_left_ns || v->boost_is_charged)
		v->charged_ns += ns;
	v->boost_left_ns = at_least_zero(v->boost_left_ns, ns);
	return now;
}

#endif
