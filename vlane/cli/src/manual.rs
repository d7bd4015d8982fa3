//! Sections of the man pages that the command definitions lack: signals, exit status, examples.

use crate::Program;

/// Effects of signals on a command.
pub type Signals = &'static [(&'static str, &'static str)];

/// An example: the words after `vlane`, and what they do.
pub type Example = (&'static str, &'static str);

/// The sections of one command's page.
#[derive(Debug)]
pub struct Page {
    /// The command's words, as `sched run`; empty for the program itself.
    pub command: &'static str,
    /// Without an entry, a signal has its default effect.
    pub signals: Signals,
    /// Exit statuses beyond those of all commands, or in place of one of them.
    pub status: &'static [(u8, &'static str)],
    /// Command lines; only the names of files are made up.
    pub examples: &'static [Example],
}

/// The exit statuses of all commands.
pub const STATUS: [(u8, &str); 4] = [
    (0, "done"),
    (1, "failed"),
    (2, "usage error"),
    (3, "partial result (interrupted, damaged trace), or worse than --fail-on-worse allows"),
];

const SERVE: Signals = &[
    (
        "SIGTERM, SIGINT",
        "Stops taking requests, answers those in flight, flushes the device, removes the sockets, \
         and ends with status 0. The status is 1 if a write failed or was lost, or if the storage \
         does not answer within --stop-timeout.",
    ),
    ("SIGHUP", "Reads the image's size again, and tells the guest of a change."),
    (
        "SIGUSR2",
        "Upgrades to the program that is at the same path now. No request fails, and the sockets \
         stay.",
    ),
];

const ENDS: Signals =
    &[("SIGTERM, SIGINT, SIGHUP", "Ends in order, with all processes that it has started.")];

/// Signals of a command that measures.
pub const MEASURES: Signals = &[(
    "SIGTERM, SIGINT, SIGHUP",
    "Ends the measurement early, with all back ends and guests that it has started. A partial \
     result is reported and marked as partial, with status 3.",
)];

/// No signal is special.
pub const NONE: Signals = &[];

/// A page without statuses of its own.
pub const fn page(command: &'static str, signals: Signals, examples: &'static [Example]) -> Page {
    Page { command, signals, status: &[], examples }
}

/// The pages of `vlane`.
pub static PAGES: &[Page] = &[
    page(
        "",
        NONE,
        &[
            (
                "serve disk.raw --socket /run/vlane/disk/disk.sock",
                "Serves a volume to virtual machines.",
            ),
            ("boot --install", "Boots a guest on a new volume, as a demonstration."),
        ],
    ),
    page(
        "serve",
        SERVE,
        &[
            (
                "serve disk.raw --socket /run/vlane/disk/disk.sock --control \
                 /run/vlane/disk/disk.ctl",
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
                "Serves a device without media, to measure the rest of the path.",
            ),
        ],
    ),
    page(
        "boot",
        &[
            ("SIGTERM, SIGHUP", "Ends the guest, then drains, flushes and ends the server."),
            (
                "SIGINT",
                "With a console on the terminal, Ctrl-C goes to the guest; Ctrl-A X ends QEMU.",
            ),
        ],
        &[
            ("boot --install", "Runs a demonstration, and installs missing programs."),
            ("boot disk.raw", "Boots a bootable image, with its console on the terminal."),
            ("boot disk.raw --dry-run", "Prints the command lines without running them."),
        ],
    ),
    page("volume", NONE, &[("volume disk.ctl status", "Shows the volume that is served.")]),
    page("volume status", NONE, &[("volume disk.ctl status", "Shows the volume that is served.")]),
    page(
        "volume classes",
        NONE,
        &[("volume disk.ctl classes", "Shows the requests of each class.")],
    ),
    page(
        "volume limit",
        NONE,
        &[
            ("volume disk.ctl limit", "Shows the limits."),
            ("volume disk.ctl limit --iops 2000 --burst 1s", "Changes two of them, from now on."),
        ],
    ),
    page(
        "volume record",
        &[("SIGTERM, SIGINT, SIGHUP", "Ends the recording with a complete trace and status 0.")],
        &[(
            "volume disk.ctl record -o disk.trc --time 30s",
            "Records all requests of half a minute.",
        )],
    ),
    page(
        "inspect",
        NONE,
        &[("inspect disk.raw", "Shows partitions, file systems and their journals.")],
    ),
    page(
        "sched",
        NONE,
        &[
            ("sched run", "Schedules the virtual CPUs of this host."),
            ("sched status", "Shows whether a scheduler runs."),
        ],
    ),
    page(
        "sched run",
        ENDS,
        &[
            ("sched run", "Schedules the machines whose disks vlane serves."),
            ("sched run --pid 4242 --weight 256", "Also schedules this machine, with a weight."),
        ],
    ),
    Page {
        command: "sched status",
        signals: NONE,
        status: &[(0, "a scheduler runs"), (3, "no scheduler runs"), (4, "unknown")],
        examples: &[("sched status --json -", "Writes the state as JSON.")],
    },
    page("sched top", NONE, &[("sched top", "Shows the vCPUs, second by second.")]),
    page(
        "sched repair",
        NONE,
        &[("sched repair", "Restores the threads of a scheduler that was killed.")],
    ),
    page("completions", NONE, &[("completions bash", "Prints the completions of bash.")]),
    page("man", NONE, &[("man /usr/local/share/man/man1", "Writes all pages.")]),
];

