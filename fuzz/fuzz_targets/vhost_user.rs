//! vhost-user messages, sensible and not, into a session: whatever a front end says, the session
//! ends when it hangs up, and the next one begins.

#![no_main]

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_fuzz::{Desc, INDIRECT, NEXT, WRITE, header};
use vlane_lane::Topology;
use vlane_policy::express::{Express, Mode};
use vlane_server::{Session, Volume, VolumeConfig};

/// Guest memory: one file of which every region is a part.
const MEMORY: u64 = 0x10_0000;
/// Where requests in flight are marked, as SET_INFLIGHT_FD says it: in the same file, so that they
/// are poked at, too. Four queues of at most 128 entries.
const MARKS: [u64; 3] = [0x8000, MEMORY - 0x1_0000, 4 | 128 << 16];
const USER: u64 = 0x7000_0000_0000;
/// Offered by the device, and a few that are not.
const FEATURES: u64 = 1 << 2
    | 1 << 5
    | 1 << 6
    | 1 << 9
    | 1 << 12
    | 1 << 13
    | 1 << 14
    | 1 << 26
    | 1 << 28
    | 1 << 29
    | 1 << 30
    | 1 << 32
    | 1 << 34;

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Area {
    guest: u16,
    size: u16,
    offset: u16,
    odd: Option<u64>,
}

impl Area {
    fn bytes(self) -> [u64; 4] {
        let page = |n: u16| 0x1000 * u64::from(n);
        let guest = self.odd.unwrap_or(page(self.guest % 256));
        [guest, page(self.size % 256), USER.wrapping_add(guest), page(self.offset % 256)]
    }
}

#[derive(Debug, Arbitrary)]
enum Op {
    /// Everything that a front end does to start a queue.
    Start {
        queue: u8,
        packed: bool,
        event_idx: bool,
        size: u8,
    },
    /// A request in the ring that `Start` made, and a kick.
    Request {
        queue: u8,
        kind: u8,
        sector: u64,
        sectors: u8,
        indirect: bool,
    },
    Poke(u32, u16),
    Kick,
    /// A message without a body: its number.
    Ask(u8),
    Features(u64),
    ProtocolFeatures(u64),
    MemTable(Vec<Area>),
    AddRegion(Area),
    RemoveRegion(Area),
    /// Size, base, enable and their like: number, queue, value.
    Vring(u8, u8, u32),
    Addresses {
        queue: u8,
        flags: u8,
        desc: u32,
        used: u32,
        avail: u32,
        log: u64,
    },
    Descriptor {
        which: u8,
        queue: u8,
        none: bool,
    },
    Config {
        set: bool,
        offset: u8,
        size: u8,
        bytes: Vec<u8>,
    },
    Log {
        size: u16,
        offset: u16,
    },
    BackendChannel,
    Raw {
        request: u8,
        flags: u32,
        size: Option<u32>,
        body: Vec<u8>,
        fds: Vec<bool>,
    },
}

struct FrontEnd {
    stream: UnixStream,
    memory: File,
    event: OwnedFd,
    packed: bool,
    avail: [u16; 4],
}

