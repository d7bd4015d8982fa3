//! `vlane volume CTL classes`: a volume's requests by class, as a table.

use std::path::Path;

use anyhow::Result;
use vlane_client::control::{ClassCounted, ClassTimes, Control};

/// Shows them.
pub fn run(control: &Path) -> Result<()> {
    let told = Control::new(control).classes()?;
    if told.mode == "off" {
        println!("no classes: the volume is served with --classes off");
        return Ok(());
    }
    println!("--classes {}{}", told.mode, if told.is_mixed { ", mixed now" } else { "" });
    println!(
        "{:>12} {:>12} {:>22} {:>22}",
        "", "requests", "waited: mean, p99", "device: mean, p99"
    );
    for counted in &told.classes {
        println!("{}", row(&counted.class, counted));
    }
    println!("{}", row("ext4 journal", &told.journal));
    let windows: Vec<String> = told
        .lanes
        .iter()
        .map(|lane| match lane.window {
            Some(window) => format!("{} of {window}", lane.at_device),
            None => lane.at_device.to_string(),
        })
        .collect();
    println!("at the device, by lane: {}", windows.join(", "));
    if told.handed_over > 0 {
        println!("{} express requests went to another thread's queue", told.handed_over);
    }
    if told.full_turns > 0 {
        println!(
            "the guest's ring was full in {} of {} turns: other requests may have waited in the \
             guest",
            told.full_turns, told.turns
        );
    }
    Ok(())
}

fn row(name: &str, counted: &ClassCounted) -> String {
    let ClassCounted { requests, queued, device, .. } = counted;
    format!("{name:>12} {requests:>12} {:>22} {:>22}", times(queued), times(device))
}

fn times(times: &ClassTimes) -> String {
    match (times.mean_ns, times.p99_ns) {
        (Some(mean), Some(p99)) => format!("{}, {}", micros(mean), micros(p99)),
        _ => "-".to_owned(),
    }
}

fn micros(nanos: u64) -> String {
    format!("{:.1} us", nanos as f64 / 1e3)
}
