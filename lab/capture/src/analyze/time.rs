//! How many requests are in flight, and when they come.

use super::super::Trace;
use super::build::{bars, cdf, lines, number, percentile_columns, percentiles, text, us};
use vlane_report::Section;
use vlane_report::build::table;

/// Points of a course over time.
const BINS: usize = 120;

/// The times at which requests begin (true) and end (false), in order.
fn begins_and_ends(trace: &Trace) -> Vec<(u64, bool)> {
    let whole = |at: &&super::Request| !at.record.more;
    let mut events: Vec<(u64, bool)> = Vec::with_capacity(2 * trace.requests.len());
    for request in trace.requests.iter().filter(whole) {
        events.push((request.record.submit, true));
        events.push((request.record.completed(), false));
    }
    // One that ends when another begins has ended first; one that takes no time counts all the
    // same.
    events.sort_unstable_by_key(|(time, begins)| (*time, *begins));
    events
}

/// Requests in flight: over time, and how much of the time.
pub(super) fn queue_depth(trace: &Trace, first: u64, span: u64) -> Section {
    let bin = span / BINS as u64 + 1;
    let mut areas = vec![0_u128; BINS];
    let mut at_depth: Vec<u64> = Vec::new();
    let (mut depth, mut now, mut deepest) = (0_usize, first, 0);
    for (time, begins) in begins_and_ends(trace) {
        if at_depth.len() <= depth {
            at_depth.resize(depth + 1, 0);
        }
        at_depth[depth] += time - now;
        // The stretch from `now` to `time` at this depth, bin by bin.
        while now < time {
            let place = usize::try_from((now - first) / bin).unwrap_or(BINS - 1).min(BINS - 1);
            let end = (first + (place as u64 + 1) * bin).min(time).max(now + 1);
            areas[place] += u128::from(end - now) * depth as u128;
            now = end;
        }
        depth = if begins { depth + 1 } else { depth.saturating_sub(1) };
        deepest = deepest.max(depth);
    }
    let middle = |place: usize| (number(place as u64) + 0.5) * number(bin) / 1e9;
    let mean = |area: u128| {
        number(u64::try_from(area * 1000 / u128::from(bin)).unwrap_or(u64::MAX)) / 1000.0
    };
    let course: Vec<(f64, f64)> =
        areas.iter().enumerate().map(|(place, area)| (middle(place), mean(*area))).collect();
    // By power of two: 0, 1, 2, 3-4, 5-8, ...
    let class =
        |depth: usize| if depth == 0 { 0 } else { depth.next_power_of_two().ilog2() as usize + 1 };
    let mut shares = vec![0_u64; class(at_depth.len().max(1) - 1) + 1];
    for (depth, time) in at_depth.iter().enumerate() {
        shares[class(depth)] += time;
    }
    let total: u64 = at_depth.iter().sum::<u64>().max(1);
    let label = |class: usize| match class {
        0 => "0".to_owned(),
        1 => "1".to_owned(),
        2 => "2".to_owned(),
        n => format!("{}-{}", (1_u64 << (n - 2)) + 1, 1_u64 << (n - 1)),
    };
    let categories = (0..shares.len()).map(label).collect();
    let values = shares.iter().map(|time| number(*time) * 100.0 / number(total)).collect();
    let area: u128 = areas.iter().sum();
    let overall = mean(area * u128::from(bin) / u128::from(span.max(1)));
    Section::new(
        "depth",
        "Queue depth",
        vec![format!(
            "Requests that lanes had taken and not answered: {overall:.2} on average, {deepest} \
             at most, all lanes together."
        )],
        vec![
            lines(
                "Requests in flight over time",
                ("time", "s"),
                ("requests in flight", ""),
                vec![("all lanes".into(), course)],
            ),
            bars(
                "Share of the time with so many in flight",
                categories,
                ("of the time", "%"),
                vec![("all lanes", values)],
            ),
        ],
    )
}

/// The time between requests.
pub(super) fn arrivals(trace: &Trace) -> Section {
    let mut times: Vec<u64> = trace
        .requests
        .iter()
        .filter(|r| !r.record.more)
        .map(|request| request.record.submit)
        .collect();
    times.sort_unstable();
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut row = vec![text("all lanes")];
    row.extend(percentiles(&mut gaps, us));
    Section::new(
        "arrivals",
        "Inter-arrival times",
        vec!["Requests that a lane finds together come at the same moment.".to_owned()],
        vec![
            table("Time from one request to the next", &percentile_columns("", "us"), vec![row]),
            cdf(
                "Time from one request to the next",
                ("time", "us"),
                vec![("all lanes".into(), gaps)],
                us,
            ),
        ],
    )
}
