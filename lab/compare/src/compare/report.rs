//! The comparison as a report: tables with ratios to the host, charts beside the published figures,
//! where requests go.
//!
//! Every column that was asked for appears, also those that could not be measured: they say why.

use std::collections::BTreeSet;

use clap::ValueEnum;
use vlane_error::counted;
use vlane_report::{
    Begun, Block, Cell, Column, Figure, Note, Point, Report, Samples, Section, Series, Spread,
    arms_table, bars, table,
};

use super::columns::Column as Way;
use super::jobs::CacheState;
use super::loads::{self, FIO_DEPTH, Load, RECORDS};
use super::results::{BACK_END, GUEST, KERNEL, LoadResult, PARTS, PartWork, Sample, Work};
use super::{Outcome, summary};

/// The first section.
const PICTURE: &str = "picture";
/// How the captions of the tables of ratios end.
const OF_THE_HOST: &str = "of the host's throughput";

/// Makes the report.
pub(super) fn fill(outcome: &Outcome, begun: &Begun, programs: &[&str]) -> Report {
    let mut sections = vec![picture(outcome)];
    sections.extend(fio_section(outcome));
    sections.extend(RECORDS.into_iter().filter_map(|record| iozone_section(outcome, record)));
    sections.extend(work_section(outcome));
    sections.extend(native_section(outcome));
    sections.push(columns_section(outcome));
    let cache = outcome.settings.cache.name();
    let title = format!("Host, virtio and emulated disks compared ({cache} I/O)");
    let summary = summary::sentences(outcome);
    let (notes, samples) = (notes(outcome), samples(outcome));
    Report { summary, notes, sections, samples, ..begun.report("compare", title, programs) }
        .guarded()
}

/// The part for a terminal: the picture, the ratios to the host, and where small requests go.
pub fn brief(report: &Report) -> Report {
    let mut brief = report.clone();
    for section in &mut brief.sections {
        section.text.clear();
        section.blocks.retain(|block| match block {
            Block::Table(table) => {
                table.caption.ends_with(OF_THE_HOST) || table.caption.starts_with("Per request: 4K")
            }
            Block::Chart(_) => section.id == PICTURE,
        });
    }
    brief.sections.retain(|section| !section.blocks.is_empty());
    brief
}

/// Every single measurement.
fn samples(outcome: &Outcome) -> Vec<Samples> {
    let of = |id, caption, results: &[LoadResult]| {
        let names: Vec<String> = results.iter().map(|result| result.load.long_name()).collect();
        let records =
            names.iter().zip(results).flat_map(|(name, result)| result.arms.records(name));
        Samples::of_records(id, caption, "Load | Disk | Turn", records)
    };
    let mut all = vec![
        of("measurements", "Host and guest", &outcome.results),
        of("counted", "The guest while system calls were counted", &outcome.counted),
        of("native", "Without a guest", &outcome.native),
    ];
    all.retain(|samples| !samples.rows.is_empty());
    all
}

/// The whole in one picture: small and large requests on every disk. The baseline is the host, or
/// QEMU's own virtio-blk if the host is not comparable.
fn picture(outcome: &Outcome) -> Section {
    let mut results: Vec<&LoadResult> = outcome.results.iter().collect();
    results.sort_by_key(|result| !result.load.is_fio());
    results.truncate(4);
    let is_measured = outcome.columns.contains(&Way::Virtio);
    let base = if outcome.emulated() && is_measured { Way::Virtio } else { Way::Host };
    let ways = outcome.guests().filter(|way| *way != base);
    let of = |way: Way| results.iter().map(|result| result.percent(way, base)).collect();
    let whose = if base == Way::Host { "the host's" } else { "QEMU virtio-blk's" };
    let chart = bars(
        &format!(
            "Throughput in per cent of {whose}: the medians of all turns, with the smallest and \
             the largest"
        ),
        (&format!("throughput, of {whose}"), "%"),
        results.iter().map(|result| result.load.name()).collect(),
        ways.map(|way| (way.name().to_owned(), of(way))).collect(),
    );
    Section::new(PICTURE, "In one picture", Vec::new(), vec![chart])
}