impl FrontEnd {
    /// False if it did not go out: the session may have ended.
    fn send(
        &self,
        request: u32,
        flags: u32,
        size: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> bool {
        let head = [request.to_le_bytes(), flags.to_le_bytes(), size.to_le_bytes()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let slices = [IoSlice::new(&head), IoSlice::new(body)];
        let sent = rustix::net::sendmsg(
            &self.stream,
            &slices,
            &mut ancillary,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        // The answers are not used, but they must not fill the socket.
        let mut answers = [0u8; 4096];
        while rustix::net::recv(&self.stream, &mut answers, RecvFlags::DONTWAIT)
            .is_ok_and(|(n, _)| n > 0)
        {}
        sent.is_ok()
    }

    fn words(&self, request: u32, words: &[u64], fds: &[BorrowedFd<'_>]) -> bool {
        let body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.send(request, 1, body.len() as u32, &body, fds)
    }

    fn vring(&self, request: u32, queue: u32, value: u32) -> bool {
        self.words(request, &[u64::from(queue) | u64::from(value) << 32], &[])
    }

    /// Guest physical address of a queue's part: a page each, behind the data.
    fn part(queue: u8, part: u64) -> u64 {
        MEMORY / 2 + 0x4000 * u64::from(queue % 4) + 0x1000 * part
    }

    fn start(&mut self, queue: u8, packed: bool, event_idx: bool, size: u8) -> bool {
        self.packed = packed;
        self.avail[usize::from(queue % 4)] = 0;
        let q = u64::from(queue % 4);
        let mut features = FEATURES & !(1 << 34 | 1 << 29);
        features |= u64::from(packed) << 34 | u64::from(event_idx) << 29;
        let size = if packed { u32::from(size % 128) + 1 } else { 1 << (size % 8) };
        let (event, memory) = (self.event.as_fd(), self.memory.as_fd());
        let user = |part| USER + Self::part(queue, part);
        let _ = self.memory.write_all_at(&[0; 0x4000], Self::part(queue, 0));
        self.words(3, &[], &[])
            && self.words(2, &[features], &[])
            && self.words(16, &[u64::MAX & 0x1_ffff], &[])
            && self.words(5, &[1, 0, MEMORY, USER, 0], &[memory])
            && (queue & 4 == 0 || self.words(32, &MARKS, &[memory]))
            && self.vring(8, q as u32, size)
            && self.words(9, &[q, user(0), user(2), user(1), Self::part(queue, 2)], &[])
            && self.vring(10, q as u32, if packed { 0x8000_8000 } else { 0 })
            && self.words(13, &[q], &[event])
            && self.words(12, &[q], &[event])
            && self.vring(18, q as u32, 1)
    }

    /// One chain of header, data and status; where the device looks first.
    fn request(&mut self, queue: u8, kind: u8, sector: u64, sectors: u8, indirect: bool) {
        let put = |at: u64, bytes: &[u8]| {
            let _ = self.memory.write_all_at(bytes, at);
        };
        put(0x1000, &header(u32::from(kind) % 14, 0, sector));
        let writes = matches!(kind % 14, 0 | 8);
        let chain = [
            Desc { addr: 0x1000, len: 16, flags: NEXT, link: 1 },
            Desc {
                addr: 0x2000,
                len: 512 * u32::from(sectors),
                flags: NEXT | if writes { WRITE } else { 0 },
                link: 2,
            },
            Desc { addr: 0x1010, len: 1, flags: WRITE, link: 0 },
        ];
        let bytes = |desc: &Desc| if self.packed { desc.packed() } else { desc.split() };
        let mut ring = chain.to_vec();
        if indirect {
            let table: Vec<u8> = chain.iter().flat_map(bytes).collect();
            put(0x1800, &table);
            ring = vec![Desc { addr: 0x1800, len: 48, flags: INDIRECT, link: 0 }];
        }
        for (i, desc) in (0..).zip(&mut ring) {
            if self.packed {
                desc.flags |= 1 << 7;
            }
            put(Self::part(queue, 0) + 16 * i, &bytes(desc));
        }
        let avail = &mut self.avail[usize::from(queue % 4)];
        *avail = avail.wrapping_add(1);
        if !self.packed {
            put(Self::part(queue, 1) + 2, &avail.to_le_bytes());
        }
        self.kick();
    }

    fn kick(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Returns false when the session takes no more.
    fn perform(&mut self, op: Op) -> bool {
        let (event, memory) = (self.event.as_fd(), self.memory.as_fd());
        match op {
            Op::Start { queue, packed, event_idx, size } => {
                self.start(queue, packed, event_idx, size)
            }
            Op::Request { queue, kind, sector, sectors, indirect } => {
                self.request(queue, kind, sector, sectors, indirect);
                true
            }
            Op::Poke(at, value) => {
                let _ =
                    self.memory.write_all_at(&value.to_le_bytes(), u64::from(at) % (MEMORY - 2));
                true
            }
            Op::Kick => {
                self.kick();
                true
            }
            Op::Ask(request) => self.words(u32::from(request % 48), &[], &[]),
            Op::Features(mask) => self.words(2, &[FEATURES & mask], &[]),
            Op::ProtocolFeatures(features) => self.words(16, &[features], &[]),
            Op::MemTable(areas) => {
                let areas = &areas[..areas.len().min(10)];
                let mut words = vec![areas.len() as u64];
                words.extend(areas.iter().flat_map(|a| a.bytes()));
                self.words(5, &words, &vec![memory; areas.len().min(8)])
            }
            Op::AddRegion(area) => {
                let mut words = vec![0];
                words.extend(area.bytes());
                self.words(37, &words, &[memory])
            }
            Op::RemoveRegion(area) => {
                let mut words = vec![0];
                words.extend(area.bytes());
                self.words(38, &words, &[])
            }
            Op::Vring(request, queue, value) => {
                let request = [8, 10, 11, 18][usize::from(request % 4)];
                self.vring(request, u32::from(queue % 6), value)
            }
            Op::Addresses { queue, flags, desc, used, avail, log } => {
                let user = |at: u32| USER + u64::from(at) % (MEMORY + 0x1000);
                let index = u64::from(queue % 6) | u64::from(flags & 1) << 32;
                self.words(9, &[index, user(desc), user(used), user(avail), log], &[])
            }
            Op::Descriptor { which, queue, none } => {
                let request = [12, 13, 14][usize::from(which % 3)];
                let value = u64::from(queue % 6) | u64::from(none) << 8;
                self.words(request, &[value], if none { &[] } else { std::slice::from_ref(&event) })
            }
            Op::Config { set, offset, size, bytes } => {
                let mut body =
                    [u32::from(offset).to_le_bytes(), u32::from(size).to_le_bytes(), [0; 4]]
                        .concat();
                body.extend(bytes.iter().copied().chain(std::iter::repeat(0)).take(size.into()));
                self.send(if set { 25 } else { 24 }, 1, body.len() as u32, &body, &[])
            }
            Op::Log { size, offset } => {
                self.words(6, &[size.into(), 0x1000 * u64::from(offset % 64)], &[memory])
            }
            Op::BackendChannel => match UnixStream::pair() {
                Ok((theirs, _)) => self.words(21, &[], &[theirs.as_fd()]),
                Err(_) => true,
            },
            Op::Raw { request, flags, size, body, fds } => {
                let fds: Vec<_> =
                    fds.iter().take(16).map(|file| if *file { memory } else { event }).collect();
                let size = size.unwrap_or(body.len() as u32);
                self.send(u32::from(request % 48), flags, size, &body[..body.len().min(4096)], &fds)
            }
        }
    }
}

fn volume() -> Arc<Volume> {
    static VOLUME: OnceLock<Arc<Volume>> = OnceLock::new();
    let make = || {
        let engine = NullEngine::new(NullConfig { size: 1 << 30, latency: None, parallelism: 1 })
            .expect("engine");
        let config = VolumeConfig {
            name: "fuzz".into(),
            serial: "fuzz".into(),
            topology: Topology { queues: 4, threads: 1, cpus: Vec::new(), adapts: false },
            poll: vlane_lane::PollMode::Off,
            poll_max: Duration::ZERO,
            // A request's priority is the guest's: any number.
            express: Express { mode: Mode::On, ..Express::default() },
        };
        Arc::new(Volume::new(Arc::new(engine), config).expect("volume"))
    };
    Arc::clone(VOLUME.get_or_init(make))
}

fuzz_target!(|ops: Vec<Op>| {
    let (ours, theirs) = UnixStream::pair().expect("socket");
    let (stop, _stopper) = rustix::pipe::pipe().expect("pipe");
    let memory = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let memory = File::from(memory);
    memory.set_len(MEMORY).expect("set_len");
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd");
    let session = Session::new(volume()).expect("session");
    let mut front_end = FrontEnd { stream: ours, memory, event, packed: false, avail: [0; 4] };
    std::thread::scope(|scope| {
        let end = scope.spawn(move || session.run(theirs, &stop));
        for op in ops.into_iter().take(64) {
            if !front_end.perform(op) {
                break;
            }
        }
        let _ = front_end.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = front_end.stream.read_to_end(&mut rest);
        end.join().expect("a session does not panic");
    });
});
