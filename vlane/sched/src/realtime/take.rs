//! Threads into the vehicle and out of it: written down, changed, restored, struck out.

use std::io;
use std::sync::Arc;

use super::table::Entry;
use super::{Member, RealTime, priority};
use crate::adopt;
use crate::sys::{self, Attr};
use crate::thread::{Thread, is_gone};
use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

pub(super) fn refused(vcpu: &str, thread: &Thread, error: io::Error) -> Error {
    let tid = thread.tid();
    if is_gone(&error) {
        return Error::caused_by(ErrorKind::Gone, format!("{vcpu}: thread {tid} has ended"), error);
    }
    let mut text = format!("{vcpu}: thread {tid} cannot be made real-time");
    if error.raw_os_error() == Some(libc::EPERM) {
        let group = thread.describe_group();
        if group.is_empty() {
            text += ": CAP_SYS_NICE is missing (sudo, or AmbientCapabilities=CAP_SYS_NICE in a \
                     unit of systemd)";
        } else {
            text += &format!(
                ": this kernel gives each group of processes a separate real-time budget \
                 (RT_GROUP_SCHED), and this thread's group has none; give it one (`echo 100000 > \
                 {group}`), or move the thread"
            );
        }
    }
    Error::caused_by(ErrorKind::Permission, text, error)
}

fn table_failed(error: io::Error) -> Error {
    Error::caused_by(
        ErrorKind::Io,
        "cannot write the list of changed threads; no setting was changed",
        error,
    )
}

impl RealTime {
    /// Takes one thread: written down, then tried.
    pub(super) fn take(&mut self, vcpu: &VcpuThreads, tid: u32) -> Result<Member> {
        let name = &vcpu.name;
        if self.has_lane(tid) {
            let text = format!("{name}: thread {tid} is a back end's storage thread: left alone");
            return Err(Error::new(ErrorKind::LeftAlone, text));
        }
        let brought = self.brought.iter().find(|thread| thread.tid() == tid).map(Arc::clone);
        let thread = match brought {
            Some(thread) => adopt::checked(vcpu, &thread).map(|()| thread)?,
            None => Arc::new(adopt::find(vcpu, tid)?),
        };
        let mut was = sys::get(tid).map_err(|error| refused(name, &thread, error))?;
        if !adopt::is_ordinary(was.class) {
            return Err(adopt::left_alone(name, tid, was.class));
        }
        if was.slice_ns == self.default_slice_ns {
            // Not a fixed slice: it is to follow the system's.
            was.slice_ns = 0;
        }
        let slot =
            self.table.enter(&Entry { tid, start: thread.start(), was }).map_err(table_failed)?;
        let member = Member { thread, was, slot };
        // Once for a moment: what would fail at the first event fails now.
        let tried =
            sys::set(tid, &Attr::round_robin(priority::BOOST)).and_then(|()| sys::set(tid, &was));
        if let Err(error) = tried {
            let error = refused(name, &member.thread, error);
            // A refusal of either step makes no difference: the thread is as it was, or stays
            // written down.
            let _ = self.give_back(member);
            return Err(error);
        }
        Ok(member)
    }

    /// Restores a thread, and strikes it out. A thread that the system refuses to restore stays in
    /// the table, and is retried.
    pub(super) fn give_back(&mut self, member: Member) -> Result<()> {
        let tid = member.thread.tid();
        // Its number may be another's now.
        let restored = match member.thread.has_ended() {
            true => Ok(()),
            false => sys::set(tid, &member.was),
        };
        if let Err(error) = restored
            && !is_gone(&error)
        {
            self.strays.push(member);
            let text = format!("cannot restore thread {tid} yet");
            return Err(Error::caused_by(ErrorKind::Permission, text, error));
        }
        self.table.strike(member.slot).map_err(table_failed)
    }

    /// A thread with the attributes of a held-back one was meant to be like the vCPU's first.
    pub(super) fn like_the_first(
        &mut self,
        mut member: Member,
        first: Option<Attr>,
    ) -> Result<Member> {
        let Some(first) = first.filter(|&first| first != member.was) else { return Ok(member) };
        let held_back = self.base(first, true);
        if (member.was.class, member.was.nice) == (held_back.class, held_back.nice) {
            let entry =
                Entry { tid: member.thread.tid(), start: member.thread.start(), was: first };
            // The new entry before the old one goes: at no moment is it in none.
            let slot = self.table.enter(&entry).map_err(table_failed)?;
            self.table.strike(member.slot).map_err(table_failed)?;
            (member.was, member.slot) = (first, slot);
        }
        Ok(member)
    }
}
