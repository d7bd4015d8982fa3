//! The parts of the man pages that the definitions of the commands do not have: signals, exit
//! status, examples.

/// Effects of signals on a command.
pub type Signals = &'static [(&'static str, &'static str)];

/// An example: the words after `vlane`, and what they do.
pub type Example = (&'static str, &'static str);

/// The sections of one command's page.
#[derive(Debug)]
pub struct Page {
    /// The command's words, as `sched run`; empty for the program itself.
    pub command: &'static str,
    /// None: a signal ends it, as any program.
    pub signals: Signals,
    /// Exit statuses beyond those of all commands, or in place of one of them.
    pub status: &'static [(u8, &'static str)],
    /// Command lines that are complete, but for the names of files.
    pub examples: &'static [Example],
}

/// The exit statuses of all commands.
pub const STATUS: [(u8, &str); 4] = [
    (0, "done"),
    (1, "failed"),
    (2, "a mistake in the command line"),
    (
        3,
        "a result, but of less than what was asked for (interrupted, a damaged trace), or worse than what was demanded (--fail-on-worse)",
    ),
];

const SERVE: Signals = &[
    (
        "SIGTERM, SIGINT",
        "Takes no more requests, answers those in flight, writes everything to the device, removes the sockets, and ends with status 0. The \
         status is 1 if something could not be written or was lost, or if the storage does not answer within --stop-timeout.",
    ),
    ("SIGHUP", "Looks at the image's size again, and tells the guest of a change."),
    (
        "SIGUSR2",
        "Has the program that is at its path by now take over. No request fails, and the sockets stay.",
    ),
];

const ENDS: Signals =
    &[("SIGTERM, SIGINT, SIGHUP", "Ends in order. Everything that it has started ends with it.")];

const MEASURES: Signals = &[(
    "SIGTERM, SIGINT, SIGHUP",
    "Ends the measurement early. Back ends and guests that it has started end with it. Where a part of the result was measured, that part is \
     given and marked as partial, with status 3.",
)];

const NONE: Signals = &[];

/// A page without statuses of its own.
const fn page(command: &'static str, signals: Signals, examples: &'static [Example]) -> Page {
    Page { command, signals, status: &[], examples }
}

