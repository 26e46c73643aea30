//! A timeline: who does what when, one lane below the other.

use super::Chart;
use super::bars::value_axis;
use super::scale::{Scale, linear_ticks};
use super::svg::{Anchor, LINE, Svg, WIDTH, fill, label_column};
use crate::{Table, human};

const BAR: f64 = 22.0;
const GAP: f64 = 10.0;
/// The least width of a bar: what is short is still to be seen.
const LEAST: f64 = 1.0;

/// A bar of a lane.
#[derive(Clone, Debug)]
struct Bar {
    lane: usize,
    part: usize,
    from: f64,
    to: f64,
}

/// Bars from one time to another, each in a lane and coloured by its part.
#[derive(Clone, Debug)]
pub struct Timeline {
    title: String,
    unit: String,
    parts: Vec<String>,
    lanes: Vec<String>,
    bars: Vec<Bar>,
}

impl Timeline {
    /// A timeline without bars; `unit` is that of time, `parts` names the colours.
    #[must_use]
    pub fn new(
        title: impl Into<String>,
        unit: impl Into<String>,
        parts: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            title: title.into(),
            unit: unit.into(),
            parts: parts.into_iter().map(Into::into).collect(),
            lanes: Vec::new(),
            bars: Vec::new(),
        }
    }

    /// Adds a bar; a lane that is not there yet becomes the lowest. Bars of a part without a name, or
    /// that end before they begin, are left out.
    #[must_use]
    pub fn bar(mut self, lane: &str, part: usize, (from, to): (f64, f64)) -> Self {
        if part < self.parts.len() && from.is_finite() && to.is_finite() && from < to {
            let known = self.lanes.iter().position(|name| name == lane);
            let lane = known.unwrap_or_else(|| {
                self.lanes.push(lane.to_owned());
                self.lanes.len() - 1
            });
            self.bars.push(Bar { lane, part, from, to });
        }
        self
    }

    /// The time of each part in each lane, and in how many bars; those without any are left out.
    fn sums(&self) -> Vec<(&str, &str, f64, usize)> {
        let mut sums = Vec::new();
        for (lane, lane_name) in self.lanes.iter().enumerate() {
            for (part, part_name) in self.parts.iter().enumerate() {
                let own = self.bars.iter().filter(|bar| (bar.lane, bar.part) == (lane, part));
                let (time, count) =
                    own.fold((0.0, 0), |(time, n), bar| (time + bar.to - bar.from, n + 1));
                if count > 0 {
                    sums.push((lane_name.as_str(), part_name.as_str(), time, count));
                }
            }
        }
        sums
    }
}

impl Chart for Timeline {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let sums = self.sums();
        let sums =
            sums.iter().map(|(lane, part, time, _)| format!("{lane}, {part}: {}", human(*time)));
        format!("Timeline in {}. {}.", self.unit, sums.collect::<Vec<_>>().join("; "))
    }

    fn data(&self) -> Table {
        let table = Table::new().left("lane").left("part").right(&*self.unit).right("bars");
        self.sums().into_iter().fold(table, |mut table, (lane, part, time, count)| {
            table.row([lane.to_owned(), part.to_owned(), human(time), count.to_string()]);
            table
        })
    }

    fn svg(&self, id: &str) -> String {
        let mut svg = Svg::default();
        let entries = self.parts.iter().enumerate().map(|(part, name)| (name.as_str(), fill(part)));
        let top = svg.legend(entries);
        let left = label_column(self.lanes.iter().map(String::as_str));
        let ticks = linear_ticks(self.bars.iter().map(|bar| bar.to).fold(0.0, f64::max), 5);
        let scale = Scale::linear((0.0, ticks[ticks.len() - 1]), (left, WIDTH - 30.0));
        let lane_top = |lane: usize| top + GAP + lane as f64 * (BAR + GAP);
        let bottom = lane_top(self.lanes.len());

        value_axis(&mut svg, &scale, &ticks, (top, bottom), &self.unit);
        for (lane, name) in self.lanes.iter().enumerate() {
            let y = lane_top(lane) + BAR / 2.0 + 4.5;
            svg.label((left - 10.0, y), Anchor::End, name, left - 14.0);
        }
        for bar in &self.bars {
            let (from, to) = (scale.at(bar.from), scale.at(bar.to));
            let size = ((to - from).max(LEAST), BAR);
            svg.rect((from, lane_top(bar.lane)), size, &fill(bar.part));
        }
        svg.line((left, top), (left, bottom), "axis");
        svg.finish(id, bottom + 2.2 * LINE, &self.title, &self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_for_each_name_and_a_bar_from_time_to_time() {
        let chart = Timeline::new("t", "instructions", ["work", "switch"])
            .bar("guest", 0, (0.0, 50.0))
            .bar("Xen", 1, (50.0, 75.0))
            .bar("guest", 0, (75.0, 100.0));
        let svg = chart.svg("c");
        // Two short labels: the plot runs from 74 to 730 for 100 instructions.
        let expected = r#"class="f0" x="74.0" y="40.0" width="328.0" height="22.0""#;
        assert!(svg.contains(expected), "{svg}");
        let expected = r#"class="f1" x="402.0" y="72.0" width="164.0" height="22.0""#;
        assert!(svg.contains(expected), "{svg}");
        assert_eq!(
            chart.data().rows(),
            [["guest", "work", "75.0", "2"], ["Xen", "switch", "25.0", "1"]]
        );
        assert!(chart.description().contains("guest, work: 75.0"));
    }

    #[test]
    fn what_is_short_is_seen_and_what_has_no_length_is_not() {
        let svg = Timeline::new("t", "u", ["a"])
            .bar("x", 0, (0.0, 1e6))
            .bar("x", 0, (5.0, 6.0))
            .bar("x", 0, (7.0, 7.0))
            .bar("y", 1, (0.0, 1.0))
            .svg("c");
        assert!(svg.contains(r#"width="1.0""#), "{svg}");
        // The swatch and two bars.
        assert_eq!(svg.matches("f0\"").count(), 3, "{svg}");
        assert!(!svg.contains(">y<"), "{svg}");
    }
}
