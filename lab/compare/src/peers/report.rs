//! The comparison as a report, and as lines and tables for the terminal.

use vlane_error::counted;
use vlane_report::stats::Outcome as Is;
use vlane_report::{
    Begun, Block, Met, Note, Report, Samples, Section, Table, bars, few, figure, markdown as md,
    table,
};

use super::judge::{REACHED, is_reached, resolve};
use super::plan::{CPU, Claim, Client, Contender, Figure, IOPS, P50, P99};
use super::{Options, Outcome, RowResult, Verdict};

impl RowResult {
    fn claims(&self) -> impl Iterator<Item = (&Self, &Claim, &Verdict)> {
        self.row.claims.iter().zip(&self.verdicts).map(move |(claim, v)| (self, claim, v))
    }

    /// Verdicts on each vlane at a given rate, with its name where that is not plain.
    fn loads(&self) -> impl Iterator<Item = (String, &[Verdict])> {
        self.verdicts.chunk_by(|a, b| a.of == b.of).map(|of| (self.title_of(&of[0]), of))
    }

    fn title_of(&self, verdict: &Verdict) -> String {
        match verdict.of.as_str() {
            "vlane" => self.row.title.clone(),
            of => format!("{}: {of}", self.row.title),
        }
    }

    /// The series of a contender in charts; of qemu-storage-daemon, the better setting has one.
    fn series(&self, place: usize) -> Option<&str> {
        let (name, contender) = &self.row.contenders[place];
        match contender {
            Contender::Vlane(_) => Some(if place == 0 { "vlane" } else { name }),
            Contender::Qsd(_) if resolve(&self.row, &self.arms, place) != place => None,
            Contender::Qsd(_) => Some("qemu-storage-daemon"),
            Contender::Loop | Contender::Fio => Some("the host itself"),
        }
    }

    /// Contenders of a comparison with which the client was the limit.
    fn limited(&self, v: &Verdict) -> String {
        let both = [Some(&v.of), v.over.as_ref()].into_iter().flatten();
        let names: Vec<&str> =
            both.filter(|name| self.client_limited.contains(name)).map(String::as_str).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; the client is the limit with {}", names.join(" and ")),
        }
    }
}

/// The cells of a verdict: vlane, the other, the ratio, and the verdict in words.
fn cells(result: &RowResult, claim: &Claim, v: &Verdict) -> [String; 4] {
    let show = |value| claim.figure.show(value);
    let (other, ratio) = match (&v.over, v.other) {
        (Some(over), Some(other)) => (format!("{} ({over})", show(other)), v.told_ratio()),
        _ => (String::new(), String::new()),
    };
    [show(v.value), other, ratio, v.word(&result.row) + &result.limited(v)]
}

/// Some claims, a line for each.
fn compared<'a>(all: impl Iterator<Item = (&'a RowResult, &'a Claim, &'a Verdict)>) -> Table {
    let row = |(result, claim, v): (&RowResult, &Claim, &Verdict)| {
        let names = [result.title_of(v), claim.figure.name.to_owned()];
        names.into_iter().chain(cells(result, claim, v)).map(Into::into).collect()
    };
    let columns = "measured | figure | vlane | compared with | ratio (interval) | verdict";
    Table::new("vlane and the others", columns, all.map(row).collect())
}

/// The lines of one row, for the terminal.
pub fn lines(result: &RowResult) -> String {
    let mut out = format!("{}\n", result.row.title);
    for arm in result.arms.0.iter().filter(|_| !result.row.load.idle) {
        let figures = [IOPS, CPU, P50, P99].map(|figure| (figure, figure.median(&arm.rounds)));
        let figures = figures.iter().filter(|(_, median)| *median > 0.0);
        let figures =
            figures.map(|(figure, median)| format!("{} {}", figure.name, figure.show(*median)));
        out += &format!("  {}: {}\n", arm.arm, figures.collect::<Vec<_>>().join(", "));
    }
    for (result, claim, v) in result.claims() {
        let cells = cells(result, claim, v);
        let cells: Vec<&str> =
            cells.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
        out += &format!("  {} of {}: {}\n", v.metric, v.of, cells.join(", "));
    }
    out
}

/// The most important results of the measured rows as a Markdown table, or else all.
pub fn markdown(results: &[RowResult]) -> String {
    let claims = || results.iter().flat_map(RowResult::claims);
    let is_any = claims().any(|(_, claim, _)| claim.headline);
    md::table(&compared(claims().filter(|(_, claim, _)| claim.headline || !is_any)))
}