/// All pages.
pub static PAGES: &[Page] = &[
    page(
        "",
        NONE,
        &[
            ("serve disk.raw --socket /run/vlane/disk/disk.sock", "Serves a volume to virtual machines."),
            ("boot --install", "Boots a guest on a new volume, as a demonstration."),
        ],
    ),
    page(
        "serve",
        SERVE,
        &[
            (
                "serve disk.raw --socket /run/vlane/disk/disk.sock --control /run/vlane/disk/disk.ctl",
                "Serves an image file, with a control socket.",
            ),
            (
                "serve /dev/vg0/disk --socket disk.sock --cache none",
                "Serves a block device without the host's page cache.",
            ),
            (
                "serve disk.raw --socket disk.sock --limit-iops 5000 --limit-bandwidth 100M",
                "Serves a volume with limits.",
            ),
            (
                "serve --null 16G --socket null.sock",
                "Serves a device without media, to measure everything else.",
            ),
        ],
    ),
    page(
        "boot",
        &[
            ("SIGTERM, SIGHUP", "Ends the guest, and then the server, which drains and flushes."),
            ("SIGINT", "With a console on the terminal, Ctrl-C goes to the guest; Ctrl-A X ends QEMU."),
        ],
        &[
            ("boot --install", "Boots a demonstration, and installs what is missing."),
            ("boot disk.raw", "Boots a bootable image, with its console on the terminal."),
            ("boot disk.raw --dry-run", "Prints the command lines, and runs nothing."),
        ],
    ),
    page(
        "bench",
        MEASURES,
        &[
            ("bench disk.sock --rw randread --bs 4k --depth 32", "Measures random reads for five seconds."),
            (
                "bench disk.sock --against other.sock --repeat 5 --html result.html",
                "Compares two back ends, measured in turns.",
            ),
            (
                "bench disk.sock --verify --yes-overwrite",
                "Verifies what is written. The volume's content is lost.",
            ),
        ],
    ),
    page("classes", NONE, &[("classes disk.ctl", "Shows the requests of each class.")]),
    page(
        "limit",
        NONE,
        &[
            ("limit disk.ctl", "Shows the limits."),
            ("limit disk.ctl --iops 2000 --burst 1s", "Changes two of them, from now on."),
        ],
    ),
    page(
        "record",
        &[(
            "SIGTERM, SIGINT, SIGHUP",
            "Ends the recording. The trace is complete, with status 0: without --time and --count this is how it ends.",
        )],
        &[("record disk.ctl -o disk.trc --time 30s", "Records all requests of half a minute.")],
    ),
    page(
        "replay",
        MEASURES,
        &[
            ("replay disk.trc other.sock", "Sends a trace without writes again, at its own speed."),
            (
                "replay disk.trc other.sock --as-fast-as-possible --yes-overwrite",
                "Sends a trace again as fast as its order allows.",
            ),
        ],
    ),
    page("analyze", NONE, &[("analyze disk.trc --html disk.html", "Makes a page with pictures of a trace.")]),
    page("inspect", NONE, &[("inspect disk.raw", "Shows partitions, file systems and their journals.")]),
    page(
        "trace",
        NONE,
        &[("trace convert disk.trc disk.iolog --to iolog2", "Makes an iolog for fio of a trace.")],
    ),
    page(
        "trace convert",
        NONE,
        &[("trace convert disk.trc disk.iolog --to iolog2", "Makes an iolog for fio of a trace.")],
    ),
    page("journal", NONE, &[("journal prove", "Shows how well guests' journals are found.")]),
    page(
        "journal prove",
        MEASURES,
        &[("journal prove --install", "Boots guests, and shows how well their journals are found.")],
    ),
    page(
        "peers",
        MEASURES,
        &[
            ("peers --install", "Compares vlane with qemu-storage-daemon."),
            ("peers --rows null,disk-read", "Two rows of it only."),
        ],
    ),
    page("report", NONE, &[("report result.json --html result.html", "Makes a page of a saved report.")]),
    page(
        "compare",
        MEASURES,
        &[
            ("compare --quick --install", "A short run that shows that everything works."),
            ("compare 1G --html result.html", "Compares disks on scratch images of 1 GiB."),
        ],
    ),
    page("topologies", MEASURES, &[("topologies --quick", "A short run of all topologies.")]),
    page("work", MEASURES, &[("work --html work.html", "Counts the work per request.")]),
    page("caches", MEASURES, &[("caches --modes writeback,none,pdc", "Compares three cache modes.")]),
    page("express", MEASURES, &[("express native", "Measures readers of this host.")]),
    page(
        "express native",
        MEASURES,
        &[("express native --repeat 5", "Measures readers of this host, in five rounds.")],
    ),
    page(
        "express guests",
        MEASURES,
        &[("express guests --install", "Measures a program in a guest's foreground.")],
    ),
    page(
        "express launch",
        MEASURES,
        &[("express launch --install", "Measures how long programs take to start.")],
    ),
    page("together", MEASURES, &[("together --quick --install", "A short run of all arms.")]),
    page(
        "sched",
        NONE,
        &[
            ("sched run", "Schedules the virtual CPUs of this host."),
            ("sched status", "Says whether a scheduler runs."),
        ],
    ),
    page(
        "sched run",
        ENDS,
        &[
            ("sched run", "Schedules the machines whose disks vlane serves."),
            ("sched run --pid 4242 --weight 256", "Schedules this machine, too, with a weight."),
        ],
    ),
    Page {
        command: "sched status",
        signals: NONE,
        status: &[(0, "a scheduler runs"), (3, "no scheduler runs"), (4, "that cannot be found out")],
        examples: &[("sched status --json -", "Writes the state as JSON.")],
    },
    page("sched top", NONE, &[("sched top", "Shows the vCPUs, second by second.")]),
    page("sched repair", NONE, &[("sched repair", "Restores the threads of a scheduler that was killed.")]),
    page(
        "sched prove",
        MEASURES,
        &[("sched prove --real uml", "Measures response and fairness with real guests.")],
    ),
    page("sched simulate", MEASURES, &[("sched simulate", "Simulates the published hosts.")]),
    page(
        "sched prove-sched-ext",
        MEASURES,
        &[("sched prove-sched-ext --install", "Tries the scheduler in BPF in a guest.")],
    ),
    page("completions", NONE, &[("completions bash", "Prints the completions of bash.")]),
    page("man", NONE, &[("man /usr/local/share/man/man1", "Writes all pages.")]),
];

