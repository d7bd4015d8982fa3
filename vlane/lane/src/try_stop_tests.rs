//! Stopping lanes of which one may hang.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use vlane_driver::ring::{Format, RequestKind};

use crate::cancellable_request::CancellableRequest;
use crate::lane::Settled;
use crate::tests::{Stuck, guest, lane_of, null};
use crate::{PollMode, Pool, PoolConfig, Topology};

#[test]
fn hung_lane_continues_after_timed_stop() {
    let topology = Topology { queues: 2, threads: 2, cpus: Vec::new(), adapts: false };
    let pool = Pool::new(&PoolConfig {
        topology,
        poll: PollMode::Off,
        poll_max: Duration::ZERO,
        hands_over: false,
    })
    .unwrap();
    let stuck = Stuck::default();
    let submitted = Arc::clone(&stuck.submitted);
    let mut lanes = Vec::new();
    let (mut guests, mut kicks) = (Vec::new(), Vec::new());
    for (index, engine) in (0..).zip([null(None), Arc::new(stuck)]) {
        let (guest, mut config) = guest(engine);
        let kick =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        config.kick = Some(kick.try_clone().unwrap());
        lanes.push((index, Arc::clone(&config.counters)));
        pool.start(index, config, &[]).unwrap();
        guests.push(guest);
        kicks.push(kick);
    }
    let begun = |wanted| {
        let begin = Instant::now();
        while submitted.lock().unwrap().len() < wanted {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "the lane does not take request {wanted}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let mut ask = |slot| {
        guests[1].submit(slot, RequestKind::Read, 0);
        guests[1].driver.publish();
        rustix::io::write(&kicks[1], &1u64.to_ne_bytes()).unwrap();
    };
    ask(0);
    begun(1);
    // A thread without a CPU stops no lane in that time: then it gets more.
    let mut limit = Duration::from_millis(50);
    let stopped = loop {
        let stopped = pool.try_stop(&lanes, limit).unwrap();
        if !stopped.is_empty() || limit > Duration::from_secs(20) {
            break stopped;
        }
        limit *= 2;
    };
    assert_eq!(stopped.iter().map(|(index, end)| (*index, end.base)).collect::<Vec<_>>(), [(0, 0)]);
    assert_eq!(pool.places().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
    // As without the request.
    ask(1);
    begun(2);
    // Its end would wait for the storage: it has none. Kept reachable, or it would count as lost.
    static KEPT: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap().push(pool);
}

#[test]
fn late_stop_message_is_ignored() {
    let (mut guest, mut lane, mut uring, submitted) = lane_of(Stuck::default(), Format::Packed);
    let (reply, stopped) = channel();
    let stop = Arc::new(CancellableRequest::default());
    assert!(stop.cancel());
    lane.try_stop(Arc::clone(&stop), reply.clone());
    assert_eq!(lane.settle(), Settled::Stays);
    // ... or reads it in time, and is at its end when that is not wanted any more.
    let stop = Arc::new(CancellableRequest::default());
    lane.try_stop(Arc::clone(&stop), reply);
    assert!(stop.cancel());
    assert_eq!(lane.settle(), Settled::Stays);
    assert!(stopped.try_recv().is_err());
    guest.submit(0, RequestKind::Read, 0);
    guest.driver.publish();
    assert!(lane.serve(&mut uring, false));
    assert_eq!(submitted.lock().unwrap().len(), 1);
}