/// The page of a command.
pub fn of(pages: &'static [Page], command: &str) -> Option<&'static Page> {
    pages.iter().find(|page| page.command == command)
}

/// The sections as roff.
pub fn sections(program: &str, page: &Page) -> String {
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
    section(
        "SIGNALS",
        &mut page.signals.iter().map(|(signal, words)| ((*signal).to_owned(), *words)),
    );
    let own = |status: u8| page.status.iter().find(|(own, _)| *own == status);
    let mut status: Vec<_> = STATUS.iter().map(|all| *own(all.0).unwrap_or(all)).collect();
    status.extend(page.status.iter().filter(|(own, _)| STATUS.iter().all(|(all, _)| all != own)));
    section(
        "EXIT STATUS",
        &mut status.into_iter().map(|(status, words)| (status.to_string(), words)),
    );
    section(
        "EXAMPLES",
        &mut page.examples.iter().map(|(words, does)| (format!("{program} {words}"), *does)),
    );
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

/// Differences between a program's pages and its command line: a command without a page or an
/// example, a page without a command, an example that is no valid command line of its page.
pub fn mismatches(program: &Program) -> Vec<String> {
    let mut found = Vec::new();
    let mut commands = Vec::new();
    visible(&(program.command)(), "", &mut commands);
    for words in &commands {
        if of(program.pages, words).is_none_or(|page| page.examples.is_empty()) {
            found.push(format!("`{words}` has no page with an example"));
        }
    }
    for page in program.pages {
        if !commands.iter().any(|words| words == page.command) {
            found.push(format!("`{}` is no command", page.command));
        }
        for (example, _) in page.examples {
            let words = [program.name].into_iter().chain(example.split_whitespace());
            if let Err(error) = (program.command)().try_get_matches_from(words) {
                found.push(format!("{example}: {error}"));
            }
            let mut words = example.split_whitespace();
            if !page.command.split_whitespace().all(|word| words.any(|next| next == word)) {
                found.push(format!("`{example}` stands on the page of `{}`", page.command));
            }
        }
    }
    found
}

/// The words of all visible commands.
fn visible(command: &clap::Command, words: &str, found: &mut Vec<String>) {
    found.push(words.to_owned());
    for below in
        command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        visible(below, format!("{words} {}", below.get_name()).trim(), found);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_the_commands() {
        let found = mismatches(&crate::PROGRAM);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn pages_have_signals_status_and_examples() {
        let serve = sections("vlane", of(PAGES, "serve").unwrap());
        for part in ["SIGNALS", "EXIT STATUS", "EXAMPLES", "SIGUSR2", "\\-\\-control"] {
            assert!(serve.contains(part), "{part}: {serve}");
        }
        let status = sections("vlane", of(PAGES, "sched status").unwrap());
        assert!(status.contains("\\fB4\\fR") && status.contains("no scheduler runs"), "{status}");
        assert!(!status.contains("SIGNALS"), "{status}");
        assert_eq!(escaped(".x-y"), "\\&.x\\-y");
    }
}
