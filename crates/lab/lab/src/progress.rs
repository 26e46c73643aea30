//! A progress line.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the line on a terminal is redrawn.
const REDRAW: Duration = Duration::from_millis(200);
/// Carriage return, then erase to the end of the line (ECMA-48 EL).
const ERASE: &str = "\r\x1b[K";

/// Numbered steps with their time: `[ 3/12] tcp 1 stream  4.2 s`. On a terminal the running step's line counts its
/// seconds. Elsewhere each step is a line once it has ended. Quiet progress prints nothing. Dropping it ends the last
/// step.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    redraw: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

struct State {
    out: Box<dyn Write + Send>,
    style: Style,
    steps: usize,
    number: usize,
    running: Option<(String, Instant)>,
    /// What the running step does now.
    detail: Option<String>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    InPlace,
    Erased,
    Lines,
    Quiet,
}

impl Style {
    /// Whether the running step is drawn.
    fn is_drawn(self) -> bool {
        matches!(self, Self::InPlace | Self::Erased)
    }
}

impl Progress {
    /// Progress of `steps` steps on standard error, where it does not mix with results.
    #[must_use]
    pub fn new(steps: usize, quiet: bool) -> Self {
        Self::on_stderr(steps, quiet, Style::InPlace)
    }

    /// The same for a program that prints each step's result itself: on a terminal only the running step is shown.
    #[must_use]
    pub fn erased(steps: usize, quiet: bool) -> Self {
        Self::on_stderr(steps, quiet, Style::Erased)
    }

    fn on_stderr(steps: usize, quiet: bool, on_a_terminal: Style) -> Self {
        let style = match (quiet, io::stderr().is_terminal()) {
            (true, _) => Style::Quiet,
            (false, true) => on_a_terminal,
            (false, false) => Style::Lines,
        };
        Self::to(Box::new(io::stderr()), style, steps)
    }

    fn to(out: Box<dyn Write + Send>, style: Style, steps: usize) -> Self {
        let state =
            State { out, style, steps, number: 0, running: None, detail: None, closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), closed: Condvar::new() });
        let drawing = Arc::clone(&shared);
        // Without the thread only the seconds stand still. That is no reason to fail.
        let redraw =
            style.is_drawn().then(|| thread::Builder::new().spawn(move || drawing.redraw()).ok());
        Self { shared, redraw: redraw.flatten() }
    }

    /// Ends the running step, if there is one, and begins the next.
    pub fn step(&self, name: impl Into<String>) {
        let mut state = self.shared.lock();
        state.end_step("");
        state.number += 1;
        state.running = Some((name.into(), Instant::now()));
        state.draw();
    }

    /// On a terminal, shows what the running step does now in place of its name. Its seconds count on.
    pub fn detail(&self, what: impl Into<String>) {
        let mut state = self.shared.lock();
        state.detail = Some(what.into());
        state.draw();
    }

    /// Ends the running step, and adds its result to its line.
    pub fn done(&self, result: &str) {
        self.shared.lock().end_step(result);
    }

    /// Prints a line of text without disturbing the running step.
    pub fn note(&self, text: &str) {
        let mut state = self.shared.lock();
        match state.style {
            Style::Quiet => {}
            Style::Lines => state.write(&format!("{text}\n")),
            Style::InPlace | Style::Erased => {
                state.write(&format!("{ERASE}{text}\n"));
                state.draw();
            }
        }
    }

    /// Ends the running step.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.end_step("");
        state.closed = true;
        drop(state);
        self.shared.closed.notify_all();
        if let Some(thread) = self.redraw.take() {
            // The thread only draws: its panic is ignored.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A panic in another thread must not leave the line unfinished.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn redraw(&self) {
        let mut state = self.lock();
        while !state.closed {
            state =
                self.closed.wait_timeout(state, REDRAW).unwrap_or_else(PoisonError::into_inner).0;
            state.draw();
        }
    }
}

