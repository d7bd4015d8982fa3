//! Messages of the running program: on standard error, as lines or as JSON. Standard output is for
//! results.

mod limit;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{self, Usage};

pub use limit::{tell_from_now_on, tell_left_out};

/// Amount and format of log messages
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Log more on standard error: -v for debug, -vv for trace; overrides VLANE_LOG
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Log less: -q for warnings and errors, -qq for errors only; overrides VLANE_LOG
    #[arg(short, long, global = true, action = ArgAction::Count)]
    quiet: u8,
    /// Log format [default: VLANE_LOG_FORMAT, or text]
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    log_format: Option<Format>,
}

/// Log format
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people
    Text,
    /// One JSON object per line, for programs
    Json,
}

impl LogArgs {
    /// Begins to tell; returns in which form.
    ///
    /// # Errors
    /// A variable says what is not possible.
    pub fn start(&self) -> anyhow::Result<Format> {
        let format = match (self.log_format, variable("VLANE_LOG_FORMAT")) {
            (Some(format), _) => format,
            (None, Some(text)) => Format::from_str(&text, false).map_err(|_| {
                Usage(format!("VLANE_LOG_FORMAT={text}: `text` and `json` are possible"))
            })?,
            (None, None) => Format::Text,
        };
        let all = |level| Targets::new().with_default(level);
        let filter = match (i16::from(self.verbose) - i16::from(self.quiet), variable("VLANE_LOG"))
        {
            (0, Some(text)) => filter(&text)?,
            (0, None) => all(LevelFilter::INFO),
            (1, _) => all(LevelFilter::DEBUG),
            (2.., _) => all(LevelFilter::TRACE),
            (-1, _) => all(LevelFilter::WARN),
            (..-1, _) => all(LevelFilter::ERROR),
        };
        // A reader of these lines that is gone is no reason to stop, and least of all to panic.
        let lines = tracing_subscriber::fmt::layer()
            .log_internal_errors(false)
            .with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry();
        let filter = filter.and(limit::Bounded);
        match format {
            Format::Text => {
                let lines =
                    lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).compact();
                registry.with(lines.with_filter(filter)).init();
            }
            Format::Json => {
                let lines =
                    lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                registry.with(lines.with_filter(filter)).init();
            }
        }
        Ok(format)
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
}

/// Content of VLANE_LOG: a level, or also levels for parts of the program.
fn filter(text: &str) -> Result<Targets, Usage> {
    let wrong = |part: &str| {
        Usage(format!(
            "VLANE_LOG={text}: `{part}` is not possible; give a level (off, error, warn, info, \
             debug, trace), or levels for parts of the program, as in info,vlane_server=debug"
        ))
    };
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim) {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (Some(target.trim()), level.trim()),
            None => (None, part),
        };
        // The parser also takes numbers, and the empty string.
        let named = level.chars().all(|c| c.is_ascii_alphabetic()) && !level.is_empty();
        let level =
            LevelFilter::from_str(level).ok().filter(|_| named).ok_or_else(|| wrong(part))?;
        targets = match target {
            None => targets.with_default(level),
            Some(target) if is_path(target) => targets.with_target(target, level),
            Some(_) => return Err(wrong(part)),
        };
    }
    Ok(targets)
}

/// True if this may be a module's path.
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// Says how a command ended; its exit status.
pub fn ended(program: &str, result: anyhow::Result<()>, format: Format) -> ExitCode {
    tell_left_out();
    let Err(error) = result else { return ExitCode::SUCCESS };
    match format {
        Format::Text => eprintln!("{program}: {error:#}"),
        Format::Json => tracing::error!("{error:#}"),
    }
    exit::status_of(&error).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn unnamed_parts_stay_at_info() {
        let tells = |text: &str, target: &str, level: Level| {
            filter(text).unwrap().would_enable(target, &level)
        };
        assert!(tells("debug", "vlane", Level::DEBUG) && !tells("debug", "vlane", Level::TRACE));
        assert!(!tells("off", "vlane", Level::ERROR) && tells("WARN", "vlane", Level::WARN));
        let parts = "vlane_server=debug,vlane_lane::pool=off";
        assert!(tells(parts, "vlane_server::session", Level::DEBUG));
        assert!(tells(parts, "vlane", Level::INFO) && !tells(parts, "vlane", Level::DEBUG));
        assert!(!tells(parts, "vlane_lane::pool", Level::ERROR));
    }

    #[test]
    fn invalid_levels_list_valid_ones() {
        for text in [
            "nonsense",
            "nonsense,info",
            "vlane=",
            "=info",
            "vlane=loud",
            "3",
            "[span]=debug",
            "info,",
            ",",
        ] {
            let error = filter(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("VLANE_LOG={text}: ")) && error.contains("trace"),
                "{error}"
            );
        }
    }
}
