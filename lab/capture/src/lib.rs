//! Traces of live volumes: recorded from a control socket, looked at, replayed, converted.
//!
//! A [`Trace`] is one in memory (72 bytes per request). It makes a fact plain that the format only
//! implies: which requests of a lane had been completed when another was taken.

#![forbid(unsafe_code)]

pub mod analyze;
pub mod blktrace;
pub mod detection;
mod import;
pub mod iolog;
pub mod msr;
pub mod prove;
pub mod replay;
mod replay_report;

pub use import::Imported;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::Path;

use vlane_trace::{BlockHead, Entry, Header, LayoutPiece, Reader, Record, RequestKind, Writer};

use vlane_testbed::{At, Error, ErrorKind, Fail, Output, Result, Wanted, mistaken};

/// A request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// As recorded. [`Record::seq`] and [`Record::after`] count within `run`.
    pub record: Record,
    /// How often its lane had been started before.
    pub run: u32,
    /// Its place in the order in which requests of the lane's run were completed, those that are
    /// missing counted.
    pub completion: u32,
}

impl Request {
    /// Requests of its lane that were in flight when it was taken, itself among them.
    pub fn in_flight(&self) -> u32 {
        self.record.seq.wrapping_sub(self.record.after).wrapping_add(1)
    }
}

/// A gap: the recorder could not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The lane.
    pub lane: u16,
    /// When it was noticed, in ns of the trace.
    pub time: u64,
    /// Requests that are missing.
    pub count: u64,
    /// Its place among [`Trace::requests`]: before that one.
    pub place: usize,
}

/// A block of a write that begins with a journal's magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// As recorded; its `seq` counts within `run`.
    pub block: BlockHead,
    /// How often its lane had been started before.
    pub run: u32,
}

impl Head {
    /// As who looks for journals wants it.
    pub fn block(&self) -> vlane_policy::journal::Head {
        let mut bytes = [0; vlane_policy::journal::Head::LEN];
        bytes[..4].copy_from_slice(&self.block.magic.bytes());
        bytes[4..].copy_from_slice(&self.block.rest);
        vlane_policy::journal::Head {
            offset: self.block.sector.saturating_mul(vlane_trace::SECTOR),
            bytes,
        }
    }
}

/// A trace in memory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Facts about the trace.
    pub header: Header,
    /// One for each range of a request, in the order of the file: each lane's in the order of
    /// completion.
    pub requests: Vec<Request>,
    /// Missing requests.
    pub gaps: Vec<Gap>,
    /// The first words of writes' blocks, where they are a journal's magic number; each lane's in
    /// the order in which they were begun.
    pub heads: Vec<Head>,
    /// Where the volume's layout places its journals, in the order in which it was read.
    pub layouts: Vec<LayoutPiece>,
    /// True if it was ended in order.
    pub is_complete: bool,
    /// Where and why reading ended before the end of the file.
    pub damage: Option<String>,
}

