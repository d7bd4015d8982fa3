//! A guest that asks for as much as it may at once: 128 requests of the largest size that is
//! accepted. It gets its data, but does not delay others: its other queues, a front end that wants
//! the ring's position, or the end of the server.
//!
//! Little memory is needed: the buffers of all requests are the same one. The next back end serves
//! the requests left when the ring stops, from the position that the first one gave. Each is served
//! once, and none is lost.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{PollFd, PollFlags};
use vlane_driver::ring::{
    Arena, BlkOptions, BlkQueue, Buf, Format, Queue, Request, RequestKind, Segment,
};
use vlane_engine::file::{FileEngine, FileOptions};
use vlane_ring::limits::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST};
use vlane_ring::{MAX_BUFFERS, SECTOR};

const PACKED: u64 = 1 << 34;
const WRITE_ZEROES: u64 = 1 << 14;

/// The limit for any wait of others.
const SOON: Duration = Duration::from_secs(2);
/// The number of floods of which one has to keep it. A flood that delays others does so each time,
/// a busy machine only now and then.
const TRIES: usize = 5;
/// Requests that are made at once.
const FLOOD: usize = 128;
/// Entries of the flooded ring.
const ENTRIES: u16 = 256;

/// The guest's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Reads of 1 GiB.
    Reads,
    /// WRITE_ZEROES of 32 ranges of 2 GiB.
    Zeroes { unmap: bool },
}

/// The way in which the flooded queue is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// GET_VRING_BASE.
    Base,
    /// As the server is by SIGTERM.
    Server,
}

/// The images take up to 2 GiB of memory: one at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A ring full of large requests.
struct Flood {
    load: Load,
    queue: Queue,
    tables: Buf,
    headers: Buf,
    /// The data of all requests.
    data: Buf,
    /// The chain of each request; how often it was answered.
    ids: Vec<u16>,
    answers: Vec<u32>,
    door: Door,
}

impl Flood {
    /// Bytes of one buffer of a read.
    const PIECE: u32 = (MAX_REQUEST / MAX_BUFFERS as u64) as u32;
    const TABLE: usize = (MAX_BUFFERS + 2) * 16;
    const HEADER: usize = 64;
    /// The place of the status byte in the header.
    const STATUS: usize = 16;
    const ARENA: usize =
        FLOOD * (Flood::TABLE + Flood::HEADER) + Flood::PIECE as usize + (64 << 10);

    fn new(arena: &Arena, load: Load, format: Format) -> Flood {
        let mut flood = Flood {
            load,
            queue: Queue::new(arena, format, ENTRIES, true).unwrap(),
            tables: arena.alloc(FLOOD * Flood::TABLE, 16).unwrap(),
            headers: arena.alloc(FLOOD * Flood::HEADER, 64).unwrap(),
            data: arena.alloc(Flood::PIECE as usize, 4096).unwrap(),
            ids: Vec::new(),
            answers: vec![0; FLOOD],
            door: Door::new(),
        };
        flood.set_size(Flood::PIECE, MAX_RANGE_SECTORS);
        flood
    }

    /// Makes the requests ask for `piece` bytes per buffer, or `sectors` sectors per range.
    fn set_size(&mut self, piece: u32, sectors: u32) {
        let (kind, unmap) = match self.load {
            Load::Reads => (RequestKind::Read, false),
            Load::Zeroes { unmap } => (RequestKind::WriteZeroes, unmap),
        };
        for request in 0..FLOOD {
            let at = request * Flood::HEADER;
            let mut header = words(&[kind.code().into(), 0]);
            header.push(0xff);
            if self.answers[request] == 0 {
                self.headers.copy_in(at, &header).unwrap();
            }
            let header = self.headers.addr() + at as u64;
            let mut chain = vec![Segment::readable(header, 16)];
            match self.load {
                Load::Reads => {
                    chain.extend([Segment::writable(self.data.addr(), piece)].repeat(MAX_BUFFERS));
                }
                Load::Zeroes { .. } => {
                    chain.push(Segment::readable(self.data.addr(), MAX_RANGES * 16))
                }
            }
            chain.push(Segment::writable(header + Flood::STATUS as u64, 1));
            self.queue.write_table(&mut self.tables, request * Flood::TABLE, &chain).unwrap();
        }
        if self.load != Load::Reads {
            for range in 0..MAX_RANGES as usize {
                let mut bytes = words(&[0]);
                bytes.extend(halves(&[sectors, unmap.into()]));
                self.data.copy_in(range * 16, &bytes).unwrap();
            }
        }
    }

