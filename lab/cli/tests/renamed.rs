//! Renamed options: scripts need no change.

#![allow(clippy::unwrap_used, reason = "tests")]

#[test]
fn old_option_names_still_work() {
    let pairs: [(&[&str], &str, &str, &str); 18] = [
        (&["compare", "caches"], "rounds", "repeat", "3"),
        (&["prove", "express", "native"], "rounds", "repeat", "3"),
        (&["prove", "express", "guests"], "rounds", "repeat", "3"),
        (&["prove", "loans"], "rounds", "repeat", "3"),
        (&["compare", "host"], "repeats", "repeat", "3"),
        (&["compare", "topologies"], "repeats", "repeat", "3"),
        (&["bench", "socket"], "repeats", "repeat", "3"),
        (&["compare", "peers"], "pairs", "repeat", "3"),
        (&["serve", "disk", "--socket", "s"], "poll-us", "poll-max", "25"),
        (&["boot"], "cpus", "vcpus", "3"),
        (&["simulate"], "cpus", "host-cpus", "3"),
        (&["simulate"], "seconds", "time", "3"),
        (&["prove", "sched-ext"], "seconds", "time", "3"),
        (&["prove", "sched-ext"], "repeats", "repeat", "3"),
        (&["prove", "sched-ext"], "limit", "limit", "900"),
        (&["prove", "sched-ext"], "every-ms", "every", "3"),
        (&["prove", "sched-ext"], "boost-us", "boost", "3000"),
        (&["prove", "limits"], "seconds", "time", "3"),
    ];
    let parsed = |words: &[&str], option: &str, value: &str| {
        let option = format!("--{option}");
        let words = ["vlane"].iter().chain(words).copied().chain([option.as_str(), value]);
        vlane_lab::command().try_get_matches_from(words).map(|matches| format!("{matches:?}"))
    };
    for (words, before, now, value) in pairs {
        let old = parsed(words, before, value)
            .unwrap_or_else(|error| panic!("{words:?} --{before}: {error}"));
        assert_eq!(old, parsed(words, now, value).unwrap(), "{words:?} --{before}, --{now}");
    }
}

#[test]
fn times_and_sizes_need_units() {
    for words in [
        &["vlane", "serve", "disk", "--socket", "s", "--poll-max", "25us", "--delay-flush", "5ms"]
            [..],
        &["vlane", "boot", "--memory", "2G", "--vcpus", "4"],
        &["vlane", "boot", "--memory", "512"],
        &["vlane", "prove", "sched-ext", "--every", "20ms", "--boost", "4ms", "--time", "6s"],
        &["vlane", "prove", "limits", "--time", "10s"],
    ] {
        vlane_lab::command().try_get_matches_from(words).unwrap();
    }
    for memory in ["1K", "63", "63M", "1.5M", "-1G"] {
        assert!(
            vlane_lab::command()
                .try_get_matches_from(["vlane", "boot", "--memory", memory])
                .is_err(),
            "{memory}"
        );
    }
}
