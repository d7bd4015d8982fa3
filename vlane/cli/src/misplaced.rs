//! `--socket S` for a command whose socket is an argument without an option: the message says which
//! argument it is.

use crate::Program;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const ORDINALS: [&str; 4] = ["first", "second", "third", "fourth"];

/// Options of `serve` that only `vlane-lab` has.
const EXPERIMENTS: [&str; 6] = [
    "latency",
    "parallel",
    "device-queues",
    "delay-flush",
    "danger-record-storage",
    "danger-flush-journal-only",
];

/// Ends the program with the fault of its command line.
pub fn exit(error: clap::Error, program: &Program) -> ! {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    explained(error, (program.command)(), &words).exit()
}

/// The error with better words, if an option was given that is the name of an argument.
fn explained(error: clap::Error, command: clap::Command, words: &[String]) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let Some(name) = option.strip_prefix("--") else { return error };
    let name = name.split('=').next().unwrap_or(name);
    let mut command = command;
    command.build();
    if EXPERIMENTS.contains(&name) && words.iter().any(|word| word == "serve") {
        let text = format!("--{name}: an option for experiments; use `vlane-lab serve`\n");
        return command.error(ErrorKind::UnknownArgument, text);
    }
    // The command that the words name: options and their values are passed over.
    for word in words {
        if let Some(below) = command.find_subcommand(word) {
            command = below.clone();
        }
    }
    let argument = command.get_positionals().find(|arg| names(arg).iter().any(|n| n == name));
    let Some(argument) = argument else { return error };
    let at = argument.get_index().unwrap_or(1) - 1;
    let ordinal = ORDINALS.get(at).copied().unwrap_or("last");
    let text = format!("--{name}: the {name} is the {ordinal} argument, and needs no option\n");
    command.error(ErrorKind::UnknownArgument, text)
}

/// Names that people may give an argument: `control-socket`, `control` and `socket` for
/// CONTROL_SOCKET.
fn names(argument: &clap::Arg) -> Vec<String> {
    let shown =
        argument.get_value_names().unwrap_or_default().iter().map(|name| name.to_lowercase());
    let whole: Vec<String> = shown
        .chain([argument.get_id().as_str().to_lowercase()])
        .map(|name| name.replace('_', "-"))
        .collect();
    let parts = whole.iter().flat_map(|name| name.split('-')).map(str::to_owned);
    parts.chain(whole.iter().cloned()).collect()
}
