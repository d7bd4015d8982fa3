//! `vlane-lab compare host` as people use it: a whole comparison with a real guest, what keeps it
//! from beginning, and its end by Ctrl-C.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use common::{QemuBed, one_at_a_time, vlane};
use tempfile::TempDir;
use vlane_compare::compare::columns::Column;
use vlane_report::{Block, Cell, Report, Table};

/// One small cell per column, in a directory of the test's own.
fn small(dir: &Path, time: &str, more: &[&str]) -> Command {
    let mut command = Command::new(vlane());
    command
        .args(["compare", "host", "128M", "--dir"])
        .arg(dir)
        .args(["--repeat", "1", "--install", "--loads", "fio-random-read-4k", "--time", time])
        .args(more)
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(Stdio::null());
    command
}

/// A directory on a disk: images in memory cannot be read directly.
fn on_disk() -> Option<TempDir> {
    let dir = TempDir::with_prefix_in("vlane-test-", "/var/tmp").unwrap();
    let probe = vlane_testbed::image::Place::find(
        vlane_testbed::image::Medium::Disk,
        Some(dir.path()),
        2 << 30,
        "--dir",
    );
    let Err(error) = probe else { return Some(dir) };
    vlane_testing::skip(error);
    None
}

fn table<'a>(report: &'a Report, caption: &str) -> &'a Table {
    let blocks = report.sections.iter().flat_map(|section| &section.blocks);
    let mut tables =
        blocks.filter_map(|block| if let Block::Table(table) = block { Some(table) } else { None });
    tables.find(|table| table.caption == caption).unwrap_or_else(|| panic!("no table {caption}"))
}

/// The report of a whole comparison, of which nothing else is left.
fn compared(dir: &Path, time: &str) -> Report {
    let json = dir.join("out.json");
    let output = small(dir, time, &["--no-html", "--json"]).arg(&json).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_nothing_left(dir);
    report
}

/// Requests of each disk, for one of fio's.
const PER_REQUEST: &str = "Per request: 4K random read, depth 32";

/// True if a request of fio's is one of the disk's, about.
fn is_one(requests: f64) -> bool {
    (0.95..1.2).contains(&requests)
}

#[test]
fn small_comparison_fills_every_column_and_cleans_up() {
    let _turn = one_at_a_time();
    let (Some(bed), Some(dir)) = (QemuBed::find(), on_disk()) else { return };
    let mut report = compared(dir.path(), "250ms");
    // On a busy machine few requests fit into a short time, and the file system's own count for
    // much.
    let is_row_of_one =
        |row: &Vec<Cell>| matches!(&row[1], Cell::Figure(requests) if is_one(requests.median));
    if !table(&report, PER_REQUEST).rows.iter().skip(1).all(is_row_of_one) {
        report = compared(dir.path(), "2s");
    }

    let all = Column::value_variants();
    // Without 9.0 one column cannot be had, and that is said. All others are measured.
    let old = bed.program.version < (9, 0);
    assert_eq!(report.notes.iter().any(|n| n.text.contains("needs QEMU 9.0")), old);
    let rates = table(&report, "fio: requests per second");
    let row = &rates.rows[0];
    assert_eq!((rates.columns.len(), row.len()), (1 + all.len(), 1 + all.len()));
    for (column, (shown, cell)) in all.iter().zip(rates.columns.iter().zip(row).skip(1)) {
        let missing = old && *column == Column::VirtioMapped;
        let title = if missing {
            format!("{} (not measured)", column.name())
        } else {
            column.name().into()
        };
        assert_eq!(shown.title, title);
        match cell {
            Cell::Figure(figure) => assert!(figure.median > 0.0 && !missing, "{title}: {figure:?}"),
            _ => assert!(missing, "{title}: {cell:?}"),
        }
    }

    // The guest's requests went to the disks that they were meant for: one of fio's is one of the
    // disk's, and back ends worked.
    let work = table(&report, PER_REQUEST);
    assert_eq!(work.rows.len(), all.len() - usize::from(old));
    for row in work.rows.iter().skip(1) {
        let (Cell::Figure(requests), Cell::Figure(back)) = (&row[1], &row[4]) else {
            panic!("{row:?}")
        };
        assert!(is_one(requests.median), "{row:?}");
        assert!(back.median > 0.0, "{row:?}");
    }
    assert!(report.sections.iter().any(|section| section.id == "native"));

    // The guest describes each disk that it measured.
    for (column, row) in all.iter().zip(&table(&report, "The columns").rows) {
        let words = ["; queues: ", "; scheduler: ", "; write back"];
        let is_described =
            matches!(&row[2], Cell::Text(disk) if words.iter().all(|word| disk.contains(word)));
        let is_measured = *column != Column::Host && !(old && *column == Column::VirtioMapped);
        assert_eq!(is_described, is_measured, "{row:?}");
    }
}

