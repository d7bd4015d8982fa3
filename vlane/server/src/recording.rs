//! A trace of a volume while it is served: attaches recorders to the lanes, and turns their records
//! into a stream.
//!
//! The thread `recorder` empties the lanes' rings as often as the load requires (each wake-up costs
//! CPU time). It gives the trace's bytes to the reader. A reader that is too slow makes it wait;
//! the lanes never wait, they count the records that find no place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use vlane_error::locked;
use vlane_lane::{Recorded, RecorderConfig, recorder};
use vlane_trace::{Entry, Header, Writer};

use crate::recorded::{Active, Recording};
use crate::volume::Volume;

/// Entries that a lane's ring holds: 4.5 MiB, and 50 ms of 1.3 million requests a second.
const RING: usize = 64 * 1024;
/// The fill of a ring at which it should be emptied: a load that rises sixteenfold meanwhile still
/// fits.
const WANTED: usize = RING / 16;
/// Bytes that are given to the reader together.
const CHUNK: usize = 64 * 1024;
/// Chunks that may wait for the reader: 4 MiB, and what the socket holds.
const CHUNKS: usize = 64;
/// The recorder's sleep between two looks at the rings, at least and at most.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);
/// The time that lanes may take to let go of their recorders.
const LET_GO: Duration = Duration::from_secs(2);
/// The time that an ending recording may delay the next one: its last sleep, the lanes, and writing
/// down the rest.
const ENDING: Duration = Duration::from_secs(3);
/// The time until a reader that has hung up is missed.
const MISSED: Duration = Duration::from_millis(100);

/// Reasons why no trace is recorded.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another recording runs.
    Busy,
    /// The volume ends.
    Ending,
    /// No thread.
    System(std::io::Error),
}

impl Recording {
    /// Ends the present one in order, and lets no other begin.
    pub(crate) fn end(&self) {
        let mut state = locked(&self.state);
        state.is_ending = true;
        if let Some(active) = &state.active {
            active.stop.store(true, Ordering::Relaxed);
        }
    }

    /// As [`Recording::begin`], but waits for a recording that is ending. A client can record one
    /// trace after the other without knowing that a thread is still tidying up.
    pub(crate) async fn follow(
        volume: &Arc<Volume>,
        hashes: bool,
    ) -> Result<Receiver<Vec<u8>>, Refused> {
        let asked = Instant::now();
        loop {
            let patience = match &locked(&volume.recording.state).active {
                Some(active) if active.is_left() => ENDING,
                _ => MISSED,
            };
            match Self::begin(volume, hashes) {
                Err(Refused::Busy) if asked.elapsed() < patience => {
                    tokio::time::sleep(SHORTEST).await
                }
                done => return done,
            }
        }
    }

    /// Begins one; what it gives are the trace's bytes, until the receiver is dropped or the volume
    /// ends.
    fn begin(volume: &Arc<Volume>, hashes: bool) -> Result<Receiver<Vec<u8>>, Refused> {
        let mut state = locked(&volume.recording.state);
        if state.is_ending {
            return Err(Refused::Ending);
        }
        if state.active.as_ref().is_some_and(Active::is_alive) {
            return Err(Refused::Busy);
        }
        let (sender, receiver) = channel(CHUNKS);
        let stop = Arc::new(AtomicBool::new(false));
        // Before any answer: a front end that connects later is recorded from the first request on.
        let origin = Instant::now();
        let lanes = attach(volume, RecorderConfig { origin, hashes, entries: RING });
        let reader = sender.downgrade();
        let (volume_, stop_) = (Arc::clone(volume), Arc::clone(&stop));
        let body = move || run(&volume_, origin, hashes, lanes, sender, &stop_);
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(body);
        thread.inspect_err(|_| detach(volume)).map_err(Refused::System)?;
        state.active = Some(Active { stop, reader });
        Ok(receiver)
    }
}

/// The trace's header.
fn header(volume: &Volume, hashes: bool) -> Header {
    let geometry = volume.geometry();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Header {
        started: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        sectors: geometry.sectors,
        block_size: geometry.block_size,
        lanes: volume.queues(),
        hashes,
        name: volume.config.name.clone(),
    }
}

/// Gives every lane, running or not, a recorder.
fn attach(volume: &Volume, config: RecorderConfig) -> Vec<Recorded> {
    let attach = |index| {
        let (recorder, recorded) = recorder(index, config);
        volume.pool.set_recorder(index, Some(Box::new(recorder))).ok().map(|()| recorded)
    };
    (0..volume.queues()).filter_map(attach).collect()
}

/// Lets the lanes drop their recorders, when they come to it.
fn detach(volume: &Volume) {
    for index in 0..volume.queues() {
        // A thread that is gone has dropped its own.
        let _ = volume.pool.set_recorder(index, None);
    }
}

/// The recorder's thread.
fn run(
    volume: &Volume,
    origin: Instant,
    hashes: bool,
    mut lanes: Vec<Recorded>,
    reader: Sender<Vec<u8>>,
    stop: &Arc<AtomicBool>,
) {
    let Ok(writer) = Writer::new(Vec::with_capacity(CHUNK), header(volume, hashes)) else { return };
    let mut out = Out { writer, reader };
    let mut is_read = out.hand_over();
    let mut sleep = SHORTEST;
    while is_read && !stop.load(Ordering::Relaxed) && !out.reader.is_closed() {
        let fullest = drain(&mut lanes, &mut out);
        is_read = out.hand_over();
        sleep = next_sleep(sleep, fullest);
        std::thread::sleep(sleep);
    }
    detach(volume);
    let begin = Instant::now();
    while lanes.iter().any(|lane| !lane.is_over()) && begin.elapsed() < LET_GO {
        drain(&mut lanes, &mut out);
        is_read = is_read && out.hand_over();
        std::thread::sleep(SHORTEST);
    }
    drain(&mut lanes, &mut out);
    let now = u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for lost in lanes.iter().filter_map(|lane| lane.untold(now)) {
        let _ = out.writer.write(&lost);
    }
    out.finish();
}

/// The trace on its way to the reader.
struct Out {
    writer: Writer<Vec<u8>>,
    reader: Sender<Vec<u8>>,
}

impl Out {
    /// Gives what is there to the reader; returns true if there still is one.
    fn hand_over(&mut self) -> bool {
        let bytes = self.writer.target();
        bytes.is_empty() || {
            let bytes = std::mem::replace(bytes, Vec::with_capacity(CHUNK));
            self.reader.blocking_send(bytes).is_ok()
        }
    }

    fn finish(self) {
        if let Ok(bytes) = self.writer.finish() {
            let _ = self.reader.blocking_send(bytes);
        }
    }
}

/// As long as it takes at the present rate to find [`WANTED`] entries in the fullest ring.
fn next_sleep(last: Duration, found: usize) -> Duration {
    let wanted = u32::try_from(WANTED).unwrap_or(u32::MAX);
    let found = u32::try_from(found.max(1)).unwrap_or(u32::MAX);
    (last * wanted / found).clamp(SHORTEST, LONGEST)
}

/// Empties the rings; returns how many entries the fullest had.
fn drain(lanes: &mut [Recorded], out: &mut Out) -> usize {
    let mut fullest = 0;
    for lane in lanes {
        let found = lane.drain(|entry: Entry| {
            // Into memory: it cannot fail, and lanes are those of the header.
            let _ = out.writer.write(&entry);
        });
        fullest = fullest.max(found);
        if out.writer.target().len() >= CHUNK && !out.hand_over() {
            break;
        }
    }
    fullest
}
