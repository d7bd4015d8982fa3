//! The parts of the man pages that the definitions of the commands do not have.

use vlane::manual::{MEASURES, NONE, Page, page};

const CONVERT: &[(&str, &str)] =
    &[("trace convert disk.trc disk.iolog --to iolog2", "Converts a trace to an iolog for fio.")];

/// The pages of `vlane-lab`.
pub static PAGES: &[Page] = &[
    page("", NONE, &[("boot --install", "Boots a guest on a new volume, as a demonstration.")]),
    page(
        "serve",
        NONE,
        &[("serve --null 16G --socket d.sock --latency 100us", "Serves a simulated device.")],
    ),
    page(
        "boot",
        NONE,
        &[("boot --install", "Boots a demonstration, and installs what is missing.")],
    ),
    page(
        "compare",
        NONE,
        &[("compare peers --install", "Compares vlane with qemu-storage-daemon.")],
    ),
    page(
        "prove",
        NONE,
        &[("prove together --quick --install", "Measures all mechanisms in one guest, quickly.")],
    ),
    page(
        "prove power-cut",
        MEASURES,
        &[("prove power-cut --install", "Checks all cuts of a guest's writes.")],
    ),
    page("prove limits", MEASURES, &[("prove limits", "Measures how exactly limits are kept.")]),
    page(
        "bench",
        MEASURES,
        &[
            (
                "bench disk.sock --rw randread --bs 4k --depth 32",
                "Measures random reads for five seconds.",
            ),
            (
                "bench disk.sock --against other.sock --repeat 5 --html result.html",
                "Compares two back ends, measured in turns.",
            ),
            (
                "bench disk.sock --verify --yes-overwrite",
                "Verifies written data. The volume's content is lost.",
            ),
        ],
    ),
    page(
        "trace replay",
        MEASURES,
        &[
            (
                "trace replay disk.trc other.sock",
                "Sends a trace without writes again, at its own speed.",
            ),
            (
                "trace replay disk.trc other.sock --as-fast-as-possible --yes-overwrite",
                "Sends a trace again as fast as its order allows.",
            ),
        ],
    ),
    page(
        "trace analyze",
        NONE,
        &[("trace analyze disk.trc --html disk.html", "Makes a page with charts of a trace.")],
    ),
    page("trace", NONE, CONVERT),
    page("trace convert", NONE, CONVERT),
    page(
        "prove journal",
        MEASURES,
        &[("prove journal --install", "Runs guests, and shows how well their journals are found.")],
    ),
    page(
        "compare peers",
        MEASURES,
        &[
            ("compare peers --install", "Compares vlane with qemu-storage-daemon."),
            ("compare peers --rows null,disk-read", "Measures two rows only."),
        ],
    ),
    page(
        "report",
        NONE,
        &[("report result.json --html result.html", "Converts a saved report to a page.")],
    ),
    page(
        "compare host",
        MEASURES,
        &[
            ("compare host --quick --install", "Checks with a short run that everything works."),
            ("compare host 1G --html result.html", "Compares disks on scratch images of 1 GiB."),
        ],
    ),
    page(
        "compare topologies",
        MEASURES,
        &[("compare topologies --quick", "Measures all topologies shortly.")],
    ),
    page(
        "compare caches",
        MEASURES,
        &[("compare caches --modes writeback,none,pdc", "Compares three cache modes.")],
    ),
    page("prove express", MEASURES, &[("prove express native", "Measures readers on this host.")]),
    page(
        "prove express native",
        MEASURES,
        &[("prove express native --repeat 5", "Measures readers on this host, in five rounds.")],
    ),
    page(
        "prove express guests",
        MEASURES,
        &[("prove express guests --install", "Measures a program in a guest's foreground.")],
    ),
    page(
        "prove express launch",
        MEASURES,
        &[("prove express launch --install", "Measures how long programs take to start.")],
    ),
    page(
        "prove express fsync",
        MEASURES,
        &[("prove express fsync --install", "Measures fsyncs in a guest's foreground.")],
    ),
    page(
        "prove bypass",
        MEASURES,
        &[(
            "prove bypass --programs mail --install",
            "Measures a mail server's cache modes on storage with a cap of reads.",
        )],
    ),
    page(
        "prove lanes",
        MEASURES,
        &[("prove lanes --loads randwrite-1m --install", "Measures large writes of a guest.")],
    ),
    page(
        "prove together",
        MEASURES,
        &[("prove together --quick --install", "Measures all variants shortly.")],
    ),
    page(
        "prove loans",
        MEASURES,
        &[("prove loans --real uml", "Measures response and fairness with real guests.")],
    ),
    page("simulate", MEASURES, &[("simulate", "Simulates the published hosts.")]),
    page(
        "prove sched-ext",
        MEASURES,
        &[("prove sched-ext --install", "Measures the BPF scheduler in a guest.")],
    ),
    page("completions", NONE, &[("completions bash", "Prints the completions of bash.")]),
    page("man", NONE, &[("man /usr/local/share/man/man1", "Writes all pages.")]),
];
