//! Commands that moved to `vlane-lab`: their former names work for one version, with a line that
//! says the present one.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Former words after `vlane`, and the present ones after `vlane-lab`. Longer ones stand first.
const MOVED: [(&[&str], &[&str]); 18] = [
    (&["sched", "prove-sched-ext"], &["prove", "sched-ext"]),
    (&["sched", "prove"], &["prove", "loans"]),
    (&["sched", "simulate"], &["simulate"]),
    (&["journal", "prove"], &["prove", "journal"]),
    (&["bench"], &["bench"]),
    (&["report"], &["report"]),
    (&["replay"], &["trace", "replay"]),
    (&["analyze"], &["trace", "analyze"]),
    (&["trace"], &["trace"]),
    (&["compare"], &["compare", "host"]),
    (&["peers"], &["compare", "peers"]),
    (&["caches"], &["compare", "caches"]),
    (&["topologies"], &["compare", "topologies"]),
    (&["work"], &["compare", "host", "--work"]),
    (&["express"], &["prove", "express"]),
    (&["together"], &["prove", "together"]),
    (&["power-cut"], &["prove", "power-cut"]),
    (&["throttle"], &["prove", "limits"]),
];

/// Replaces this process by `vlane-lab`, if the words are a command that moved there.
///
/// # Errors
/// There is no `vlane-lab`; the message says how to get it.
pub fn hand_over(words: &[OsString]) -> anyhow::Result<()> {
    let Some((former, present, rest)) = moved(words) else { return Ok(()) };
    let (former, present) =
        (format!("vlane {}", former.join(" ")), format!("vlane-lab {}", present.join(" ")));
    let Some(program) = find() else {
        anyhow::bail!("`{former}` is now `{present}`; install it: cargo install --path lab/cli")
    };
    eprintln!("vlane: `{former}` is now `{present}`");
    let error = Command::new(&program).args(rest).exec();
    Err(anyhow::Error::new(error).context(format!("cannot run {}", program.display())))
}

/// The former words, the present ones, and the arguments for `vlane-lab`. Options of all commands
/// may stand in front.
fn moved(
    words: &[OsString],
) -> Option<(&'static [&'static str], &'static [&'static str], Vec<OsString>)> {
    let mut first = 0;
    while let Some(option) =
        words.get(first).and_then(|word| word.to_str()).filter(|word| word.starts_with('-'))
    {
        first += if option == "--log-format" { 2 } else { 1 };
    }
    let words_at = |at: usize| words.get(at).map(OsString::as_os_str);
    let begins = |former: &[&str]| {
        former.iter().enumerate().all(|(at, word)| words_at(first + at) == Some(OsStr::new(word)))
    };
    let (former, present) = MOVED.iter().find(|(former, _)| begins(former))?;
    let mut rest = words[..first].to_vec();
    rest.extend(present.iter().map(OsString::from));
    rest.extend_from_slice(&words[first + former.len()..]);
    Some((former, present, rest))
}

/// `vlane-lab` beside this program, or on the search path.
fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = beside.into_iter().chain(std::env::split_paths(&path));
    places.map(|directory| directory.join("vlane-lab")).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (.., rest) = moved(&words)?;
        Some(rest.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn former_names_become_present_ones() {
        for (former, present) in [
            ("bench d.sock --rw randread", "bench d.sock --rw randread"),
            ("-v --log-format json peers --list", "-v --log-format json compare peers --list"),
            ("sched prove --real uml", "prove loans --real uml"),
            ("sched prove-sched-ext", "prove sched-ext"),
            ("replay a b", "trace replay a b"),
        ] {
            assert_eq!(translated(former).as_deref(), Some(present));
        }
    }

    #[test]
    fn product_commands_stay() {
        for line in ["serve d.raw", "sched run", "sched", "boot bench", "-v", "--help", ""] {
            assert_eq!(translated(line), None, "{line}");
        }
    }
}