/// Caveats that a reader must know before believing the figures.
fn notes(outcome: &Outcome) -> Vec<Note> {
    let mut notes = Vec::new();
    if outcome.emulated() {
        notes.push(Note::warning(format!(
            "guest CPU emulated: ratios of virtio to emulated hold, absolute figures and ratios \
             to the host do not ({})",
            outcome.accel.why
        )));
    }
    match outcome.times() {
        (_, 0 | 1) => notes.push(Note::warning(
            "every figure was measured once: its spread is not known; --repeat measures more often",
        )),
        (0 | 1, most) => notes.push(Note::info(format!(
            "some figures were measured once and have no spread, others up to {most} times; \
             --repeat or a longer --limit measures more often"
        ))),
        _ => {}
    }
    notes.push(Note::info(outcome.settings.cache.about()));
    for (way, why) in &outcome.missing {
        notes.push(Note::info(format!("{} was not measured: {why}", way.name())));
    }
    notes.extend(outcome.uncounted.iter().map(|why| Note::info(format!("system calls: {why}"))));
    notes
}

impl Outcome {
    /// True if the guest's CPU was emulated.
    pub fn emulated(&self) -> bool {
        self.accel.accel == vlane_guest::Accel::Tcg
    }

    /// How often a load was measured: the fewest and the most times.
    fn times(&self) -> (usize, usize) {
        let times = || self.results.iter().map(LoadResult::rounds);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }

    /// The guest's columns that were measured.
    fn guests(&self) -> impl Iterator<Item = Way> {
        self.columns.iter().copied().filter(|way| *way != Way::Host)
    }

    /// Columns of the tables, and their headings: every one that was asked for.
    fn shown(&self) -> Vec<(Way, String)> {
        let measured = self.columns.iter().map(|way| (*way, way.name().to_owned()));
        let missing = self.missing.iter();
        let missing = missing.map(|(way, _)| (*way, format!("{} (not measured)", way.name())));
        let mut all: Vec<(Way, String)> = measured.chain(missing).collect();
        all.sort_by_key(|(way, _)| *way);
        all
    }
}

/// A figure of each measurement: its name, its unit, and the way to take it.
type Taken = (&'static str, &'static str, fn(&Sample) -> f64);

/// Loads that belong together.
struct Group<'a> {
    title: String,
    results: Vec<&'a LoadResult>,
    named: fn(&Load) -> String,
    /// The columns of the tables, the host first, and their headings.
    ways: Vec<(Way, String)>,
}

