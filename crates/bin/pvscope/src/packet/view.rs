//! A packet with everything that was executed for it, as text and tables.

use ::report::html::FlameGraph;
use ::report::{Table, count, human};
use scope_model::Costs;
use scope_result::{Domain, Recording};

use super::flow::{self, Flow, Line, Row, Tally};
use super::span::{self, Direction, Span};
use super::stages::{self, Run};
use crate::call_graph::{label, part};
use crate::error::{Error, Result};
use crate::summary::function_name;

/// A packet, and the work for it.
pub struct Packet<'a> {
    pub recording: &'a Recording,
    pub span: Span,
    /// Its number in the flow, from 1.
    pub nth: usize,
    pub of: usize,
    pub runs: Vec<Run>,
    pub lines: Vec<Line>,
}

impl<'a> Packet<'a> {
    /// The packet of number `nth`; by default the first complete one, or else the first. `all` shows continued functions.
    pub fn pick(
        flow: &Flow<'a>,
        direction: Direction,
        nth: Option<u32>,
        all: bool,
    ) -> Result<Self> {
        let recording = flow.recording;
        let spans = find(flow, direction)?;
        let index = match nth {
            Some(nth) => nth as usize - 1,
            None => spans.iter().position(|span| span.complete).unwrap_or(0),
        };
        let span = *spans.get(index).ok_or_else(|| {
            Error::Usage(format!(
                "the flow has {} packets, and no number {}: `pvscope run --flow N` with a larger N records more",
                spans.len(),
                index + 1
            ))
        })?;
        let lines = flow::fold(&flow::lines(flow, &flow.visits[span.from..span.to], all));
        let runs = stages::runs(flow, &span);
        Ok(Self { recording, span, nth: index + 1, of: spans.len(), runs, lines })
    }

