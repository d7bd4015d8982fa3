//! The proof of detection: guests that write their journals round, recorded, and each way compared
//! with where the journal is.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use vlane_guest::Initramfs;
use vlane_policy::journal::{FileSystem, Journal, Map};
use vlane_report::{Cell, Note, Report, Section, table};
use vlane_testbed::{
    Call, Context, Control, Error, ErrorKind, Fail, Installs, Interrupt, Machines, Maker, Output,
    Progress, RecordOptions, Result, Rounds, Server, Storage, record, wait,
};

use super::Trace;
use super::analyze::build::number;
use super::analyze::journal::{SCORE, over_time, part, score};
use super::detection::{evaluate, layout_journal};

/// How long a guest may take beyond its work.
const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

/// One guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guest {
    /// ext4: `-o data=`; else `xfs`.
    mode: &'static str,
    journal_mib: u64,
    seconds: u64,
    /// Between the disk and the file system.
    layer: &'static str,
}

const fn guest(mode: &'static str, journal_mib: u64, layer: &'static str, seconds: u64) -> Guest {
    Guest { mode, journal_mib, seconds, layer }
}

/// The guests of the proof.
const GUESTS: [Guest; 9] = [
    guest("ordered", 64, "", 25),
    guest("journal", 64, "", 25),
    guest("ordered", 64, "-gpt", 25),
    guest("journal", 1024, "", 45),
    guest("journal", 1024, "-gpt", 45),
    guest("ordered", 64, "-lvm", 25),
    guest("ordered", 64, "-crypt", 25),
    guest("ordered", 4, "", 2),
    guest("xfs", 64, "", 45),
];

/// The choice of guests, and a place for their traces.
#[derive(Debug, Args)]
pub struct ProveOptions {
    /// Run only these guests
    ///
    /// ordered-4, ordered-64, ordered-64-gpt, ordered-64-lvm, ordered-64-crypt, journal-64,
    /// journal-1024, journal-1024-gpt, xfs-64
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Guest::named)]
    only: Vec<Guest>,

    /// Keep the traces in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    installs: Installs,
}

/// Runs the guests, and reports.
///
/// # Errors
/// Obstacles to running a guest or to recording its trace.
pub fn prove(options: &ProveOptions, call: &Call<'_>) -> Result<Report> {
    let Call { vlane, begun, interrupt } = call;
    let host = &options.installs.host()?;
    if let Some(keep) = options.keep.as_ref().filter(|keep| !keep.is_dir()) {
        let context = format!("{}: is not a directory; make it first", keep.display());
        return ErrorKind::Invalid.fail(context);
    }
    let maker = Maker::find(host, Machines::Uml)?;
    let is_chosen = |guest: &Guest| options.only.is_empty() || options.only.contains(guest);
    let guests: Vec<Guest> = GUESTS.into_iter().filter(is_chosen).collect();
    // A lack of the last guest is better known now than after all others.
    for program in needed(&guests) {
        host.program(program)?;
    }
    let (mut rows, mut sections) = (Vec::new(), Vec::new());
    let mut progress = Progress::new(guests.len());
    let measured = Rounds::measure_each("guest", guests.len(), |at| {
        let guest = guests[at];
        interrupt.check()?;
        progress.step(guest.title());
        let (trace, truth) = guest.run(options, vlane, &maker, interrupt)?;
        let truth = [truth];
        let found = evaluate(&trace, &truth);
        let map = Map::new(&truth);
        let (part, written) = part(&trace, &map);
        for one in &found {
            let guest = Cell::from(guest.title());
            rows.push(std::iter::once(guest).chain(score(one)).collect());
        }
        let words = format!(
            "{:.1} loops of the journal, {} requests. The true journal is that of {} in the guest.",
            number(written) / number(truth[0].len().max(1)),
            trace.requests.len(),
            if guest.is_xfs() { "xfs_db" } else { "debugfs" }
        );
        let blocks = vec![part, over_time(&trace, trace.span().0, &map, &found)];
        sections.push(Section::new(guest.name(), guest.title(), vec![words], blocks));
        Ok(())
    })?;
    progress.clear();
    let words = "Since the first verdict of each way, and since the journal was written once from \
                 end to end. An empty cell: no verdict, or no write since.";
    let ways = table("Precision and recall", &format!("guest | {SCORE}"), rows);
    let title = "How well each way finds the journal";
    sections.insert(0, Section::new("ways", title, vec![words.to_owned()], vec![ways]));
    let summary = "Bytes written: of those that a way took for the journal's, the part that went \
                   there (precision); of those that went there, the part that it took for it \
                   (recall).";
    Ok(measured.marked(Report {
        summary: vec![summary.to_owned()],
        notes: vec![Note::info(format!("Guests: {}, one vCPU.", maker.describe()))],
        sections,
        ..begun.report("journal-detection", "Journals found in real guests", &[])
    }))
}