impl State {
    /// Draws the running step, if it is drawn in place.
    fn draw(&mut self) {
        if let Some((name, since)) = self.running.as_ref().filter(|_| self.style.is_drawn()) {
            let name = self.detail.as_ref().unwrap_or(name);
            let line = format!("{ERASE}{}", self.line(name, since.elapsed()));
            self.write(&line);
        }
    }

    fn end_step(&mut self, result: &str) {
        self.detail = None;
        let Some((name, since)) = self.running.take() else { return };
        let line = [&self.line(&name, since.elapsed()), result].join("  ");
        let line = line.trim_end();
        match self.style {
            Style::Quiet => {}
            Style::Lines => self.write(&format!("{line}\n")),
            Style::InPlace => self.write(&format!("{ERASE}{line}\n")),
            Style::Erased => self.write(ERASE),
        }
    }

    fn line(&self, name: &str, time: Duration) -> String {
        let width = self.steps.to_string().len();
        format!("[{:>width$}/{}] {name}  {:.1} s", self.number, self.steps, time.as_secs_f64())
    }

    /// Ignores errors: a closed standard error is no reason to stop measuring.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("number", &self.number)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("paper").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The final lines of twelve steps, of which two run, without their times.
    fn printed(style: Style) -> Vec<String> {
        let paper = Paper::default();
        let progress = Progress::to(Box::new(paper.clone()), style, 12);
        progress.step("tcp 1 stream");
        progress.note("a remark");
        progress.step("udp");
        progress.finish();
        let text = String::from_utf8(paper.0.lock().expect("paper").clone()).expect("text");
        let shown = text.lines().filter_map(|line| line.rsplit(ERASE).next());
        shown.map(|line| line.rsplit_once("  ").map_or(line, |(head, _)| head).to_owned()).collect()
    }

    #[test]
    fn lines_are_plain() {
        assert_eq!(printed(Style::Lines), ["a remark", "[ 1/12] tcp 1 stream", "[ 2/12] udp"]);
    }

    #[test]
    fn quiet_is_silent() {
        assert!(printed(Style::Quiet).is_empty());
    }

    #[test]
    fn a_terminal_keeps_the_last_state_of_each_line() {
        assert_eq!(printed(Style::InPlace), ["a remark", "[ 1/12] tcp 1 stream", "[ 2/12] udp"]);
    }

    #[test]
    fn an_erased_step_leaves_nothing_on_the_terminal() {
        let steps = printed(Style::Erased);
        assert_eq!(steps, ["a remark", ""]);
    }

    #[test]
    fn a_detail_is_shown_while_the_step_runs() {
        for (style, shown) in [(Style::InPlace, true), (Style::Erased, true), (Style::Lines, false)]
        {
            let paper = Paper::default();
            let progress = Progress::to(Box::new(paper.clone()), style, 2);
            progress.step("a paper");
            progress.detail("its first figure");
            progress.finish();
            let text = String::from_utf8(paper.0.lock().expect("paper").clone()).expect("text");
            assert_eq!(text.contains("its first figure"), shown, "{style:?}: {text}");
            let last = text.rsplit(ERASE).next().expect("text");
            assert_eq!(last.contains("a paper"), style != Style::Erased, "{style:?}: {text}");
        }
    }

    #[test]
    fn a_result_ends_its_step() {
        let paper = Paper::default();
        let progress = Progress::to(Box::new(paper.clone()), Style::Lines, 2);
        progress.step("tcp");
        progress.done("8,712 Mb/s");
        progress.finish();
        let text = String::from_utf8(paper.0.lock().expect("paper").clone()).expect("text");
        assert!(text.starts_with("[1/2] tcp  ") && text.ends_with(" s  8,712 Mb/s\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn times_have_a_tenth_of_a_second() {
        let state = State {
            out: Box::new(io::sink()),
            style: Style::Lines,
            steps: 9,
            number: 3,
            running: None,
            detail: None,
            closed: false,
        };
        assert_eq!(state.line("tcp", Duration::from_millis(4210)), "[3/9] tcp  4.2 s");
    }
}
