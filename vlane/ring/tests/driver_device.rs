//! The driver's side against the device's: random interleavings of the two in one thread, and two
//! threads that sleep and signal only when the protocol demands it. No request is lost, mixed up or
//! answered twice, and no side sleeps through work.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use common::cases;
use proptest::prelude::*;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{Queue, QueueConfig, RingFormat, Slot, Status};

/// The longest request. Under Miri the bytes take most of the time.
const SECTORS: u32 = if cfg!(miri) { 1 } else { 4 };
const DATA: u32 = 512 * SECTORS;

fn guest_memory(arena: &Arena) -> Arc<GuestMemory> {
    let spec =
        RegionSpec { guest: arena.base(), size: arena.size(), user: arena.user_addr(), offset: 0 };
    #[cfg(not(miri))]
    let region = {
        let file =
            std::fs::File::from(arena.fd().expect("a memfd").try_clone_to_owned().expect("dup"));
        Region::map(spec, &file).expect("map")
    };
    #[cfg(miri)]
    let region = {
        let host = std::ptr::with_exposed_provenance_mut(arena.user_addr() as usize);
        // SAFETY: every test keeps its arena longer than the device's queue.
        unsafe { Region::from_raw(spec, std::ptr::NonNull::new(host).unwrap()) }.expect("region")
    };
    Arc::new(GuestMemory::new(vec![region]).expect("memory"))
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    packed: bool,
    event_idx: bool,
    indirect: bool,
    depth: u16,
    segments: u16,
    size: Option<u16>,
}

fn pair(shape: Shape) -> (Arena, BlkQueue, Queue) {
    let Shape { packed, event_idx, indirect, depth, segments, size } = shape;
    let format = if packed { Format::Packed } else { Format::Split };
    let options = BlkOptions { format, size, depth, data: DATA, segments, indirect, event_idx };
    let arena = Arena::new(0x8000_0000, options.arena_bytes().expect("legal")).expect("memory");
    let driver = BlkQueue::new(&arena, options).expect("queue");
    let at = driver.layout();
    let config = QueueConfig {
        layout: if packed { RingFormat::Packed } else { RingFormat::Split },
        size: at.size,
        event_idx,
        desc: arena.to_user(at.desc),
        driver: arena.to_user(at.driver),
        device: arena.to_user(at.device),
        base: if packed { 0x8000_8000 } else { 0 },
        log_addr: None,
    };
    let device = Queue::new(config, guest_memory(&arena)).expect("queue");
    (arena, driver, device)
}

fn pattern(sector: u64, at: usize) -> u8 {
    (sector as u8).wrapping_mul(31).wrapping_add(at as u8)
}

/// Serves a request as the device does: a read yields the pattern of its sector, a write must bring
/// it.
fn serve(device: &mut Queue, slot: Slot) {
    let request = device.request(slot);
    let (kind, sector) = (request.kind(), request.sector());
    let mut at = 0;
    for buffer in request.buffers() {
        for i in 0..buffer.iov_len {
            // SAFETY: a byte of a buffer of a request in flight.
            let byte = unsafe { buffer.iov_base.cast::<u8>().add(i) };
            match kind {
                // SAFETY: as above.
                vlane_ring::RequestKind::In => unsafe { byte.write_volatile(pattern(sector, at)) },
                vlane_ring::RequestKind::Out => {
                    // SAFETY: as above.
                    let written = unsafe { byte.read_volatile() };
                    assert_eq!(written, pattern(sector, at));
                }
                other => panic!("{other:?} has data"),
            }
            at += 1;
        }
    }
    device.answer(slot, if sector % 7 == 3 { Status::IoErr } else { Status::Ok });
}

/// The driver's requests that are out, by slot.
struct Client {
    queue: BlkQueue,
    out: Vec<Option<Request>>,
    sector: u64,
    done: u64,
}

impl Client {
    fn new(queue: BlkQueue) -> Client {
        let out = vec![None; usize::from(queue.depth())];
        Client { queue, out, sector: 0, done: 0 }
    }

    /// Issues the next request in a free slot.
    fn submit(&mut self) -> bool {
        let Some(slot) = self.out.iter().position(Option::is_none) else { return false };
        let sector = self.sector;
        self.sector += 1;
        let (kind, len) = match sector % 5 {
            0 => (RequestKind::Flush, 0),
            1 | 2 => (RequestKind::Read, 512 * (1 + sector as u32 % SECTORS)),
            _ => (RequestKind::Write, 512 * (1 + sector as u32 % SECTORS)),
        };
        if kind == RequestKind::Write {
            let bytes: Vec<u8> = (0..len as usize).map(|at| pattern(sector, at)).collect();
            self.queue.data_mut(slot as u16).expect("slot").copy_in(0, &bytes).expect("fits");
        }
        let request = Request { kind, sector, len, ioprio: 0 };
        self.queue.submit(slot as u16, request).expect("a free slot");
        self.out[slot] = Some(request);
        true
    }

