//! The proof of detection: guests that write their journals round, recorded, and each way compared
//! with where the journal is.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::{Host, Initramfs, Ready, Spec};
use vlane_policy::journal::{FileSystem, Journal};

use super::super::Trace;
use super::super::analyze::build::{number, text};
use super::super::analyze::journal::{over_time, part, score_cells, shares};
use super::{Found, evaluate, layout_journal};
use vlane_client::record::{RecordOptions, record};
use vlane_report::build::{Begun, table};
use vlane_report::{Cell, Note, Report, Section};
use vlane_testbed::Rounds;
use vlane_testbed::control::Control;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::guests::{Machines, Maker, wait};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::output::Output;
use vlane_testbed::server::Server;

/// How long a guest may take beyond its work.
const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// Where a partition, a logical volume or an encrypted device begins on the disk.
const BEGIN: u64 = MIB;

/// Layer between the disk and the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Under {
    Nothing,
    /// A partition of a GPT.
    Partition,
    /// A logical volume of LVM.
    Lvm,
    /// dm-crypt.
    Encrypted,
}

/// One guest.
#[derive(Debug, Clone, Copy)]
struct Guest {
    name: &'static str,
    title: &'static str,
    filesystem: FileSystem,
    /// ext4: `-o data=`.
    data: &'static str,
    journal_mib: u64,
    under: Under,
    /// Bytes of a mail.
    mail: u64,
    /// Mails that are there at the same time.
    mails: u64,
    seconds: u64,
}

const fn ext4(
    name: &'static str,
    title: &'static str,
    data: &'static str,
    journal_mib: u64,
    under: Under,
) -> Guest {
    let (mail, mails, seconds) =
        if journal_mib > 64 { (256 << 10, 600, 45) } else { (16 << 10, 2000, 25) };
    Guest {
        name,
        title,
        filesystem: FileSystem::Ext4,
        data,
        journal_mib,
        under,
        mail,
        mails,
        seconds,
    }
}

/// The guests of the proof.
const GUESTS: [Guest; 9] = [
    ext4("ordered-64", "ext4, data=ordered, 64 MiB", "ordered", 64, Under::Nothing),
    ext4("journal-64", "ext4, data=journal, 64 MiB", "journal", 64, Under::Nothing),
    ext4(
        "ordered-64-gpt",
        "ext4, data=ordered, 64 MiB, in a partition",
        "ordered",
        64,
        Under::Partition,
    ),
    ext4("journal-1024", "ext4, data=journal, 1 GiB", "journal", 1024, Under::Nothing),
    ext4(
        "journal-1024-gpt",
        "ext4, data=journal, 1 GiB, in a partition",
        "journal",
        1024,
        Under::Partition,
    ),
    ext4("ordered-64-lvm", "ext4, data=ordered, 64 MiB, in LVM", "ordered", 64, Under::Lvm),
    ext4(
        "ordered-64-crypt",
        "ext4, data=ordered, 64 MiB, encrypted",
        "ordered",
        64,
        Under::Encrypted,
    ),
    Guest {
        seconds: 2,
        ..ext4("ordered-4", "ext4, data=ordered, 4 MiB", "ordered", 4, Under::Nothing)
    },
    Guest {
        name: "xfs-64",
        title: "XFS, a log of 64 MiB",
        filesystem: FileSystem::Xfs,
        data: "",
        journal_mib: 64,
        under: Under::Nothing,
        mail: 16 << 10,
        mails: 2000,
        seconds: 45,
    },
];

/// The names of all guests.
pub fn names() -> impl Iterator<Item = &'static str> {
    GUESTS.iter().map(|guest| guest.name)
}

/// How the proof is made.
#[derive(Debug)]
pub struct ProveOptions {
    /// The vlane program.
    pub vlane: PathBuf,
    /// The command that makes the report again.
    pub command: String,
    /// Only these guests.
    pub only: Vec<String>,
    /// Where the traces are kept; none: they are not.
    pub keep: Option<PathBuf>,
}