/// In how many comparisons vlane is better, worse, the same, and in how many that is not known.
fn comparisons(results: &[RowResult]) -> Vec<String> {
    let differences =
        || results.iter().flat_map(|result| &result.verdicts).filter_map(|v| v.difference);
    let count = |outcome: Is| differences().filter(|d| d.outcome == outcome).count();
    let (better, worse, same) = (count(Is::Better), count(Is::Worse), count(Is::Same));
    let all = differences().count();
    let mut out = vec![format!(
        "Of {all} comparisons, vlane is better in {better}, worse in {worse}, the same in {same}; \
         {} are undecided.",
        all - better - worse - same
    )];
    let lost = |v: &Verdict| v.difference.is_some_and(|d| d.outcome == Is::Worse);
    out.extend(losses(results, "Worse", lost));
    let limited = results.iter().filter(|result| !result.client_limited.is_empty());
    let limited: Vec<String> = limited
        .map(|result| format!("{}: {}", result.row.id, result.client_limited.join(" and ")))
        .collect();
    if !limited.is_empty() {
        out.push(format!(
            "The client was the limit (more than {:.0} % of its CPU used), so the back end may be \
             able to do more than is shown: {}.",
            vlane_bench::CLIENT_BOUND * 100.0,
            limited.join("; ")
        ));
    }
    out
}

/// How many loads at a given rate came to what, and which were not met.
fn loads(results: &[RowResult]) -> Vec<String> {
    let loads = || results.iter().flat_map(RowResult::loads);
    let count = |is: fn(&[Verdict]) -> bool| loads().filter(|(_, load)| is(load)).count();
    let (total, late) = (loads().count(), count(|load| load.iter().any(|v| !v.late.is_empty())));
    let met = count(|load| load.iter().all(|v| v.met == Met::Yes));
    let missed = count(|load| load.iter().any(|v| v.met == Met::No));
    let mut out = vec![format!(
        "Of {total} loads both back ends reach {}. In {met} of these vlane's CPU time per I/O and \
         median latency are at most qemu-storage-daemon's; in {missed} one is more; of {} the \
         intervals do not tell.",
        total - late,
        total - late - met - missed
    )];
    out.extend(losses(results, "Not met", |v| v.met == Met::No));
    let late = |(name, load): (String, &[Verdict])| {
        let verdict = load.iter().find(|v| !v.late.is_empty())?;
        Some(format!("Not reached: {name}: {}.", verdict.late))
    };
    out.extend(results.iter().flat_map(RowResult::loads).filter_map(late));
    out
}

/// Each lost comparison, row by row.
fn losses(results: &[RowResult], word: &str, is_lost: impl Fn(&Verdict) -> bool) -> Vec<String> {
    let of_row = |(name, row): (String, &[Verdict])| {
        let lost = row.iter().filter(|v| is_lost(v));
        let lost: Vec<_> = lost.map(|v| format!("{} {}", v.metric, v.told_ratio())).collect();
        (!lost.is_empty()).then(|| format!("{word}: {name}: {}.", lost.join("; ")))
    };
    results.iter().flat_map(RowResult::loads).filter_map(of_row).collect()
}