    fn reap(&mut self) -> usize {
        let mut completions = Vec::new();
        self.queue.reap(&mut completions).expect("a device that keeps the rules");
        for completion in &completions {
            let slot = completion.slot;
            let request = self.out[usize::from(slot)].take().expect("answered once");
            let failed = request.sector % 7 == 3;
            assert_eq!(completion.status, u8::from(failed));
            let reads = request.kind == RequestKind::Read && !failed;
            // The status byte is behind the data: it counts only if they were written.
            let len = match request.kind {
                RequestKind::Read if reads => request.len + 1,
                RequestKind::Read => u32::from(request.len == 0),
                _ => 1,
            };
            assert_eq!(completion.len, len);
            if request.kind == RequestKind::Read {
                let mut bytes = vec![0; request.len as usize];
                self.queue.data(slot).expect("slot").copy_out(0, &mut bytes).expect("fits");
                assert!(bytes.iter().enumerate().all(|(at, b)| *b == pattern(request.sector, at)));
            }
        }
        self.done += completions.len() as u64;
        completions.len()
    }

    fn held(&self) -> usize {
        self.out.iter().flatten().count()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit,
    DriverPublish,
    Take,
    Answer(prop::sample::Index),
    DevicePublish,
    Reap,
    /// Asks to be woken, and sleeps if there is no request.
    DriverSleep,
    DeviceSleep,
    DriverPoll,
    DevicePoll,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Submit),
        3 => Just(Op::DriverPublish),
        6 => Just(Op::Take),
        5 => any::<prop::sample::Index>().prop_map(Op::Answer),
        3 => Just(Op::DevicePublish),
        3 => Just(Op::Reap),
        2 => Just(Op::DriverSleep),
        2 => Just(Op::DeviceSleep),
        1 => Just(Op::DriverPoll),
        1 => Just(Op::DevicePoll),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 1u16..9, 0u32..3, any::<Option<u8>>()).prop_map(
        |(packed, event_idx, indirect, depth, segments, extra)| {
            let segments = 1 << segments;
            let needed = depth * if indirect { 1 } else { segments + 2 };
            // As tight as it can be, so that rings wrap.
            let size = match extra {
                Some(extra) if packed => needed + u16::from(extra % 4),
                _ => needed.next_power_of_two(),
            };
            Shape { packed, event_idx, indirect, depth, segments, size: Some(size) }
        },
    )
}