impl Group<'_> {
    fn names(&self) -> impl Iterator<Item = String> {
        self.results.iter().map(|result| (self.named)(&result.load))
    }

    /// A figure of every load on every column.
    fn table(
        &self,
        caption: &str,
        unit: &str,
        ways: &[(Way, String)],
        of: impl Fn(&LoadResult, Way) -> Option<Spread>,
    ) -> Block {
        let mut columns = vec![Column::new("load", "")];
        columns.extend(ways.iter().map(|(_, heading)| Column::new(heading, unit)));
        let rows = self.names().zip(&self.results).map(|(name, result)| {
            let figures = ways.iter().map(|(way, _)| of(result, *way).into());
            std::iter::once(name.into()).chain(figures).collect()
        });
        table(format!("{}: {caption}", self.title), columns, rows.collect())
    }

    /// A chart of the ratios to the host, their table, and tables of figures.
    fn blocks(&self, figures: &[Taken]) -> Vec<Block> {
        let mut blocks = vec![
            self.chart(),
            self.table(OF_THE_HOST, "%", &self.ways[1..], |result, way| {
                result.percent(way, Way::Host)
            }),
        ];
        blocks.extend(figures.iter().map(|(caption, unit, of)| {
            self.table(caption, unit, &self.ways, |result, way| result.spread(way, |s| Some(of(s))))
        }));
        blocks
    }

    /// Throughput in per cent of the host's.
    fn chart(&self) -> Block {
        let of = |way: Way| self.results.iter().map(move |result| result.percent(way, Way::Host));
        let rows =
            self.ways[1..].iter().map(|(way, _)| (way.name().to_owned(), of(*way).collect()));
        let caption = format!("{}: throughput in per cent of the host's", self.title);
        let y = ("throughput, of the host's", "%");
        bars(&caption, y, self.names().collect(), rows.collect())
    }

    /// [`Group::blocks`] with the published figures in the chart: those of QEMU's own virtio.
    fn published(&self, figures: &[Taken]) -> Vec<Block> {
        let mut blocks = self.blocks(figures);
        let (mut virtio, mut emulated) = (Vec::new(), Vec::new());
        for (x, result) in (0_u32..).zip(&self.results) {
            let Some((of_virtio, of_emulated)) = loads::published(&result.load) else { continue };
            virtio.push(Point::exact(x.into(), of_virtio));
            emulated.extend(of_emulated.map(|per_cent| Point::exact(x.into(), per_cent)));
        }
        if let Some(Block::Chart(chart)) = blocks.first_mut() {
            chart.series.push(Series::published("virtio-blk, 2018/19", virtio));
            chart.series.push(Series::published("emulated disk, 2018", emulated));
            chart.series.retain(|series| !series.points.is_empty());
        }
        blocks
    }
}

/// Loads of the guest and the host, if some of them were measured.
fn group<'a>(
    outcome: &'a Outcome,
    title: impl Into<String>,
    is_member: impl Fn(&Load) -> bool,
) -> Option<Group<'a>> {
    let results = outcome.results.iter().filter(|result| is_member(&result.load));
    let results: Vec<&LoadResult> = results.collect();
    let (title, ways) = (title.into(), outcome.shown());
    (!results.is_empty()).then_some(Group { title, results, named: Load::name, ways })
}

const THROUGHPUT: Taken = ("throughput", "MB/s", |s| s.outcome.mb_per_second);
const RATE: Taken = ("requests per second", "IOPS", |s| s.outcome.iops);

fn fio_section(outcome: &Outcome) -> Option<Section> {
    let group = group(outcome, "fio", Load::is_fio)?;
    let text = [
        format!(
            "4K random, 512K sequential and random, as people test storage: libaio, one job, {} \
             ms each; requests out at once: 4K: {FIO_DEPTH}, 512K: {}.",
            outcome.settings.runtime.as_millis(),
            FIO_DEPTH / 2
        ),
        "The published reads (7.7 GB/s at 4K from a SATA SSD) were evidently of the page cache; \
         --cache warm measures that."
            .into(),
    ];
    let blocks = group.published(&[
        THROUGHPUT,
        RATE,
        ("median latency", "us", |s| s.outcome.p50_us),
        ("99th percentile of the latency", "us", |s| s.outcome.p99_us),
    ]);
    Some(Section::new("fio", "Many requests at a time", text.into(), blocks))
}

fn iozone_section(outcome: &Outcome, record: u32) -> Option<Section> {
    let is_member = |load: &Load| !load.is_fio() && load.record_kib == record;
    let group = group(outcome, format!("{record}K records"), is_member)?;
    let text = format!(
        "iozone's table (-e -I), played by fio: one request of {record}K at a time (pread, \
         pwrite) on a file; \"write\" fills a file that has no blocks yet, \"rewrite\" one that \
         has; writes end with a flush, which is part of their time."
    );
    let title = format!("One request at a time, {record}K records");
    let blocks = group.published(&[THROUGHPUT]);
    Some(Section::new(format!("iozone-{record}k"), title, vec![text], blocks))
}

