//! The program `vlane-lab`. Its work is done in the library of the same name, so that tests see the
//! definition of its command line.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    vlane_lab::main()
}
