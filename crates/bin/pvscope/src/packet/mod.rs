//! `pvscope packet`: the life of one packet, function by function, after Chadha et al.'s figures 3 to 10.

pub mod flow;
mod page;
mod span;
mod stages;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;

use ::report::{Table, count, human};
use clap::Args;
use scope_model::Costs;
use scope_result::{Domain, Recording};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::{CostArgs, show};
use crate::summary::function_name;
use flow::{Flow, Line, Row, Tally};
use span::{Direction, Span};
use stages::{Run, Stage};

/// What can be told to it.
#[derive(Args)]
pub struct PacketArgs {
    /// What `pvscope run` wrote.
    file: PathBuf,
    /// Which packet of the flow, counted from 1 [default: the first that is completed in it].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nth: Option<u32>,
    /// Which way it goes, as the guest sees it [default: that in which more was carried].
    #[arg(long, value_enum)]
    direction: Option<Direction>,
    /// Show also where functions go on after what they called, and thunks.
    #[arg(long)]
    all: bool,
    /// Where a page with the packet's timeline goes.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON document instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs it.
pub fn run(args: &PacketArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let costs = args.costs.read()?;
    let flow = Flow::new(&recording);
    let direction = args.direction.unwrap_or_else(|| Direction::of(&recording));
    let packet = Packet::pick(&flow, direction, args.nth, args.all)?;
    let mut text =
        if args.json { packet.json(&costs)? } else { packet.text(&costs, stdout().is_terminal()) };
    if let Some(path) = &args.html {
        let page = page::page(&packet, &costs);
        page.write(path).map_err(|error| Error::Usage(error.to_string()))?;
        if !args.json {
            text += &format!("\nReport with the timeline: {}", path.display());
        }
    }
    show(&format!("{text}\n"))
}

/// A packet, and what was done for it.
struct Packet<'a> {
    recording: &'a Recording,
    span: Span,
    /// Which of all in the flow, from 1.
    nth: usize,
    of: usize,
    runs: Vec<Run>,
    lines: Vec<Line>,
}

impl<'a> Packet<'a> {
    /// The one that was asked for; otherwise the first that is completed, or else the first.
    fn pick(flow: &Flow<'a>, direction: Direction, nth: Option<u32>, all: bool) -> Result<Self> {
        let recording = flow.recording;
        let spans = find(flow, direction)?;
        let index = match nth {
            Some(nth) => nth as usize - 1,
            None => spans.iter().position(|span| span.complete).unwrap_or(0),
        };
        let span = *spans.get(index).ok_or_else(|| {
            Error::Usage(format!(
                "the flow has {} packets, and not a number {}: `pvscope run --flow N` with a larger N has more",
                spans.len(),
                index + 1
            ))
        })?;
        let lines = flow::fold(&flow::lines(flow, &flow.visits[span.from..span.to], all));
        let runs = stages::runs(flow, &span);
        Ok(Self { recording, span, nth: index + 1, of: spans.len(), runs, lines })
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.runs.iter().for_each(|run| tally += run.tally);
        tally
    }

    /// The most important in a sentence or two.
    fn lead(&self, costs: &Costs) -> String {
        let tally = self.tally();
        let frames = match self.span.frames {
            1 => "1 frame is sent".to_owned(),
            frames => format!("{frames} frames are sent"),
        };
        format!(
            "{}: {} {} of {} in the flow.\nFrom its beginning to {} there are {} instructions and {} cycles; {frames} \
             meanwhile, this one included.",
            self.recording.work.what,
            self.span.direction.name(),
            self.nth,
            self.of,
            self.end(),
            human(tally.instructions as f64),
            human(tally.cycles(costs)),
        )
    }

    /// Where the span ends.
    fn end(&self) -> &'static str {
        if self.span.complete { "its completion" } else { "the end of the flow" }
    }

    /// What is missing, where something is.
    fn missing(&self) -> Option<String> {
        let how_far = match (self.span.taken, self.span.done) {
            (None, _) => "before the other side took the packet",
            (_, None) => "after the driver domain took the packet, before it told the guest",
            _ => "after the driver domain told the guest, before that was done with it",
        };
        (!self.span.complete).then(|| {
            format!(
                "The flow ends {how_far}: `pvscope run --flow N` with N more than {} shows its whole life.",
                self.recording.flow.len()
            )
        })
    }

    fn text(&self, costs: &Costs, bold: bool) -> String {
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

    /// The same in brief: a page of tens of thousands of lines is one that nobody opens.
    fn brief_table(&self) -> Table {
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
        let times = if line.times > 1 { format!("×{}", line.times) } else { String::new() };
        let address = format!("{:x}", line.address);
        let cells = [line.at.to_string(), address, name, module, line.who.to_string(), times];
        cells.into_iter().chain(counts(&line.tally))
    }

    /// The functions that took most cycles.
    fn function_table(&self, costs: &Costs, top: usize) -> Table {
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

    fn stage_table(&self, costs: &Costs) -> Table {
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

    /// The module and the name of a function.
    fn name(&self, function: u32) -> (String, String) {
        let function = self.recording.functions.get(function as usize);
        function_name(&function.cloned().unwrap_or_default())
    }

    fn json(&self, costs: &Costs) -> Result<String> {
        let line = |line: &Line| {
            let (module, function) = self.name(line.function);
            LineJson {
                since_start: line.at,
                address: format!("{:#x}", line.address),
                function,
                module,
                who: line.who.to_string(),
                entered: line.entered,
                times: line.times,
                tally: line.tally,
            }
        };
        let stage = |(stage, tally): (Stage, Tally)| StageJson {
            stage,
            cycles: tally.cycles(costs),
            tally,
        };
        let tally = self.tally();
        let document = PacketJson {
            what: &self.recording.work.what,
            direction: self.span.direction,
            nth: self.nth,
            of: self.of,
            frames: self.span.frames,
            complete: self.span.complete,
            missing: self.missing(),
            cycles: tally.cycles(costs),
            tally,
            stages: stages::sums(&self.runs).into_iter().map(stage).collect(),
            runs: &self.runs,
            lines: self.lines.iter().map(line).collect(),
        };
        serde_json::to_string_pretty(&document).map_err(|error| Error::Usage(error.to_string()))
    }
}

/// Every packet of a flow that has one.
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
            "no {} of a guest's is in the flow of {} blocks: `pvscope run --flow N` with a larger N has one",
            direction.name(),
            flow.visits.len()
        )
    } else {
        "the machine of this recording has no Xen, and no packet of a guest's: `pvscope list` shows those that have"
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

#[derive(Serialize)]
struct PacketJson<'a> {
    what: &'a str,
    direction: Direction,
    nth: usize,
    of: usize,
    frames: u64,
    complete: bool,
    missing: Option<String>,
    cycles: f64,
    tally: Tally,
    stages: Vec<StageJson>,
    runs: &'a [Run],
    lines: Vec<LineJson>,
}

#[derive(Serialize)]
struct StageJson {
    stage: Stage,
    cycles: f64,
    #[serde(flatten)]
    tally: Tally,
}

#[derive(Serialize)]
struct LineJson {
    since_start: u64,
    address: String,
    function: String,
    module: String,
    who: String,
    entered: bool,
    times: u32,
    #[serde(flatten)]
    tally: Tally,
}
