//! Static probes (USDT) of the data path, for bpftrace, perf, SystemTap and GDB.
//!
//! A probe is one `nop` in the code, and a note in the file. The note has the place of the nop and
//! of its arguments at that moment. A tracer puts a breakpoint on the nop; without a tracer the nop
//! is all that there is. To keep it so, a request's probes take one pointer, which the code around
//! them has in a register anyway, and the note names fields behind it (`8@24(%rdi)`). No value is
//! loaded or computed for a probe without a listener. The `probe` and `usdt` crates cannot do that
//! (they load every argument into a register first), so the notes are written by hand here.
//!
//! The format is SystemTap's version 3 (`sys/sdt.h`): section `.note.stapsdt`, owner `stapsdt`,
//! type 3; contents: address of the nop, address of `_.stapsdt.base`, address of a semaphore (none:
//! 0), then provider, name and arguments as `SIZE@OPERAND`. An inlined probe is in the file several
//! times; tracers attach to all of them.
//!
//! The probes are described in the book (`docs/src/probes.md`). A build with `RUSTFLAGS='--cfg
//! vlane_no_probes'` has none, to show their cost.

#![cfg_attr(
    any(miri, vlane_no_probes, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
    allow(unused_variables, reason = "there are no probes in this build")
)]

use crate::blk::{Request, Status};

/// The note, for a nop at this place. `args` is the argument string.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, vlane_no_probes))))]
macro_rules! note {
    ($name:literal, $args:expr) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt, \"?\", \"note\"\n",
            ".balign 4\n",
            ".4byte 992f-991f, 994f-993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b, _.stapsdt.base, 0\n",
            ".asciz \"vlane\"\n",
            ".asciz \"",
            $name,
            "\"\n",
            ".asciz \"",
            $args,
            "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
            // Tracers compare its address with where the file says it is, to see whether the file
            // was moved (prelink).
            ".ifndef _.stapsdt.base\n",
            ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat\n",
            ".weak _.stapsdt.base\n",
            ".hidden _.stapsdt.base\n",
            "_.stapsdt.base: .space 1\n",
            ".size _.stapsdt.base, 1\n",
            ".popsection\n",
            ".endif\n",
        )
    };
}

/// One argument: a field of `size` bytes at offset `{field}` behind the pointer `{base}`.
#[cfg(all(target_arch = "x86_64", not(any(miri, vlane_no_probes))))]
macro_rules! field {
    ($size:literal, $field:literal) => {
        concat!($size, "@{", $field, "}({base})")
    };
}
#[cfg(all(target_arch = "aarch64", not(any(miri, vlane_no_probes))))]
macro_rules! field {
    ($size:literal, $field:literal) => {
        concat!($size, "@[{base}, {", $field, "}]")
    };
}

/// Arguments in registers, of so many bytes.
#[cfg(all(target_arch = "x86_64", not(any(miri, vlane_no_probes))))]
macro_rules! value {
    (1, $name:literal) => {
        concat!("1@{", $name, "}")
    };
    (2, $name:literal) => {
        concat!("2@{", $name, ":x}")
    };
    (4, $name:literal) => {
        concat!("4@{", $name, ":e}")
    };
    (8, $name:literal) => {
        concat!("8@{", $name, "}")
    };
}
#[cfg(all(target_arch = "aarch64", not(any(miri, vlane_no_probes))))]
macro_rules! value {
    ($size:literal, $name:literal) => {
        concat!($size, "@{", $name, ":x}")
    };
}

#[cfg(all(target_arch = "x86_64", not(any(miri, vlane_no_probes))))]
macro_rules! probe {
    ($name:literal, $args:expr, $($operands:tt)*) => {
        // SAFETY: the code is one `nop`. It touches no register, flag, stack or memory; a tracer
        // that is attached there may read memory, as `readonly` says, so what the arguments point
        // to is up to date. The rest is data in sections of their own.
        unsafe {
            core::arch::asm!(note!($name, $args), $($operands)* options(att_syntax, nostack, preserves_flags, readonly));
        }
    };
}
#[cfg(all(target_arch = "aarch64", not(any(miri, vlane_no_probes))))]
macro_rules! probe {
    ($name:literal, $args:expr, $($operands:tt)*) => {
        // SAFETY: as on x86-64.
        unsafe {
            core::arch::asm!(note!($name, $args), $($operands)* options(nostack, preserves_flags, readonly));
        }
    };
}
#[cfg(any(miri, vlane_no_probes, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
macro_rules! probe {
    ($($anything:tt)*) => {};
}

