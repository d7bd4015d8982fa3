/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A sched_ext scheduler for vCPU threads, and for nothing else (SCX_OPS_SWITCH_PARTIAL): threads become its own when
 * the daemon gives them the policy SCHED_EXT.
 *
 * What every vCPU uses is counted when one of its threads starts, stops or meets a tick. The accounts are the daemon's: it decides at an
 * event, with the policy's own code, and says who is boosted and for how much CPU time. Boosts come first. All others wait in one queue,
 * who has most credits before the others: so UNDER comes before OVER, a boost costs nobody its place, and who has run ahead waits until
 * the others have caught up. The credits come every 30 ms from the daemon; what is used meanwhile is taken off here. Should it stop,
 * nobody is boosted, and all take turns by what they have used since, which is fair.
 *
 * The daemon runs `boost`, `end_boost` and `account` with BPF_PROG_RUN. `boost` moves the waiting thread to those that are boosted, and
 * kicks a CPU, in the same call: about as much as a futex call. A boost that is not served ends by a timer of its CPU when it has had
 * its time, not at the next tick.
 */
#include "state.h"

char _license[] SEC("license") = "GPL";

/* What competes for a CPU there. */
static u32 class_on(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);
	struct task_struct *curr;

	if (!rq || cpu < 0 || cpu >= MAX_CPUS || cpus[cpu].offline)
		return CLASS_ABOVE;
	curr = rq->curr;
	if (curr->flags & PF_IDLE)
		return CLASS_IDLE;
	if (curr->policy != SCHED_EXT)
		return CLASS_ABOVE;
	return cpus[cpu].class;
}

/* Bound to its CPU for the moment. Not told of the current thread: running a BPF program disables migration of that. */
static bool is_surely_bound(const struct task_struct *p)
{
	return KERNEL_HAS_FIELD(p->migration_disabled) && p->migration_disabled && bpf_get_current_task_btf() != p;
}