/// The host's programs that guests take with them.
fn needed(guests: &[Guest]) -> BTreeSet<&'static str> {
    guests.iter().flat_map(|guest| guest.programs()).collect()
}

impl Guest {
    fn named(name: &str) -> std::result::Result<Self, String> {
        GUESTS.into_iter().find(|guest| guest.name() == name).ok_or_else(|| {
            let names = GUESTS.map(|guest| guest.name()).join(", ");
            format!("there is no such guest; there are {names}")
        })
    }

    fn is_xfs(self) -> bool {
        self.mode == "xfs"
    }

    fn name(self) -> String {
        format!("{}-{}{}", self.mode, self.journal_mib, self.layer)
    }

    fn title(self) -> String {
        let journal = vlane_units::show_size(self.journal_mib * MIB);
        let layer = match self.layer {
            "-gpt" => ", in a partition",
            "-lvm" => ", in LVM",
            "-crypt" => ", encrypted",
            _ => "",
        };
        match self.is_xfs() {
            true => format!("XFS, a log of {journal}"),
            false => format!("ext4, data={}, {journal}{layer}", self.mode),
        }
    }

    /// Runs it and gives the trace, and where the journal is.
    fn run(
        self,
        options: &ProveOptions,
        vlane: &Path,
        maker: &Maker,
        interrupt: &Interrupt,
    ) -> Result<(Trace, Journal)> {
        let failed = |what: &str| format!("{}: {what}", self.name());
        let dir = tempfile::Builder::new().prefix("vlane-prove-").tempdir();
        let dir = dir.context(ErrorKind::Io, || failed("no temporary directory"))?;
        vlane_report::machine::images_in(dir.path());
        let [image, control] = ["disk.raw", "control.sock"].map(|name| dir.path().join(name));
        let file = options.keep.as_deref().unwrap_or(dir.path());
        let file = file.join(format!("{}.trc", self.name()));
        let size = 2048 * MIB + 2 * self.journal_mib * MIB;
        File::create(&image)
            .and_then(|file| file.set_len(size))
            .context(ErrorKind::Io, || failed("no image"))?;
        let words = [Path::new("--control"), &control];
        let storage = Storage::File { path: &image, direct: false };
        let server = Server::vlane(vlane, dir.path(), storage, &[], &words)?;
        let recording = RecordOptions {
            output: Output::new(&file).force(true),
            time: None,
            count: None,
            hashes: false,
        };
        let (places, recorded) = std::thread::scope(|scope| -> Result<_> {
            let recorder =
                scope.spawn(|| record(&Control::new(&control), &recording, interrupt, &mut |_| ()));
            let places = self.work(maker, server.socket(), interrupt);
            drop(server);
            let recorded = recorder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((places?, recorded?.whole()?))
        })?;
        let trace = Trace::load(&file)?;
        if recorded.lost > 0 {
            let lost = vlane_error::counted(recorded.lost, "request");
            let lost = format!("the recording lost {lost}; try again on a quieter machine");
            return ErrorKind::Io.fail(failed(&lost));
        }
        let journal = self.true_journal(&places).ok_or_else(|| {
            let what = format!("it is not understood where the journal is: {places}");
            Error::new(ErrorKind::Io, failed(&what))
        })?;
        Ok((trace, journal))
    }

    /// Runs it on the disk at a socket until its work is done; returns its words on the journal.
    fn work(self, maker: &Maker, socket: &Path, interrupt: &Interrupt) -> Result<String> {
        let modules: &[&str] = match self.layer {
            "-lvm" => &["dm_mod"],
            "-crypt" => &["cbc", "ecb", "xts", "dm_crypt"],
            _ => &[],
        };
        let initramfs = Initramfs::new(self.script())
            .programs(self.programs())
            .modules(modules.iter().copied());
        let limit = LIMIT + Duration::from_secs(self.seconds);
        let mut machine = maker.start(vec![socket.to_path_buf()], &initramfs, limit)?;
        let places = wait(&mut machine, "journal", LIMIT, interrupt)?;
        wait(&mut machine, "done", limit, interrupt)?;
        Ok(places)
    }

    /// The journal on the disk, by the guest's words on it; none if they are not understood.
    fn true_journal(self, places: &str) -> Option<Journal> {
        let (filesystem, ranges): (_, Vec<Range<u64>>) = match self.is_xfs() {
            true => (FileSystem::Xfs, xfs_log(places).into_iter().collect()),
            false => (FileSystem::Ext4, places.split(';').filter_map(ext4_extent).collect()),
        };
        // A partition, a logical volume or an encrypted device begins there.
        let begin = if self.layer.is_empty() { 0 } else { MIB };
        let moved = |range: Range<u64>| range.start + begin..range.end + begin;
        let ranges: Vec<_> = ranges.into_iter().map(moved).collect();
        (!ranges.is_empty()).then(|| layout_journal(filesystem, ranges))
    }

