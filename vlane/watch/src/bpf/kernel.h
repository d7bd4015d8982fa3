/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the program here uses of the kernel and of BPF, and no more. The layouts are not the kernel's: libbpf moves every
 * access to where the running kernel has the field (CO-RE).
 */
#ifndef VLANE_WATCH_KERNEL_H
#define VLANE_WATCH_KERNEL_H

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
/* Whether the running kernel has a field. */
#define KERNEL_FIELD(field) __builtin_preserve_field_info(field, 2)
/* A pointer that the verifier knows nothing of, as one to a kernel's type; reading through it cannot fault. */
#define KERNEL_CAST(pointer, type) ((type *)bpf_rdonly_cast(pointer, __builtin_btf_type_id(*(type *)NULL, 1)))
extern void *bpf_rdonly_cast(const void *pointer, u32 type) __ksym;

/* Maps, as libbpf reads them from the type. */
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) type *name
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_RINGBUF = 27 };
enum { MAP_NO_PREALLOC = 1 };

/* Helpers, by their numbers in include/uapi/linux/bpf.h. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_ringbuf_output)(void *map, void *data, u64 size, u64 flags) = (void *)130;
static void *(*const bpf_per_cpu_ptr)(const void *variable, u32 cpu) = (void *)153;
static void *(*const bpf_this_cpu_ptr)(const void *variable) = (void *)154;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;

/* A loop of which the verifier looks at one turn only. */
struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

/* Tasks and run queues. */
struct thread_info {
	u32 cpu;
} KERNEL_TYPE;
struct task_struct {
	struct thread_info thread_info;
	u32 __state;
	u32 flags;
	int on_cpu;
	int pid, tgid;
} KERNEL_TYPE;
struct rq {
	struct task_struct *curr;
} KERNEL_TYPE;
extern const struct rq runqueues __ksym;
enum { PF_IDLE = 0x2, PF_IO_WORKER = 0x10, PF_USER_WORKER = 0x4000, PF_KTHREAD = 0x200000 };
enum { TASK_RUNNING = 0, TASK_WAKING = 0x200 };

extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

/* Where this CPU counts what keeps it from being preempted: x86 has a variable, since 6.15 by this name, from 6.2 in a struct. */
extern const int __preempt_count __ksym __weak;
struct pcpu_hot {
	int preempt_count;
} KERNEL_TYPE;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
/* Serves a soft interrupt, a hard one or a non-maskable one: include/linux/preempt.h. */
enum { IN_INTERRUPT = 0xff0100 };

/* Wait queues and eventfds: fs/eventfd.c. */
struct list_head {
	struct list_head *next;
} KERNEL_TYPE;
struct wait_queue_head {
	struct list_head head;
} KERNEL_TYPE;
struct wait_queue_entry {
	void *func;
	struct list_head entry;
} KERNEL_TYPE;
struct eventfd_ctx {
	struct wait_queue_head wqh;
	s32 id;
} KERNEL_TYPE;
struct file {
	void *private_data;
} KERNEL_TYPE;
/* KVM's waiter on an eventfd that is an interrupt; not there without KVM. */
extern const void irqfd_wakeup __ksym __weak;

#endif
