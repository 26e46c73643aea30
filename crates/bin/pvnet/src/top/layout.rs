//! Tables that fit a terminal.

use report::Table;

#[derive(Clone, Debug)]
pub struct TableColumn {
    /// What is above it.
    pub header: &'static str,
    /// Whether it has names, and not numbers.
    pub is_left: bool,
    /// Its cells, one for each row.
    pub cells: Vec<String>,
    /// How soon it is left out of a narrow terminal, the highest first; 0: never.
    pub rank: u8,
}

/// Between two columns.
const GAP: usize = 2;
/// A name is cut to no fewer characters.
const NAME_MIN: usize = 4;

impl TableColumn {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(String::as_str);
        cells.chain([self.header]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// A table of at most `width` characters in a line: columns with a rank are left out until it fits, and then the cells of the first
/// column are cut.
pub fn table(mut columns: Vec<TableColumn>, width: Option<usize>) -> Table {
    if let Some(width) = width {
        while total(&columns) > width {
            let highest = columns.iter().map(|column| column.rank).max().unwrap_or(0);
            if highest == 0 {
                break;
            }
            // The last one of those.
            let place = columns.iter().rposition(|column| column.rank == highest);
            place.map(|place| columns.remove(place));
        }
        let excess = total(&columns).saturating_sub(width);
        if let Some(first) = columns.first_mut().filter(|_| excess > 0) {
            let width = first.width().saturating_sub(excess).max(NAME_MIN);
            first.cells.iter_mut().for_each(|cell| *cell = cut(cell, width));
        }
    }
    let mut table = columns.iter().fold(Table::new(), |table, column| match column.is_left {
        true => table.left(column.header),
        false => table.right(column.header),
    });
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        table.row(columns.iter().map(|column| column.cells[row].clone()));
    }
    table
}

fn total(columns: &[TableColumn]) -> usize {
    columns.iter().map(|column| column.width() + GAP).sum::<usize>().saturating_sub(GAP)
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<TableColumn> {
        let column = |header, rank, cells: [&str; 2]| TableColumn {
            header,
            is_left: rank == 0,
            cells: cells.map(str::to_owned).to_vec(),
            rank,
        };
        vec![
            column("port", 0, ["a-long-name", "b"]),
            column("kind", 2, ["guest", "uplink"]),
            column("state", 1, ["up", "down"]),
        ]
    }

    #[test]
    fn columns_go_by_rank_and_then_names_are_cut() {
        let header = |width| table(columns(), width).to_string().lines().next().unwrap().to_owned();
        assert_eq!(header(None), "port           kind  state");
        assert_eq!(header(Some(26)), header(None));
        assert_eq!(header(Some(25)), "port         state");
        assert_eq!(header(Some(17)), "port");
        let text = table(columns(), Some(8)).to_string();
        assert_eq!(text.lines().collect::<Vec<_>>(), ["port", "────────", "a-long-…", "b"]);
        assert!(table(columns(), Some(1)).to_string().contains("a-l…"));
    }
}
