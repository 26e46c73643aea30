//! The terminal of `pvnet top`: texts are drawn in place and keys are read, or it is block after block.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use host::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};

use super::keys::{self, Key};

/// Clears the screen and hides the cursor.
const BEGIN: &str = "\x1b[2J\x1b[?25l";
/// Shows the cursor.
const END: &str = "\x1b[?25h";

/// Time between two checks of signals while there are no keys.
const SLICE: Duration = Duration::from_millis(50);

/// Standard output, and standard input if it has keys. A terminal gets its cursor and its settings back when it is dropped.
#[derive(Debug)]
pub struct Screen {
    in_place: bool,
    /// The terminal's settings before keys were read one by one; absent if none are read.
    keyboard: Option<Termios>,
}

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: usize,
    /// Characters in a line.
    pub columns: usize,
}

/// What a wait ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// The time is over.
    Due,
    /// Keys were pressed.
    Keys(Vec<Key>),
    /// A signal asks for the end.
    Interrupted,
}

impl Screen {
    /// Starts output: block after block if `plain` or if standard output is no terminal, else in place.
    pub fn start(plain: bool) -> Self {
        let in_place = !plain && io::stdout().is_terminal();
        let keyboard = if in_place { read_keys() } else { None };
        if in_place {
            // An error recurs at the first text.
            let _ = write(BEGIN);
        }
        Self { in_place, keyboard }
    }

    /// Whether keys are read.
    pub fn has_keys(&self) -> bool {
        self.keyboard.is_some()
    }

    /// The size of the terminal that is drawn on, if it is known.
    pub fn size(&self) -> Option<Size> {
        let size = tcgetwinsize(io::stdout()).ok().filter(|_| self.in_place)?;
        let (rows, columns) = (size.ws_row.into(), size.ws_col.into());
        (rows > 0 && columns > 0).then_some(Size { rows, columns })
    }

    /// Waits until `due`, for keys or for a signal.
    pub fn wait(&mut self, due: Instant) -> io::Result<Input> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if Interrupt::requested() {
                return Ok(Input::Interrupted);
            }
            if left.is_zero() {
                return Ok(Input::Due);
            }
            if self.keyboard.is_none() {
                let slept = Interrupt::sleep(left);
                return Ok(if slept.is_ok() { Input::Due } else { Input::Interrupted });
            }
            if !is_readable(left.min(SLICE))? {
                continue;
            }
            let mut bytes = [0; 64];
            match rustix::io::read(io::stdin(), &mut bytes) {
                // The terminal has gone.
                Ok(0) => return Ok(Input::Interrupted),
                Ok(read) => return Ok(Input::Keys(keys::keys(&bytes[..read]))),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prints a text of whole lines.
    pub fn show(&mut self, text: &str) -> io::Result<()> {
        if !self.in_place {
            return write(text);
        }
        let size = tcgetwinsize(io::stdout())?;
        write(&drawn(text, size.ws_row.into(), size.ws_col.into()))
    }
}

/// Has the terminal hand over each key at once, without showing it. None if standard input is no terminal, or another
/// program's at present.
fn read_keys() -> Option<Termios> {
    let terminal = io::stdin();
    let before = tcgetattr(&terminal).ok()?;
    if tcgetpgrp(&terminal).ok()? != getpgrp() {
        return None;
    }
    let mut each = before.clone();
    each.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    each.special_codes[SpecialCodeIndex::VMIN] = 1;
    each.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Ctrl-Z would leave the shell a terminal that shows nothing; 0 is no character.
    each.special_codes[SpecialCodeIndex::VSUSP] = 0;
    tcsetattr(&terminal, OptionalActions::Now, &each).ok()?;
    Some(before)
}

fn is_readable(limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(before) = &self.keyboard {
            // The terminal may be gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        if self.in_place {
            // The terminal may be gone.
            let _ = write(END);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The sequences that draw a text over the last one, from the top left on. Lines that do not fit are
/// left out, since they would scroll. A terminal of unknown size (0) gets all lines.
fn drawn(text: &str, rows: usize, columns: usize) -> String {
    let fit = |size| if size == 0 { usize::MAX } else { size };
    // The last row is for the cursor.
    let lines = text.lines().take(fit(rows).saturating_sub(1).max(1));
    let cut = |line: &str| line.chars().take(fit(columns)).collect::<String>() + "\x1b[K\n";
    format!("\x1b[H{}\x1b[J", lines.map(cut).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_the_terminal() {
        assert_eq!(drawn("a\nbc\nd\n", 0, 0), "\x1b[Ha\x1b[K\nbc\x1b[K\nd\x1b[K\n\x1b[J");
        assert_eq!(drawn("a\nbc\nd\n", 3, 1), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(drawn("a\nb\n", 1, 80), "\x1b[Ha\x1b[K\n\x1b[J");
    }
}
