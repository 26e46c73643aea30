//! The tables of a page of the documentation.

use std::collections::BTreeSet;

use report::{Align, Table, human};

use super::cost::{Cost, Counts, Share};
use super::document::{NetbackData, PairData, signed};
use crate::summary::plain;

/// Functions of a side in the tables: `pvscope diff` has all.
const FUNCTIONS: usize = 3;

impl NetbackData {
    /// Each workload once, in the order of the pairs, with its costs' scale.
    fn sides(&self) -> Vec<(&Cost, f64, String)> {
        let mut sides = Vec::<(&Cost, f64, String)>::new();
        for pair in &self.pairs {
            for cost in [&pair.netback, &pair.pvnet] {
                if !sides.iter().any(|(known, ..)| known.workload == cost.workload) {
                    sides.push((cost, pair.scale(), pair.shown_unit()));
                }
            }
        }
        sides
    }

    /// A count of each share, and their sum, of each workload.
    fn by_share(&self, of: fn(Counts) -> f64) -> Table {
        let table = Table::new().left("workload").left("for").right("all");
        let table = Share::ALL.iter().fold(table, |table, share| table.right(share.name()));
        self.sides().into_iter().fold(table, |mut table, (cost, scale, unit)| {
            let counts = |shares: &[Share]| human(of(cost.sum(shares)) * scale);
            let names = [cost.workload.clone(), unit, counts(&Share::ALL)];
            table.row(names.into_iter().chain(Share::ALL.iter().map(|share| counts(&[*share]))));
            table
        })
    }

    /// The events of each workload, and its frames.
    fn events(&self) -> Table {
        let names: Vec<String> = self
            .pairs
            .first()
            .map_or_else(Vec::new, |pair| pair.netback.events.keys().cloned().collect());
        let table = Table::new().left("workload").left("for");
        let table = names.iter().fold(table, |table, name| table.right(name.replace('-', " ")));
        let table = table.right("payload of a frame").right("acknowledgements a frame");
        self.sides().into_iter().fold(table, |mut table, (cost, scale, unit)| {
            let count =
                |name: &String| human(cost.events.get(name).copied().unwrap_or_default() * scale);
            let frames = [human(cost.frame_payload), human(cost.acks)];
            let cells = [cost.workload.clone(), unit].into_iter();
            table.row(cells.chain(names.iter().map(count)).chain(frames));
            table
        })
    }

    /// What each pair's difference is made of.
    fn differences(&self) -> Table {
        let table = Table::new()
            .left("pvnet's side")
            .left("for")
            .left("pvnet has more")
            .left("netback has more");
        self.pairs.iter().fold(table, |mut table, pair| {
            let named = |more: bool| {
                let functions = pair.functions.iter().filter(|of| (of.by() > 0.0) == more);
                let named = functions.map(|of| {
                    let by = human((of.by() * pair.scale()).abs());
                    format!("{} `{}` {by}", of.who, plain(&of.function))
                });
                let mut named: Vec<String> = named.collect();
                if !more {
                    named.reverse();
                }
                named.truncate(FUNCTIONS);
                named.join(", ")
            };
            table.row([pair.pvnet.workload.clone(), pair.shown_unit(), named(true), named(false)]);
            table
        })
    }

    /// What functions work for, of each pair: the difference in model cycles.
    fn groups(&self) -> Table {
        let table = Table::new().left("model cycles, pvnet less netback");
        let pairs: Vec<&PairData> =
            self.pairs.iter().filter(|pair| !pair.groups.is_empty()).collect();
        let names: BTreeSet<&str> = pairs
            .iter()
            .flat_map(|pair| pair.groups.iter().map(|group| group.name.as_str()))
            .collect();
        let table = pairs.iter().fold(table, |table, pair| {
            table.right(format!("{}, {}", pair.pvnet.workload, pair.shown_unit()))
        });
        names.into_iter().fold(table, |mut table, name| {
            let difference = |pair: &&PairData| {
                let group = pair.groups.iter().find(|group| group.name == name);
                group.map_or_else(String::new, |group| {
                    signed((group.pvnet - group.netback) * pair.scale())
                })
            };
            table.row(std::iter::once(name.to_owned()).chain(pairs.iter().map(difference)));
            table
        })
    }

    /// The ratios, as Markdown, and what they were made with.
    pub fn summary(&self) -> String {
        let made_with = self.provenance.iter().filter(|line| !line.starts_with("scripts "));
        let made_with: Vec<&str> = made_with.map(String::as_str).collect();
        format!("{}\nMade with {}.\n", markdown(&self.ratios()), made_with.join("; "))
    }

    /// What the ratios are made of, as Markdown.
    pub fn tables(&self) -> String {
        let parts = [
            ("Model cycles, by who works", self.by_share(|counts| counts.cycles)),
            ("Instructions, by who works", self.by_share(|counts| counts.instructions)),
            ("Bytes copied, by who works", self.by_share(|counts| counts.copied)),
            ("Hypercalls, switches and events", self.events()),
            ("What the difference is made of, roughly", self.groups()),
            ("The functions whose model cycles differ most", self.differences()),
        ];
        let parts = parts.map(|(title, table)| format!("## {title}\n\n{}", markdown(&table)));
        parts.join("\n")
    }
}

fn markdown(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let header = line(table.columns().iter().map(|(name, _)| name.clone()).collect());
    let rule = line(
        table
            .columns()
            .iter()
            .map(|(_, align)| if *align == Align::Right { "---:" } else { "---" }.to_owned())
            .collect(),
    );
    let rows = table
        .rows()
        .iter()
        .map(|row| line(row.iter().map(|cell| cell.replace('|', "\\|")).collect()));
    header + &rule + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::data;

    #[test]
    fn tables_have_every_side_once() {
        let summary = data().summary();
        assert!(summary.contains("| --- | ---: |") && summary.contains("tx-pvnet"), "{summary}");
        let text = data().tables();
        assert!(text.contains("| --- | ---: |"), "{text}");
        assert!(text.contains("\n| tx-stock | 1000 bytes |"), "{text}");
        assert!(text.contains("`added`"), "{text}");
    }
}
