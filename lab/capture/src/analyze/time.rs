//! How many requests are in flight, and when they come.

use super::super::Trace;
use super::build::{cdf, exact, lines, number, percentile_table, us};
use vlane_report::{Section, bars};

/// Points of a course over time.
const BINS: usize = 120;

/// Requests in flight: over time, and how much of the time.
pub(super) fn queue_depth(trace: &Trace, first: u64, span: u64) -> Section {
    // The times at which requests begin (true) and end (false), in order. One that ends when
    // another begins has ended first; one that takes no time counts all the same.
    let whole = trace.requests.iter().map(|request| &request.record).filter(|r| !r.more);
    let mut events: Vec<(u64, bool)> =
        whole.flat_map(|record| [(record.submit, true), (record.completed(), false)]).collect();
    events.sort_unstable();
    // By power of two: 0, 1, 2, 3-4, 5-8, ...
    let class =
        |depth: usize| if depth == 0 { 0 } else { depth.next_power_of_two().ilog2() as usize + 1 };
    let bin = span / BINS as u64 + 1;
    let (mut areas, mut shares) = (vec![0.0; BINS], Vec::new());
    let (mut depth, mut now, mut deepest) = (0_usize, first, 0);
    for (time, begins) in events {
        shares.resize(shares.len().max(class(depth) + 1), 0.0);
        shares[class(depth)] += number(time - now) * 100.0 / number(span.max(1));
        // The stretch from `now` to `time` at this depth, bin by bin.
        while now < time {
            let place = usize::try_from((now - first) / bin).unwrap_or(BINS - 1).min(BINS - 1);
            let end = (first + (place as u64 + 1) * bin).min(time).max(now + 1);
            areas[place] += number(end - now) * depth as f64;
            now = end;
        }
        depth = if begins { depth + 1 } else { depth.saturating_sub(1) };
        deepest = deepest.max(depth);
    }
    let overall = areas.iter().sum::<f64>() / number(span.max(1));
    let point =
        |(place, area): (u64, f64)| ((number(place) + 0.5) * number(bin) / 1e9, area / number(bin));
    let course = (0..).zip(areas).map(point).collect();
    let label = |class: usize| match class {
        0..=2 => class.to_string(),
        n => format!("{}-{}", (1_u64 << (n - 2)) + 1, 1_u64 << (n - 1)),
    };
    let categories = (0..shares.len()).map(label).collect();
    let text = format!(
        "Requests that lanes had taken and not answered: {overall:.2} on average, {deepest} at \
         most, all lanes together."
    );
    let blocks = vec![
        lines(
            "Requests in flight over time",
            ("time", "s"),
            ("requests in flight", ""),
            vec![("all lanes".into(), course)],
        ),
        bars(
            "Share of the time with so many in flight",
            ("of the time", "%"),
            categories,
            vec![("all lanes".into(), exact(shares))],
        ),
    ];
    Section::new("depth", "Queue depth", vec![text], blocks)
}

/// The time between requests.
pub(super) fn arrivals(trace: &Trace) -> Section {
    let whole = trace.requests.iter().filter(|request| !request.record.more);
    let mut times: Vec<u64> = whole.map(|request| request.record.submit).collect();
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| us(pair[1] - pair[0])).collect();
    let of = [("all lanes".to_owned(), gaps)];
    let caption = "Time from one request to the next";
    let text = "Requests that a lane finds together come at the same moment.";
    let blocks = vec![percentile_table(caption, "", "us", &of), cdf(caption, ("time", "us"), &of)];
    Section::new("arrivals", "Inter-arrival times", vec![text.to_owned()], blocks)
}