/// No process names the directory, and the directory is empty.
fn assert_nothing_left(dir: &Path) {
    let mark = dir.to_str().unwrap();
    assert_eq!(with_argument(mark), Vec::<String>::new(), "processes were left behind");
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "files were left behind: {left:?}");
}

/// Interrupts a comparison when `ripe` says so, and looks at what is left.
fn interrupted(ripe: impl Fn(&Path, &str) -> bool) {
    let Some(dir) = on_disk() else { return };
    let mut child =
        small(dir.path(), "4s", &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, said) = mpsc::channel();
    let mut pipe = BufReader::new(child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while pipe.read_line(&mut line).is_ok_and(|length| length > 0) {
            // The receiver is gone once the comparison has been interrupted.
            let _ = sender.send(line.clone());
            line.clear();
        }
        let mut rest = String::new();
        let _ = pipe.read_to_string(&mut rest);
    });
    let begun = Instant::now();
    let mut log = String::new();
    while !ripe(dir.path(), &log) {
        assert!(begun.elapsed() < common::LIMIT, "it did not get so far:\n{log}");
        assert!(child.try_wait().unwrap().is_none(), "it ended early:\n{log}");
        log.extend(said.recv_timeout(Duration::from_millis(20)));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let asked = Instant::now();
    let status = child.wait().unwrap();
    reader.join().unwrap();
    log.extend(said.try_iter());
    assert!(!status.success() && log.contains("interrupted"), "{log}");
    assert!(asked.elapsed() < Duration::from_secs(60), "it took {:?} to end", asked.elapsed());
    assert_nothing_left(dir.path());
}

#[test]
fn interrupt_while_writing_images_cleans_up() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    interrupted(|dir, _| {
        let scratch = std::fs::read_dir(dir).unwrap().flatten().find(|e| e.path().is_dir());
        scratch.is_some_and(|scratch| scratch.path().join("template.img").exists())
    });
}

#[test]
fn interrupt_while_measuring_guest_cleans_up() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    // The plan's first line comes when the guest is ready; QEMU and both daemons name the
    // directory. The host's turn takes four seconds, and fio in the guest some more until it is
    // loaded; then the guest's columns have theirs.
    let ready = std::cell::Cell::new(None);
    interrupted(|dir, log| {
        if ready.get().is_none() && log.contains("4K random read") {
            assert!(with_argument(dir.to_str().unwrap()).len() >= 3);
            ready.set(Some(Instant::now()));
        }
        ready.get().is_some_and(|ready| ready.elapsed() > Duration::from_secs(8))
    });
}

#[test]
fn obstacles_are_named_before_any_write() {
    // Where there is no QEMU or no kernel, that is said first.
    if QemuBed::find().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("precious.raw");
    std::fs::write(&image, "precious").unwrap();
    let of = |words: &[&str]| {
        let output = Command::new(vlane())
            .args(["compare", "host"])
            .args(words)
            .env("TMPDIR", dir.path())
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let here = dir.path().to_str().unwrap();
    let image_name = image.to_str().unwrap();
    for (words, expected) in [
        (vec!["999T", "--dir", here], "are needed"),
        (vec![image_name, "--size", "999T"], "are needed"),
        (vec!["16M", "--dir", here], "too small"),
        (vec!["/nowhere/disk.raw"], "/nowhere/disk.raw"),
        (vec!["/dev/null"], "name a directory"),
        (vec!["--qemu", "/nowhere/qemu", "--dir", here], "/nowhere/qemu"),
        (vec!["--html", "/nowhere/page.html", "--dir", here], "/nowhere/page.html"),
    ] {
        let said = of(&words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    assert_eq!(std::fs::read(&image).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was written");
}

/// The command lines of running processes that mention `word`.
fn with_argument(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // The comparison itself names it as well.
        if line.contains(word) && !line.contains(" compare ") {
            found.push(line);
        }
    }
    found
}
