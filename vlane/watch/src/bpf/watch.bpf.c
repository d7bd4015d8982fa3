/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Watches eventfds of virtual machines, and tells user space when one was an interrupt for a vCPU that waits for a CPU, and when that
 * vCPU has gone on.
 *
 * Every signal of every eventfd on the host comes through here: one that is not a machine's costs a lookup. What an eventfd
 * is for does not stand in it; who signals it tells. Somebody else: an interrupt. The machine's own threads: an interrupt if KVM
 * listens (an irqfd), a kick if it is a vCPU, otherwise a matter of its own.
 *
 * The programs run after the signal was sent (fexit): who was to be woken by it is awake.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

enum { MAX_EVENTFDS = 65536, MAX_MACHINES = 4096, MAX_VCPUS = 256, MAX_THREADS = 65536, MAX_SILENT = 4096 };
/* So many of a machine's vCPUs are looked at per signal. */
enum { LOOKED_AT = 16 };
/* A machine of several vCPUs is not looked at again for so long for the same eventfd, ns. */
enum { LOOK_AGAIN = 50000 };

/* Set by the loader before the program is loaded; volatile: not what it is initialized to. */
const volatile struct settings {
	u64 boost_ns;		/* an event that was not served is forgotten after this */
} settings = { 500000 };

enum { EVENT = 1, SERVED = 2 };
/* What an eventfd is for, once that was seen. */
enum { INTERRUPT = 1, INTERNAL = 2, KICK = 4 };

struct mark {
	u64 token;		/* user space's name of the vCPU */
	u64 response_ns;
	u32 what, pad;
};

struct eventfd {
	u32 machine;		/* its process */
	u32 uses;
	u64 looked_at;
};

struct vcpu {
	s32 tid;
	u32 pending;
	u64 token;
	u64 told_at;
};

struct machine {
	u32 vcpus;
	u32 next;		/* where to look first */
	struct vcpu vcpu[MAX_VCPUS];
};

struct thread {
	u32 machine, vcpu;
};

struct silent {
	u32 process, machine;
};

struct counts {
	u64 interrupts;		/* signals from outside, or to an irqfd */
	u64 told;
	u64 coalesced;		/* not told: the last one is still pending, or was a moment ago */
	u64 running;		/* not told: no vCPU waits for a CPU */
	u64 kicks, served;
	u64 internal;		/* the machine's own, and not known to be anything */
	u64 silent;		/* of a back end that tells itself */
	u64 lost;		/* no room in the ring */
	u64 unseen;		/* interrupts that a machine raises without an eventfd: told to nobody */
};

/* User space reads these by their layout (program.rs). */
_Static_assert(sizeof(struct mark) == 24, "mark");
_Static_assert(sizeof(struct eventfd) == 16, "eventfd");
_Static_assert(sizeof(struct machine) == 8 + 24 * MAX_VCPUS, "machine");
_Static_assert(sizeof(struct counts) == 80, "counts");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_EVENTFDS);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, s32);
	MAP_TYPE(value, struct eventfd);
} eventfds SEC(".maps");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_MACHINES);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct machine);
} machines SEC(".maps");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_THREADS);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, s32);
	MAP_TYPE(value, struct thread);
} threads SEC(".maps");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_SILENT);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct silent);
	MAP_TYPE(value, u32);
} silenced SEC(".maps");

