//! A packet as a page.

use std::collections::BTreeMap;

use ::report::html::{Report, Timeline};
use ::report::human;
use scope_model::Costs;

use super::stages::{Run, Stage};
use super::view::Packet;
use crate::report::sentence;
use crate::summary::Who;

/// Functions in the table of sums.
const FUNCTIONS: usize = 30;

/// The page with the packet's timeline, stages and flow.
pub fn page(packet: &Packet<'_>, costs: &Costs) -> Report {
    let mut page = Report::new("The path of a packet");
    page.lead(&sentence(&packet.lead(costs)));
    if let Some(missing) = packet.missing() {
        page.paragraph(&missing);
    }
    let timeline = timeline(&packet.runs);
    page.figure(
        &timeline,
        "Who works, and for which stage. Each thousandth of the time shows the stage with most of the work.",
    );
    if let Some(flame_graph) = packet.flame_graph(costs) {
        page.figure(&flame_graph, "Callers are below their callees. Interrupts and returns to earlier callers begin at the bottom.");
    }
    page.table("Stages", &packet.stage_table(costs));
    let caption = format!("The {FUNCTIONS} functions with the most cycles");
    page.table(&caption, &packet.function_table(costs, FUNCTIONS));
    page.section("Function by function");
    page.paragraph(
        "Everything in the order of execution. A function has a line when a domain first executes it; the functions that \
         follow and were shown before are summed up until the next new one. `pvscope packet` prints every line, and so \
         does --json.",
    );
    page.table("", &packet.brief_table());
    page
}

/// The parts into which the timeline is divided: one is less than a pixel of most screens.
const PARTS: u64 = 1000;

fn timeline(runs: &[Run]) -> Timeline {
    let length = runs.last().map_or(0, |run| run.to);
    let title = format!("{} instructions", human(length as f64));
    let timeline =
        Timeline::new(title, "instructions since the start", Stage::ALL.map(Stage::name));
    bars(runs, (length / PARTS).max(1)).iter().fold(timeline, |timeline, bar| {
        let part = Stage::ALL.iter().position(|stage| *stage == bar.stage).unwrap_or(0);
        timeline.bar(&bar.who.to_string(), part, (bar.from as f64, bar.to as f64))
    })
}

#[derive(Debug, PartialEq)]
struct Bar {
    who: Who,
    stage: Stage,
    from: u64,
    to: u64,
}

/// The bars to draw: for each step of time and everyone who worked in it, the stage with most of the work. Otherwise thousands
/// of runs would overlap.
fn bars(runs: &[Run], step: u64) -> Vec<Bar> {
    let mut work = BTreeMap::<(Who, u64), BTreeMap<Stage, u64>>::new();
    for run in runs.iter().filter(|run| run.from < run.to) {
        for place in run.from / step..=(run.to - 1) / step {
            let within = run.to.min((place + 1) * step) - run.from.max(place * step);
            let stages = work.entry((run.who.clone(), place)).or_default();
            *stages.entry(run.stage).or_default() += within;
        }
    }
    let mut bars = Vec::<Bar>::new();
    for ((who, place), stages) in work {
        let most = stages.into_iter().max_by_key(|(_, instructions)| *instructions);
        let Some((stage, _)) = most else { continue };
        let (from, to) = (place * step, (place + 1) * step);
        match bars.last_mut() {
            Some(bar) if bar.who == who && bar.stage == stage && bar.to == from => bar.to = to,
            _ => bars.push(Bar { who, stage, from, to }),
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flow::Tally;

    #[test]
    fn a_step_shows_the_stage_with_most_work() {
        let run = |from, to, who: Who, stage| Run { from, to, who, stage, tally: Tally::default() };
        let guest = Who::Domain("domU 1".to_owned());
        let runs = [
            run(0, 14, guest.clone(), Stage::Guest),
            run(14, 16, guest.clone(), Stage::GrantAndEvent),
            run(16, 20, guest.clone(), Stage::Guest),
            run(20, 25, Who::Xen, Stage::Switch),
            run(25, 45, guest.clone(), Stage::Completion),
        ];
        let bar = |who: &Who, stage, from, to| Bar { who: who.clone(), stage, from, to };
        let expected = [
            bar(&Who::Xen, Stage::Switch, 20, 30),
            bar(&guest, Stage::Guest, 0, 20),
            bar(&guest, Stage::Completion, 20, 50),
        ];
        assert_eq!(bars(&runs, 10), expected);
    }
}