    /// Makes all requests at once.
    fn submit(&mut self) {
        let entries = if self.load == Load::Reads { MAX_BUFFERS + 2 } else { 3 } as u16;
        for request in 0..FLOOD {
            let table = self.tables.addr() + (request * Flood::TABLE) as u64;
            self.ids.push(self.queue.add(&[Segment::indirect(table, entries)]).unwrap());
        }
        self.queue.publish();
        self.door.kick();
    }

    /// Takes in what was answered; returns how many are, in all.
    fn reap(&mut self) -> usize {
        let Flood { queue, ids, answers, .. } = self;
        queue
            .reap(|used| {
                let request =
                    ids.iter().position(|id| *id == used.id).expect("an answer to a request");
                answers[request] += 1;
            })
            .unwrap();
        self.answers.iter().map(|answers| *answers as usize).sum()
    }

    fn assert_answered_well(&self, request: usize) {
        let mut status = [0];
        self.headers.copy_out(request * Flood::HEADER + Flood::STATUS, &mut status).unwrap();
        assert_eq!(
            (self.answers[request], status[0]),
            (1, 0),
            "request {request}: answers, status"
        );
    }

    /// The ring is stopped: no request is in flight, so exactly the taken requests are answered.
    /// Returns how many that are.
    fn assert_stopped_between_requests(&mut self) -> usize {
        let answered = self.reap();
        (0..answered).for_each(|request| self.assert_answered_well(request));
        assert!(self.answers[answered..].iter().all(|answers| *answers == 0), "{:?}", self.answers);
        answered
    }

    /// The base of a ring that has taken `count` requests, each one entry of it, since it was new.
    fn base(&self, count: usize) -> u32 {
        match self.queue.layout().format {
            Format::Split => count as u32,
            Format::Packed => {
                let (laps, index) = (count / usize::from(ENTRIES), count % usize::from(ENTRIES));
                let position = index as u32 | if laps.is_multiple_of(2) { 1 << 15 } else { 0 };
                position << 16 | position
            }
        }
    }

    /// The position that the next back end gets from a front end after a hang-up. It is the used
    /// index, or for a packed ring, which has none, the position where the first one began.
    fn base_unasked(&self, answered: usize) -> u32 {
        self.base(if self.queue.layout().format == Format::Split { answered } else { 0 })
    }

    /// The present back end answers all the others, once.
    fn assert_the_rest_is_answered(&mut self) {
        let begin = Instant::now();
        while self.reap() < FLOOD {
            let left = LIMIT.saturating_sub(begin.elapsed());
            assert!(!signalled(&self.door.err, Duration::ZERO), "the ring is broken");
            assert!(
                self.queue.enable_interrupts() || signalled(&self.door.call, left),
                "{:?} are answered {LIMIT:?} after the ring was started again",
                self.answers
            );
        }
        std::thread::sleep(Duration::from_millis(30));
        self.reap();
        (0..FLOOD).for_each(|request| self.assert_answered_well(request));
    }
}

/// Another queue of the same guest, with one small request at a time.
struct Bystander {
    name: &'static str,
    index: u32,
    queue: BlkQueue,
    door: Door,
    worst: Duration,
    requests: u32,
}

impl Bystander {
    fn options(format: Format) -> BlkOptions {
        BlkOptions {
            format,
            size: None,
            depth: 1,
            data: 4096,
            segments: 1,
            indirect: true,
            event_idx: true,
        }
    }

