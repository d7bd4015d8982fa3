//! A child's output: kept, searched, and read for `RESULT key=value` lines.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vlane_error::locked;

/// A guest in a panic loop must not take all memory; results beyond this are still read.
const KEPT: usize = 4 << 20;
/// A line that is longer is torn apart here.
const LINE: usize = 1 << 20;
/// How a line that carries a result is marked.
const MARK: &str = "RESULT ";

/// Where each complete line goes as it comes.
pub type Echo = fn(&str);

#[derive(Debug, Default)]
struct State {
    /// All lines that are whole, then what there is of each pipe's next one.
    text: String,
    /// Where the whole lines end.
    whole: usize,
    /// The unfinished line of each pipe. Output of other pipes does not tear it apart.
    begun: Vec<Vec<u8>>,
    results: BTreeMap<String, String>,
    open: usize,
}

/// The output of one child, filled by threads that read its pipes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Console {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Console {
    /// Follows both pipes of `child`, which are taken from it.
    pub(crate) fn of(child: &mut Child, echo: Option<Echo>) -> Self {
        let console = Self::default();
        if let Some(pipe) = child.stdout.take() {
            console.follow(pipe, echo);
        }
        if let Some(pipe) = child.stderr.take() {
            console.follow(pipe, echo);
        }
        console
    }

    /// Reads `pipe` to its end on a thread of its own.
    fn follow(&self, mut pipe: impl Read + Send + 'static, echo: Option<Echo>) {
        let console = self.clone();
        let place = console.pipe();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                console.add(place, &buffer[..length], echo);
            }
            locked(&console.shared.0).open -= 1;
            console.shared.1.notify_all();
        });
    }

    /// One more pipe; its place.
    fn pipe(&self) -> usize {
        let mut state = locked(&self.shared.0);
        state.open += 1;
        state.begun.push(Vec::new());
        state.begun.len() - 1
    }

    fn add(&self, place: usize, bytes: &[u8], echo: Option<Echo>) {
        let mut state = locked(&self.shared.0);
        let State { text, whole, begun, results, .. } = &mut *state;
        text.truncate(*whole);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun[place].extend(piece.iter().filter(|byte| **byte != b'\r'));
            if piece.ends_with(b"\n") || begun[place].len() >= LINE {
                let line = std::mem::take(&mut begun[place]);
                let line = String::from_utf8_lossy(&line);
                if let Some((key, value)) = parse_result(&line) {
                    results.insert(key, value);
                }
                if let Some(echo) = echo {
                    echo(line.trim_end());
                }
                if text.len() < KEPT {
                    text.push_str(&line);
                }
            }
        }
        *whole = text.len();
        if *whole < KEPT {
            begun.iter().for_each(|line| text.push_str(&String::from_utf8_lossy(line)));
        }
        drop(state);
        self.shared.1.notify_all();
    }

    /// Everything that was printed so far.
    pub(crate) fn text(&self) -> String {
        locked(&self.shared.0).text.clone()
    }

    /// The results so far.
    pub(crate) fn results(&self) -> BTreeMap<String, String> {
        locked(&self.shared.0).results.clone()
    }

    /// Waits until `found` finds something in the text and the results, the pipes are closed, or
    /// time is up.
    pub(crate) fn wait_for<T>(
        &self,
        limit: Duration,
        found: impl Fn(&str, &BTreeMap<String, String>) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = locked(&self.shared.0);
        loop {
            if let Some(value) = found(&state.text, &state.results) {
                return Some(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.open == 0 {
                return None;
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until every pipe that is followed was closed at its other end; false when time is up.
    pub(crate) fn wait_closed(&self, limit: Duration) -> bool {
        let _: Option<()> = self.wait_for(limit, |_, _| None);
        locked(&self.shared.0).open == 0
    }
}

/// `RESULT key=value`, also behind something that a kernel message left on the line.
fn parse_result(line: &str) -> Option<(String, String)> {
    let (_, result) = line.split_once(MARK)?;
    let (key, value) = result.trim_end().split_once('=')?;
    let word =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    word.then(|| (key.to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn results_survive_chunks_and_kernel_messages() {
        let console = Console::default();
        let pipe = console.pipe();
        for chunk in [
            "bo",
            "ot\r\nRESULT fs",
            "ck=0\r\nRESU",
            "LT md5=ab=c d\n[ 1.2] noise RESULT ro=1\n",
            "RESULT cut=1",
        ] {
            console.add(pipe, chunk.as_bytes(), None);
        }
        let results = console.results();
        assert_eq!(results.get("fsck").unwrap(), "0");
        assert_eq!(results.get("md5").unwrap(), "ab=c d");
        assert_eq!(results.get("ro").unwrap(), "1");
        assert_eq!(results.len(), 3, "a line without its end is no result yet");
    }

    #[test]
    fn lines_of_two_pipes_stay_whole() {
        let console = Console::default();
        let (out, errors) = (console.pipe(), console.pipe());
        console.add(out, "{\"name\": \"caf\u{e9}".as_bytes().split_last().unwrap().1, None);
        console.add(errors, b"vlane: stopping\nlog", None);
        assert_eq!(
            console.text(),
            "vlane: stopping\n{\"name\": \"caf\u{fffd}log",
            "what has no end yet is last"
        );
        console.add(out, b"\xa9\"}\n", None);
        console.add(errors, b"in: ", None);
        assert_eq!(console.text(), "vlane: stopping\n{\"name\": \"caf\u{e9}\"}\nlogin: ");
    }

    #[test]
    fn echoed_command_is_no_result() {
        assert_eq!(parse_result("+ echo RESULT $key=1\n"), None);
        assert_eq!(parse_result("RESULT nothing\n"), None);
    }

    #[test]
    fn waiting_ends_with_text_end_or_timeout() {
        let console = Console::default();
        let (read, write) = std::io::pipe().unwrap();
        console.follow(read, None);
        let has = |word: &'static str| {
            move |t: &str, _: &BTreeMap<String, String>| t.contains(word).then_some(())
        };
        assert_eq!(console.wait_for(Duration::from_millis(30), has("login:")), None);
        std::io::Write::write_all(&mut &write, b"login:").unwrap();
        let limit = Duration::from_secs(120);
        assert_eq!(console.wait_for(limit, has("login:")), Some(()));
        drop(write);
        let started = Instant::now();
        assert_eq!(console.wait_for(limit, has("never")), None);
        assert!(started.elapsed() < limit / 2);
        assert!(console.wait_closed(limit));
    }
}
