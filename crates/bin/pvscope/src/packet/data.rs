//! A packet as a document for programs.

use document::Document;
use schemars::JsonSchema;
use scope_model::Costs;
use serde::Serialize;

use super::flow::{Line, Tally};
use super::span::Direction;
use super::stages::{self, Run, Stage};
use super::view::Packet;

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