/// Runs the guests, and reports.
///
/// # Errors
/// Obstacles to running a guest or to recording its trace.
pub fn prove(
    options: &ProveOptions,
    host: &Host,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let begun = Begun::now(&options.command);
    let maker = Maker::find(host, Machines::Uml)?;
    let chosen = |guest: &&Guest| {
        options.only.is_empty() || options.only.iter().any(|name| guest.name == name)
    };
    // A lack of the last guest is better known now than after all others.
    for program in needed(GUESTS.iter().filter(chosen)) {
        host.program(program)?;
    }
    let (mut rows, mut sections, mut summary) = (Vec::new(), Vec::new(), Vec::new());
    let guests: Vec<&Guest> = GUESTS.iter().filter(chosen).collect();
    let measured = Rounds::measure_each("guest", guests.len(), |at| {
        let guest = guests[at];
        interrupt.check()?;
        progress(guest.title);
        let (trace, truth) = run(guest, options, &maker, interrupt)?;
        let found = evaluate(&trace, std::slice::from_ref(&truth));
        let part = part(&trace, std::slice::from_ref(&truth));
        let loops = number(part.written.1) / number(truth.len().max(1));
        for one in &found {
            rows.push(row(guest, loops, one));
        }
        let (first, _) = trace.span();
        let words = format!(
            "{:.1} loops of the journal, {} requests. The true journal is that of {} in the guest.",
            loops,
            trace.requests.len(),
            if guest.filesystem == FileSystem::Xfs { "xfs_db" } else { "debugfs" }
        );
        sections.push(Section::new(
            guest.name.to_owned(),
            guest.title.to_owned(),
            vec![words],
            vec![shares(&part), over_time(&trace, first, &[truth], &found)],
        ));
        Ok(())
    })?;
    summary.push(
        "Bytes written: of those that a way took for the journal's, the part that went there \
         (precision); of those that went there, the part that it took for it (recall)."
            .to_owned(),
    );
    sections.insert(0, ways(rows));
    let mut report = Report {
        summary,
        notes: vec![Note::info(format!("Guests: {}, one vCPU.", maker.describe()))],
        sections,
        ..begun.report("journal-detection", "Journals found in real guests", &[])
    };
    measured.mark(&mut report);
    Ok(report)
}

/// The section on all guests: the precision and recall of each way.
fn ways(rows: Vec<Vec<Cell>>) -> Section {
    let columns = [
        ("guest", ""),
        ("way", ""),
        ("loops", ""),
        ("first verdict", "s"),
        ("precision", "%"),
        ("recall", "%"),
        ("precision after a loop", "%"),
        ("recall after a loop", "%"),
        ("kind", ""),
    ];
    let words = "Since the first verdict of each way, and since the journal was written once from \
                 end to end. An empty cell: no verdict, or no write since.";
    Section::new(
        "ways",
        "How well each way finds the journal",
        vec![words.to_owned()],
        vec![table("Precision and recall", &columns, rows)],
    )
}

fn row(guest: &Guest, loops: f64, found: &Found) -> Vec<Cell> {
    let first = found.first.map_or(Cell::Empty, |ns| Cell::Number(number(ns) / 1e9));
    let way = format!("{:?}", found.way).to_lowercase();
    let mut row =
        vec![text(guest.title), text(way), Cell::Number((loops * 100.0).round() / 100.0), first];
    row.extend(score_cells(&found.since_found));
    row.extend(score_cells(&found.since_loop));
    let kinds: Vec<_> =
        found.journals.iter().map(|journal| format!("{:?}", journal.kind).to_lowercase()).collect();
    row.push(text(kinds.join(", ")));
    row
}

