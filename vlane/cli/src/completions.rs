//! `vlane completions`: the completions of a shell.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::Program;

/// Print a shell's completions: commands, options and their values
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints.
pub fn run(program: &Program, args: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut (program.command)(), program.name, &mut text);
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
