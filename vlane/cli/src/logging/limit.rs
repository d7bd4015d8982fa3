//! A bound on the number of messages.
//!
//! Front ends, guests and local users cause messages without limit. Without a bound they fill the
//! disk that keeps the log, and hide important messages. So each place in the code has an
//! allowance: [`BURST`] messages at once, and one more every [`REFILL`]. Messages beyond it are
//! counted. Their number is logged with the first of them, after a pause that grows during the
//! flood, and at the end of the program.
//!
//! The bound is for all messages from level info up, from any cause. Thus no place can be
//! forgotten. Users who ask for debug messages get all of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, LazyLock, Mutex};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, callsite};
use tracing_subscriber::layer::{Context, Filter};
use vlane_error::locked;

/// Messages that one place may tell at once.
const BURST: u32 = 100;
/// How long one place waits for one more.
const REFILL: Duration = Duration::from_secs(10);
/// From the first message that is left out to the telling of their number: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Characters of a message that are logged as an example.
const EXAMPLE: usize = 300;
/// The target of the messages that tell of others. They have no bound, and need none.
const TARGET: &str = "vlane::left_out";

/// The program's own.
static LIMIT: LazyLock<Limit> = LazyLock::new(Limit::default);

/// The filter that keeps the bound.
pub(super) struct Bounded;

impl<S> Filter<S> for Bounded {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let example = || {
            let mut text = Text::default();
            event.record(&mut text);
            text.0
        };
        LIMIT.admits(metadata.callsite(), *metadata.level(), Instant::now(), example)
    }
}

/// Begins to tell how many messages are left out, in a thread of its own. For programs that run for
/// long. A program that holds back signals does so before: the thread would take them.
pub fn tell_from_now_on() {
    // Without the thread, the number is logged at the end.
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(|| {
        let mut pause = PAUSES.0;
        loop {
            if !LIMIT.leaves_out_within(Some(pause)) {
                pause = PAUSES.0;
                LIMIT.leaves_out_within(None);
            }
            std::thread::sleep(pause);
            tell_left_out();
            pause = (pause * 2).min(PAUSES.1);
        }
    });
}

/// Logs the number of messages suppressed since the last such line. Must come before the process
/// ends or becomes another one.
pub fn tell_left_out() {
    for LeftOut { level, count, since, example } in LIMIT.take_left_out() {
        let seconds = since.elapsed().as_secs_f64().ceil();
        let more = if count == 1 { "message like this was" } else { "messages like this were" };
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    target: TARGET,
                    "{count} more {more} left out in the last {seconds} s: {example}"
                )
            };
        }
        match level {
            Level::ERROR => tell!(error),
            Level::WARN => tell!(warn),
            _ => tell!(info),
        }
    }
}

/// All places that have logged a message.
#[derive(Default)]
struct Limit {
    places: Mutex<HashMap<callsite::Identifier, Place>>,
    /// Something is left out.
    leaves_out: Condvar,
}

/// A place that tells something.
struct Place {
    /// When its allowance is whole again.
    whole: Instant,
    left_out: Option<LeftOut>,
}

/// Messages of one place that were left out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeftOut {
    level: Level,
    count: u64,
    since: Instant,
    /// The first of them.
    example: String,
}

impl Limit {
    /// True if a message of a place is logged; it is counted otherwise.
    fn admits(
        &self,
        place: callsite::Identifier,
        level: Level,
        now: Instant,
        example: impl FnOnce() -> String,
    ) -> bool {
        let mut places = locked(&self.places);
        let place = places.entry(place).or_insert(Place { whole: now, left_out: None });
        let whole = place.whole.max(now) + REFILL;
        if whole <= now + BURST * REFILL {
            place.whole = whole;
            return true;
        }
        match &mut place.left_out {
            Some(left_out) => left_out.count += 1,
            none => {
                *none = Some(LeftOut { level, count: 1, since: now, example: example() });
                self.leaves_out.notify_all();
            }
        }
        false
    }

    /// Counts of the messages left out since the last look.
    fn take_left_out(&self) -> Vec<LeftOut> {
        locked(&self.places).values_mut().filter_map(|place| place.left_out.take()).collect()
    }

    /// Waits until something is left out; says whether it is.
    fn leaves_out_within(&self, limit: Option<Duration>) -> bool {
        let is_all_told =
            |places: &mut HashMap<_, Place>| places.values().all(|place| place.left_out.is_none());
        let places = locked(&self.places);
        let Some(limit) = limit else {
            drop(self.leaves_out.wait_while(places, is_all_told));
            return true;
        };
        let waited = self.leaves_out.wait_timeout_while(places, limit, is_all_told);
        waited.map_or(true, |(_, waited)| !waited.timed_out())
    }
}

/// The beginning of a message.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = beginning(format!("{value:?}"));
        }
    }
}

fn beginning(text: String) -> String {
    match text.char_indices().nth(EXAMPLE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use tracing::Callsite;
    use tracing::subscriber::Interest;

    use super::*;

    /// A place that tells something. Its address is its name, so it has a byte.
    struct Here(#[allow(dead_code, reason = "see above")] u8);

    impl Callsite for Here {
        fn set_interest(&self, _: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }

    static ONE: Here = Here(1);
    static OTHER: Here = Here(2);

    fn place(of: &'static dyn Callsite) -> callsite::Identifier {
        callsite::Identifier(of)
    }

    fn tells(limit: &Limit, at: Instant) -> bool {
        limit.admits(place(&ONE), Level::WARN, at, || "it rains".to_owned())
    }

    #[test]
    fn flood_is_bounded_and_each_message_counted() {
        let (limit, begin) = (Limit::default(), Instant::now());
        // A million in a hundred seconds.
        let told = (0..1_000_000)
            .filter(|n| tells(&limit, begin + Duration::from_micros(100 * n)))
            .count();
        let refilled = 100 / REFILL.as_secs();
        assert!(
            (u64::from(BURST)..=u64::from(BURST) + refilled).contains(&(told as u64)),
            "{told}"
        );
        let left_out = limit.take_left_out();
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0].count + told as u64, 1_000_000);
        assert_eq!((left_out[0].example.as_str(), left_out[0].level), ("it rains", Level::WARN));
        assert_eq!(limit.take_left_out(), [], "told already");
    }

    #[test]
    fn quiet_place_regains_its_allowance() {
        let (limit, begin) = (Limit::default(), Instant::now());
        let burst = |at| (0..10 * BURST).filter(|_| tells(&limit, at)).count();
        assert_eq!(burst(begin), BURST as usize);
        assert_eq!(burst(begin), 0);
        assert_eq!(burst(begin + 3 * REFILL), 3);
        assert_eq!(burst(begin + 3 * REFILL + 2 * BURST * REFILL), BURST as usize);
    }

    #[test]
    fn flood_at_one_place_hides_no_other() {
        let (limit, begin) = (Limit::default(), Instant::now());
        while tells(&limit, begin) {}
        assert!(limit.admits(place(&OTHER), Level::INFO, begin, String::new));
    }

    #[test]
    fn long_message_is_cut_between_characters() {
        assert_eq!(beginning("ä".repeat(EXAMPLE)), "ä".repeat(EXAMPLE));
        assert_eq!(beginning("ä".repeat(EXAMPLE + 1)), "ä".repeat(EXAMPLE) + "...");
    }
}
