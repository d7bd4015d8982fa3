//! How exactly a volume's limits are kept: a client asks for all that it can get, and each second
//! is counted where the lanes count.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vlane_driver::{Limit, SessionOptions, Workload};
use vlane_error::counted;
use vlane_guest::{BlkioFio, Host};
use vlane_units::show_size;

use vlane_bench::{Load, blkio};
use vlane_client::progress::Progress;
use vlane_report::Section;
use vlane_report::build::{Begun, table};
use vlane_report::machine::usable_cpus;
use vlane_report::{Cell, Note, Report, Spread};
use vlane_testbed::Rounds;
use vlane_testbed::control::Control;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Server, Storage};

/// The time that the back end has for its burst, which does not count.
const RAMP: Duration = Duration::from_secs(1);
/// How much longer than the seconds that count a client runs.
const SPARE: Duration = Duration::from_millis(700);

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `vlane`.
    pub vlane: PathBuf,
    /// Seconds of each row.
    pub seconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Driver,
    Fio,
}

#[derive(Debug, Clone, Copy)]
enum Limited {
    Iops(u64),
    Bandwidth(u64),
}

/// A limit, and who runs into it.
#[derive(Debug, Clone, Copy)]
struct Row {
    client: Client,
    lanes: u16,
    limited: Limited,
}

/// The lanes' counters, and their time.
#[derive(Debug, Clone, Copy)]
struct Look {
    ns: u64,
    requests: u64,
    bytes: u64,
    cpu_ns: u64,
}

/// Results of a row; rates are parts of the limit.
#[derive(Debug)]
struct Measured {
    row: Row,
    each_second: Spread,
    in_all: f64,
    by_the_client: f64,
    cpus: f64,
}

impl Limited {
    fn arguments(self) -> [String; 2] {
        match self {
            Limited::Iops(limit) => ["--limit-iops".into(), limit.to_string()],
            Limited::Bandwidth(limit) => ["--limit-bandwidth".into(), limit.to_string()],
        }
    }

    fn name(self) -> String {
        match self {
            Limited::Iops(limit) => format!("{limit} requests/s"),
            Limited::Bandwidth(limit) => format!("{}/s", show_size(limit)),
        }
    }

    /// Bytes of a request.
    fn block(self) -> u32 {
        if matches!(self, Limited::Iops(_)) { 4096 } else { 65536 }
    }

    /// A rate as a part of the limit.
    fn part(self, iops: f64) -> f64 {
        match self {
            Limited::Iops(limit) => iops / limit as f64,
            Limited::Bandwidth(limit) => iops * f64::from(self.block()) / limit as f64,
        }
    }
}

impl Look {
    fn take(control: &Control) -> Result<Look> {
        let counters = control.counters()?;
        let sum = |names: [&str; 2]| names.iter().filter_map(|name| counters.sum.get(*name)).sum();
        Ok(Look {
            ns: counters.monotonic_ns,
            requests: sum(["reads", "writes"]),
            bytes: sum(["read_bytes", "written_bytes"]),
            cpu_ns: counters.process.user_ns + counters.process.system_ns,
        })
    }

    /// The rate from one to the next, as a part of the limit.
    fn rate_since(&self, before: &Look, limited: Limited) -> f64 {
        let seconds = (self.ns - before.ns) as f64 / 1e9;
        match limited {
            Limited::Iops(limit) => {
                (self.requests - before.requests) as f64 / seconds / limit as f64
            }
            Limited::Bandwidth(limit) => {
                (self.bytes - before.bytes) as f64 / seconds / limit as f64
            }
        }
    }
}

fn rows(has_fio: bool) -> Vec<Row> {
    let row = |client, lanes, limited| Row { client, lanes, limited };
    let (iops, bandwidth) = (Limited::Iops, |mib: u64| Limited::Bandwidth(mib << 20));
    let mut rows = vec![
        row(Client::Driver, 1, iops(1_000)),
        row(Client::Driver, 1, iops(30_000)),
        row(Client::Driver, 1, iops(1_000_000)),
        row(Client::Driver, 1, bandwidth(10)),
        row(Client::Driver, 1, bandwidth(2048)),
        row(Client::Driver, 2, iops(1_000)),
        row(Client::Driver, 2, iops(300_000)),
        row(Client::Driver, 2, bandwidth(200)),
    ];
    if has_fio {
        rows.push(row(Client::Fio, 1, iops(1_000)));
        rows.push(row(Client::Fio, 1, iops(50_000)));
        rows.push(row(Client::Fio, 1, bandwidth(200)));
    }
    rows
}

/// Looks once a second from the ramp's end on.
fn looks(control: Control, seconds: u32) -> JoinHandle<Result<Vec<Look>>> {
    let begin = Instant::now() + RAMP;
    std::thread::spawn(move || {
        let mut looks = Vec::new();
        for second in 0..=seconds {
            let at = begin + Duration::from_secs(second.into());
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            looks.push(Look::take(&control)?);
        }
        Ok(looks)
    })
}

