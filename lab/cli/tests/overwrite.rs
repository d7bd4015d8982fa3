//! A slip of the hand costs no data. Results replace only files of their own kind. A command that
//! writes to a volume asks first.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use served::{Place, ends, fails, start, stop, vlane};
use vlane_guest::Backend;

const MIB: u64 = 1 << 20;

/// A volume with something in it, served with a control socket.
fn precious(place: &Place) -> Backend {
    let image = std::fs::OpenOptions::new().write(true).open(&place.image).unwrap();
    image.write_all_at(b"precious", 4096).unwrap();
    let control = place.path("control.sock");
    start(&place.command(&["--control", control.to_str().unwrap()]), &place.socket).unwrap()
}

fn is_precious(place: &Place) -> bool {
    let image = std::fs::read(&place.image).unwrap();
    image.len() as u64 == MIB && &image[4096..4104] == b"precious"
}

fn bench(socket: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(vlane());
    command.arg("bench").arg(socket).args(["--time", "100ms", "--ramp", "0s"]).args(words);
    command
}

#[test]
fn writing_to_foreign_volume_asks_first() {
    let place = Place::new(MIB);
    let server = precious(&place);
    let own =
        "title = \"t\"\n[[target]]\nname = \"a\"\n[[load]]\nname = \"l\"\nrw = \"randwrite\"\n";
    std::fs::write(place.path("writes.toml"), own).unwrap();
    let profile = place.path("writes.toml");
    let socket = place.socket.to_str().unwrap();
    let asked: [&[&str]; 9] = [
        &["--rw", "randwrite"],
        &["--rw", "write"],
        &["--rw", "rw:99"],
        &["--rw", "randtrim"],
        &["--rw", "zero"],
        &["--verify"],
        &["--verify", "--state", "st"],
        &["--rw", "randwrite", "--repeat", "2"],
        &["--profile", profile.to_str().unwrap()],
    ];
    for words in asked {
        fails(
            bench(&place.socket, words).current_dir(place.path("")),
            &[socket, "--yes-overwrite"],
        );
        assert!(is_precious(&place), "{words:?}");
    }
    assert!(!place.path("st").exists());
    for words in
        [&["--rw", "randread"][..], &["--rw", "rw:100"], &["--rw", "randread", "--repeat", "2"]]
    {
        let (code, said) = ends(&mut bench(&place.socket, words));
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }
    assert!(is_precious(&place));
    let (code, said) = ends(&mut bench(&place.socket, &["--rw", "zero", "--yes-overwrite"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_precious(&place));
    stop(server);
}

#[test]
fn writing_to_second_back_end_asks_too() {
    let (a, b) = (Place::new(MIB), Place::new(MIB));
    let servers = [precious(&a), precious(&b)];
    let against = b.socket.to_str().unwrap();
    fails(
        &mut bench(&a.socket, &["--rw", "randwrite", "--against", against]),
        &["--yes-overwrite"],
    );
    assert!(is_precious(&a) && is_precious(&b));
    for server in servers {
        stop(server);
    }
}

/// A trace with one request in it, from the volume that is served.
fn record(place: &Place, to: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(vlane());
    command
        .arg("record")
        .arg(place.path("control.sock"))
        .arg("-o")
        .arg(to)
        .args(["--time", "50ms"])
        .args(words);
    command
}

#[test]
fn recording_never_replaces_the_image() {
    let place = Place::new(MIB);
    let server = precious(&place);
    let link = place.path("link");
    std::os::unix::fs::symlink(&place.image, &link).unwrap();
    for image in [&place.image, &link] {
        for words in [&[][..], &["--force"]] {
            fails(
                &mut record(&place, image, words),
                &[image.to_str().unwrap(), "choose another name"],
            );
            assert!(is_precious(&place));
        }
    }
    let trace = place.path("a.trc");
    let (code, said) = ends(&mut record(&place, &trace, &[]));
    assert_eq!(code, Some(0), "{said}");
    let first = std::fs::read(&trace).unwrap();
    assert!(first.len() > 50);
    fails(&mut record(&place, &trace, &[]), &["a.trc", "exists already", "--force"]);
    assert_eq!(std::fs::read(&trace).unwrap(), first);
    // The recording before may take a moment to end in the server.
    let begin = std::time::Instant::now();
    let (code, said) = loop {
        let (code, said) = ends(&mut record(&place, &trace, &["--force"]));
        if !said.contains("recorded already") || begin.elapsed() > served::LIMIT {
            break (code, said);
        }
    };
    assert_eq!(code, Some(0), "{said}");
    assert_ne!(std::fs::read(&trace).unwrap(), first);
    stop(server);
}

#[test]
fn conversions_and_reports_keep_foreign_files() {
    let place = Place::new(MIB);
    let server = precious(&place);
    // Something to convert: fio's form of one read.
    let log = place.path("a.log");
    std::fs::write(
        &log,
        "fio version 3 iolog\n0 disk add\n0 disk open\n1 disk read 0 4096\n2 disk close\n",
    )
    .unwrap();
    let other = place.path("other");
    let run = |words: &[&str]| {
        let mut command = Command::new(vlane());
        command.args(words).current_dir(place.path(""));
        command
    };
    let image = place.image.to_str().unwrap().to_owned();
    let socket = place.socket.to_str().unwrap().to_owned();
    assert_eq!(ends(&mut run(&["trace", "convert", "a.log", "a.trc"])).0, Some(0));
    std::fs::write(place.path("r.json"), example()).unwrap();
    let commands: [&[&str]; 12] = [
        &["trace", "convert", "a.log", "@"],
        &["trace", "convert", "a.trc", "@", "--to", "iolog"],
        &["trace", "analyze", "a.trc", "--html", "@.html"],
        &["trace", "replay", "a.trc", &socket, "--html", "@.html"],
        &["report", "r.json", "--html", "@.html"],
        &["report", "r.json", "--json", "@.json"],
        &["bench", &socket, "--time", "10ms", "--repeat", "1", "--save", "@"],
        &["bench", &socket, "--time", "10ms", "--repeat", "1", "--html", "@.html"],
        &["compare", "topologies", "--quick", "--json", "@.json"],
        &["compare", "host", "--work", "--no-html", "--json", "@.json"],
        &["compare", "peers", "--json", "@"],
        &["compare", "peers", "--fixed-load", "--html", "@.html"],
    ];
    for words in commands {
        let name = words.iter().find(|word| word.starts_with('@')).unwrap();
        let file = place.path(&name.replace('@', "other"));
        std::fs::write(&file, "precious").unwrap();
        let words: Vec<String> =
            words.iter().map(|word| word.replace('@', other.to_str().unwrap())).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        fails(&mut run(&words), &[file.to_str().unwrap(), "exists already", "--force"]);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{words:?}");
        std::fs::remove_file(&file).unwrap();
        // The image that is served, by force.
        if !name.contains('.') {
            let words: Vec<&str> = words
                .iter()
                .map(|word| if *word == other.to_str().unwrap() { image.as_str() } else { word })
                .collect();
            fails(run(&words).arg("--force"), &[&image, "locked"]);
            assert!(is_precious(&place), "{words:?}");
        }
    }
    // And what is theirs is replaced: the same command again, and the chart of a report.
    for _ in 0..2 {
        for words in [
            &["trace", "analyze", "a.trc", "--html", "own.html"][..],
            &["report", "r.json", "--html", "own.html", "--json", "own.json", "--svg", "charts"],
            &[
                "bench",
                &socket,
                "--time",
                "10ms",
                "--ramp",
                "0s",
                "--repeat",
                "1",
                "--save",
                "saved.json",
            ],
        ] {
            let (code, said) = ends(&mut run(words));
            assert_eq!(code, Some(0), "{words:?}: {said}");
        }
    }
    std::fs::write(place.path("charts/throughput-1.svg"), "<svg>precious</svg>").unwrap();
    fails(
        &mut run(&["report", "r.json", "--svg", "charts"]),
        &["throughput-1.svg", "exists already"],
    );
    let (code, said) = ends(&mut run(&["trace", "convert", "a.log", "a.trc", "--force"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(is_precious(&place));
    stop(server);
}

/// The example of the documentation.
fn example() -> String {
    let page = include_str!("../../../docs/src/report-format.md");
    let (_, after) = page.split_once("```json\n").unwrap();
    after.split_once("```").unwrap().0.to_string()
}

#[test]
fn other_image_format_names_remedy() {
    let place = Place::new(0);
    std::fs::write(&place.image, [&b"QFI\xfb\0\0\0\x03"[..], &[0; 197_000]].concat()).unwrap();
    let name = place.image.to_str().unwrap().to_owned();
    fails(&mut place.command(&[]), &[&name, "qcow2", "qemu-img convert -O raw", "--format raw"]);
    fails(&mut place.command(&["--read-only"]), &["qcow2"]);
    std::fs::OpenOptions::new().write(true).open(&place.image).unwrap().set_len(MIB).unwrap();
    fails(&mut place.command(&[]), &["qcow2"]);
    stop(place.serve(&["--format", "raw"]));
}