/// Runs a guest and gives the trace, and where the journal is.
fn run(
    guest: &Guest,
    options: &ProveOptions,
    maker: &Maker,
    interrupt: &Interrupt,
) -> Result<(Trace, Journal)> {
    let failed = |what: &str| Error::new(ErrorKind::Io, format!("{}: {what}", guest.name));
    let dir = tempfile::Builder::new()
        .prefix("vlane-prove-")
        .tempdir()
        .map_err(|_| failed("no temporary directory"))?;
    vlane_report::machine::images_in(dir.path());
    let at = |name: &str| dir.path().join(name);
    let (image, socket, control, file) =
        (at("disk.raw"), at("disk.sock"), at("control.sock"), at("disk.trc"));
    let size = 2048 * MIB + 2 * guest.journal_mib * MIB;
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(size));
    made.map_err(|error| failed(&format!("{}: {error}", image.display())))?;
    let words = [
        "serve".into(),
        image.clone(),
        "--socket".into(),
        socket.clone(),
        "--control".into(),
        control.clone(),
    ];
    let server = Server::start(
        "vlane",
        Spec::new(&options.vlane, words),
        &[],
        &socket,
        Ready::Line("listening on"),
    )?;
    let recording =
        RecordOptions { output: Output::new(&file), time: None, count: None, hashes: false };
    let modules: &[&str] = match guest.under {
        Under::Lvm => &["dm_mod"],
        Under::Encrypted => &["cbc", "ecb", "xts", "dm_crypt"],
        _ => &[],
    };
    let initramfs =
        Initramfs::new(script(guest)).programs(programs(guest)).modules(modules.iter().copied());
    let (places, recorded) = std::thread::scope(|scope| -> Result<_> {
        let recorder =
            scope.spawn(|| record(&Control::new(&control), &recording, interrupt, &mut |_| ()));
        let places = work(guest, maker, &socket, &initramfs, interrupt);
        drop(server);
        let recorded = recorder.join().map_err(|_| failed("the recording panicked"))?;
        Ok((places?, recorded?.whole()?))
    })?;
    let trace = Trace::load(&file)?;
    if recorded.lost > 0 {
        return Err(failed(&format!(
            "the recording lost {}; try again on a quieter machine",
            vlane_error::counted(recorded.lost, "request")
        )));
    }
    if let Some(keep) = &options.keep {
        let kept = keep.join(format!("{}.trc", guest.name));
        std::fs::copy(&file, &kept)
            .map_err(|error| failed(&format!("{}: {error}", kept.display())))?;
    }
    let Some(journal) = true_journal(guest, &places) else {
        return Err(failed(&format!("it is not understood where the journal is: {places}")));
    };
    Ok((trace, journal))
}

/// Runs the guest on the disk at a socket until its work is done; returns its words on the journal.
fn work(
    guest: &Guest,
    maker: &Maker,
    socket: &Path,
    initramfs: &Initramfs,
    interrupt: &Interrupt,
) -> Result<String> {
    let limit = LIMIT + Duration::from_secs(guest.seconds);
    let mut machine = maker.start(vec![socket.to_path_buf()], initramfs, limit)?;
    let places = wait(&mut machine, "journal", LIMIT, interrupt)?;
    wait(&mut machine, "done", limit, interrupt)?;
    Ok(places)
}

/// The journal on the disk, by the guest's words on it; none if they are not understood.
fn true_journal(guest: &Guest, places: &str) -> Option<Journal> {
    let ranges =
        if guest.filesystem == FileSystem::Xfs { xfs(places) } else { ext4_extents(places) };
    let ranges = ranges.filter(|ranges| !ranges.is_empty())?;
    let begin = match guest.under {
        Under::Nothing => 0,
        _ => BEGIN,
    };
    let ranges = ranges.into_iter().map(|range| range.start + begin..range.end + begin).collect();
    Some(layout_journal(guest.filesystem, ranges))
}

/// The leaves of debugfs' `ex <8>`, of blocks of 4 KiB: `Level Entries Logical Physical Length`,
/// lines apart by `;`.
fn ext4_extents(text: &str) -> Option<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    for line in text.split(';') {
        let words: Vec<&str> =
            line.split(['/', ' ', '-']).filter(|word| !word.is_empty()).collect();
        // level depth entry entries logical logical physical physical length
        let numbers: Option<Vec<u64>> =
            words.iter().take(9).map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([level, depth, .., first, last, _]) if level == depth => {
                ranges.push(first * 4096..(last.checked_add(1)?) * 4096);
            }
            _ => {}
        }
    }
    Some(ranges)
}

/// xfs_db's values of the superblock: `name = number`, separated by `;`.
fn xfs(text: &str) -> Option<Vec<Range<u64>>> {
    let field = |name: &str| -> Option<u64> {
        let value = text
            .split(';')
            .find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('='))?;
        value.trim().parse().ok()
    };
    let (start, blocks, block) = (field("logstart")?, field("logblocks")?, field("blocksize")?);
    let (per_group, bits) = (field("agblocks")?, field("agblklog")?);
    let first = (start >> bits) * per_group + (start & ((1 << bits) - 1));
    Some(std::iter::once(first * block..(first + blocks) * block).collect())
}