/// Runs the client against the back end; requests per second by its own count.
fn client(
    row: Row,
    server: &mut Server,
    fio: Option<&BlkioFio>,
    time: Duration,
    cpus: &[usize],
    interrupt: &Interrupt,
) -> Result<f64> {
    let block = row.limited.block();
    if let (Client::Fio, Some(fio)) = (row.client, fio) {
        let mut load = Load::named("load");
        load.depth = NonZeroU16::new(32).unwrap_or(NonZeroU16::MIN);
        load.bs.0 = block.into();
        let words = blkio::options(&load, server.socket(), time, RAMP);
        return Ok(blkio::measure(fio, words, (time, RAMP), cpus, &mut || (), interrupt)?.iops);
    }
    let session =
        SessionOptions { queues: row.lanes, depth: 32, data: block, ..SessionOptions::default() };
    let session = server.connect(&session)?;
    let workload = Workload {
        block,
        limit: Limit::Time(time),
        ramp: RAMP,
        cpus: cpus.to_vec(),
        ..Workload::default()
    };
    let going_on = &mut |_| match interrupt.is_raised() {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    };
    Ok(vlane_driver::run(session, &workload, going_on)?.iops)
}

fn measure(
    options: &Options,
    row: Row,
    fio: Option<&BlkioFio>,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let directory = tempfile::tempdir().context(ErrorKind::Io, || "no temporary directory")?;
    let path = directory.path().join("control");
    let mut arguments =
        vec!["--queues".to_owned(), row.lanes.to_string(), "--sched=off".to_owned()];
    arguments.extend(["--control".to_owned(), path.display().to_string()]);
    arguments.extend(row.limited.arguments());
    let all = usable_cpus()?;
    // One lane and its client have a CPU each.
    let (of_server, of_client) = match (row.lanes, &all[..]) {
        (1, [first, second, ..]) => (vec![*first], vec![*second]),
        _ => (Vec::new(), Vec::new()),
    };
    let storage = Storage::null(1 << 30);
    let mut server =
        Server::vlane(&options.vlane, directory.path(), storage, &of_server, &arguments)?;
    let looking = looks(Control::new(&path), options.seconds);
    let time = Duration::from_secs(options.seconds.into()) + SPARE;
    let by_the_client = client(row, &mut server, fio, time, &of_client, interrupt)?;
    let looked =
        looking.join().map_err(|_| Error::new(ErrorKind::Process, "the one who looks is lost"))?;
    interrupt.check()?;
    let looks = looked?;
    let seconds: Vec<f64> =
        looks.windows(2).map(|pair| pair[1].rate_since(&pair[0], row.limited)).collect();
    let (Some(each_second), [first, .., last]) = (Spread::of(&seconds), &looks[..]) else {
        return Err(Error::new(ErrorKind::Process, "there is nothing to compare"));
    };
    let cpus = (last.cpu_ns - first.cpu_ns) as f64 / (last.ns - first.ns) as f64;
    let in_all = last.rate_since(first, row.limited);
    Ok(Measured { row, each_second, in_all, by_the_client: row.limited.part(by_the_client), cpus })
}

/// Measures all rows.
///
/// # Errors
/// Obstacles to a measurement. Without a fio that has libblkio its rows are left out, and the
/// report says so.
pub fn run(options: &Options, host: &Host, command: &str, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(command);
    let fio = BlkioFio::find(host);
    let rows = rows(fio.is_ok());
    let mut progress =
        Progress::new(rows.len()).expecting(RAMP + Duration::from_secs(options.seconds.into()));
    let mut measured = Vec::new();
    let whole = Rounds::measure_each("row", rows.len(), |number| {
        let row = rows[number];
        progress.step(format!("{} on {}", row.limited.name(), counted(row.lanes, "lane")));
        measured.push(measure(options, row, fio.as_ref().ok(), interrupt)?);
        Ok(())
    })?;
    progress.clear();
    let mut notes = Vec::new();
    if let Err(error) = fio {
        notes.push(Note::warning(format!("fio with libblkio was not measured: {error}")));
    }
    let mut report = report(options, &measured, notes, &begun);
    whole.mark(&mut report);
    Ok(report)
}

fn report(options: &Options, measured: &[Measured], notes: Vec<Note>, begun: &Begun) -> Report {
    let off = |part: f64| (part - 1.0).abs() * 100.0;
    let worst =
        |of: fn(&Measured) -> f64| measured.iter().map(|one| off(of(one))).fold(0.0, f64::max);
    let summary = vec![format!(
        "The median of {} seconds is within {:.2} % of the limit in each of {}, the whole time \
         within {:.2} %.",
        options.seconds,
        worst(|one| one.each_second.median),
        counted(measured.len(), "row"),
        worst(|one| one.in_all)
    )];
    let cells = |one: &Measured| {
        vec![
            match one.row.client {
                Client::Driver => "vlane's driver".into(),
                Client::Fio => "fio with libblkio".into(),
            },
            Cell::Text(one.row.lanes.to_string()),
            one.row.limited.name().into(),
            Cell::Figure(one.each_second),
            Cell::Number(one.in_all),
            Cell::Number(one.by_the_client),
            Cell::Number(one.cpus),
        ]
    };
    let columns = [
        ("client", ""),
        ("lanes", ""),
        ("limit", ""),
        ("each second", "of the limit"),
        ("in all", "of the limit"),
        ("by the client", "of the limit"),
        ("back end", "CPUs"),
    ];
    let text = "The lanes' count in each second, divided by the limit: the median of the seconds, \
                the least and the most. Then the same of the whole time, and the client's count. \
                The first second, which has the burst in it, does not count.";
    let blocks = vec![table("Rates", &columns, measured.iter().map(cells).collect())];
    Report {
        summary,
        notes,
        sections: vec![Section::new("rates", "Rates", vec![text.to_owned()], blocks)],
        ..begun.report("throttle", "How exactly limits are kept", &["fio"])
    }
}