/// Bars: a group for each row, a bar for each series.
fn chart(figure: &Figure, results: &[&RowResult]) -> Option<Block> {
    let mut names: Vec<&str> = Vec::new();
    for result in results {
        for name in (0..result.arms.0.len()).filter_map(|place| result.series(place)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let spread = |result: &RowResult, name: &str| {
        let place = (0..result.arms.0.len()).find(|place| result.series(*place) == Some(name));
        let rounds = &result.arms.0[place?].rounds;
        figure.spread(rounds).filter(|one| one.max > 0.0 && is_reached(&result.row, rounds))
    };
    let rows = names.into_iter().map(|name| {
        let figures: Vec<_> = results.iter().map(|result| spread(result, name)).collect();
        (name.to_owned(), figures)
    });
    let rows: Vec<_> = rows.filter(|(_, all)| all.iter().any(Option::is_some)).collect();
    let caption =
        format!("{}: medians, with the smallest and the largest of all rounds", figure.name);
    let categories = results.iter().map(|result| result.row.title.clone()).collect();
    (!rows.is_empty()).then(|| bars(&caption, (figure.name, figure.unit), categories, rows))
}

/// The charts of some rows.
fn charts(results: &[&RowResult]) -> Vec<Block> {
    let chart = |figure: Figure| {
        // Latencies at depth 32 say how long the queue is, which the throughput says already. A
        // given rate says nothing.
        let is_shown = |result: &&&RowResult| match (figure.name, result.row.load.rate) {
            _ if result.row.load.idle => false,
            (name, Some(_)) => name != IOPS.name,
            (name, None) => name != P50.name || result.row.load.depth == 1,
        };
        chart(&figure, &results.iter().filter(is_shown).copied().collect::<Vec<_>>())
    };
    [IOPS, CPU, P50].into_iter().filter_map(chart).collect()
}

/// All figures of a row's contenders.
fn figures(result: &RowResult) -> Block {
    let known: Vec<&Figure> = result
        .row
        .figures()
        .iter()
        .map(|(_, figure)| figure)
        .filter(|figure| result.arms.0.iter().any(|arm| figure.spread(&arm.rounds).is_some()))
        .collect();
    let mut columns = vec![("back end", "")];
    columns.extend(known.iter().map(|figure| (figure.name, figure.unit)));
    let rows = result.arms.0.iter().enumerate().map(|(place, arm)| {
        // No back end is looked at where there is none.
        let is_host = matches!(result.row.contenders[place].1, Contender::Loop | Contender::Fio);
        let cells = known.iter().map(|figure| {
            figure.spread(&arm.rounds).filter(|spread| spread.max > 0.0 || !is_host).into()
        });
        std::iter::once(arm.arm.clone().into()).chain(cells).collect()
    });
    table(&result.row.title, &columns, rows.collect())
}

/// The report of some rows.
pub fn report(outcome: &Outcome, options: &Options, begun: &Begun) -> Report {
    let results = &outcome.rows;
    let mut notes = vec![Note::info(method(options))];
    notes.extend(outcome.missing.iter().map(|text| Note::info(format!("Left out: {text}."))));
    notes.extend(few(options.pairs));
    if outcome.emulated {
        notes.push(Note::warning(
            "QEMU's guest is emulated: its own CPU time is several times that under KVM, so the \
             back end's part is smaller than there.",
        ));
    }
    let (kind, title, summary) = match options.fixed_load {
        true => ("fixed-load", "vlane and qemu-storage-daemon at the same load", loads(results)),
        false => ("peers", "vlane and qemu-storage-daemon, side by side", comparisons(results)),
    };
    let mut sections = vec![Section::new(
        "verdicts",
        title,
        vec![
            "Ratios are taken pair by pair: the median with its interval. The last column shows \
             if the difference is more than noise. With a QEMU guest, CPU time is QEMU's and the \
             back end's together; otherwise it is the back end's."
                .into(),
        ],
        vec![Block::Table(compared(results.iter().flat_map(RowResult::claims)))],
    )];
    for rows in results.chunk_by(|a, b| a.row.group == b.row.group) {
        let rows: Vec<&RowResult> = rows.iter().collect();
        let mut blocks = charts(&rows);
        blocks.extend(rows.iter().map(|result| figures(result)));
        let text = match rows[0].row.client {
            Client::Guest(_) => vec![
                "fio in the guest, which has a disk of each back end; no process is bound to a \
                 CPU. The guest's CPU time is that of all its processes on the host."
                    .into(),
            ],
            _ => Vec::new(),
        };
        let (id, title) = &rows[0].row.group;
        sections.push(Section::new(*id, title.as_str(), text, blocks));
    }
    let records = results.iter().flat_map(|result| {
        let records = result.arms.records(&result.row.id);
        records.map(|(labels, sample)| (labels, result.figures(sample)))
    });
    let labels = "Row | Back end | Round";
    let samples =
        vec![Samples::of_records("rounds", "Every round of every back end", labels, records)];
    let empty = begun.report(kind, title, &["qemu-storage-daemon", "fio"]);
    let mut report = Report { summary, notes, sections, samples, ..empty };
    report.machine.versions.extend(outcome.versions.iter().cloned());
    outcome.partial.iter().for_each(|missing| report.mark_partial(missing.clone()));
    report.guarded()
}

/// The method, in some sentences.
fn method(options: &Options) -> String {
    let (time, ramp) = options.times();
    let settings = "On a file qemu-storage-daemon is measured with aio=io_uring and with \
                    aio=threads, and each row takes the one that";
    if !options.fixed_load {
        return format!(
            "The driver plays the guest: there is no virtual machine in these figures. Back end \
             and driver have a CPU each unless a row says that they share. {settings} does more \
             there."
        );
    }
    format!(
        "Each figure is the median of {} of {}, after {} that do not count, the back ends in \
         turns. 4K random reads; fio asks for a request every 1/rate, with at most `depth` out at \
         once, and makes up for late ones. Without a guest, fio with libblkio waits for \
         interrupts, and back end and client have a CPU each. A rate is reached when {:.0} % of it \
         are achieved. {settings} needs less CPU time there. A ratio is met if its whole \
         interval is, and not met if its median is not. A difference below 5 %, or below fio's \
         resolution, does not matter.",
        counted(options.pairs, "measurement"),
        figure::duration(time.as_secs_f64()),
        figure::duration(ramp.as_secs_f64()),
        100.0 * REACHED,
    )
}
