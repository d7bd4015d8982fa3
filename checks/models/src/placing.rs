//! Lanes that read and write while the journal thread changes what goes around the page cache.

use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicI64 as Plain;
use std::sync::atomic::Ordering::SeqCst;

use loom::thread;
use vlane_policy::journal::Regions;
use vlane_ring::Slot;

use crate::placements::{Begun, Placements, Placer};
use crate::sync::{Arc, Wake};

/// A lane's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Serves a request for these bytes.
    Serve(u64, u64),
    /// Has two requests at a time.
    Both((u64, u64), (u64, u64)),
    /// Takes a request for these bytes and puts it back, whether it was held or not.
    Forget(u64, u64),
    /// Ends with a request that is held, or that has begun and has no operation in progress any
    /// more.
    End(u64, u64),
}

/// The journal thread's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Makes exactly these bytes direct, once the changed ones are unused.
    Change(u64, u64),
    /// The same, but then it is put off.
    PutOff(u64, u64),
    /// It is put off without waiting.
    Cancel(u64, u64),
}

/// Bytes of the volume.
const SIZE: usize = 4;

/// By byte: requests under way, those around the page cache counted up, the others down. No step of
/// the model, which runs one thread at a time.
#[derive(Default)]
struct Disk {
    under_way: [Plain; SIZE],
    /// The bytes that no lane may use.
    is_alone: [Plain; SIZE],
}

impl Disk {
    fn begin(&self, (from, to): (u64, u64), mut is_direct: impl FnMut(u64) -> bool) {
        for byte in from..to {
            let (at, way) =
                (usize::try_from(byte).unwrap_or(0), if is_direct(byte) { 1 } else { -1 });
            assert_eq!(self.is_alone[at].load(SeqCst), 0, "byte {byte} is used while it changes");
            let before = self.under_way[at].fetch_add(way, SeqCst);
            assert!(before * way >= 0, "byte {byte} is used in both ways");
        }
    }

    fn end(&self, (from, to): (u64, u64), mut is_direct: impl FnMut(u64) -> bool) {
        for byte in from..to {
            let at = usize::try_from(byte).unwrap_or(0);
            self.under_way[at].fetch_sub(if is_direct(byte) { 1 } else { -1 }, SeqCst);
        }
    }
}

/// A lane's thread.
struct Lane {
    /// Dropped where all went well, and nowhere else: when a model fails, loom is over before this
    /// would be.
    placer: ManuallyDrop<Placer>,
    doorbell: Arc<Wake>,
    disk: Arc<Disk>,
}

impl Lane {
    fn run(mut self, steps: &[Step]) -> Option<Lane> {
        for step in steps {
            match *step {
                Step::Serve(from, to) => self.serve(&[(from, to)]),
                Step::Both(one, other) => self.serve(&[one, other]),
                Step::Forget(from, to) => {
                    let _begun = self.placer.begin(Slot(0), from..to);
                    self.placer.end(Slot(0));
                }
                Step::End(from, to) => {
                    let _begun = self.placer.begin(Slot(0), from..to);
                    return self.end();
                }
            }
        }
        Some(self)
    }

    fn end(self) -> Option<Lane> {
        drop(ManuallyDrop::into_inner(self.placer));
        None
    }

    /// Requests in the slots 0, 1, ...; each begins as soon as it may, and ends after all have been
    /// begun that may.
    fn serve(&mut self, requests: &[(u64, u64)]) {
        let mut under_way = Vec::new();
        let mut left = requests.len();
        for slot in 0..requests.len() {
            self.begin(slot, requests, &mut under_way);
        }
        while left > 0 {
            for slot in std::mem::take(&mut under_way) {
                let (from, to) = requests[slot];
                let slot = Slot(u16::try_from(slot).unwrap_or(0));
                // As a request in parts does: it asks again.
                self.disk.end((from, to), |byte| self.placer.part(slot, byte).0);
                self.placer.end(slot);
                left -= 1;
            }
            // As a lane's thread waits: it sleeps unless it has work, reads the eventfd, and looks.
            if left > 0 {
                if !self.placer.is_freed() {
                    self.doorbell.wait();
                }
                self.doorbell.clear();
            }
            while let Some(slot) = self.placer.freed() {
                assert!(self.placer.is_held(slot));
                self.begin(usize::from(slot.0), requests, &mut under_way);
            }
        }
    }

    fn begin(&mut self, number: usize, requests: &[(u64, u64)], under_way: &mut Vec<usize>) {
        let (from, to) = requests[number];
        let slot = Slot(u16::try_from(number).unwrap_or(0));
        if self.placer.begin(slot, from..to) != Begun::Held {
            self.disk.begin((from, to), |byte| self.placer.part(slot, byte).0);
            under_way.push(number);
        }
    }
}

/// Lanes, each with its work, while the regions change. No byte is used in both ways at a time, nor
/// while it changes; no lane waits for ever.
pub fn no_byte_goes_both_ways(turns: &'static [Turn], lanes: &'static [&'static [Step]]) {
    let wake = Arc::new(Wake::new());
    let placements = Placements::new(Arc::clone(&wake));
    let disk = Arc::new(Disk::default());
    let running: Vec<_> = lanes
        .iter()
        .map(|steps| {
            let doorbell = Arc::new(Wake::new());
            let placer = ManuallyDrop::new(Placer::new(&placements, 2, Arc::clone(&doorbell)));
            let lane = Lane { placer, doorbell, disk: Arc::clone(&disk) };
            thread::spawn(move || {
                // The rest is released at its end: no thread waits for it any more.
                if let Some(lane) = lane.run(steps) {
                    lane.end();
                }
            })
        })
        .collect();
    for turn in turns {
        let (Turn::Change(from, to) | Turn::PutOff(from, to) | Turn::Cancel(from, to)) = *turn;
        let (old, new) = (placements.regions(), Regions::of(from..to));
        let changing = old.difference(&new);
        placements.hold(changing.clone());
        if !matches!(turn, Turn::Cancel(..)) {
            while !placements.is_drained() {
                wake.wait();
                wake.clear();
            }
            let bytes = || (0..SIZE).filter(|byte| changing.at(*byte as u64).0);
            for byte in bytes() {
                assert_eq!(
                    disk.under_way[byte].load(SeqCst),
                    0,
                    "byte {byte} is used while it changes"
                );
                disk.is_alone[byte].store(1, SeqCst);
            }
            // The cache is emptied, and others continue.
            thread::yield_now();
            bytes().for_each(|byte| disk.is_alone[byte].store(0, SeqCst));
        }
        match turn {
            Turn::Change(..) => placements.release(Arc::new(new)),
            Turn::PutOff(..) | Turn::Cancel(..) => placements.release(old),
        }
    }
    running.into_iter().for_each(|lane| lane.join().expect("a lane"));
}