    /// The host's programs that it takes with it.
    fn programs(self) -> impl Iterator<Item = &'static str> {
        let script = self.script();
        let all = ["fio", "mkfs.ext4", "mkfs.xfs", "debugfs", "xfs_db", "dmsetup", "lvm", "sfdisk"];
        all.into_iter().filter(move |program| script.contains(program))
    }

    fn script(self) -> String {
        let Self { mode, journal_mib: journal, seconds, layer } = self;
        let (device, under) = match layer {
            "-gpt" => (
                "/dev/vda1",
                "echo 'label: gpt\nstart=2048' | sfdisk -q /dev/vda\nsleep 1; mdev -s\n",
            ),
            "-lvm" => (
                "/dev/mapper/vg-lv",
                "mkdir -p /etc/lvm /run/lvm; C='activation{udev_sync=0 udev_rules=0 \
                 verify_udev_operations=1} devices{use_devicesfile=0} \
                 global{event_activation=0}'\nlvm pvcreate -q --config \"$C\" /dev/vda; lvm \
                 vgcreate -q --config \"$C\" vg /dev/vda\nlvm lvcreate -q -y -Wn -Zn --config \
                 \"$C\" -l 100%FREE -n lv vg; lvm vgmknodes --config \"$C\"\n",
            ),
            "-crypt" => (
                "/dev/mapper/crypt",
                "S=$(($(cat /sys/block/vda/size) - 2048)); K=0123456789abcdef\ndmsetup create \
                 --noudevsync crypt --table \"0 $S crypt aes-xts-plain64 $K$K$K$K 0 /dev/vda \
                 2048\"; dmsetup mknodes\n",
            ),
            _ => ("/dev/vda", ""),
        };
        let make = match self.is_xfs() {
            true => format!(
                "mkfs.xfs -q -f -l size={journal}m {device}\nW=$(xfs_db -r -c 'sb 0' -c 'p \
                 logstart logblocks blocksize agblocks agblklog' {device} | tr '\\n' ';')\necho \
                 \"RESULT journal=$W\"\nmount -t xfs {device} /mnt\n"
            ),
            false => format!(
                "mkfs.ext4 -q -F -b 4096 -J size={journal} {device}\n\
                 W=$(debugfs -R 'ex <8>' {device} 2>/dev/null | tr '\\n' ';')\n\
                 echo \"RESULT journal=$W\"\nmount -t ext4 -o data={mode} {device} /mnt\n"
            ),
        };
        // Bytes of a mail, and mails that are there at the same time.
        let (mail, mails) = if journal > 64 { (256 << 10, 600) } else { (16 << 10, 2000) };
        format!(
            "set -e\nmkdir -p /mnt /dev/mapper\n{under}{make}fio --name=mail --directory=/mnt \
             --ioengine=psync --rw=write --bs={mail} --filesize={mail} --nrfiles={mails} \
             --openfiles=1 --file_service_type=sequential --create_on_open=1 --fsync_on_close=1 \
             --unlink=1 --unlink_each_loop=1 --loops=1000000 --time_based --runtime={seconds} > \
             /tmp/fio 2>&1 || cat /tmp/fio\numount /mnt\necho RESULT done=1\n"
        )
    }
}

/// A leaf of debugfs' `ex <8>`, of blocks of 4 KiB: `Level Entries Logical Physical Length`.
fn ext4_extent(line: &str) -> Option<Range<u64>> {
    // level depth entry entries logical logical physical physical length
    let words = line.split(['/', ' ', '-']).filter(|word| !word.is_empty()).take(9);
    match words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?[..] {
        [level, depth, .., first, last, _] if level == depth => {
            Some(first * 4096..last.checked_add(1)? * 4096)
        }
        _ => None,
    }
}

/// The log, by xfs_db's values of the superblock: `name = number`, separated by `;`.
fn xfs_log(text: &str) -> Option<Range<u64>> {
    let fields = text.split(';').filter_map(|line| line.split_once('='));
    let fields: HashMap<&str, &str> =
        fields.map(|(name, value)| (name.trim(), value.trim())).collect();
    let field = |name: &str| fields.get(name)?.parse::<u64>().ok();
    let (start, blocks, block) = (field("logstart")?, field("logblocks")?, field("blocksize")?);
    let (per_group, bits) = (field("agblocks")?, field("agblklog")?);
    let first = (start >> bits) * per_group + (start & ((1 << bits) - 1));
    Some(first * block..(first + blocks) * block)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn programs_are_checked_before_the_first_guest() {
        let of = |names: &[&str]| {
            needed(&names.iter().map(|name| Guest::named(name).unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["ordered-4"]), BTreeSet::from(["debugfs", "fio", "mkfs.ext4"]));
        assert_eq!(
            of(&["ordered-4", "ordered-64-lvm", "xfs-64"]),
            BTreeSet::from(["debugfs", "fio", "lvm", "mkfs.ext4", "mkfs.xfs", "xfs_db"])
        );
    }
}
