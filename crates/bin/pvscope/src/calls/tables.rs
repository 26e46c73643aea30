//! Tables of a call graph.

use ::report::{Table, count, human};
use scope_model::{Costs, Counters};

use crate::call_graph::{CallGraph, kind_name, label};
use crate::error::{Error, Result};
use crate::filter::FilterArgs;
use crate::summary::{Event, Part, function_name, plain};

/// What to show of a call graph.
pub struct View<'a> {
    pub graph: &'a CallGraph<'a>,
    pub costs: Costs,
    pub event: Event,
    pub filter: &'a FilterArgs,
}

/// The names of the columns of counts.
const COUNTS: [&str; 6] =
    ["cycles", "instructions", "L1 misses", "L2 misses", "ITLB misses", "DTLB misses"];

impl View<'_> {
    fn weight(&self, counters: &Counters) -> f64 {
        self.event.of(counters, &self.costs)
    }

    /// The share of everything, in percent.
    fn share(&self, counters: &Counters) -> String {
        let all = self.weight(self.graph.total()).max(f64::MIN_POSITIVE);
        format!("{:.1}", 100.0 * self.weight(counters) / all)
    }

    /// The counts per frame; totals if no frames were counted.
    fn counts(&self, counters: &Counters) -> impl Iterator<Item = String> {
        let frames = self.graph.recording.work.frames.max(1) as f64;
        let counts = [
            self.costs.cycles(counters),
            counters.instructions as f64,
            (counters.l1i_misses + counters.read_misses + counters.write_misses) as f64,
            (counters.l2i_misses + counters.l2d_misses) as f64,
            counters.itlb_misses as f64,
            counters.dtlb_misses as f64,
        ];
        counts.into_iter().map(move |count| human(count / frames))
    }

    fn with_counts(table: Table) -> Table {
        COUNTS.into_iter().fold(table, Table::right)
    }

    /// The functions with the most, inclusive.
    pub fn functions(&self, top: usize) -> Table {
        let table = Table::new().left("who").left("module").left("function").right("calls");
        let name = self.event.name();
        let table = table.right(format!("% of {name}, inclusive")).right("% exclusive");
        let mut rows: Vec<_> = self.graph.functions().into_iter().collect();
        rows.retain(|(part, _)| self.filter.selects(part));
        rows.sort_by(|(_, one), (_, other)| {
            self.weight(&other.inclusive).total_cmp(&self.weight(&one.inclusive))
        });
        rows.into_iter().take(top).fold(Self::with_counts(table), |mut table, (part, cost)| {
            let (module, name) = function_name(&part.function);
            let cells = [
                part.who.to_string(),
                module,
                name,
                count(cost.calls),
                self.share(&cost.inclusive),
                self.share(&cost.exclusive),
            ];
            table.row(cells.into_iter().chain(self.counts(&cost.inclusive)));
            table
        })
    }

    /// The callers and callees of the functions of a name.
    pub fn neighbours(&self, name: &str, top: usize, bold: bool) -> Result<String> {
        let is_named =
            |part: &Part| plain(&part.function.name) == name || part.function.name == name;
        let functions = self.graph.functions();
        let own: Vec<_> = functions
            .iter()
            .filter(|(part, _)| is_named(part) && self.filter.selects(part))
            .collect();
        if own.is_empty() {
            return Err(Error::Usage(format!("no function {name:?} was called")));
        }
        let (mut text, calls) = (String::new(), self.graph.calls());
        for (part, cost) in own {
            text += &format!(
                "{} ({}): {} calls, inclusive {} model cycles and {} instructions, exclusive {} and {}.\n",
                label(&part.function),
                part.who,
                count(cost.calls),
                human(self.costs.cycles(&cost.inclusive)),
                human(cost.inclusive.instructions as f64),
                human(self.costs.cycles(&cost.exclusive)),
                human(cost.exclusive.instructions as f64),
            );
            for (caption, other, own) in [("Callers", 0, 1), ("Callees", 1, 0)] {
                let mut rows: Vec<_> = calls
                    .iter()
                    .map(|((caller, callee), cost)| ([*caller, *callee], cost))
                    .filter(|(pair, _)| *pair[own] == **part)
                    .collect();
                rows.sort_by(|(_, one), (_, two)| {
                    self.weight(&two.inclusive).total_cmp(&self.weight(&one.inclusive))
                });
                let table = Table::new().left("who").left("module").left("function").right("calls");
                let table = table.right(format!("% of {}", self.event.name()));
                let table = rows.iter().take(top).fold(
                    Self::with_counts(table),
                    |mut table, (pair, cost)| {
                        let (module, name) = function_name(&pair[other].function);
                        let who = pair[other].who.to_string();
                        let cells =
                            [who, module, name, count(cost.calls), self.share(&cost.inclusive)];
                        table.row(cells.into_iter().chain(self.counts(&cost.inclusive)));
                        table
                    },
                );
                text += &format!("{caption}:\n{}\n", table.render(bold));
            }
        }
        Ok(text)
    }

    /// The tree of calls: of each function, the callees with the most, at most `top` of them.
    pub fn tree(&self, depth: usize, top: usize) -> Table {
        let table = Table::new().left("function").left("who").right("calls");
        let table = table.right(format!("% of {}", self.event.name()));
        let mut table = Self::with_counts(table);
        let mut children = vec![Vec::new(); self.graph.recording.calls.len()];
        for (number, node) in self.graph.nodes() {
            children[node.parent as usize].push(number);
        }
        for below in &mut children {
            below.sort_by(|one, two| {
                let weight = |node: usize| self.weight(self.graph.inclusive(node));
                weight(*two).total_cmp(&weight(*one))
            });
            below.truncate(top);
        }
        // What is below a selected part only.
        let first = self.graph.nodes().filter(|(_, node)| {
            node.parent == 0 || !self.graph.nodes_contain(node.parent as usize)
        });
        let mut first: Vec<usize> = first.map(|(number, _)| number).collect();
        first.sort_by(|one, two| {
            let weight = |node: usize| self.weight(self.graph.inclusive(node));
            weight(*two).total_cmp(&weight(*one))
        });
        let mut open: Vec<(usize, usize)> =
            first.into_iter().take(top).rev().map(|number| (number, 1)).collect();
        while let Some((number, level)) = open.pop() {
            let (part, node) = (self.graph.part(number), &self.graph.recording.calls[number]);
            let kind = kind_name(node.kind).map(|kind| format!(" ({kind})")).unwrap_or_default();
            let indent = "\u{a0}".repeat(2 * (level - 1));
            let cells = [
                format!("{indent}{}{kind}", label(&part.function)),
                part.who.to_string(),
                count(node.counters.executions),
                self.share(self.graph.inclusive(number)),
            ];
            table.row(cells.into_iter().chain(self.counts(self.graph.inclusive(number))));
            if level < depth {
                open.extend(children[number].iter().rev().map(|child| (*child, level + 1)));
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_graph::tests::recording;
    use crate::filter::EventFilter;

    #[test]
    fn functions_neighbours_and_the_tree_show_inclusive_costs() {
        let recording = recording();
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let costs = Costs { instruction: 1.0, ..Costs::default() };
        let (event, filter) = (Event::Instructions, &FilterArgs::default());
        let view = View { graph: &graph, costs, event, filter };
        let table = view.functions(2);
        let rows: Vec<_> = table.rows().iter().map(|row| row[2].clone()).collect();
        assert_eq!(rows, ["timer", "copy"]);
        let text = view.neighbours("sys_write", 9, false).unwrap();
        assert!(text.starts_with("sys_write (machine): 3 calls"), "{text}");
        assert!(text.contains("Callers") && text.contains("write") && text.contains("copy"));
        assert!(view.neighbours("nothing", 9, false).is_err());
        let tree = view.tree(3, 9);
        let names: Vec<_> = tree.rows().iter().map(|row| row[0].replace('\u{a0}', ".")).collect();
        let expected = [
            "timer (interrupt)",
            "..copy",
            "main (caller unknown)",
            "..write",
            "....sys_write (trap)",
        ];
        assert_eq!(names, expected);
    }
}
