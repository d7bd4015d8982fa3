//! Records the changes that reach the storage, for tests and research: see
//! [`vlane_trace::storage`].
//!
//! Each thread that changes the storage by a system call, or makes it durable, reports the call
//! before and after: [`RecordedCall`]. The entries of all lanes and threads go through one queue,
//! which gives them their order; a thread of its own writes them. When it cannot follow, the lanes
//! wait for it: no entry is left out. So a volume that is recorded is slower, and one that is not
//! pays a branch at calls that cost a thousand times as much.

use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use vlane_ring::{Request, RequestKind};
use vlane_trace::storage::{Action, Data, Entry, Header, Purpose, Writer};

use crate::Status;

/// Entries that wait for the thread. An operation writes 1 MiB at most.
const WAITING: usize = 64;

thread_local! {
    /// The request that this thread is working on; 0: none.
    static REQUEST: Cell<u64> = const { Cell::new(0) };
}

/// Records the changes that reach a volume's storage. It has the data of all writes in it.
#[derive(Debug)]
pub struct StorageRecorder {
    entries: SyncSender<Entry>,
    requests: AtomicU64,
    operations: AtomicU64,
    lanes: AtomicU16,
    /// None: it was ended.
    thread: Mutex<Option<JoinHandle<Result<(), vlane_trace::Error>>>>,
}

impl StorageRecorder {
    /// Begins a record.
    ///
    /// # Errors
    /// When its header cannot be written, or there is no thread to be had.
    pub(crate) fn start(
        to: impl Write + Send + 'static,
        header: Header,
    ) -> Result<Arc<StorageRecorder>, Box<dyn std::error::Error + Send + Sync>> {
        let writer = Writer::new(to, header)?;
        let (entries, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("storage record".to_owned())
            .spawn(move || write(writer, &receiver))?;
        Ok(Arc::new(StorageRecorder {
            entries,
            requests: AtomicU64::new(1),
            operations: AtomicU64::new(1),
            lanes: AtomicU16::new(0),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Ends the record: later events are not in it.
    ///
    /// # Errors
    /// When an entry could not be written: the record is worthless then.
    pub fn finish(&self) -> Result<(), vlane_trace::Error> {
        let thread = vlane_error::locked(&self.thread).take();
        let Some(thread) = thread else { return Ok(()) };
        // The thread counts them.
        self.tell(Entry::Complete { entries: 0 });
        thread.join().unwrap_or(Ok(()))
    }

    fn tell(&self, entry: Entry) {
        // After the end the receiver is gone.
        let _ = self.entries.send(entry);
    }

    /// A number for a lane.
    pub(crate) fn lane(&self) -> u16 {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    /// A request begins; none for one that neither changes the storage nor flushes it.
    pub(crate) fn request(&self, lane: u16, request: &Request, durable: bool) -> Option<u64> {
        let kind = match request.kind() {
            RequestKind::Out => Purpose::Write,
            RequestKind::Flush => Purpose::Flush,
            RequestKind::Discard => Purpose::Discard,
            RequestKind::WriteZeroes => Purpose::WriteZeroes,
            RequestKind::In
            | RequestKind::GetId
            | RequestKind::Refused(_)
            | RequestKind::Unreachable => return None,
        };
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.tell(Entry::Request { request, lane, kind, durable });
        Some(request)
    }

    /// A request is going to be answered.
    pub(crate) fn answer(&self, request: u64, status: Status) {
        self.tell(Entry::Answer { request, status: status as u8 });
    }

    /// A request goes back into its ring.
    pub(crate) fn forget(&self, request: u64) {
        self.tell(Entry::Forgotten { request });
    }

    /// An operation begins, for the request that this thread is working on.
    pub(crate) fn submitted(&self, what: Action) -> u64 {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        self.tell(Entry::Begin { operation, request: REQUEST.get(), what });
        operation
    }

    /// An operation has ended.
    pub(crate) fn finished(&self, operation: u64, result: i64) {
        self.tell(Entry::End { operation, result });
    }
}

/// Marks operations that `work` begins on this thread as a request's.
pub(crate) fn within<T>(request: Option<u64>, work: impl FnOnce() -> T) -> T {
    REQUEST.set(request.unwrap_or(0));
    let done = work();
    REQUEST.set(0);
    done
}

/// `len` bytes of a request's data, from byte `from` on.
// off the data path: the recorder exists in tests of power cuts only.
pub(crate) fn data(request: &Request, from: u64, len: u64) -> Data {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    request.copy_from(from, &mut bytes);
    Data::of(bytes)
}

/// An operation that a recorder has noted, if there is one: its end is reported, too.
#[derive(Debug)]
#[must_use = "the recorder is told of the end, too"]
pub(crate) struct RecordedCall<'a>(Option<(&'a StorageRecorder, u64)>);

impl<'a> RecordedCall<'a> {
    /// A call is about to begin. Only a recorder asks for the operation.
    #[inline]
    pub(crate) fn new(
        recorder: Option<&'a Arc<StorageRecorder>>,
        what: impl FnOnce() -> Action,
    ) -> RecordedCall<'a> {
        RecordedCall(recorder.map(|recorder| (&**recorder, recorder.submitted(what()))))
    }

    /// A call is about to write `len` bytes of a request's data, from byte `from` on, which is not
    /// durable then.
    #[inline]
    pub(crate) fn write(
        recorder: Option<&'a Arc<StorageRecorder>>,
        request: &Request,
        from: u64,
        (file, offset, len): (u8, u64, u64),
    ) -> RecordedCall<'a> {
        RecordedCall::new(recorder, || {
            let data = data(request, from, len);
            Action::Write { file, offset, durable: false, data }
        })
    }

    /// The call has ended: a count of bytes or 0, or a negative error number.
    #[inline]
    pub(crate) fn end(self, result: i64) {
        if let Some((recorder, operation)) = self.0 {
            recorder.finished(operation, result);
        }
    }

    /// The call has ended, and moves no bytes.
    pub(crate) fn end_with(self, result: &std::io::Result<()>) {
        self.end(match result {
            Ok(()) => 0,
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
        });
    }
}

/// The thread.
fn write<W: Write>(
    mut writer: Writer<W>,
    entries: &Receiver<Entry>,
) -> Result<(), vlane_trace::Error> {
    let mut failed = None;
    for entry in entries {
        match (entry, &failed) {
            (Entry::Complete { .. }, _) => {
                return match failed {
                    None => writer.finish().map(drop),
                    Some(error) => Err(error),
                };
            }
            // The lanes continue; the record is worthless now.
            (_, Some(_)) => {}
            (entry, None) => {
                failed = writer.write(&entry).err();
                if let Some(error) = &failed {
                    tracing::error!(
                        "the record of the storage's writes cannot be written: {error}"
                    );
                }
            }
        }
    }
    // It was never ended: its reader sees that.
    failed.map_or(Ok(()), Err)
}
