//! Compiles the crate with the simulator's system.

fn main() {
    println!("cargo::rustc-cfg=vlane_simulated");
    println!("cargo::rerun-if-changed=build.rs");
}