/// A figure of the work for a request.
fn work(
    title: impl Into<String>,
    unit: &'static str,
    of: impl Fn(&Work) -> Option<f64> + 'static,
) -> Figure<'static, Sample> {
    Figure::maybe(title, unit, move |sample: &Sample| of(sample.work.as_ref()?))
}

/// A figure of the work of some parts together.
fn parts(
    title: &'static str,
    unit: &'static str,
    parts: &'static [&'static str],
    of: fn(&PartWork) -> Option<f64>,
) -> Figure<'static, Sample> {
    work(title, unit, move |work| parts.iter().map(|part| of(work.parts.get(part)?)).sum())
}

fn work_section(outcome: &Outcome) -> Option<Section> {
    let blocks: Vec<Block> = outcome
        .results
        .iter()
        .filter(|result| result.load.is_random_fio())
        .flat_map(|result| work_blocks(outcome, result))
        .collect();
    if blocks.is_empty() {
        return None;
    }
    let text = [
        "Average effects of one request of fio in the guest. Requests: those of the guest's block \
         layer to the disk; interrupts: those of the disk, in the guest. CPU time and context \
         switches are those of the host's threads, from the start of fio to the report of its \
         end: about 0.1 s of starting and ending is in the guest's. Kicks (the guest wakes the \
         back end) and signals (the back end interrupts the guest) are vlane's own count; other \
         back ends tell neither.",
        "The time of an emulated CPU is many times that of a real one, and contains QEMU's work \
         for the vCPU, such as kicks.",
        "System calls are counted in a pass of their own, because counting slows them down (it \
         needs root). They are those of the threads that work for the column.",
    ];
    Some(Section::new("work", "Where it goes", text.map(str::to_owned).into(), blocks))
}

/// Where the requests of a load go: CPU time, counts, system calls, exits to the host.
fn work_blocks(outcome: &Outcome, result: &LoadResult) -> Vec<Block> {
    let (load, name) = (&result.load, result.load.name());
    let ways: Vec<Way> = outcome.guests().collect();
    let of = |part: &str, way: &Way| {
        result.spread(*way, |s| Some(s.work.as_ref()?.parts.get(part)?.cpu_us))
    };
    let cpu = PARTS.map(|part| (part.into(), ways.iter().map(|way| of(part, way)).collect()));
    let chart = bars(
        &format!("CPU time per request, {name}"),
        ("CPU time per request", "us"),
        ways.iter().map(|way| way.name().to_owned()).collect(),
        cpu.into(),
    );
    // The host's own cost, to measure the others by: fio with the kernel's work in its name.
    let host = |title, unit, of: fn(&Sample) -> f64| {
        Figure::maybe(title, unit, move |s: &Sample| s.work.is_none().then(|| of(s)))
    };
    let figures = [
        work("requests", "", |w| Some(w.requests)),
        work("interrupts", "", |w| Some(w.interrupts)),
        parts(GUEST, "us", &[GUEST], |part| Some(part.cpu_us)),
        parts(BACK_END, "us", &[BACK_END], |part| Some(part.cpu_us)),
        parts(KERNEL, "us", &[KERNEL], |part| Some(part.cpu_us)),
        parts("switches, guest", "", &[GUEST], |part| Some(part.switches)),
        parts("switches, back end", "", &[BACK_END, KERNEL], |part| Some(part.switches)),
        work("kicks", "", |w| w.kicks),
        work("signals", "", |w| w.signals),
        host("host", "us", |s| s.outcome.cpu_us),
        host("switches, host", "", |s| s.outcome.switches),
    ];
    let caption = format!("Per request: {}", load.long_name());
    let mut blocks = vec![chart, arms_table(caption, "disk", &figures, &result.arms)];
    if let Some(counted) = LoadResult::find(&outcome.counted, load) {
        let figures = [
            parts("guest", "", &[GUEST], |part| part.calls),
            parts("back end", "", &[BACK_END], |part| part.calls),
        ];
        let caption = format!("System calls per request: {name}");
        blocks.push(arms_table(caption, "disk", &figures, &counted.arms));
    }
    let works = result.arms.0.iter().flat_map(|arm| &arm.rounds).filter_map(|s| s.work.as_ref());
    let exits = works.flat_map(|work| &work.exits).filter(|(_, count)| **count >= 0.05);
    let reasons: BTreeSet<&String> = exits.map(|(reason, _)| reason).collect();
    if !reasons.is_empty() {
        let figure = |reason: &&String| {
            let (title, reason) = ((*reason).clone(), (*reason).clone());
            // KVM leaves out what did not happen; but it must have counted some.
            work(title, "", move |w| {
                (!w.exits.is_empty()).then(|| w.exits.get(&reason).copied().unwrap_or(0.0))
            })
        };
        let figures: Vec<Figure<'_, Sample>> = reasons.iter().map(figure).collect();
        let caption = format!("KVM exits per request, by reason: {name}");
        blocks.push(arms_table(caption, "disk", &figures, &result.arms));
    }
    blocks
}

