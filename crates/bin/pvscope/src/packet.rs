//! `pvscope packet`: the path of one packet, function by function, after Figures 3 to 10 of Chadha et al.

mod distribution;
pub mod flow;
mod page;
mod span;
mod stages;
#[cfg(test)]
mod tests;
mod view;

use std::path::PathBuf;

use clap::Args;
use distribution::Distribution;
use document::Document;
use flow::{Flow, Line, Tally};
use schemars::JsonSchema;
use scope_model::Costs;
use serde::Serialize;
use span::Direction;
use stages::{Run, Stage};
use view::Packet;

use crate::error::Result;
use crate::model_args::CostArgs;
use crate::report::{json, show};

pub use distribution::DistributionData;

/// Arguments of `pvscope packet`.
#[derive(Args)]
pub struct PacketArgs {
    /// A recording of `pvscope run`.
    file: PathBuf,
    /// The number of the packet in the flow, from 1 [default: the first complete one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nth: Option<u32>,
    /// The direction, as the guest sees it [default: the one with more traffic].
    #[arg(long, value_enum)]
    direction: Option<Direction>,
    /// Also show where functions continue after a call, and thunks.
    #[arg(long)]
    all: bool,
    /// Show how the packets of the flow differ instead: quantiles of instructions, cycles and misses.
    #[arg(long, conflicts_with_all = ["nth", "all"])]
    distribution: bool,
    /// Write a page with the packet's timeline to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print a JSON document instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs the command.
pub fn run(args: &PacketArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let costs = args.costs.read(&recording.config)?;
    let flow = Flow::new(&recording);
    let direction = args.direction.unwrap_or_else(|| Direction::of(&recording));
    if args.distribution {
        return distribution(args, &flow, direction, &costs);
    }
    let packet = Packet::pick(&flow, direction, args.nth, args.all)?;
    let mut text = if args.json {
        json(&PacketData::new(&packet, &costs))?
    } else {
        packet.text(&costs, ::report::wants_bold()) + "\n"
    };
    if let Some(path) = &args.html {
        let page = page::page(&packet, &costs);
        page.write(path)?;
        if !args.json {
            text += &format!("Report with the timeline: {}\n", path.display());
        }
    }
    show(&text)
}

fn distribution(
    args: &PacketArgs,
    flow: &Flow<'_>,
    direction: Direction,
    costs: &Costs,
) -> Result<()> {
    let distribution = Distribution::new(flow, direction, costs)?;
    if let Some(path) = &args.html {
        distribution.page().write(path)?;
    }
    show(&if args.json {
        json(&distribution.data())?
    } else {
        let table = distribution.table().render(::report::wants_bold());
        format!("{}\n\n{table}", distribution.lead())
    })
}

/// A packet: its sums, and its path.
#[derive(JsonSchema, Serialize)]
pub struct PacketData<'a> {
    what: &'a str,
    direction: Direction,
    nth: usize,
    of: usize,
    frames: u64,
    complete: bool,
    missing: Option<String>,
    cycles: f64,
    tally: Tally,
    stages: Vec<StageRow>,
    runs: &'a [Run],
    lines: Vec<LineRow>,
}

impl Document for PacketData<'_> {
    const SCHEMA: &'static str = "pvscope-packet/1";
}

impl<'a> PacketData<'a> {
    pub fn new(packet: &'a Packet<'_>, costs: &Costs) -> Self {
        let line = |line: &Line| {
            let (module, function) = packet.name(line.function);
            LineRow {
                since_start: line.at,
                address: format!("{:#x}", line.address),
                function,
                module,
                who: line.who.to_string(),
                entered: line.entered,
                depth: line.depth,
                times: line.times,
                tally: line.tally,
            }
        };
        let stage =
            |(stage, tally): (Stage, Tally)| StageRow { stage, cycles: tally.cycles(costs), tally };
        let tally = packet.tally();
        Self {
            what: &packet.recording.work.what,
            direction: packet.span.direction,
            nth: packet.nth,
            of: packet.of,
            frames: packet.span.frames,
            complete: packet.span.complete,
            missing: packet.missing(),
            cycles: tally.cycles(costs),
            tally,
            stages: stages::sums(&packet.runs).into_iter().map(stage).collect(),
            runs: &packet.runs,
            lines: packet.lines.iter().map(line).collect(),
        }
    }
}

/// What a stage took in all.
#[derive(JsonSchema, Serialize)]
struct StageRow {
    stage: Stage,
    cycles: f64,
    #[serde(flatten)]
    tally: Tally,
}

/// A part of the path: one function, without interruption.
#[derive(JsonSchema, Serialize)]
struct LineRow {
    since_start: u64,
    address: String,
    function: String,
    module: String,
    who: String,
    entered: bool,
    depth: usize,
    times: u32,
    #[serde(flatten)]
    tally: Tally,
}
