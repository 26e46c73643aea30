//! A packet as a JSON document.

use scope_model::Costs;
use serde::Serialize;

use super::flow::{Line, Tally};
use super::span::Direction;
use super::stages::{self, Run, Stage};
use super::view::Packet;
use crate::error::{Error, Result};

/// The document.
pub fn json(packet: &Packet<'_>, costs: &Costs) -> Result<String> {
    let line = |line: &Line| {
        let (module, function) = packet.name(line.function);
        LineJson {
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
        |(stage, tally): (Stage, Tally)| StageJson { stage, cycles: tally.cycles(costs), tally };
    let tally = packet.tally();
    let document = PacketJson {
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
    };
    serde_json::to_string_pretty(&document).map_err(|error| Error::Usage(error.to_string()))
}

/// A packet as a JSON document.
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
    depth: usize,
    times: u32,
    #[serde(flatten)]
    tally: Tally,
}
