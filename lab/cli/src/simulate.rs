//! `vlane-lab simulate`: host schedulers on a machine that is not there.

use clap::Args;
use vlane_mechanisms::loans::simulated::{self, Options};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use vlane_simulate::{COMPARED, Scenario, Setup};

use crate::values;

/// Simulate host schedulers: response to I/O, bandwidth and CPU shares
///
/// The simulator uses the live scheduler's decisions. The same seed gives the same result on any
/// machine. It needs no privilege. The default scenarios are those of the paper on loans (2 CPUs,
/// 13 domains), with one parameter changed at a time, its Table 7 and its Figure 3. The scenario
/// `large` has 256 CPUs and 4,000 vCPUs.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// paper, table-7, classes, inactive, large, or a TOML file [default: the first three]
    scenario: Option<String>,
    /// Host scheduler; may be given several times
    ///
    /// [default: eevdf, credit, always-boost, loan, adaptive, paper]
    #[arg(long = "policy", value_name = "NAME", value_parser = Setup::named)]
    policies: Vec<Setup>,
    /// Physical CPUs, instead of the scenario's
    #[arg(long = "host-cpus", alias = "cpus", value_name = "N", value_parser = values::whole::<u32>(1..=4096))]
    cpus: Option<u32>,
    /// Measured time in simulated seconds, instead of the scenario's
    #[arg(long = "time", alias = "seconds", value_name = "TIME", value_parser = values::seconds(0.1, 100_000.0))]
    seconds: Option<f64>,
    /// Seed of all random choices, instead of the scenario's
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(0..))]
    seed: Option<u64>,
    /// Number of seeds for the paper's scenario at other ping rates, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u32>(1..=1000))]
    seeds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

impl SimulateArgs {
    fn scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        let names = match &self.scenario {
            Some(name) => vec![name.as_str()],
            None => vec!["paper", "table-7", "classes"],
        };
        let changed = |name: &str| -> anyhow::Result<Scenario> {
            let mut scenario = Scenario::named(name)?;
            scenario.cpus = self.cpus.unwrap_or(scenario.cpus);
            scenario.seconds = self.seconds.unwrap_or(scenario.seconds);
            scenario.seed = self.seed.unwrap_or(scenario.seed);
            Ok(scenario.checked()?)
        };
        names.into_iter().map(changed).collect()
    }

    fn options(&self) -> anyhow::Result<Options> {
        let setups = match self.policies.as_slice() {
            [] => COMPARED.iter().map(|name| Setup::named(name)).collect::<Result<_, _>>()?,
            setups => setups.to_vec(),
        };
        Ok(Options {
            command: command_line(),
            scenarios: self.scenarios()?,
            setups,
            extras: self.policies.is_empty(),
            seeds: self.seeds,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// A scenario or a scheduler that is not there or makes no sense, or a file that cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let options = args.options()?;
    args.output.check()?;
    let report = simulated::run(&options, &Interrupt::listen()?)?;
    args.output.show(&report)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: SimulateArgs,
    }

    #[test]
    fn changed_scenarios_are_checked() {
        let of = |words: &[&str]| {
            Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args.options()
        };
        let paper = of(&["--cpus", "4", "--seed", "7"]).unwrap();
        let sizes: Vec<_> =
            paper.scenarios.iter().map(|s| (s.cpus, s.machines(), s.seed)).collect();
        assert_eq!(sizes, [(4, 13, 7), (4, 8, 7), (4, 12, 7)]);
        assert!(paper.extras && paper.setups.len() == 6);
        assert_eq!(of(&["large", "--policy", "loan"]).unwrap().setups.len(), 1);
        let error = of(&["no-such.toml"]).unwrap_err();
        assert!(format!("{error:#}").contains("no-such.toml"), "{error:#}");
        for (words, says) in
            [(["--policy", "cfs"], "always-boost"), (["--cpus", "0"], "at least 1")]
        {
            let error =
                Only::try_parse_from(["vlane"].iter().chain(&words)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