#[cfg(not(miri))]
#[test]
//= virtio 2.7.10.2, test
//# The device MUST set flags to 0 or 1.
//= virtio 2.7.10.2, test
//# The device MUST set flags to 0.
/// The flags are one only while no notification is wanted and there is no event index.
fn used_flags_suppress_kicks_without_event_index() {
    use std::os::unix::fs::FileExt;
    for event_idx in [false, true] {
        let shape =
            Shape { packed: false, event_idx, indirect: false, depth: 4, segments: 1, size: None };
        let (arena, driver, mut device) = pair(shape);
        let memory = std::fs::File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
        let flags = || {
            let mut flags = [0; 2];
            memory.read_exact_at(&mut flags, driver.layout().device - arena.base()).unwrap();
            u16::from_le_bytes(flags)
        };
        for _ in 0..2 {
            device.disable_notify();
            assert_eq!(flags(), u16::from(!event_idx), "event index: {event_idx}");
            device.enable_notify().unwrap();
            assert_eq!(flags(), 0, "event index: {event_idx}");
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    //= virtio 2.7.7.2, test
    //# The device MUST ignore the used_event value.
    //= virtio 2.7.7.2, test
    //# If flags is 0, the device MUST send a notification.
    //= virtio 2.7.7.2, test
    //# The device MUST ignore the lower bit of flags.
    //= virtio 2.7.7.2, test
    //# If the idx field in the used ring (which determined where that descriptor index was placed)
    //# was equal to used_event, the device MUST send a notification.
    //= virtio 2.7.10.2, test
    //# The device MUST handle spurious notifications from the driver.
    fn no_interleaving_loses_a_request_or_a_wakeup(shape in shape(), ops in prop::collection::vec(op(), 1..if cfg!(miri) { 60 } else { 300 })) {
        let (_arena, driver, mut device) = pair(shape);
        let mut client = Client::new(driver);
        let mut taken = Vec::new();
        // Submitted; visible to the device; taken; answered; visible to the driver.
        let (mut visible, mut taken_count, mut answered, mut shown) = (0u64, 0u64, 0u64, 0u64);
        let (mut driver_sleeps, mut device_sleeps) = (false, false);
        for op in ops {
            match op {
                Op::Submit => {
                    client.submit();
                }
                Op::DriverPublish => {
                    let kick = client.queue.publish();
                    visible = client.sector;
                    device_sleeps &= !kick;
                }
                Op::Take => match device.take().expect("legal") {
                    Some(slot) => {
                        taken.push(slot);
                        taken_count += 1;
                    }
                    None => prop_assert_eq!(taken_count, visible),
                },
                Op::Answer(pick) if !taken.is_empty() => {
                    let slot = taken.swap_remove(pick.index(taken.len()));
                    serve(&mut device, slot);
                    answered += 1;
                }
                Op::Answer(_) => {}
                Op::DevicePublish => {
                    let signal = device.show();
                    shown = answered;
                    driver_sleeps &= !signal;
                }
                Op::Reap => {
                    client.reap();
                    prop_assert_eq!(client.done, shown);
                }
                Op::DriverSleep => {
                    let more = client.queue.enable_interrupts();
                    prop_assert_eq!(more, client.done < shown);
                    driver_sleeps = !more;
                }
                Op::DeviceSleep => {
                    let more = device.enable_notify().expect("legal");
                    prop_assert_eq!(more, taken_count < visible);
                    device_sleeps = !more;
                }
                Op::DriverPoll => {
                    client.queue.disable_interrupts();
                    driver_sleeps = false;
                }
                Op::DevicePoll => {
                    device.disable_notify();
                    device_sleeps = false;
                }
            }
            prop_assert!(!(device_sleeps && taken_count < visible), "the device sleeps through a request");
            prop_assert!(!(driver_sleeps && client.done < shown), "the driver sleeps through an answer");
        }
        client.queue.publish();
        while client.held() > 0 {
            taken.extend(device.take().expect("legal"));
            taken.drain(..).for_each(|slot| serve(&mut device, slot));
            device.show();
            client.reap();
        }
        prop_assert_eq!(client.done, client.sector);
    }
}

/// A bell that is rung only when the other side asks for it; a waiter whose bell does not ring has
/// been forgotten.
fn wait(bell: &Receiver<()>, who: &str) -> bool {
    let patience = Duration::from_secs(if cfg!(miri) { 3600 } else { 20 });
    match bell.recv_timeout(patience) {
        Ok(()) => true,
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => false,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("nobody wakes the {who}"),
    }
}

fn ring(bell: &SyncSender<()>) {
    // A bell that is rung already needs no second stroke; a bell without a listener needs none at
    // all.
    let _ = bell.try_send(());
}

/// The device's thread: polls for a while, sleeps, continues, until the driver is gone.
fn device_thread(mut device: Queue, kick: &Receiver<()>, call: &SyncSender<()>, polls: u32) {
    let mut taken: Vec<Slot> = Vec::new();
    loop {
        let mut idle = 0;
        device.disable_notify();
        while idle <= polls {
            let before = taken.len();
            while let Some(slot) = device.take().expect("legal") {
                taken.push(slot);
            }
            idle = if taken.len() == before && taken.is_empty() { idle + 1 } else { 0 };
            // The later half first.
            let keep = if taken.len() > 2 && before != taken.len() { taken.len() / 2 } else { 0 };
            taken.drain(keep..).rev().for_each(|slot| serve(&mut device, slot));
            if device.show() {
                ring(call);
            }
        }
        if !device.enable_notify().expect("legal") && !wait(kick, "device") {
            return;
        }
    }
}

fn stress(shape: Shape, rounds: u64, polls: u32) {
    let (arena, driver, device) = pair(shape);
    let ((kick, kicked), (call, called)) = (sync_channel(1), sync_channel(1));
    std::thread::scope(|scope| {
        scope.spawn(move || device_thread(device, &kicked, &call, polls));
        let mut client = Client::new(driver);
        let mut random = 1u64;
        while client.done < rounds {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for _ in 0..=(random >> 40) % u64::from(shape.depth) {
                client.submit();
            }
            if client.queue.publish() {
                ring(&kick);
            }
            if client.reap() > 0 || client.held() == 0 {
                continue;
            }
            if !client.queue.enable_interrupts() {
                assert!(wait(&called, "driver"), "the device is gone");
            }
            client.queue.disable_interrupts();
        }
        while client.held() > 0 {
            if client.reap() == 0 && !client.queue.enable_interrupts() {
                assert!(wait(&called, "driver"), "the device is gone");
            }
        }
        drop(kick);
    });
    drop(arena);
}

#[test]
//= virtio 2.7.8.2, test
//# The device MUST set len prior to updating the used idx.
//= virtio 2.7.8.2, test
//# The device MUST write at least len bytes to descriptor, beginning at the first device-writable
//# buffer, prior to updating the used idx.
fn two_sleeping_threads_always_wake() {
    let rounds = if cfg!(miri) { 8 } else { 20_000 };
    for (packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        for (depth, polls) in [(1, 0), (4, 0), (16, 3)] {
            let shape =
                Shape { packed, event_idx, indirect: depth == 4, depth, segments: 2, size: None };
            let size = depth * if shape.indirect { 1 } else { 4 };
            stress(Shape { size: Some(size), ..shape }, rounds, polls);
        }
    }
}
