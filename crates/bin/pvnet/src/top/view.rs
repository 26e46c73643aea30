//! Which ports and contexts `pvnet top` lists, and in which order.

use clap::ValueEnum;

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The name, from A to Z.
    Name,
    /// Frames per second in both directions, the most first.
    Rate,
    /// Bytes per second in both directions, the most first.
    Bytes,
    /// Dropped frames per second, the most first.
    Drops,
    /// The workers' time for the port, the most first.
    Cpu,
    /// The time that batches of frames from the port were in the daemon, the most first.
    Time,
    /// That time per frame, the most first.
    Cost,
}

/// A line of a list.
pub trait Listed {
    fn name(&self) -> &str;

    /// What a filter looks at: the name, the kind, the state.
    fn words(&self) -> Vec<String>;

    /// What is sorted by a column other than the name.
    fn amount(&self, column: Column) -> u64;
}

/// An order and a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The daemon's order if absent.
    pub sort: Option<Column>,
    /// The other way round.
    pub reverse: bool,
    /// Words; a line is listed if each is part of one of its words, in upper or lower case.
    pub filter: String,
}

impl View {
    /// The lines that are listed, in order.
    pub fn list<'a, T: Listed>(&self, all: &'a [T]) -> Vec<&'a T> {
        let mut listed: Vec<_> = all.iter().filter(|line| self.shows(*line)).collect();
        if let Some(column) = self.sort {
            let by_name = |a: &&T, b: &&T| a.name().cmp(b.name());
            match column {
                Column::Name => listed.sort_by(by_name),
                _ => {
                    listed.sort_by(|a, b| {
                        b.amount(column).cmp(&a.amount(column)).then_with(|| by_name(a, b))
                    });
                }
            }
        }
        if self.reverse {
            listed.reverse();
        }
        listed
    }

    fn shows(&self, line: &impl Listed) -> bool {
        let words: Vec<_> = line.words().iter().map(|word| word.to_lowercase()).collect();
        let filter = self.filter.to_lowercase();
        filter.split_whitespace().all(|part| words.iter().any(|word| word.contains(part)))
    }

    /// Goes `steps` columns to the right or, if negative, to the left; before the first is the daemon's order.
    pub fn move_sort(&mut self, steps: isize) {
        let columns = Column::value_variants();
        let places = columns.len().cast_signed() + 1;
        let place = self.sort.and_then(|sort| columns.iter().position(|column| *column == sort));
        let place = place.map_or(0, |index| index.cast_signed() + 1);
        let next = (place + steps).rem_euclid(places).unsigned_abs();
        self.sort = next.checked_sub(1).and_then(|index| columns.get(index)).copied();
    }

    /// What is said of the order.
    pub fn order(&self) -> String {
        let order = match (self.sort, self.reverse) {
            (None, false) => "in the daemon's order",
            (None, true) => "in the daemon's order, last first",
            (Some(Column::Name), false) => "by name",
            (Some(Column::Name), true) => "by name, Z first",
            (Some(column), reverse) => {
                let end = if reverse { "least" } else { "most" };
                return format!("by {}, the {end} first", column.text());
            }
        };
        order.to_owned()
    }
}

impl Column {
    /// Its name on the command line.
    pub fn text(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// `--sort`: a column, after `-` the other way round.
pub fn sort(text: &str) -> Result<(Column, bool), String> {
    let (name, reverse) = text.strip_prefix('-').map_or((text, false), |name| (name, true));
    let column = Column::from_str(name, true).map_err(|_| {
        let columns = Column::value_variants().iter().map(|column| column.text());
        format!("not one of {}", columns.collect::<Vec<_>>().join(", "))
    })?;
    Ok((column, reverse))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line(&'static str, &'static str, u64);

    impl Listed for Line {
        fn name(&self) -> &str {
            self.0
        }

        fn words(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_owned()]
        }

        fn amount(&self, _: Column) -> u64 {
            self.2
        }
    }

    const LINES: [Line; 4] = [
        Line("red", "guest", 5),
        Line("out", "uplink", 9),
        Line("Blue", "guest", 5),
        Line("green", "guest", 0),
    ];

    fn names(view: &View) -> Vec<&'static str> {
        view.list(&LINES).iter().map(|line| line.0).collect()
    }

    #[test]
    fn lines_are_sorted_and_equal_ones_are_by_name() {
        let by = |sort, reverse| names(&View { sort, reverse, ..View::default() });
        assert_eq!(by(None, false), ["red", "out", "Blue", "green"]);
        assert_eq!(by(None, true), ["green", "Blue", "out", "red"]);
        assert_eq!(by(Some(Column::Rate), false), ["out", "Blue", "red", "green"]);
        assert_eq!(by(Some(Column::Rate), true), ["green", "red", "Blue", "out"]);
        assert_eq!(by(Some(Column::Name), false), ["Blue", "green", "out", "red"]);
    }

    #[test]
    fn a_filter_is_words_of_name_kind_or_state() {
        let of = |filter: &str| names(&View { filter: filter.to_owned(), ..View::default() });
        assert_eq!(of(" "), ["red", "out", "Blue", "green"]);
        assert_eq!(of("GUE"), ["red", "Blue", "green"]);
        assert_eq!(of("guest re"), ["red", "green"]);
        assert_eq!(of("guest uplink"), [""; 0]);
    }

    #[test]
    fn an_order_may_be_turned_round_by_a_minus() {
        assert_eq!(sort("drops"), Ok((Column::Drops, false)));
        assert_eq!(sort("-Name"), Ok((Column::Name, true)));
        assert_eq!(
            sort("--name"),
            Err("not one of name, rate, bytes, drops, cpu, time, cost".to_owned())
        );
    }

    #[test]
    fn moving_through_the_columns_comes_back_to_the_daemons_order() {
        let mut view = View::default();
        let columns = Column::value_variants();
        for column in columns {
            view.move_sort(1);
            assert_eq!(view.sort, Some(*column));
        }
        view.move_sort(1);
        assert_eq!(view.sort, None);
        view.move_sort(-1);
        assert_eq!(view.sort, columns.last().copied());
        assert_eq!(view.order(), "by cost, the most first");
    }
}
