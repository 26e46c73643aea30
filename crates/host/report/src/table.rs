//! Tables: one value that a terminal and a page both show.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

/// Which edge of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// A header and rows of cells, each column aligned left or right. `Display` renders it as plain text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with no columns yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column of names.
    #[must_use]
    pub fn left(self, header: impl Into<String>) -> Self {
        self.column(header, Align::Left)
    }

    /// Adds a column of numbers.
    #[must_use]
    pub fn right(self, header: impl Into<String>) -> Self {
        self.column(header, Align::Right)
    }

    fn column(mut self, header: impl Into<String>, align: Align) -> Self {
        self.columns.push((header.into(), align));
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has more or fewer cells than the table has columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) -> &mut Self {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "a row needs one cell per column");
        self.rows.push(cells);
        self
    }

    /// The headers and alignments, left to right.
    #[must_use]
    pub fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    /// The rows, top to bottom.
    #[must_use]
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Writes the table to standard output, its header in bold if that is a terminal.
    pub fn print(&self) -> io::Result<()> {
        io::stdout().lock().write_all(self.render(wants_bold()).as_bytes())
    }

    /// The table as text, one line for the header, one for a rule and one per row; with `bold`, the header is wrapped
    /// in the ANSI sequences for it.
    #[must_use]
    pub fn render(&self, bold: bool) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let headers = self.columns.iter().map(|(header, _)| header.as_str());
        let header = self.line(headers, &widths);
        let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        let rule = rule.join("  ");

        let mut text = if bold {
            format!("\x1b[1m{header}\x1b[0m\n{rule}\n")
        } else {
            format!("{header}\n{rule}\n")
        };
        for row in &self.rows {
            text += &self.line(row.iter().map(String::as_str), &widths);
            text.push('\n');
        }
        text
    }

    /// The table in Markdown, as documents have it.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let escaped = |cell: &String| cell.replace('|', "\\|");
        let rule = |(_, align): &(String, Align)| match align {
            Align::Left => "---".to_owned(),
            Align::Right => "---:".to_owned(),
        };
        let header = line(self.columns.iter().map(|(header, _)| escaped(header)).collect());
        let rule = line(self.columns.iter().map(rule).collect());
        let rows = self.rows.iter().map(|row| line(row.iter().map(escaped).collect()));
        header + &rule + &rows.collect::<String>()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]);
        cells.chain([&self.columns[column].0]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let aligned =
            cells.zip(&self.columns).zip(widths).map(|((cell, (_, align)), &width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        aligned.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// Whether standard output is a terminal whose user has not asked for plain text, by any value of `NO_COLOR` (<https://no-color.org>).
#[must_use]
pub fn wants_bold() -> bool {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_plain
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new().left("case").right("Mb/s").right("ratio");
        table.row(["tcp, 1 stream", "12,345", "0.93"]).row(["udp", "9.4", "1.1"]);
        table
    }

    #[test]
    fn names_keep_left_and_numbers_right() {
        let expected = "\
case             Mb/s  ratio
─────────────  ──────  ─────
tcp, 1 stream  12,345   0.93
udp               9.4    1.1
";
        assert_eq!(table().to_string(), expected);
    }

    #[test]
    fn bold_touches_the_header_only() {
        let bold = table().render(true);
        assert!(bold.starts_with("\x1b[1mcase             Mb/s  ratio\x1b[0m\n"));
        assert_eq!(bold.replace("\x1b[1m", "").replace("\x1b[0m", ""), table().render(false));
    }

    #[test]
    fn markdown_has_a_rule_and_escaped_bars() {
        let mut table = Table::new().left("case").right("a|b");
        table.row(["tcp", "1"]);
        assert_eq!(table.markdown(), "| case | a\\|b |\n| --- | ---: |\n| tcp | 1 |\n");
    }

    #[test]
    #[should_panic(expected = "one cell per column")]
    fn a_ragged_row_is_a_bug() {
        table().row(["only one"]);
    }
}