fn native_section(outcome: &Outcome) -> Option<Section> {
    let measured = &outcome.native.first()?.arms;
    let ways = Way::value_variants().iter().filter(|way| measured.arm(way.name()).is_some());
    let group = Group {
        title: "Without a guest".into(),
        results: outcome.native.iter().collect(),
        named: Load::long_name,
        ways: ways.map(|way| (*way, way.name().to_owned())).collect(),
    };
    let text = "vlane's driver plays the guest's side at the CPU's own speed; the image is the \
                same. The costs of a guest and of its emulation are missing: here ratios to the \
                host mean something on any machine. The driver needs CPU time that the host's fio \
                does not; 2 jobs are 2 threads with a queue each.";
    let blocks = group.blocks(&[
        RATE,
        ("CPU time of back end (host: fio) per request", "us", |s| s.outcome.cpu_us),
        ("context switches of back end (host: fio) per request", "", |s| s.outcome.switches),
    ]);
    let title = "The back ends alone, without a guest";
    Some(Section::new("native", title, vec![text.into()], blocks))
}

/// Descriptions of the columns, and missing measurements.
fn columns_section(outcome: &Outcome) -> Section {
    let row = |(way, _): (Way, String)| {
        let about = match outcome.missing.iter().find(|(missing, _)| *missing == way) {
            Some((_, why)) => format!("Not measured: {why}. {}", way.about()),
            None => way.about(),
        };
        let disk = outcome.disks.iter().find(|(column, _)| *column == way);
        let disk = disk.map_or(Cell::Empty, |(_, disk)| disk.clone().into());
        vec![way.name().into(), about.into(), disk]
    };
    let rows = outcome.shown().into_iter().map(row).collect();
    let sizes = outcome.settings.sizes;
    let times = match outcome.times() {
        (few, most) if few == most => counted(most, "time"),
        (few, most) => format!("{few} to {}", counted(most, "time")),
    };
    let mut text = vec![format!(
        "One guest has all disks at once, so that measurements of one load follow each other \
         within seconds, in an order that turns round from load to load and from time to time. \
         Each load was measured {times}. Images of {} MiB, each with an ext4 file system of its \
         own; reads and rewrites use a file of {} MiB, \"write\" one of up to {} MiB.",
        sizes.image >> 20,
        sizes.old >> 20,
        sizes.new >> 20
    )];
    let (fio, qemu, vlane) = match outcome.settings.cache {
        CacheState::Direct => (1, "on", "none"),
        CacheState::Warm | CacheState::Cold => (0, "off", "writeback"),
    };
    text.push(format!(
        "fio: direct={fio}; QEMU and qemu-storage-daemon: aio=io_uring, cache.direct={qemu}; \
         vlane: --cache {vlane}."
    ));
    text.extend(outcome.commands.iter().map(|(name, command)| format!("{name}: {command}")));
    let block = table("The columns", "column | description | as the guest sees it", rows);
    Section::new("columns", "Compared disks", text, vec![block])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