impl Trace {
    /// Reads a file. One that is damaged or cut off gives what is before the damage, and
    /// [`Trace::damage`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Format`] if it is no trace of a version that is known.
    pub fn load(path: &Path) -> Result<Self> {
        if let Some(words) = mistaken(path, Wanted::Trace) {
            return ErrorKind::Format.fail(words);
        }
        let file = File::open(path).at(path, "cannot be opened")?;
        Self::read(BufReader::with_capacity(1 << 20, file))
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Reads from anywhere; as [`Trace::load`].
    ///
    /// # Errors
    /// As [`Trace::load`].
    pub fn read(from: impl Read) -> Result<Self> {
        let mut reader =
            Reader::new(from).map_err(|error| Error::new(ErrorKind::Format, error.to_string()))?;
        let mut trace = Self { header: reader.header().clone(), ..Self::default() };
        let mut lanes = BTreeMap::new();
        for entry in &mut reader {
            match entry {
                Ok(entry) => trace.take(&mut lanes, entry),
                Err(error) => trace.damage = Some(error.to_string()),
            }
        }
        trace.is_complete = reader.is_complete();
        Ok(trace)
    }

    /// `lanes` has how often each was started, and its completions since then.
    fn take(&mut self, lanes: &mut BTreeMap<u16, (u32, u32)>, entry: Entry) {
        match entry {
            Entry::Record(record) => {
                let (starts, completions) = lanes.entry(record.lane).or_default();
                let (run, completion) = (starts.saturating_sub(1), *completions);
                self.requests.push(Request { record, run, completion });
                *completions = completion.wrapping_add(u32::from(!record.more));
            }
            Entry::Head(block) => {
                let run = lanes.entry(block.lane).or_default().0.saturating_sub(1);
                self.heads.push(Head { block, run });
            }
            Entry::Start { lane, .. } => {
                let at = lanes.entry(lane).or_default();
                *at = (at.0 + 1, 0);
            }
            Entry::Lost { lane, time, count } => {
                let (_, completions) = lanes.entry(lane).or_default();
                // Numbers of requests are modulo 2^32, and so is this.
                #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
                {
                    *completions = completions.wrapping_add(count as u32);
                }
                self.gaps.push(Gap { lane, time, count, place: self.requests.len() });
            }
            Entry::Layout(piece) => self.layouts.push(piece),
            Entry::End { .. } => {}
        }
    }

    /// Makes a trace of requests from elsewhere, of which only the times say what came before what.
    /// They get numbers by lane.
    pub fn from_records(header: Header, mut records: Vec<Record>) -> Self {
        records.sort_by_key(|record| (record.submit, record.lane));
        // When those of each lane were completed.
        let mut done: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for record in &mut records {
            let lane = done.entry(record.lane).or_default();
            record.seq = u32::try_from(lane.len()).unwrap_or(u32::MAX);
            lane.push(record.completed());
        }
        done.values_mut().for_each(|lane| lane.sort_unstable());
        for record in &mut records {
            let before = done[&record.lane].partition_point(|at| *at <= record.submit);
            record.after = u32::try_from(before).unwrap_or(u32::MAX).min(record.seq);
        }
        records.sort_by_key(|record| (record.completed(), record.lane, record.seq));
        let mut trace = Self { header, is_complete: true, ..Self::default() };
        let mut lanes = BTreeMap::new();
        for record in records {
            trace.take(&mut lanes, Entry::Record(record));
        }
        trace
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn save(&self, output: &Output) -> Result<()> {
        let mut file = output.begin()?;
        let mut write = || -> std::result::Result<(), vlane_trace::Error> {
            let mut writer =
                Writer::new(BufWriter::with_capacity(1 << 20, &mut file), self.header.clone())?;
            let mut runs = BTreeMap::new();
            let mut gaps = self.gaps.iter().peekable();
            for piece in &self.layouts {
                writer.write(&Entry::Layout(*piece))?;
            }
            let heads = self.heads_by_write();
            for (place, request) in self.requests.iter().map(Some).chain([None]).enumerate() {
                while let Some(gap) = gaps.next_if(|gap| gap.place <= place || request.is_none()) {
                    let Gap { lane, time, count, .. } = *gap;
                    writer.write(&Entry::Lost { lane, time, count })?;
                }
                let Some(Request { record, run, .. }) = request else { break };
                if runs.insert(record.lane, *run) != Some(*run) {
                    let time = if *run == 0 { 0 } else { record.submit };
                    writer.write(&Entry::Start { lane: record.lane, time, in_flight: 0 })?;
                }
                for head in heads.get(&(record.lane, *run, record.seq)).into_iter().flatten() {
                    writer.write(&Entry::Head(head.block))?;
                }
                writer.write(&Entry::Record(*record))?;
            }
            writer.finish().map(drop)
        };
        write().at(output.path(), "cannot be written")?;
        file.finish()
    }

    /// The heads of each write, by lane, run and number, in the order of their places.
    pub fn heads_by_write(&self) -> HashMap<(u16, u32, u32), Vec<Head>> {
        let mut by_write: HashMap<_, Vec<Head>> = HashMap::new();
        for head in &self.heads {
            let of_write = by_write.entry((head.block.lane, head.run, head.block.seq)).or_default();
            // A write that was taken twice has each twice.
            if of_write.iter().all(|known| known.block.sector != head.block.sector) {
                of_write.push(*head);
            }
        }
        by_write
    }

    /// Requests that are missing.
    pub fn lost(&self) -> u64 {
        self.gaps.iter().map(|gap| gap.count).sum()
    }

    /// Places of all requests in the order in which they were taken: by time, those of one lane
    /// exactly.
    pub fn by_submission(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.requests.len()).collect();
        order.sort_by_key(|at| {
            let Request { record, run, .. } = &self.requests[*at];
            (record.submit, record.lane, *run, record.seq, *at)
        });
        order
    }

    /// Time from the first submission to the last completion, in ns; the first of them.
    pub fn span(&self) -> (u64, u64) {
        let first = self.requests.iter().map(|r| r.record.submit).min().unwrap_or(0);
        let last = self.requests.iter().map(|r| r.record.completed()).max().unwrap_or(first);
        (first, last - first)
    }

    /// In words, if this is not all of what was recorded or made: it is damaged, or has no end.
    pub fn what_is_missing(&self) -> Option<String> {
        match &self.damage {
            Some(damage) => Some(format!(
                "the trace is damaged, and only the part before the damage was used: {damage}"
            )),
            None if !self.is_complete => {
                Some("the trace has no end: it was cut off, or the recording broke off".to_owned())
            }
            None => None,
        }
    }

    /// True if a request in it changes a volume's data.
    pub fn changes_data(&self) -> bool {
        self.requests.iter().any(|request| request.record.kind.changes_data())
    }

    /// Requests of each kind; one with several ranges counts once.
    pub fn count(&self, kind: RequestKind) -> u64 {
        self.requests.iter().filter(|r| r.record.kind == kind && !r.record.more).count() as u64
    }
}
