/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs here use of the kernel and of BPF, and no more: a vmlinux.h has two megabytes. The layouts are
 * not the kernel's: libbpf moves every access to where the running kernel has the field (CO-RE), and looks up the
 * values of its enumerations.
 */
#ifndef VLANE_KERNEL_H
#define VLANE_KERNEL_H

typedef unsigned char u8;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;
#define bool _Bool
#define NULL ((void *)0)
#define always_inline inline __attribute__((always_inline))

#define SEC(name) __attribute__((section(name), used))
#define __ksym __attribute__((section(".ksyms")))
#define __weak __attribute__((weak))
#define KERNEL_TYPE __attribute__((preserve_access_index))
/* The value that an enumerator has in the running kernel. */
#define KERNEL_VALUE(type, name) __builtin_preserve_enum_value(*(enum type *)name, 1)
#define KERNEL_HAS_FIELD(field) __builtin_preserve_field_info(field, 2)
#define KERNEL_HAS(function) ((void *)(function) != NULL)

/* Maps, as libbpf reads them from the type. */
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) type *name
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_TASK_STORAGE = 29 };
enum { MAP_NO_PREALLOC = 1 };

/* Helpers, by their numbers in include/uapi/linux/bpf.h. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static void *(*const bpf_per_cpu_ptr)(const void *variable, u32 cpu) = (void *)153;
static void *(*const bpf_task_storage_get)(void *map, void *task, void *value, u64 flags) = (void *)156;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
enum { STORAGE_CREATE = 1 };

struct bpf_spin_lock {
	u32 val;
};
static void (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static void (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;

struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));
static long (*const bpf_timer_init)(struct bpf_timer *timer, void *map, u64 clock) = (void *)169;
static long (*const bpf_timer_set_callback)(struct bpf_timer *timer, void *callback) = (void *)170;
static long (*const bpf_timer_start)(struct bpf_timer *timer, u64 ns, u64 flags) = (void *)171;
enum { CLOCK_MONOTONIC = 1, TIMER_CPU_PIN = 2 };

/* A loop of which the verifier looks at one turn only. */
struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
#define for_range(i, start, end)                                                                            \
	for (struct bpf_iter_num it_##i __attribute__((cleanup(bpf_iter_num_destroy))),                     \
	     *unused_##i __attribute__((unused)) = (bpf_iter_num_new(&it_##i, (start), (end)), (void *)0);  \
	     ({                                                                                             \
		     int *next_ = bpf_iter_num_next(&it_##i);                                               \
		     (next_ && ((i = *next_), i >= (start) && i < (end)));                                  \
	     });)

/* Tasks and run queues. */
struct cpumask {
	unsigned long bits[1];
} KERNEL_TYPE;
struct sched_ext_entity {
	u64 slice;
	u64 dsq_vtime;
	u32 flags;
} KERNEL_TYPE;
struct task_struct {
	int pid;
	u32 flags;
	u32 policy;
	unsigned short migration_disabled;
	struct sched_ext_entity scx;
	const struct cpumask *cpus_ptr;
} KERNEL_TYPE;
struct rq {
	struct task_struct *curr;
} KERNEL_TYPE;
extern const struct rq runqueues __ksym;
enum { PF_IDLE = 2, SCHED_EXT = 7 };

extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;

/* sched_ext: kernel/sched/ext.c. */
enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1ULL,
	SCX_ENQ_HEAD = 1ULL << 4,
	SCX_ENQ_PREEMPT = 1ULL << 32,
	SCX_ENQ_REENQ = 1ULL << 40,
};
enum scx_dsq_id_flags {
	SCX_DSQ_LOCAL = (1ULL << 63) | 2,
	SCX_DSQ_LOCAL_ON = (1ULL << 63) | (1ULL << 62),
};
enum scx_ent_flags { SCX_TASK_QUEUED = 1 };
enum { SCX_KICK_IDLE = 1, SCX_KICK_PREEMPT = 2 };
enum { SCX_OPS_SWITCH_PARTIAL = 8 };