    fn new(arena: &Arena, format: Format, index: u32, name: &'static str) -> Bystander {
        let queue = BlkQueue::new(arena, Bystander::options(format)).unwrap();
        Bystander { name, index, queue, door: Door::new(), worst: Duration::ZERO, requests: 0 }
    }

    /// A request at the image's end, where the flood does not come; returns true if it was answered
    /// at all.
    fn is_served(&mut self, sectors: u64) -> bool {
        let kind =
            if self.requests.is_multiple_of(2) { RequestKind::Read } else { RequestKind::Write };
        let begin = Instant::now();
        self.queue.submit(0, Request { kind, sector: sectors - 8, len: 4096, ioprio: 0 }).unwrap();
        if self.queue.publish() {
            self.door.kick();
        }
        let mut done = Vec::new();
        while done.is_empty() && begin.elapsed() < LIMIT {
            if !self.queue.enable_interrupts() {
                signalled(&self.door.call, LIMIT.saturating_sub(begin.elapsed()));
            }
            self.queue.reap(&mut done).unwrap();
        }
        self.requests += 1;
        self.worst = self.worst.max(begin.elapsed());
        assert!(done.iter().all(|completion| completion.status == 0));
        !done.is_empty()
    }
}

/// The times of all waits.
#[derive(Default)]
struct Waits {
    said: String,
    late: bool,
}

impl Waits {
    fn note(&mut self, what: &str, wait: Option<Duration>) {
        let _ = match wait {
            Some(wait) => write!(self.said, "\n  {:>7.3} s  {what}", wait.as_secs_f64()),
            None => write!(self.said, "\n  more than {LIMIT:?}  {what}"),
        };
        self.late |= wait.is_none_or(|wait| wait > SOON);
    }

    fn in_time(&self) -> Result<(), String> {
        if self.late { Err(self.said.clone()) } else { Ok(()) }
    }
}

/// The position of a stopped ring, and how long the front end waited for it.
fn base_of(wire: &Wire, index: u32) -> Option<(u32, Duration)> {
    let begin = Instant::now();
    wire.tell(code::GET_VRING_BASE, &halves(&[index, 0]), &[]);
    let mut fds = [PollFd::new(&wire.stream, PollFlags::IN)];
    if rustix::event::poll(&mut fds, Some(&timespec(LIMIT))).unwrap() == 0 {
        return None;
    }
    let answer = wire.reply(code::GET_VRING_BASE).expect("a base");
    Some((half(&answer, 4), begin.elapsed()))
}

/// Three queues on two threads: the flooded one, one on another thread, and one on the same.
fn serve(image: &Path) -> Server {
    let engine = FileEngine::open(image, FileOptions::default()).unwrap();
    Server::new(Arc::new(engine), 3, 2)
}

fn connect(server: &Server, arena: &Arena, format: Format) -> Wire {
    let wire = server.connect();
    let packed = if format == Format::Packed { PACKED } else { 0 };
    wire.negotiate(USUAL | EVENT_IDX | INDIRECT | WRITE_ZEROES | packed);
    assert!(wire.add_arena(arena));
    wire
}

/// Floods until the waits of the others are short.
fn flood(image: &Path, load: Load, format: Format, end: End) {
    let mut late = String::new();
    for _ in 0..TRIES {
        match flood_once(image, load, format, end) {
            Ok(()) => return,
            Err(said) => late += &said,
        }
    }
    panic!("{load:?}, {format:?}:{late}");
}

