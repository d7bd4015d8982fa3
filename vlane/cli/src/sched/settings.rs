//! Settings of `vlane sched run` and `prove`, from a TOML file and the command line.

use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;
use vlane_policy::loan::{Goal, Params, Policy};
use vlane_sched::live::state::Completions;
use vlane_sched::realtime::{HoldBack, Settings};

/// A configuration file. Everything in it may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The policy that chooses boosted vCPUs.
    pub policy: Option<Policy>,
    /// The completions that boost.
    pub completions: Option<CompletionsArg>,
    /// Percent of the kernel's real-time budget.
    pub rt_share: Option<u8>,
    /// Percent of what all boosts may use, for the machines of one user.
    pub rt_user_share: Option<u8>,
    /// Percent of what all boosts may use, for one machine.
    pub rt_machine_share: Option<u8>,
    /// How a vCPU that owes is held back.
    pub hold_back: Option<HoldBackArg>,
    /// From when on, milliseconds of CPU time.
    pub owes_ms: Option<u64>,
    /// Until when.
    pub paid_ms: Option<u64>,
    /// The policy's parameters, by the names that docs/src/sched.md gives; times in nanoseconds.
    pub params: Option<toml::Table>,
    /// The goal of `adaptive`.
    pub goal: Option<Goal>,
}

/// How to hold back a vCPU that owes CPU time
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum HoldBackArg {
    /// `SCHED_IDLE`
    Idle,
    /// Nice 19
    Nice,
    /// Do not hold back
    Never,
}

/// Completions that boost
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionsArg {
    /// Of a guest with a foreground (serve --classes) as with express, of others all
    Auto,
    /// All completions
    All,
    /// Those of express requests (serve --classes); only express requests end a boost
    Express,
}

impl From<CompletionsArg> for Completions {
    fn from(arg: CompletionsArg) -> Completions {
        match arg {
            CompletionsArg::Auto => Completions::Auto,
            CompletionsArg::All => Completions::All,
            CompletionsArg::Express => Completions::Express,
        }
    }
}

impl Config {
    /// Reads the file, if there is one; an unknown name in it is an error.
    ///
    /// # Errors
    ///
    /// It cannot be read or understood.
    pub fn of(path: Option<&PathBuf>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
    }

    /// The settings for a policy.
    ///
    /// # Errors
    ///
    /// A value that makes no sense.
    pub fn settings(&self, policy: Policy) -> anyhow::Result<Settings> {
        let mut params = Params::sound(policy);
        if let Some(table) = &self.params {
            // Over the defaults of this program, name by name.
            let mut all =
                toml::Table::try_from(&params).context("the parameters cannot be written")?;
            all.extend(table.clone());
            params = all.try_into().context("[params] is not understood")?;
            params.policy = policy;
        }
        let goal = self.goal.unwrap_or_default().checked()?;
        let mut settings = Settings::new(params.checked()?, goal);
        for (name, given, to) in [
            ("rt_share", self.rt_share, &mut settings.rt_percent),
            ("rt_user_share", self.rt_user_share, &mut settings.rt_shares.user),
            ("rt_machine_share", self.rt_machine_share, &mut settings.rt_shares.machine),
        ] {
            let Some(percent) = given else { continue };
            anyhow::ensure!(
                (1..=100).contains(&percent),
                "{name} = {percent}: must be between 1 and 100 percent"
            );
            *to = percent;
        }
        match self.hold_back {
            // No vCPU owes time where boosts are free.
            Some(_) if policy == Policy::AlwaysBoost => {}
            Some(HoldBackArg::Idle) => settings.hold_back = HoldBack::Idle,
            Some(HoldBackArg::Nice) => settings.hold_back = HoldBack::Nice,
            Some(HoldBackArg::Never) => settings.hold_back = HoldBack::Never,
            None => {}
        }
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        settings.owes_ns = self.owes_ms.map_or(settings.owes_ns, ns);
        settings.paid_ns = self.paid_ms.map_or(settings.paid_ns, ns);
        anyhow::ensure!(
            settings.paid_ns <= settings.owes_ns,
            "paid_ms must not be more than owes_ms"
        );
        Ok(settings)
    }
}

/// A directory in memory for the files of running schedulers: `/run/vlane-sched`, or the user's
/// own.
///
/// Volumes have other directories: a service manager gives a directory to one user, with everything
/// in it.
pub fn runtime_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/vlane-sched".into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    own.map_or_else(std::env::temp_dir, PathBuf::from).join("vlane-sched")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn file_changes_only_named_settings() {
        let config: Config = toml::from_str(
            "rt_share = 10\nowes_ms = 5\npaid_ms = 1\n[params]\nline_ns = 4000000\n",
        )
        .unwrap();
        let settings = config.settings(Policy::Adaptive).unwrap();
        let sound = Params::sound(Policy::Adaptive);
        assert_eq!(settings.params, Params { line_ns: 4_000_000, ..sound });
        assert_eq!(
            (settings.rt_percent, settings.owes_ns, settings.paid_ns),
            (10, 5_000_000, 1_000_000)
        );
    }

    #[test]
    fn impossible_settings_are_refused() {
        assert!(toml::from_str::<Config>("lien = 3").is_err());
        let config: Config = toml::from_str("[params]\nlien_ns = 4").unwrap();
        assert!(config.settings(Policy::Loan).is_err());
        let config: Config = toml::from_str("rt_share = 0").unwrap();
        assert!(
            config.settings(Policy::Loan).unwrap_err().to_string().contains("between 1 and 100")
        );
        let config: Config = toml::from_str("owes_ms = 1\npaid_ms = 2").unwrap();
        assert!(config.settings(Policy::Loan).is_err());
    }
}
