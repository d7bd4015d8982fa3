//! How far a measurement is, for people who wait: the step, and the time left.
//!
//! On a terminal one line is rewritten in place. Elsewhere (a log, CI) a line is printed per step,
//! but not more often than every ten seconds. Everything goes to standard error: standard output is
//! for results.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use terminal_size::{Width, terminal_size_of};

/// Least time between two lines without a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
/// Least time between two updates of the line on a terminal.
const BETWEEN_UPDATES: Duration = Duration::from_millis(100);

/// Columns of the terminal that standard output goes to, if it is one.
pub fn columns() -> Option<usize> {
    terminal_size_of(std::io::stdout()).map(|(Width(columns), _)| usize::from(columns))
}

/// Steps of known number, shown while they are made. The line is taken away when it is dropped.
#[derive(Debug)]
pub struct Progress {
    out: Out,
    steps: usize,
    /// Steps begun.
    begun: usize,
    label: String,
    /// Estimated time of one step before any has been measured.
    guess: Option<Duration>,
    start: Instant,
    step_start: Instant,
    shown: Option<Instant>,
}

/// Where it is shown.
#[derive(Debug)]
enum Out {
    /// A terminal: its width is asked for each time, since people resize.
    Terminal,
    /// Something else that keeps every line.
    Lines,
    /// No output.
    Nowhere,
    /// A test looks at it.
    #[cfg(test)]
    Test { text: String, width: Option<usize> },
}

impl Out {
    fn in_place(&self) -> bool {
        match self {
            Self::Terminal => true,
            Self::Lines | Self::Nowhere => false,
            #[cfg(test)]
            Self::Test { width, .. } => width.is_some(),
        }
    }

    /// Characters that fit into the terminal's line.
    fn width(&self) -> usize {
        match self {
            Self::Terminal => terminal_size_of(std::io::stderr())
                .map_or(80, |(Width(columns), _)| usize::from(columns)),
            Self::Lines | Self::Nowhere => usize::MAX,
            #[cfg(test)]
            Self::Test { width, .. } => width.unwrap_or(usize::MAX),
        }
    }

    fn write(&mut self, text: &str) {
        match self {
            // Progress that cannot be shown is no reason to stop.
            Self::Terminal | Self::Lines => drop(std::io::stderr().write_all(text.as_bytes())),
            Self::Nowhere => {}
            #[cfg(test)]
            Self::Test { text: all, .. } => all.push_str(text),
        }
    }
}

impl Progress {
    /// For so many steps, on standard error.
    pub fn new(steps: usize) -> Self {
        Self::on(if std::io::stderr().is_terminal() { Out::Terminal } else { Out::Lines }, steps)
    }

    /// A progress without output.
    pub fn silent() -> Self {
        Self::on(Out::Nowhere, 0)
    }

    fn on(out: Out, steps: usize) -> Self {
        let now = Instant::now();
        Self {
            out,
            steps,
            begun: 0,
            label: String::new(),
            guess: None,
            start: now,
            step_start: now,
            shown: None,
        }
    }

    /// Estimated time of one step: for the time left until the first one has shown its true length.
    pub fn expecting(mut self, step: Duration) -> Self {
        self.guess = Some(step);
        self
    }

    /// More steps than was thought (a negative number: fewer).
    pub fn add_steps(&mut self, more: isize) {
        self.steps = self.steps.saturating_add_signed(more);
    }

    /// Begins the next step; `label` says what is measured.
    pub fn step(&mut self, label: impl Into<String>) {
        self.step_at(label.into(), Instant::now());
    }

    /// Says more about the step under way (its rate, say). Cheap when called often.
    pub fn detail(&mut self, detail: &str) {
        self.detail_at(detail, Instant::now());
    }

    /// Takes the line away, so that something else can be printed; the next step or detail shows it
    /// again.
    pub fn clear(&mut self) {
        if self.out.in_place() && self.shown.take().is_some() {
            self.out.write("\r\x1b[K");
        }
    }

    fn step_at(&mut self, label: String, now: Instant) {
        if self.begun == 0 {
            self.start = now;
        }
        self.begun += 1;
        self.steps = self.steps.max(self.begun);
        self.label = label;
        self.step_start = now;
        let quiet = self.shown.is_some_and(|shown| now - shown < BETWEEN_LINES);
        if self.out.in_place() || !quiet {
            self.show("", now);
        }
    }

    fn detail_at(&mut self, detail: &str, now: Instant) {
        let quiet = self.shown.is_some_and(|shown| now - shown < BETWEEN_UPDATES);
        if self.out.in_place() && self.begun > 0 && !quiet {
            self.show(detail, now);
        }
    }