/// Floods one queue of a server, checks the waits of the others, stops it in one of the two ways,
/// and has the rest served.
///
/// # Errors
/// The waits, if one was too long.
fn flood_once(image: &Path, load: Load, format: Format, end: End) -> Result<(), String> {
    let arena_bytes = Flood::ARENA + 2 * Bystander::options(format).arena_bytes().unwrap();
    let arena = Arena::new(1 << 32, arena_bytes).unwrap();
    let mut flood = Flood::new(&arena, load, format);
    let mut others = [
        Bystander::new(&arena, format, 1, "another thread"),
        Bystander::new(&arena, format, 2, "the same thread"),
    ];
    let sectors = std::fs::metadata(image).unwrap().len() / SECTOR;
    let server = serve(image);
    let wire = connect(&server, &arena, format);
    let fresh = flood.base(0);
    assert!(wire.start_driven(0, &arena, flood.queue.layout(), fresh, &flood.door));
    for other in &mut others {
        assert!(wire.start_driven(other.index, &arena, other.queue.layout(), fresh, &other.door));
        assert!(other.is_served(sectors));
        other.worst = Duration::ZERO;
    }
    let mut waits = Waits::default();
    flood.submit();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        let served = others.each_mut().map(|other| other.is_served(sectors));
        if served.contains(&false) {
            break;
        }
    }
    for other in &others {
        let Bystander { name, worst, requests, .. } = other;
        let wait = (*worst < LIMIT).then_some(*worst);
        waits.note(&format!("the longest of {requests} small requests of a queue on {name}"), wait);
    }
    let (server, wire, base) = match end {
        End::Base => {
            for other in &others {
                let wait = base_of(&wire, other.index).map(|(_, wait)| wait);
                waits.note(&format!("for the base of a queue on {}", other.name), wait);
                waits.in_time()?;
            }
            let base = base_of(&wire, 0);
            waits.note("for the flooded queue's own base", base.map(|(_, wait)| wait));
            waits.in_time()?;
            let answered = flood.assert_stopped_between_requests();
            let base = base.unwrap().0;
            assert_eq!(base, flood.base(answered), "{answered} are answered");
            (server, wire, base)
        }
        End::Server => {
            waits.note("for the end of the server", server.stop_within(LIMIT));
            waits.in_time()?;
            let answered = flood.assert_stopped_between_requests();
            let base = flood.base_unasked(answered);
            drop((wire, server));
            let next = serve(image);
            let wire = connect(&next, &arena, format);
            (next, wire, base)
        }
    };
    let answered = flood.reap();
    println!("{load:?}, {format:?}: {answered} of {FLOOD} answered before the end{}", waits.said);
    // Smaller, as they are not served now, or this would take minutes.
    flood.set_size(512, 8);
    assert!(wire.start_driven(0, &arena, flood.queue.layout(), base, &flood.door));
    flood.assert_the_rest_is_answered();
    drop((wire, server));
    Ok(())
}

/// Floods with reads of an image that is in memory as a whole.
fn flood_with_reads(end: End) {
    const CHUNK: u64 = 16 << 20;
    let _one = one_at_a_time();
    let size = MAX_REQUEST + CHUNK;
    let Some(directory) = in_memory(size) else {
        return vlane_testing::skip(format!("no {size} bytes in /dev/shm"));
    };
    let path = image(directory.path(), size);
    let file = File::options().write(true).open(&path).unwrap();
    let chunk = vec![7; CHUNK as usize];
    (0..size / CHUNK).for_each(|at| file.write_all_at(&chunk, at * CHUNK).unwrap());
    drop(file);
    for format in [Format::Split, Format::Packed] {
        flood(&path, Load::Reads, format, end);
    }
}

/// Floods with zeroes: 2 GiB of the image, again and again.
fn flood_with_zeroes(end: End) {
    let _one = one_at_a_time();
    let range = u64::from(MAX_RANGE_SECTORS) * SECTOR;
    let size = range + range / 2;
    let Some(directory) = in_memory(size) else {
        return vlane_testing::skip(format!("no {size} bytes in /dev/shm"));
    };
    for unmap in [true, false] {
        let path = image(directory.path(), size);
        for format in [Format::Split, Format::Packed] {
            flood(&path, Load::Zeroes { unmap }, format, end);
        }
    }
}

#[test]
fn largest_reads_delay_no_queue_or_base() {
    flood_with_reads(End::Base);
}

#[test]
fn largest_reads_do_not_delay_stop() {
    flood_with_reads(End::Server);
}

#[test]
fn largest_zeroes_delay_no_queue_or_base() {
    flood_with_zeroes(End::Base);
}

#[test]
fn largest_zeroes_do_not_delay_stop() {
    flood_with_zeroes(End::Server);
}
