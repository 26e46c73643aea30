//! The output of `pvnet top`: drawn in place on a terminal, else block after block.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;

/// Clears the screen and hides the cursor.
const BEGIN: &str = "\x1b[2J\x1b[?25l";
/// Shows the cursor.
const END: &str = "\x1b[?25h";

/// Standard output. A terminal gets its cursor back when it is dropped.
#[derive(Debug)]
pub struct Screen {
    in_place: bool,
}

impl Screen {
    /// Starts output: block after block if `plain` or if standard output is no terminal, else in place.
    pub fn start(plain: bool) -> Self {
        let this = Self { in_place: !plain && io::stdout().is_terminal() };
        if this.in_place {
            // An error recurs at the first text.
            let _ = write(BEGIN);
        }
        this
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

impl Drop for Screen {
    fn drop(&mut self) {
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