/// The host's programs that a guest takes with it.
fn programs(guest: &Guest) -> Vec<&'static str> {
    let script = script(guest);
    let all = ["fio", "mkfs.ext4", "mkfs.xfs", "debugfs", "xfs_db", "dmsetup", "lvm", "sfdisk"];
    all.into_iter().filter(|program| script.contains(program)).collect()
}

/// Those of all guests, each once.
fn needed<'a>(guests: impl Iterator<Item = &'a Guest>) -> BTreeSet<&'static str> {
    guests.flat_map(programs).collect()
}

/// A guest's script.
fn script(guest: &Guest) -> String {
    let (device, under) = match guest.under {
        Under::Nothing => ("/dev/vda", String::new()),
        Under::Partition => (
            "/dev/vda1",
            "echo 'label: gpt\nstart=2048' | sfdisk -q /dev/vda\nsleep 1; mdev -s\n".to_owned(),
        ),
        Under::Lvm => (
            "/dev/mapper/vg-lv",
            "mkdir -p /etc/lvm /run/lvm; C='activation{udev_sync=0 udev_rules=0 \
             verify_udev_operations=1} devices{use_devicesfile=0} \
             global{event_activation=0}'\nlvm pvcreate -q --config \"$C\" /dev/vda; lvm vgcreate \
             -q --config \"$C\" vg /dev/vda\nlvm lvcreate -q -y -Wn -Zn --config \"$C\" -l \
             100%FREE -n lv vg; lvm vgmknodes --config \"$C\"\n"
                .to_owned(),
        ),
        Under::Encrypted => (
            "/dev/mapper/crypt",
            format!(
                "S=$(($(cat /sys/block/vda/size) - {begin}))\ndmsetup create --noudevsync crypt \
                 --table \"0 $S crypt aes-xts-plain64 {key} 0 /dev/vda {begin}\"; dmsetup \
                 mknodes\n",
                begin = BEGIN / 512,
                key = "0123456789abcdef".repeat(4),
            ),
        ),
    };
    let journal = guest.journal_mib;
    let make = match guest.filesystem {
        FileSystem::Xfs => format!(
            "mkfs.xfs -q -f -l size={journal}m {device}\nW=$(xfs_db -r -c 'sb 0' -c 'p logstart \
             logblocks blocksize agblocks agblklog' {device} | tr '\\n' ';')\necho \"RESULT \
             journal=$W\"\nmount -t xfs {device} /mnt\n"
        ),
        _ => format!(
            "mkfs.ext4 -q -F -b 4096 -J size={journal} {device}\n\
             W=$(debugfs -R 'ex <8>' {device} 2>/dev/null | tr '\\n' ';')\n\
             echo \"RESULT journal=$W\"\nmount -t ext4 -o data={} {device} /mnt\n",
            guest.data
        ),
    };
    format!(
        "set -e\nmkdir -p /mnt /dev/mapper\n{under}{make}fio --name=mail --directory=/mnt \
         --ioengine=psync --rw=write --bs={mail} --filesize={mail} --nrfiles={mails} \
         --openfiles=1 --file_service_type=sequential --create_on_open=1 --fsync_on_close=1 \
         --unlink=1 --unlink_each_loop=1 --loops=1000000 --time_based --runtime={seconds} > \
         /tmp/fio 2>&1 || cat /tmp/fio\numount /mnt\necho RESULT done=1\n",
        mail = guest.mail,
        mails = guest.mails,
        seconds = guest.seconds,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_checked_before_the_first_guest() {
        let of = |names: &[&str]| needed(GUESTS.iter().filter(|guest| names.contains(&guest.name)));
        assert_eq!(of(&["ordered-4"]), BTreeSet::from(["debugfs", "fio", "mkfs.ext4"]));
        assert_eq!(
            of(&["ordered-4", "ordered-64-lvm", "xfs-64"]),
            BTreeSet::from(["debugfs", "fio", "lvm", "mkfs.ext4", "mkfs.xfs", "xfs_db"])
        );
    }
}