    /// The counts of the whole span.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.runs.iter().for_each(|run| tally += run.tally);
        tally
    }

    /// A summary in a sentence or two.
    pub fn lead(&self, costs: &Costs) -> String {
        let tally = self.tally();
        let frames = match self.span.frames {
            1 => "1 frame is sent".to_owned(),
            frames => format!("{frames} frames are sent"),
        };
        format!(
            "{}: {} {} of {} in the flow.\nFrom its beginning to {} there are {} instructions and {} model cycles; {frames} \
             meanwhile, including this one.",
            self.recording.work.what,
            self.span.direction.name(),
            self.nth,
            self.of,
            self.end(),
            human(tally.instructions as f64),
            human(tally.cycles(costs)),
        )
    }

    /// The end of the span in words.
    fn end(&self) -> &'static str {
        if self.span.complete { "its completion" } else { "the end of the flow" }
    }

    /// What is missing, if the span is not complete.
    pub fn missing(&self) -> Option<String> {
        let how_far = match (self.span.taken, self.span.done) {
            (None, _) => "before the other side took the packet",
            (_, None) => "after the driver domain took the packet, before it notified the guest",
            _ => "after the driver domain notified the guest, before the guest had finished",
        };
        (!self.span.complete).then(|| {
            format!(
                "The flow ends {how_far}: `pvscope run --flow N` with N more than {} shows all of it.",
                self.recording.flow.len()
            )
        })
    }

    /// The packet as text for a terminal.
    pub fn text(&self, costs: &Costs, bold: bool) -> String {
        let flow = self.flow_table().render(bold);
        let stages = self.stage_table(costs).render(bold);
        let missing = self.missing().map_or(String::new(), |missing| format!("\n{missing}"));
        format!("{}\n\n{flow}\nStages:\n{stages}{missing}", self.lead(costs)).trim_end().to_owned()
    }

    fn flow_table(&self) -> Table {
        self.lines.iter().fold(flow_columns(), |mut table, line| {
            table.row(self.flow_cells(line));
            table
        })
    }

    /// The flow in brief: a page cannot show tens of thousands of lines.
    pub fn brief_table(&self) -> Table {
        flow::brief(&self.lines).iter().fold(flow_columns(), |mut table, row| {
            match row {
                Row::First(line) => table.row(self.flow_cells(line)),
                Row::Known(known) => {
                    let lines = if known.lines == 1 { "line" } else { "lines" };
                    let name = format!("… {} {lines} of functions above", known.lines);
                    let who = known.who.to_string();
                    let cells = [
                        known.at.to_string(),
                        String::new(),
                        name,
                        String::new(),
                        who,
                        String::new(),
                    ];
                    table.row(cells.into_iter().chain(counts(&known.tally)))
                }
            };
            table
        })
    }

    fn flow_cells(&self, line: &Line) -> impl Iterator<Item = String> {
        let (module, name) = self.name(line.function);
        let name = if line.entered { name } else { format!("… {name}") };
        // Spaces that a page keeps.
        let name = format!("{}{name}", "\u{a0}\u{a0}".repeat(line.depth));
        let times = if line.times > 1 { format!("×{}", line.times) } else { String::new() };
        let address = format!("{:x}", line.address);
        let cells = [line.at.to_string(), address, name, module, line.who.to_string(), times];
        cells.into_iter().chain(counts(&line.tally))
    }

    /// The `top` functions with the most cycles.
    pub fn function_table(&self, costs: &Costs, top: usize) -> Table {
        let table = Table::new().left("who").left("module").left("function").right("calls");
        let table = with_counts(table.right("cycles").right("% of cycles"));
        let all = self.tally().cycles(costs).max(1.0);
        let mut sums = flow::by_function(&self.lines);
        let cycles = |tally: &Tally| tally.cycles(costs);
        sums.sort_by(|one, other| {
            let by_name = || (one.0, one.1).cmp(&(other.0, other.1));
            cycles(&other.3).total_cmp(&cycles(&one.3)).then_with(by_name)
        });
        sums.iter().take(top).fold(table, |mut table, (who, function, calls, tally)| {
            let (module, name) = self.name(*function);
            let (cycles, share) = (human(cycles(tally)), 100.0 * cycles(tally) / all);
            let cells =
                [who.to_string(), module, name, calls.to_string(), cycles, format!("{share:.1}")];
            table.row(cells.into_iter().chain(counts(tally)));
            table
        })
    }

    /// The stages with their counts.
    pub fn stage_table(&self, costs: &Costs) -> Table {
        let table = with_counts(Table::new().left("stage").right("cycles").right("% of cycles"));
        let all = self.tally();
        let sums = stages::sums(&self.runs).into_iter().map(|(stage, tally)| (stage.name(), tally));
        sums.chain([("all", all)]).fold(table, |mut table, (name, tally)| {
            let cycles = tally.cycles(costs);
            let share = 100.0 * cycles / all.cycles(costs).max(1.0);
            let cells = [name.to_owned(), human(cycles), format!("{share:.1}")];
            table.row(cells.into_iter().chain(counts(&tally)));
            table
        })
    }

    /// The work as a flame graph, if the recording has a call graph.
    pub fn flame_graph(&self, costs: &Costs) -> Option<FlameGraph> {
        if self.recording.calls.is_empty() {
            return None;
        }
        let of_node = |node: u32| {
            let part =
                self.recording.calls.get(node as usize).map(|node| part(self.recording, node));
            part.map_or(String::new(), |part| label(&part.function))
        };
        let graph = FlameGraph::new("Who calls whom", "model cycles");
        Some(flow::stacks(self.recording, &self.lines).fold(graph, |graph, (callers, line)| {
            let names = callers.into_iter().chain([line.node()]).map(of_node);
            graph.stack(names, line.tally.cycles(costs))
        }))
    }

    /// The module and the name of a function.
    pub fn name(&self, function: u32) -> (String, String) {
        let function = self.recording.functions.get(function as usize);
        function_name(&function.cloned().unwrap_or_default())
    }
}

/// The packets of a flow; an error if there is none.
fn find(flow: &Flow<'_>, direction: Direction) -> Result<Vec<Span>> {
    if flow.visits.is_empty() {
        return Err(Error::Usage(
            "this recording has no flow: `pvscope run --flow N` keeps the order of N blocks"
                .to_owned(),
        ));
    }
    let spans = span::spans(flow, direction);
    if !spans.is_empty() {
        return Ok(spans);
    }
    let has_xen = flow.recording.domains.iter().any(|domain| matches!(domain, Domain::Xen(_)));
    Err(Error::Usage(if has_xen {
        format!(
            "the flow of {1} blocks has no {0} of a guest: `pvscope run --flow N` with a larger N has one",
            direction.name(),
            flow.visits.len()
        )
    } else {
        "the machine of this recording has no Xen, so no packet of a guest: `pvscope list` shows workloads with Xen"
            .to_owned()
    }))
}

const COUNTS: [&str; 5] = ["instructions", "L1 miss", "L2 miss", "ITLB miss", "DTLB miss"];

fn flow_columns() -> Table {
    let table = Table::new().right("since start").left("address").left("function");
    with_counts(table.left("module").left("who").right("times"))
}

fn with_counts(table: Table) -> Table {
    COUNTS.into_iter().fold(table, Table::right)
}

fn counts(tally: &Tally) -> [String; 5] {
    [tally.instructions, tally.l1, tally.l2, tally.itlb, tally.dtlb].map(count)
}