enum scx_exit_kind { SCX_EXIT_NONE = 0 };
struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
} KERNEL_TYPE;
struct scx_cpu_release_args;

/* Those that are used; libbpf finds them by name. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern s32 scx_bpf_create_dsq(u64 dsq, s32 node) __ksym;
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern u32 scx_bpf_reenqueue_local(void) __ksym;
extern const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
extern void scx_bpf_put_cpumask(const struct cpumask *mask) __ksym;
/* 6.13 gave these their names; 6.12 has the others. */
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags) __ksym __weak;
extern void scx_bpf_dispatch(struct task_struct *p, u64 dsq, u64 slice, u64 flags) __ksym __weak;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime, u64 flags) __ksym __weak;
extern void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime, u64 flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local(u64 dsq) __ksym __weak;
extern bool scx_bpf_consume(u64 dsq) __ksym __weak;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags) __ksym __weak;
extern bool scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags) __ksym __weak;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags) __ksym __weak;
extern bool scx_bpf_dispatch_vtime_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags) __ksym __weak;
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym __weak;
extern void scx_bpf_dispatch_from_dsq_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym __weak;
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym __weak;
extern void scx_bpf_dispatch_from_dsq_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym __weak;
/* 6.19 and later; before that a scheduler writes the field. */
extern bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

static always_inline void dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
	if (KERNEL_HAS(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, dsq, slice, flags);
	else if (KERNEL_HAS(scx_bpf_dispatch))
		scx_bpf_dispatch(p, dsq, slice, flags);
}

/* Into a queue that is ordered by keys. */
static always_inline void dsq_insert_at(struct task_struct *p, u64 dsq, u64 slice, u64 key, u64 flags)
{
	if (KERNEL_HAS(scx_bpf_dsq_insert_vtime))
		scx_bpf_dsq_insert_vtime(p, dsq, slice, key, flags);
	else if (KERNEL_HAS(scx_bpf_dispatch_vtime))
		scx_bpf_dispatch_vtime(p, dsq, slice, key, flags);
}

static always_inline bool dsq_move_to_local(u64 dsq)
{
	if (KERNEL_HAS(scx_bpf_dsq_move_to_local))
		return scx_bpf_dsq_move_to_local(dsq);
	if (KERNEL_HAS(scx_bpf_consume))
		return scx_bpf_consume(dsq);
	return 0;
}

static always_inline bool dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 slice, u64 dsq, u64 flags)
{
	if (KERNEL_HAS(scx_bpf_dsq_move)) {
		scx_bpf_dsq_move_set_slice(it, slice);
		return scx_bpf_dsq_move(it, p, dsq, flags);
	}
	if (KERNEL_HAS(scx_bpf_dispatch_from_dsq)) {
		scx_bpf_dispatch_from_dsq_set_slice(it, slice);
		return scx_bpf_dispatch_from_dsq(it, p, dsq, flags);
	}
	return 0;
}

static always_inline bool dsq_move_at(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 slice, u64 key, u64 dsq,
				     u64 flags)
{
	if (KERNEL_HAS(scx_bpf_dsq_move_vtime)) {
		scx_bpf_dsq_move_set_slice(it, slice);
		scx_bpf_dsq_move_set_vtime(it, key);
		return scx_bpf_dsq_move_vtime(it, p, dsq, flags);
	}
	if (KERNEL_HAS(scx_bpf_dispatch_vtime_from_dsq)) {
		scx_bpf_dispatch_from_dsq_set_slice(it, slice);
		scx_bpf_dispatch_from_dsq_set_vtime(it, key);
		return scx_bpf_dispatch_vtime_from_dsq(it, p, dsq, flags);
	}
	return 0;
}

static always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (KERNEL_HAS(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

#endif
