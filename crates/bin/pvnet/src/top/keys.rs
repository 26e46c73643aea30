//! The keys of `pvnet top`, and what they change.

use super::view::{Column, View};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One that writes.
    Char(char),
    /// Return.
    Enter,
    Escape,
    Backspace,
    /// Ctrl-U.
    Clear,
    /// The left arrow.
    Left,
    /// The right arrow.
    Right,
}

/// The keys in what a terminal sends. Others are left out.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut characters = text.chars().peekable();
    let mut keys = Vec::new();
    while let Some(character) = characters.next() {
        match character {
            '\r' | '\n' => keys.push(Key::Enter),
            '\x08' | '\x7f' => keys.push(Key::Backspace),
            '\x15' => keys.push(Key::Clear),
            '\x1b' => match characters.next_if(|next| matches!(next, '[' | 'O')) {
                None => keys.push(Key::Escape),
                // Parameters, and the letter that ends the sequence.
                Some(_) => match characters.find(|next| matches!(next, '@'..='~')) {
                    Some('C') => keys.push(Key::Right),
                    Some('D') => keys.push(Key::Left),
                    _ => {}
                },
            },
            other if other.is_control() || other == char::REPLACEMENT_CHARACTER => {}
            other => keys.push(Key::Char(other)),
        }
    }
    keys
}

/// The keys, for those who ask.
pub const HELP: &str = "\
n r b d u t c   sort by name, rate, bytes, drops, cpu, time, cost (time/frame)
< >             the column before, after      -  the other way round
/               filter: parts of name, kind or state; Esc: none      q  quit
";

/// What the keys have made of the view so far.
#[derive(Debug, Default)]
pub struct Controls {
    /// What is listed.
    pub view: View,
    mode: Mode,
}

/// What the keys do at present.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mode {
    /// They are commands.
    #[default]
    Commands,
    /// They write a filter in place of the one before.
    Filter { before: String },
    /// They are commands, and their list is shown.
    Help,
}

/// Longest filter that is written, in characters.
const FILTER_MAX: usize = 60;

impl Controls {
    /// Begins with a view.
    pub fn new(view: View) -> Self {
        Self { view, mode: Mode::default() }
    }

    /// Does what a key says. Returns false if it ends the program.
    pub fn press(&mut self, key: Key) -> bool {
        match std::mem::take(&mut self.mode) {
            Mode::Filter { before } => {
                self.write(key, before);
                true
            }
            mode => self.command(key, &mode),
        }
    }

    fn command(&mut self, key: Key, mode: &Mode) -> bool {
        let view = &mut self.view;
        match key {
            Key::Char('q') => return false,
            Key::Char('?' | 'h') if *mode != Mode::Help => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter { before: view.filter.clone() },
            Key::Char('-' | 'R') => view.reverse = !view.reverse,
            Key::Char('<' | ',') | Key::Left => view.move_sort(-1),
            Key::Char('>' | '.' | 's') | Key::Right => view.move_sort(1),
            Key::Char('n') => view.sort = Some(Column::Name),
            Key::Char('r') => view.sort = Some(Column::Rate),
            Key::Char('b') => view.sort = Some(Column::Bytes),
            Key::Char('d') => view.sort = Some(Column::Drops),
            Key::Char('u') => view.sort = Some(Column::Cpu),
            Key::Char('t') => view.sort = Some(Column::Time),
            Key::Char('c') => view.sort = Some(Column::Cost),
            Key::Escape => view.filter.clear(),
            Key::Char(_) | Key::Enter | Key::Backspace | Key::Clear => {}
        }
        true
    }

    /// A key while a filter is written.
    fn write(&mut self, key: Key, before: String) {
        let filter = &mut self.view.filter;
        match key {
            Key::Enter => return,
            Key::Escape => {
                *filter = before;
                return;
            }
            Key::Backspace => drop(filter.pop()),
            Key::Clear => filter.clear(),
            Key::Char(character) if filter.chars().count() < FILTER_MAX => filter.push(character),
            Key::Char(_) | Key::Left | Key::Right => {}
        }
        self.mode = Mode::Filter { before };
    }

    /// The order and the filter in a line, and the list of keys if it was asked for.
    pub fn text(&self) -> String {
        let View { filter, .. } = &self.view;
        let order = self.view.order();
        match &self.mode {
            Mode::Filter { .. } => format!("filter: {filter}_   (Enter: keep, Esc: drop)\n"),
            Mode::Help => format!("ports {order}\n{HELP}"),
            Mode::Commands if filter.is_empty() => format!("ports {order}; ? for help\n"),
            Mode::Commands => format!("ports with {filter:?} {order}; ? for help\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(controls: &mut Controls, bytes: &str) -> bool {
        keys(bytes.as_bytes()).into_iter().all(|key| controls.press(key))
    }

    #[test]
    fn a_terminals_bytes_are_keys() {
        let all = keys(b"a\r\x1b[C\x1bOD\x1b[1;5C\x1b[3~\x7f\x15\x1b");
        let expected = [
            Key::Char('a'),
            Key::Enter,
            Key::Right,
            Key::Left,
            Key::Right,
            Key::Backspace,
            Key::Clear,
            Key::Escape,
        ];
        assert_eq!(all, expected);
        assert_eq!(keys("ä".as_bytes()), [Key::Char('ä')]);
        assert_eq!(keys(&[0xff, 0x00, 0x1b, b'[']), []);
    }

    #[test]
    fn keys_sort_and_turn_round() {
        let mut controls = Controls::default();
        assert!(press(&mut controls, "d-"));
        assert_eq!((controls.view.sort, controls.view.reverse), (Some(Column::Drops), true));
        assert_eq!(controls.text(), "ports by drops, the least first; ? for help\n");
        assert!(press(&mut controls, "-<"));
        assert_eq!((controls.view.sort, controls.view.reverse), (Some(Column::Bytes), false));
        assert!(!press(&mut controls, "q"));
    }

    #[test]
    fn a_filter_is_written_kept_and_dropped() {
        let mut controls = Controls::default();
        assert!(press(&mut controls, "/quk\x7f"));
        assert_eq!(controls.text(), "filter: qu_   (Enter: keep, Esc: drop)\n");
        assert!(press(&mut controls, "\r"));
        assert_eq!(controls.view.filter, "qu");
        assert!(press(&mut controls, "/x\x1b"), "q in a filter does not quit");
        assert_eq!(controls.view.filter, "qu");
        assert!(controls.text().starts_with("ports with \"qu\" in the daemon's order"));
        assert!(press(&mut controls, "\x1b"));
        assert_eq!(controls.view.filter, "");
        let long = format!("/{}", "x".repeat(1000));
        assert!(press(&mut controls, &long));
        assert_eq!(controls.view.filter.len(), FILTER_MAX);
    }

    #[test]
    fn help_is_shown_until_the_next_key_and_fits_80_columns() {
        let mut controls = Controls::default();
        assert!(press(&mut controls, "?"));
        assert!(controls.text().ends_with(HELP));
        assert!(press(&mut controls, "?"));
        assert!(!controls.text().contains("quit"));
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
    }
}
