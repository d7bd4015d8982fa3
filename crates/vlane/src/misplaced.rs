//! `--socket S` for a command whose socket is an argument without an option: the message says which
//! argument it is.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const ORDINALS: [&str; 4] = ["first", "second", "third", "fourth"];

/// The error with better words, if an option was given that is the name of an argument.
pub fn explained(error: clap::Error, command: clap::Command, words: &[String]) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some(name) = option.strip_prefix("--") else { return error };
    let name = name.split('=').next().unwrap_or(name);
    let mut command = command;
    command.build();
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
    let shown = argument.get_value_names().unwrap_or_default().iter().map(|name| name.to_lowercase());
    let whole: Vec<String> =
        shown.chain([argument.get_id().as_str().to_lowercase()]).map(|name| name.replace('_', "-")).collect();
    let parts = whole.iter().flat_map(|name| name.split('-')).map(str::to_owned);
    parts.chain(whole.iter().cloned()).collect()
}