/* For each machine that is looked at: interrupts that it has raised without an eventfd. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_MACHINES);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} unseen SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct counts);
} counts SEC(".maps");

struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 256 * 1024);
} marks SEC(".maps");

#define COUNT(counter) __sync_fetch_and_add(&(counter), 1)

static always_inline void tell(struct counts *c, u64 token, u32 what, u64 response_ns)
{
	struct mark mark = { .token = token, .response_ns = response_ns, .what = what };

	if (bpf_ringbuf_output(&marks, &mark, sizeof(mark), 0))
		COUNT(c->lost);
}

/* In an interrupt (a device that is passed through), the present task has nothing to do with it. */
static always_inline bool in_interrupt(void)
{
	int count = 0;

	if (&__preempt_count)
		count = *(int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (&pcpu_hot)
		count = ((struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	return count & IN_INTERRUPT;
}

static always_inline bool is_irqfd(struct eventfd_ctx *ctx)
{
	struct list_head *first;
	struct wait_queue_entry *waiter;
	u64 offset = __builtin_preserve_field_info(((struct wait_queue_entry *)NULL)->entry, 0);

	if (!&irqfd_wakeup)
		return 0;
	first = ctx->wqh.head.next;
	waiter = KERNEL_CAST((void *)first - offset, struct wait_queue_entry);
	return waiter->func == &irqfd_wakeup;
}

enum doing { SLEEPS, WAITS, RUNS, GONE };

/* What a vCPU does. One whose CPU is idle runs in a moment: there is nobody to put it before. */
/* Global, so that the verifier looks at it once. */
__attribute__((noinline)) int doing(s32 tid)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	int is = SLEEPS;
	const struct rq *rq;

	if (!p)
		return GONE;
	if (KERNEL_FIELD(p->on_cpu) && p->on_cpu) {
		is = RUNS;
	} else {
		if (p->__state == TASK_RUNNING || p->__state == TASK_WAKING)
			is = WAITS;
		if (KERNEL_FIELD(p->thread_info.cpu)) {
			rq = bpf_per_cpu_ptr(&runqueues, p->thread_info.cpu);
			if (rq && rq->curr->flags & PF_IDLE)
				is = RUNS;
		}
	}
	bpf_task_release(p);
	return is;
}

static always_inline struct vcpu *vcpu_at(struct machine *m, u32 at)
{
	/* The compiler knows that it is in bounds, the verifier does not. */
	asm volatile("" : "+r"(at));
	return at < MAX_VCPUS ? &m->vcpu[at] : NULL;
}

/* Who of the machine's vCPUs is to be put first: one that waits for a CPU, or else one that sleeps. */
static always_inline struct vcpu *choose(struct machine *m)
{
	u32 n = m->vcpus, looked = n < LOOKED_AT ? n : LOOKED_AT, at, sleeps = MAX_VCPUS, waits = MAX_VCPUS;
	struct bpf_iter_num it;
	struct vcpu *v;
	int is;

	bpf_iter_num_new(&it, 0, looked);
	while (bpf_iter_num_next(&it)) {
		/* Goes on where it stopped: not always the same of several. In memory, where the verifier does not follow it. */
		at = m->next;
		if (at >= n)
			at = 0;
		m->next = at + 1;
		v = vcpu_at(m, at);
		if (!v)
			break;
		is = doing(v->tid);
		if (is == WAITS) {
			waits = at;
			break;
		}
		if (is == SLEEPS && sleeps == MAX_VCPUS)
			sleeps = at;
	}
	bpf_iter_num_destroy(&it);
	return vcpu_at(m, waits < MAX_VCPUS ? waits : sleeps);
}

static always_inline void interrupt(struct counts *c, struct eventfd *e, struct machine *m)
{
	u64 now = bpf_ktime_get_ns();
	struct vcpu *v;

	COUNT(c->interrupts);
	if (m->vcpus > 1) {
		if (now - e->looked_at < LOOK_AGAIN) {
			COUNT(c->coalesced);
			return;
		}
		e->looked_at = now;
	} else if (m->vcpu[0].pending && now - m->vcpu[0].told_at < settings.boost_ns) {
		COUNT(c->coalesced);
		return;
	}
	v = choose(m);
	if (!v) {
		COUNT(c->running);
		return;
	}
	if (v->pending && now - v->told_at < settings.boost_ns) {
		COUNT(c->coalesced);
		return;
	}
	v->pending = 1;
	v->told_at = now;
	COUNT(c->told);
	tell(c, v->token, EVENT, 0);
}

enum { STALE_NS = 250000000 };

static always_inline void kick(struct counts *c, struct machine *m, u32 at)
{
	struct vcpu *v = vcpu_at(m, at);
	u64 took;

	COUNT(c->kicks);
	if (!v || !v->pending)
		return;
	v->pending = 0;
	took = bpf_ktime_get_ns() - v->told_at;
	/* Nobody waits for a turn so long: this I/O has nothing to do with that interrupt (a packet came, a disk is read much later). */
	if (took > STALE_NS)
		return;
	COUNT(c->served);
	tell(c, v->token, SERVED, took);
}

static always_inline int signalled(struct eventfd_ctx *ctx, bool by_kernel)
{
	struct task_struct *task;
	struct silent silent;
	struct thread *thread;
	struct eventfd *e;
	struct machine *m;
	struct counts *c;
	u32 zero = 0, machine;
	s32 id = ctx->id, tid;
	bool own;

	e = bpf_map_lookup_elem(&eventfds, &id);
	if (!e)
		return 0;
	machine = e->machine;
	m = bpf_map_lookup_elem(&machines, &machine);
	c = bpf_map_lookup_elem(&counts, &zero);
	if (!m || !c)
		return 0;
	task = bpf_get_current_task_btf();
	/* The kernel's workers for a machine (vhost) are threads of its process, and yet not its own. */
	own = task->tgid == machine && !(task->flags & PF_KTHREAD) && !in_interrupt() &&
	      (task->flags & (PF_USER_WORKER | PF_IO_WORKER)) != PF_USER_WORKER;
	if (own) {
		tid = task->pid;
		thread = bpf_map_lookup_elem(&threads, &tid);
		if (thread && thread->machine == machine) {
			/* KVM signals for a vCPU only what the guest wrote to: that is certain. */
			if (by_kernel)
				e->uses |= KICK;
			if (by_kernel || !(e->uses & (INTERRUPT | INTERNAL)))
				kick(c, m, thread->vcpu);
			else
				COUNT(c->internal);
			return 0;
		}
		if (!is_irqfd(ctx)) {
			e->uses |= INTERNAL;
			COUNT(c->internal);
			return 0;
		}
	} else {
		silent.process = task->tgid;
		silent.machine = machine;
		if (bpf_map_lookup_elem(&silenced, &silent)) {
			COUNT(c->silent);
			return 0;
		}
	}
	/* Back ends kick themselves when they start. */
	if (e->uses & KICK) {
		COUNT(c->internal);
		return 0;
	}
	e->uses |= INTERRUPT;
	interrupt(c, e, m);
	return 0;
}

/* ssize_t eventfd_write(struct file *file, const char __user *buf, size_t count, loff_t *ppos) */
SEC("fexit/eventfd_write")
int written(u64 *ctx)
{
	struct file *file = (struct file *)ctx[0];

	/* What was refused has signalled nothing. */
	if ((s64)ctx[4] < 0)
		return 0;
	return signalled(KERNEL_CAST(file->private_data, struct eventfd_ctx), 0);
}

/* void eventfd_signal_mask(struct eventfd_ctx *ctx, __poll_t mask) */
SEC("fexit/eventfd_signal_mask")
int signalled_by_kernel(u64 *ctx)
{
	return signalled((struct eventfd_ctx *)ctx[0], 1);
}

/* int eventfd_release(struct inode *inode, struct file *file): its number is another's next. */
SEC("fentry/eventfd_release")
int released(u64 *ctx)
{
	struct file *file = (struct file *)ctx[1];
	s32 id = KERNEL_CAST(file->private_data, struct eventfd_ctx)->id;

	bpf_map_delete_elem(&eventfds, &id);
	return 0;
}

/*
 * int kvm_send_userspace_msi(struct kvm *kvm, struct kvm_msi *msi): a process interrupts its own guest by a system call (QEMU's devices
 * do without an iothread). Only with KVM: the loader leaves this one out where it cannot be attached.
 */
SEC("fentry/kvm_send_userspace_msi")
int raised(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 machine = task->tgid, zero = 0;
	u64 *here = bpf_map_lookup_elem(&unseen, &machine);
	struct counts *c;

	if (!here)
		return 0;
	COUNT(*here);
	c = bpf_map_lookup_elem(&counts, &zero);
	if (c)
		COUNT(c->unseen);
	return 0;
}