/* A CPU that p may use and whose present thread matters less than `class`; the first where OVER or nobody runs. */
static s32 find_cpu(struct task_struct *p, u32 class, u32 *found)
{
	s32 first = scx_bpf_task_cpu(p), best = -1, i;

	*found = class;
	for_range(i, 0, settings.nr_cpus) {
		/* It can go nowhere else than where it is. */
		if (i && is_surely_bound(p))
			break;
		s32 cpu = first + i;
		u32 there;

		if (cpu >= settings.nr_cpus)
			cpu -= settings.nr_cpus;
		if (cpu < 0 || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		there = class_on(cpu);
		if (there > *found) {
			*found = there;
			best = cpu;
			if (there >= CLASS_OVER)
				break;
		}
	}
	return best;
}

/* Whether it may be bound: nobody may move it to another CPU's own queue then, which would end the scheduler. */
static bool is_bound(const struct task_struct *p)
{
	return bpf_get_current_task_btf() == p || is_surely_bound(p);
}

static void kick(s32 cpu, u32 there)
{
	scx_bpf_kick_cpu(cpu, there == CLASS_IDLE ? SCX_KICK_IDLE : SCX_KICK_PREEMPT);
}

/* The class of a thread's vCPU, how long it may run before somebody else's turn, and its place in the queue. */
static u32 standing(struct thread *t, u64 *slice, u64 *key)
{
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;
	u64 left;

	*slice = settings.slice_ns;
	*key = level;
	if (!v) {
		/* Who has no account has a place that ages with what it uses: nobody's turn is put off by it for good. */
		if (t && (s64)(t->key - level) > 0)
			*key = t->key;
		return CLASS_OVER;
	}
	*key -= (u64)credits(v);
	left = v->boost_left_ns;
	if (!left)
		return credits(v) > 0 ? CLASS_UNDER : CLASS_OVER;
	*slice = left;
	return CLASS_BOOST;
}

static void given(struct thread *t, u64 slice, u64 key)
{
	if (t) {
		t->slice = slice;
		t->key = key;
		t->left = 0;
	}
}

/*
 * Whether somebody waits who may run on this CPU and whose turn comes before that key. Behind so many that may not run here nobody looks
 * further: then the kernel, which looks at all of them, gives the turn to the first that may, if there is one.
 */
static bool somebody_before(s32 cpu, u64 key)
{
	struct bpf_iter_scx_dsq it;
	bool before = 0;
	s32 i;

	if (!bpf_iter_scx_dsq_new(&it, TURNS, 0)) {
		before = 1;
		for_range(i, 0, MAX_LOOKED_AT) {
			struct task_struct *next = bpf_iter_scx_dsq_next(&it);

			if (!next || (s64)(next->scx.dsq_vtime - key) > 0) {
				before = 0;
				break;
			}
			if (bpf_cpumask_test_cpu(cpu, next->cpus_ptr) &&
			    !(is_surely_bound(next) && scx_bpf_task_cpu(next) != cpu))
				break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return before;
}

SEC("struct_ops/loan_select_cpu")
int loan_select_cpu(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	s32 prev = args[1], cpu;
	struct thread *t = thread_of(p);
	bool idle = 0;
	u64 slice, key;

	cpu = scx_bpf_select_cpu_dfl(p, prev, args[2], &idle);
	if (idle) {
		standing(t, &slice, &key);
		given(t, slice, key);
		dsq_insert(p, KERNEL_VALUE(scx_dsq_id_flags, SCX_DSQ_LOCAL), slice, 0);
	}
	return cpu;
}

SEC("struct_ops/loan_enqueue")
int loan_enqueue(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	u64 flags = args[1], slice, key;
	bool wakes = flags & KERNEL_VALUE(scx_enq_flags, SCX_ENQ_WAKEUP);
	struct thread *t = thread_of(p);
	u32 class = standing(t, &slice, &key), there;
	s32 cpu = -1;

	if (class == CLASS_BOOST) {
		cpu = find_cpu(p, class, &there);
		given(t, slice, key);
		if (cpu >= 0 && (cpu == scx_bpf_task_cpu(p) || !is_bound(p))) {
			dsq_insert(p, KERNEL_VALUE(scx_dsq_id_flags, SCX_DSQ_LOCAL_ON) | cpu, slice,
				   flags | KERNEL_VALUE(scx_enq_flags, SCX_ENQ_HEAD) |
					   KERNEL_VALUE(scx_enq_flags, SCX_ENQ_PREEMPT));
			return 0;
		}
		dsq_insert(p, BOOSTED, slice, flags);
		if (cpu >= 0)
			kick(cpu, there);
		return 0;
	}
	/* Whoever had to make way for a boost goes on with the rest of its turn, at the place that it had. */
	if (!wakes && t && t->left) {
		slice = t->left;
		key = t->key;
	}
	given(t, slice, key);
	dsq_insert_at(p, TURNS, slice, key, flags);
	/*
	 * An idle CPU has to be told; who is UNDER comes before who is OVER at once when it wakes. Who lost its CPU to a class above
	 * only asks for one that is idle.
	 */
	if (wakes || flags & KERNEL_VALUE(scx_enq_flags, SCX_ENQ_REENQ)) {
		cpu = find_cpu(p, wakes ? class : CLASS_OVER, &there);
		if (cpu >= 0)
			kick(cpu, there);
	}
	return 0;
}

SEC("struct_ops/loan_dispatch")
int loan_dispatch(u64 *args)
{
	struct task_struct *prev = (void *)args[1];
	s32 cpu = args[0];
	struct thread *t = NULL;
	u32 class = CLASS_OVER;
	u64 slice, key;

	if (dsq_move_to_local(BOOSTED))
		return 0;
	/* The one that has just used its slice is in no queue yet. */
	if (prev && prev->scx.flags & KERNEL_VALUE(scx_ent_flags, SCX_TASK_QUEUED)) {
		t = thread_of(prev);
		class = standing(t, &slice, &key);
	}
	if ((!t || (class != CLASS_BOOST && somebody_before(cpu, key))) && dsq_move_to_local(TURNS))
		return 0;
	if (t) {
		/* It goes on: the kernel says neither that it stops nor that it runs. */
		given(t, slice, key);
		t->began = bpf_ktime_get_ns();
		t->boosted = class == CLASS_BOOST;
		set_slice(prev, slice);
		if (cpu >= 0 && cpu < MAX_CPUS)
			cpus[cpu].class = class;
	}
	return 0;
}

SEC("struct_ops/loan_runnable")
int loan_runnable(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;
	u64 now = bpf_ktime_get_ns();

	if (!v)
		return 0;
	bpf_spin_lock(&v->lock);
	v->runnable++;
	if (!v->running && !v->waits_since)
		v->waits_since = now;
	bpf_spin_unlock(&v->lock);
	return 0;
}

SEC("struct_ops/loan_quiescent")
int loan_quiescent(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;

	if (!v)
		return 0;
	bpf_spin_lock(&v->lock);
	if (v->runnable)
		v->runnable--;
	if (!v->runnable)
		v->waits_since = 0;
	bpf_spin_unlock(&v->lock);
	return 0;
}

SEC("struct_ops/loan_running")
int loan_running(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;
	s32 cpu = scx_bpf_task_cpu(p);
	u32 class = CLASS_OVER, key = cpu;
	u64 now = bpf_ktime_get_ns(), rest = 0;

	if (v) {
		bpf_spin_lock(&v->lock);
		count(v, now);
		v->running++;
		v->cpu = cpu;
		v->waits_since = 0;
		class = class_of(v);
		rest = v->boost_left_ns;
		bpf_spin_unlock(&v->lock);
		t->boosted = class == CLASS_BOOST;
	}
	if (t)
		t->began = now;
	if (cpu >= 0 && cpu < MAX_CPUS) {
		cpus[cpu].class = class;
		cpus[cpu].vcpu = v ? t->vcpu : -1;
	}
	if (class == CLASS_BOOST) {
		struct timer *timer = bpf_map_lookup_elem(&timers, &key);

		if (timer)
			bpf_timer_start(&timer->timer, rest, TIMER_CPU_PIN);
	}
	return 0;
}

SEC("struct_ops/loan_stopping")
int loan_stopping(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	bool runnable = args[1];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;
	s32 cpu = scx_bpf_task_cpu(p);
	u64 now = bpf_ktime_get_ns(), used;

	if (cpu >= 0 && cpu < MAX_CPUS) {
		cpus[cpu].class = CLASS_IDLE;
		cpus[cpu].vcpu = -1;
	}
	if (!v) {
		if (t)
			t->key = ((s64)(t->key - level) > 0 ? t->key : level) + at_least_zero(now, t->began);
		return 0;
	}
	bpf_spin_lock(&v->lock);
	count(v, now);
	if (v->running)
		v->running--;
	if (!v->running && runnable)
		v->waits_since = now;
	bpf_spin_unlock(&v->lock);
	/*
	 * What is left of the turn, of all that it has had of it: tasks of a class above interrupt a turn without an end
	 * of it (no enqueue, no new slice). Less than a tenth is not worth a place at the head. A boost was no turn.
	 */
	used = at_least_zero(now, t->began);
	t->slice = at_least_zero(t->slice, used);
	t->left = !t->boosted && t->slice > settings.slice_ns / 10 ? t->slice : 0;
	return 0;
}

/* Counts, and says whether that ended a boost. */
static bool boost_ended(struct vcpu *v, u32 *class, u64 *rest)
{
	u64 now = bpf_ktime_get_ns(), before;

	bpf_spin_lock(&v->lock);
	before = v->boost_left_ns;
	count(v, now);
	*class = class_of(v);
	*rest = v->boost_left_ns;
	bpf_spin_unlock(&v->lock);
	return before && !*rest;
}

SEC("struct_ops/loan_tick")
int loan_tick(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;
	s32 cpu = scx_bpf_task_cpu(p);
	u32 class;
	u64 rest;

	if (!v)
		return 0;
	if (boost_ended(v, &class, &rest) ||
	    (class != CLASS_BOOST && scx_bpf_dsq_nr_queued(BOOSTED) > 0))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	if (cpu >= 0 && cpu < MAX_CPUS)
		cpus[cpu].class = class;
	return 0;
}

/* A CPU's boost may have had its time. */
static int boost_timer(void *map, u32 *key, struct timer *timer)
{
	s32 cpu = *key, place;
	struct vcpu *v;
	u32 class;
	u64 rest;

	if (cpu < 0 || cpu >= MAX_CPUS || cpus[cpu].class != CLASS_BOOST)
		return 0;
	place = cpus[cpu].vcpu;
	v = place >= 0 ? vcpu_at(place) : NULL;
	if (!v)
		return 0;
	if (boost_ended(v, &class, &rest)) {
		struct told *t = the_told();

		if (t)
			__sync_fetch_and_add(&t->overtime, 1);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	} else if (class == CLASS_BOOST) {
		bpf_timer_start(&timer->timer, rest, TIMER_CPU_PIN);
	}
	return 0;
}

/*
 * A CPU goes to a class above sched_ext's: what waits in its own queue may run elsewhere. Migration of the current thread, which is
 * among that, is disabled here because a BPF program runs: since 6.14 the kernel would give such a thread a new turn of 20 ms in the
 * CPU's own queue without asking, so one that is interrupted often would keep the CPU for seconds
 * (SCX_OPS_ENQ_MIGRATION_DISABLED, which the loader sets, makes it ask).
 */
SEC("struct_ops/loan_cpu_release")
int loan_cpu_release(u64 *args)
{
	s32 cpu = args[0];

	if (cpu >= 0 && cpu < MAX_CPUS)
		cpus[cpu].class = CLASS_ABOVE;
	scx_bpf_reenqueue_local();
	return 0;
}

SEC("struct_ops/loan_cpu_online")
int loan_cpu_online(u64 *args)
{
	s32 cpu = args[0];

	if (cpu >= 0 && cpu < MAX_CPUS)
		cpus[cpu].offline = 0;
	return 0;
}

SEC("struct_ops/loan_cpu_offline")
int loan_cpu_offline(u64 *args)
{
	s32 cpu = args[0];

	if (cpu >= 0 && cpu < MAX_CPUS)
		cpus[cpu].offline = 1;
	return 0;
}

/* Keeps the list of a vCPU's threads: `boost` has to find the one that waits. */
static void list_thread(struct vcpu *v, s32 was, s32 becomes)
{
	bool done = 0;

	bpf_spin_lock(&v->lock);
	for (u32 i = 0; i < MAX_THREADS; i++) {
		if (!done && v->tids[i] == was) {
			v->tids[i] = becomes;
			done = 1;
		}
	}
	if (!done && !was)
		v->untracked++;
	bpf_spin_unlock(&v->lock);
}

/* A thread becomes ours: because the daemon gave it to us, or because its parent, who makes it, is ours. */
SEC("struct_ops/loan_enable")
int loan_enable(u64 *args)
{
	struct task_struct *p = (void *)args[0], *parent;
	struct thread *t = bpf_task_storage_get(&threads, p, NULL, STORAGE_CREATE), *of_parent = NULL;
	s32 tid = p->pid, place = -1;
	struct vcpu *v = NULL;
	struct told *told;
	u32 *found;

	if (!t)
		return 0;
	found = bpf_map_lookup_elem(&vcpu_of_tid, &tid);
	if (found) {
		place = *found;
	} else {
		parent = bpf_get_current_task_btf();
		if (parent)
			of_parent = bpf_task_storage_get(&threads, parent, NULL, 0);
		if (of_parent)
			place = of_parent->vcpu;
	}
	if (place >= 0)
		v = vcpu_at(place);
	t->vcpu = v ? place : -1;
	t->slice = t->left = t->key = 0;
	if (v) {
		list_thread(v, 0, tid);
	} else {
		told = the_told();
		if (told)
			__sync_fetch_and_add(&told->foreign, 1);
	}
	return 0;
}

SEC("struct_ops/loan_disable")
int loan_disable(u64 *args)
{
	struct task_struct *p = (void *)args[0];
	struct thread *t = thread_of(p);
	struct vcpu *v = t && t->vcpu >= 0 ? vcpu_at(t->vcpu) : NULL;

	if (v)
		list_thread(v, p->pid, 0);
	if (t)
		t->vcpu = -1;
	return 0;
}

SEC("struct_ops.s/loan_init")
int loan_init(u64 *args)
{
	const struct cpumask *online;
	s32 error, i;

	error = scx_bpf_create_dsq(BOOSTED, -1);
	if (!error)
		error = scx_bpf_create_dsq(TURNS, -1);
	if (error)
		return error;
	online = scx_bpf_get_online_cpumask();
	for_range(i, 0, settings.nr_cpus) {
		u32 key = i;
		struct timer *timer = bpf_map_lookup_elem(&timers, &key);

		if (!timer || i < 0 || i >= MAX_CPUS)
			break;
		cpus[i].class = CLASS_IDLE;
		cpus[i].vcpu = -1;
		cpus[i].offline = !bpf_cpumask_test_cpu(i, online);
		error = bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
		if (!error)
			error = bpf_timer_set_callback(&timer->timer, boost_timer);
		if (error)
			break;
	}
	scx_bpf_put_cpumask(online);
	return error;
}

SEC("struct_ops/loan_exit")
int loan_exit(u64 *args)
{
	struct scx_exit_info *info = (void *)args[0];
	struct told *t = the_told();

	if (!t)
		return 0;
	t->exit_kind = info->kind;
	t->exit_code = info->exit_code;
	bpf_probe_read_kernel_str(t->reason, sizeof(t->reason), info->reason);
	bpf_probe_read_kernel_str(t->message, sizeof(t->message), info->msg);
	t->exited = 1;
	return 0;
}

/*
 * Moves a thread of ours that waits in TURNS to those that are boosted, and makes a CPU take it. Not into that CPU's own queue: nothing
 * here keeps the thread's affinity from changing before it is moved, and a thread in the own queue of a CPU that it may not use ends the
 * scheduler. The kernel looks at it when a CPU takes it, with the locks for that.
 */
static bool promote(struct task_struct *p, s32 place, u64 slice)
{
	struct thread *t = thread_of(p);
	struct bpf_iter_scx_dsq it;
	bool moved = 0;
	u32 there;
	s32 cpu;

	/* The number may be another thread's by now. */
	if (!t || t->vcpu != place)
		return 0;
	if (!bpf_iter_scx_dsq_new(&it, TURNS, 0))
		moved = dsq_move(&it, p, slice, BOOSTED, 0);
	bpf_iter_scx_dsq_destroy(&it);
	if (!moved)
		return 0;
	given(t, slice, t->key);
	cpu = find_cpu(p, CLASS_BOOST, &there);
	/* Should its affinity change now, it is enqueued again, and another CPU is kicked. */
	if (cpu >= 0)
		kick(cpu, there);
	return 1;
}

/* The same, by number. Not static, so that the verifier looks at it once and not in every turn of a loop. */
__attribute__((noinline)) int promote_tid(s32 tid, s32 place, u64 slice)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	bool moved;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	moved = promote(p, place, slice);
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return moved;
}

struct boost {
	u32 vcpu;
	u32 is_charged;		/* to its credits */
	u64 ns;			/* CPU time after which it ends, served or not */
	u32 found;		/* out: whether there is such a vCPU */
	u32 pad;
};

SEC("syscall")
int boost(struct boost *e)
{
	u32 place = e->vcpu, is_charged = e->is_charged, i;
	struct vcpu *v = vcpu_at(place);
	struct told *told = the_told();
	u64 now = bpf_ktime_get_ns(), ns = e->ns;
	bool waits, moved = 0;

	e->found = 0;
	if (!v || !told)
		return 0;
	bpf_spin_lock(&v->lock);
	count(v, now);
	v->boost_left_ns = ns;
	v->boost_is_charged = is_charged;
	waits = v->runnable && !v->running;
	bpf_spin_unlock(&v->lock);
	e->found = 1;
	if (!waits)
		return 0;
	for_range(i, 0, MAX_THREADS) {
		s32 tid = i < MAX_THREADS ? v->tids[i] : 0;

		if (tid)
			moved |= promote_tid(tid, place, ns);
	}
	/* Between two queues, or behind a task of a class above in a CPU's own: it is boosted when it gets there. */
	__sync_fetch_and_add(moved ? &told->moved : &told->missed, 1);
	return 0;
}

struct end_boost {
	u32 vcpu;
	u32 ended;		/* out: whether one was on */
};

SEC("syscall")
int end_boost(struct end_boost *e)
{
	struct vcpu *v = vcpu_at(e->vcpu);
	u64 now = bpf_ktime_get_ns();
	bool boosted, running;
	s32 cpu;

	e->ended = 0;
	if (!v)
		return 0;
	bpf_spin_lock(&v->lock);
	count(v, now);
	boosted = v->boost_left_ns;
	v->boost_left_ns = 0;
	running = v->running;
	cpu = v->cpu;
	bpf_spin_unlock(&v->lock);
	e->ended = boosted;
	/* What it does now is not the event's any more: whoever made way goes on. */
	if (boosted && running)
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return 0;
}

struct accounting {
	u32 places;		/* of vCPUs to look at */
	u32 only_counts;	/* what runs now, so that user space sees what was used */
	u64 usual_ns;		/* the usual allotment */
};

/* One vCPU's turn; not static for the same reason as promote_tid. */
__attribute__((noinline)) int account_one(u32 place, u32 only_counts)
{
	struct vcpu *v = vcpu_at(place);
	s64 *base = bpf_map_lookup_elem(&bases, &place);
	u64 now = bpf_ktime_get_ns();

	if (!v || !base)
		return 0;
	bpf_spin_lock(&v->lock);
	count(v, now);
	if (!only_counts)
		v->base_ns = *base;
	bpf_spin_unlock(&v->lock);
	return 0;
}

/* Puts a waiting thread at the place in the queue that its vCPU's credits give it now. */
__attribute__((noinline)) int move_tid(s32 tid, s32 place, u64 key)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct bpf_iter_scx_dsq it;
	struct thread *t;
	bool moved = 0;
	s64 by;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	t = thread_of(p);
	by = t ? (s64)(key - t->key) : 0;
	/* Less is not worth it. */
	if (t && t->vcpu == place && (by > MOVES_NS || by < -MOVES_NS)) {
		if (!bpf_iter_scx_dsq_new(&it, TURNS, 0))
			moved = dsq_move_at(&it, p, settings.slice_ns, key, TURNS, 0);
		bpf_iter_scx_dsq_destroy(&it);
		if (moved)
			given(t, settings.slice_ns, key);
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return moved;
}

/* Who waits and got another allotment than usual has another place from now on. */
__attribute__((noinline)) int move_one(u32 place)
{
	struct vcpu *v = vcpu_at(place);
	u64 key;
	u32 i;

	if (!v || v->boost_left_ns || !v->runnable || v->running)
		return 0;
	key = level - (u64)credits(v);
	for_range(i, 0, MAX_THREADS) {
		s32 tid = i < MAX_THREADS ? v->tids[i] : 0;

		if (tid)
			move_tid(tid, place, key);
	}
	return 0;
}

SEC("syscall")
int account(struct accounting *e)
{
	u32 only_counts = e->only_counts, i;

	if (!only_counts)
		level += e->usual_ns;
	for_range(i, 0, e->places) {
		account_one(i, only_counts);
		if (!only_counts)
			move_one(i);
	}
	return 0;
}

struct opening {
	u32 vcpu;
	u32 open;		/* 1: opens the account, 0: closes it */
	s32 error;		/* out: it was open already, or there is no such place */
	u32 pad;
};

SEC("syscall")
int open_account(struct opening *e)
{
	u32 place = e->vcpu;
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);

	e->error = -1;
	if (!v || (e->open && v->open))
		return 0;
	e->error = 0;
	bpf_spin_lock(&v->lock);
	if (e->open) {
		v->used_ns = v->boosted_ns = v->charged_ns = v->boost_left_ns = 0;
		v->base_ns = 0;
		v->counted_until = v->waits_since = 0;
		v->running = v->runnable = v->untracked = 0;
		for (u32 i = 0; i < MAX_THREADS; i++)
			v->tids[i] = 0;
	}
	v->open = e->open;
	bpf_spin_unlock(&v->lock);
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops loan = {
	.select_cpu = (void *)loan_select_cpu,
	.enqueue = (void *)loan_enqueue,
	.dispatch = (void *)loan_dispatch,
	.tick = (void *)loan_tick,
	.runnable = (void *)loan_runnable,
	.running = (void *)loan_running,
	.stopping = (void *)loan_stopping,
	.quiescent = (void *)loan_quiescent,
	.cpu_release = (void *)loan_cpu_release,
	.cpu_online = (void *)loan_cpu_online,
	.cpu_offline = (void *)loan_cpu_offline,
	.enable = (void *)loan_enable,
	.disable = (void *)loan_disable,
	.init = (void *)loan_init,
	.exit = (void *)loan_exit,
	.flags = SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 10000,
	.name = "vlane_loan",
};