#[cfg(all(target_arch = "x86_64", not(any(miri, vlane_no_probes))))]
macro_rules! status_probe {
    ($name:literal, $args:expr, $status:ident, $($operands:tt)*) => {
        probe!($name, $args, $status = in(reg_byte) $status, $($operands)*)
    };
}
#[cfg(not(all(target_arch = "x86_64", not(any(miri, vlane_no_probes)))))]
macro_rules! status_probe {
    ($name:literal, $args:expr, $status:ident, $($operands:tt)*) => {
        probe!($name, $args, $status = in(reg) $status, $($operands)*)
    };
}

/// A request was taken from the ring: lane, slot, kind, sector, bytes, ioprio.
#[inline(always)]
pub(crate) fn request_taken(request: &Request) {
    probe!(
        "request__taken",
        concat!(
            field!("2", "lane"), " ", field!("2", "slot"), " ", field!("4", "kind"), " ", field!("8", "sector"), " ",
            field!("8", "bytes"), " ", field!("4", "ioprio")
        ),
        base = in(reg) std::ptr::from_ref(request),
        lane = const std::mem::offset_of!(Request, lane),
        slot = const std::mem::offset_of!(Request, slot),
        kind = const std::mem::offset_of!(Request, head),
        sector = const std::mem::offset_of!(Request, sector),
        bytes = const std::mem::offset_of!(Request, len),
        ioprio = const std::mem::offset_of!(Request, head) + 4,
    );
}

/// A request goes to the storage: lane, slot.
#[inline(always)]
pub fn request_begun(request: &Request) {
    probe!(
        "request__begun",
        concat!(field!("2", "lane"), " ", field!("2", "slot")),
        base = in(reg) std::ptr::from_ref(request),
        lane = const std::mem::offset_of!(Request, lane),
        slot = const std::mem::offset_of!(Request, slot),
    );
}

/// A request was answered: lane, slot, kind, sector, bytes, status.
#[inline(always)]
pub(crate) fn request_answered(request: &Request, status: Status) {
    let status = status as u8;
    status_probe!(
        "request__answered",
        concat!(
            field!("2", "lane"), " ", field!("2", "slot"), " ", field!("4", "kind"), " ", field!("8", "sector"), " ",
            field!("8", "bytes"), " ", value!(1, "status")
        ),
        status,
        base = in(reg) std::ptr::from_ref(request),
        lane = const std::mem::offset_of!(Request, lane),
        slot = const std::mem::offset_of!(Request, slot),
        kind = const std::mem::offset_of!(Request, head),
        sector = const std::mem::offset_of!(Request, sector),
        bytes = const std::mem::offset_of!(Request, len),
    );
}

/// A lane took so many requests in one go: lane, requests.
#[inline(always)]
pub fn batch_taken(lane: u16, requests: usize) {
    probe!("batch__taken", concat!(value!(2, "lane"), " ", value!(8, "n")), lane = in(reg) lane, n = in(reg) requests,);
}

/// The guest's kick woke a lane: lane.
#[inline(always)]
pub fn kick(lane: u16) {
    probe!("kick", value!(2, "lane"), lane = in(reg) lane,);
}

/// The guest is signalled: lane.
#[inline(always)]
pub fn signal(lane: u16) {
    probe!("signal", value!(2, "lane"), lane = in(reg) lane,);
}

/// A lane thread is going to sleep: thread.
#[inline(always)]
pub fn sleep(thread: u32) {
    probe!("sleep", value!(4, "thread"), thread = in(reg) thread,);
}

/// A lane thread has woken: thread.
#[inline(always)]
pub fn wake(thread: u32) {
    probe!("wake", value!(4, "thread"), thread = in(reg) thread,);
}

/// A front end has connected: session, its process (0: unknown).
#[inline(always)]
pub fn session_connect(session: u32, peer: u32) {
    probe!("session__connect", concat!(value!(4, "session"), " ", value!(4, "peer")), session = in(reg) session, peer = in(reg) peer,);
}

/// A front end's session has ended: session.
#[inline(always)]
pub fn session_disconnect(session: u32) {
    probe!("session__disconnect", value!(4, "session"), session = in(reg) session,);
}