/// The page of a command.
pub fn of(command: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.command == command)
}

/// The sections as roff.
pub fn sections(page: &Page) -> String {
    let mut text = String::new();
    let mut section = |title: &str, items: &mut dyn Iterator<Item = (String, &str)>| {
        let mut items = items.peekable();
        if items.peek().is_none() {
            return;
        }
        text += &format!(".SH \"{title}\"\n");
        for (term, words) in items {
            text += &format!(".TP\n\\fB{}\\fR\n{}\n", escaped(&term), escaped(words));
        }
    };
    section("SIGNALS", &mut page.signals.iter().map(|(signal, words)| ((*signal).to_owned(), *words)));
    let own = |status: u8| page.status.iter().find(|(own, _)| *own == status);
    let mut status: Vec<_> = STATUS.iter().map(|all| *own(all.0).unwrap_or(all)).collect();
    status.extend(page.status.iter().filter(|(own, _)| STATUS.iter().all(|(all, _)| all != own)));
    section("EXIT STATUS", &mut status.into_iter().map(|(status, words)| (status.to_string(), words)));
    section("EXAMPLES", &mut page.examples.iter().map(|(words, does)| (format!("vlane {words}"), *does)));
    text
}

/// Text that roff takes as it is.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The words of all commands that people see.
    fn commands(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        found.push(words.to_owned());
        for below in
            command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
        {
            commands(below, format!("{words} {}", below.get_name()).trim(), found);
        }
    }

    #[test]
    fn each_command_has_a_page_with_examples() {
        let mut found = Vec::new();
        commands(&crate::command(), "", &mut found);
        for words in &found {
            assert!(of(words).is_some_and(|page| !page.examples.is_empty()), "`{words}` has no page");
        }
        for page in PAGES {
            assert!(found.iter().any(|words| words == page.command), "`{}` is no command", page.command);
        }
    }

    #[test]
    fn examples_are_valid_command_lines() {
        for page in PAGES {
            for (example, _) in page.examples {
                let words = ["vlane"].into_iter().chain(example.split_whitespace());
                let parsed = crate::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "vlane {example}: {}", parsed.unwrap_err());
                assert!(
                    example.starts_with(page.command),
                    "`vlane {example}` stands on the page of `{}`",
                    page.command
                );
            }
        }
    }

    #[test]
    fn pages_have_signals_status_and_examples() {
        let serve = sections(of("serve").unwrap());
        for part in ["SIGNALS", "EXIT STATUS", "EXAMPLES", "SIGUSR2", "\\-\\-control"] {
            assert!(serve.contains(part), "{part}: {serve}");
        }
        let status = sections(of("sched status").unwrap());
        assert!(status.contains("\\fB4\\fR") && status.contains("no scheduler runs"), "{status}");
        assert!(!status.contains("SIGNALS"), "{status}");
        assert_eq!(escaped(".x-y"), "\\&.x\\-y");
    }
}