    fn show(&mut self, detail: &str, now: Instant) {
        let mut line = format!("[{}/{}] {}", self.begun, self.steps, self.label);
        for more in [
            detail.to_string(),
            self.left(now).map_or(String::new(), |left| show_left(left) + " left"),
        ] {
            if !more.is_empty() {
                line += "  ";
                line += &more;
            }
        }
        if self.out.in_place() {
            // A line that wraps cannot be taken back.
            let fits: String = line.chars().take(self.out.width().saturating_sub(1)).collect();
            self.out.write(&format!("\r\x1b[K{fits}"));
        } else {
            self.out.write(&(line + "\n"));
        }
        self.shown = Some(now);
    }

    /// The time left: the steps to come at the pace of those that are done.
    fn left(&self, now: Instant) -> Option<Duration> {
        let done = self.begun.saturating_sub(1);
        let per_step = match u32::try_from(done) {
            Ok(done @ 1..) => (self.step_start - self.start) / done,
            _ => self.guess?,
        };
        let this = per_step.saturating_sub(now - self.step_start);
        let to_come = u32::try_from(self.steps - self.begun).unwrap_or(u32::MAX);
        Some(per_step.saturating_mul(to_come).saturating_add(this))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A rough time for people: `1 h 5 min`, `2 min 10 s`, `45 s`.
fn show_left(left: Duration) -> String {
    let seconds = left.as_secs_f64().round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded, not negative"
    )]
    let seconds = seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        // No better estimate exists.
        (0, m @ ..10, s) => format!("{m} min {} s", s / 10 * 10),
        (0, m, _) => format!("{m} min"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(progress: &Progress) -> &str {
        match &progress.out {
            Out::Test { text, .. } => text,
            _ => "",
        }
    }

    fn test(steps: usize, width: Option<usize>) -> Progress {
        Progress::on(Out::Test { text: String::new(), width }, steps)
    }

    #[test]
    fn terminal_shows_step_and_remaining_time() {
        let mut progress = test(48, Some(100));
        let start = Instant::now();
        for i in 0..12_u32 {
            progress
                .step_at("4K random read, QEMU virtio".into(), start + Duration::from_secs(2) * i);
        }
        assert!(
            text(&progress)
                .ends_with("\r\x1b[K[12/48] 4K random read, QEMU virtio  1 min 10 s left"),
            "{:?}",
            text(&progress)
        );
        progress.detail_at("1.09M IOPS", start + Duration::from_secs(23));
        assert!(
            text(&progress).ends_with("virtio  1.09M IOPS  1 min 10 s left"),
            "{:?}",
            text(&progress)
        );
        assert!(!text(&progress).contains('\n'));
        progress.clear();
        assert!(text(&progress).ends_with("\r\x1b[K"));
    }

    #[test]
    fn narrow_terminal_line_never_wraps() {
        let mut progress = test(2, Some(20));
        progress.step("a label that is much longer than the terminal is wide");
        let shown = text(&progress).trim_start_matches("\r\x1b[K");
        assert_eq!(shown.chars().count(), 19);
    }

    #[test]
    fn log_lines_per_step_are_limited() {
        let mut progress = test(1000, None);
        let start = Instant::now();
        for i in 0..1000_u32 {
            progress.step_at(format!("step {i}"), start + Duration::from_millis(100) * i);
            progress.detail_at("noise", start + Duration::from_millis(100) * i);
        }
        assert_eq!(text(&progress).lines().count(), 10);
        assert!(!text(&progress).contains('\r') && !text(&progress).contains("noise"));
    }

    #[test]
    fn remaining_time_is_estimated_until_first_step() {
        let mut progress = test(1, None).expecting(Duration::from_secs(30));
        let start = Instant::now();
        progress.step_at("one".into(), start);
        assert_eq!(progress.left(start + Duration::from_secs(10)), Some(Duration::from_secs(20)));
        progress.step_at("two".into(), start + Duration::from_secs(50));
        assert_eq!(progress.left(start + Duration::from_secs(50)), Some(Duration::from_secs(50)));
        assert_eq!(progress.left(start + Duration::from_secs(500)), Some(Duration::ZERO));
        progress.add_steps(-10);
        progress.step_at("three".into(), start + Duration::from_secs(60));
        assert!(text(&progress).ends_with("\n[3/3] three  30 s left\n"), "{:?}", text(&progress));
    }

    #[test]
    fn times_left_are_rough() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (80, "1 min 20 s"), (615, "10 min"), (3900, "1 h 5 min")]
        {
            assert_eq!(show_left(Duration::from_secs(seconds)), text);
        }
    }
}
