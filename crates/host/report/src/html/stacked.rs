//! Stacked bars: how a whole divides, such as processor time.

use super::Chart;
use super::bars::value_axis;
use super::scale::{Scale, linear_ticks};
use super::svg::{Anchor, LINE, Svg, WIDTH, fill, label_column, text_width};
use crate::{CpuSplit, Table, human};

const BAR: f64 = 26.0;
const GAP: f64 = 12.0;

/// One bar per case, divided into the same parts in the same order.
#[derive(Clone, Debug)]
pub struct StackedChart {
    title: String,
    unit: String,
    parts: Vec<String>,
    rest: Option<usize>,
    bars: Vec<(String, Vec<f64>)>,
}

impl StackedChart {
    /// A chart without bars; `parts` labels the parts of each bar from left to right.
    #[must_use]
    pub fn new(
        title: impl Into<String>,
        unit: impl Into<String>,
        parts: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let parts = parts.into_iter().map(Into::into).collect();
        Self { title: title.into(), unit: unit.into(), parts, rest: None, bars: Vec::new() }
    }

    /// A chart of processor time, in CPUs.
    #[must_use]
    pub fn cpu(title: impl Into<String>) -> Self {
        Self::new(title, "CPUs", ["guest", "driver domain", "hypervisor"]).rest("idle")
    }

    /// Names one more part that is what remains, drawn in grey after the others.
    #[must_use]
    pub fn rest(mut self, name: impl Into<String>) -> Self {
        self.rest = Some(self.parts.len());
        self.parts.push(name.into());
        self
    }

    /// Adds a bar: the sizes of the parts, none below zero; parts that are not named are not drawn.
    #[must_use]
    pub fn bar(mut self, label: impl Into<String>, sizes: impl IntoIterator<Item = f64>) -> Self {
        let sizes = sizes.into_iter().map(|size| size.max(0.0)).take(self.parts.len()).collect();
        self.bars.push((label.into(), sizes));
        self
    }

    /// Adds a bar to a chart of processor time.
    #[must_use]
    pub fn split(self, label: impl Into<String>, cpu: &CpuSplit) -> Self {
        self.bar(label, [cpu.guest, cpu.driver, cpu.hypervisor, cpu.idle])
    }

    fn class(&self, part: usize) -> String {
        if self.rest == Some(part) { "rest".to_owned() } else { fill(part) }
    }

    fn draw_bar(&self, svg: &mut Svg, scale: &Scale, y: f64, sizes: &[f64]) {
        let mut sum = 0.0;
        for (part, size) in sizes.iter().enumerate() {
            let (from, to) = (scale.at(sum), scale.at(sum + size));
            sum += size;
            svg.rect((from, y), (to - from, BAR), &format!("part {}", self.class(part)));
            let number = human(*size);
            if text_width(&number) + 8.0 <= to - from {
                let on = if self.rest == Some(part) { "on-rest" } else { "on" };
                svg.text(((from + to) / 2.0, y + BAR / 2.0 + 4.5), Anchor::Middle, on, &number);
            }
        }
    }
}

impl Chart for StackedChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let bars = self.bars.iter().map(|(label, sizes)| {
            let parts =
                self.parts.iter().zip(sizes).map(|(part, size)| format!("{part} {}", human(*size)));
            format!("{label}: {}", parts.collect::<Vec<_>>().join(", "))
        });
        format!("Stacked bar chart in {}. {}.", self.unit, bars.collect::<Vec<_>>().join("; "))
    }

    fn data(&self) -> Table {
        let columns = Table::new().left(format!("case ({})", self.unit));
        let mut table = self.parts.iter().fold(columns, Table::right);
        for (label, sizes) in &self.bars {
            let sizes = (0..self.parts.len())
                .map(|part| sizes.get(part).copied().map_or(String::new(), human));
            table.row([label.clone()].into_iter().chain(sizes));
        }
        table
    }

    fn svg(&self, id: &str) -> String {
        let mut svg = Svg::default();
        let top = svg.legend(
            self.parts.iter().enumerate().map(|(part, name)| (name.as_str(), self.class(part))),
        );
        let left = label_column(self.bars.iter().map(|(label, _)| label.as_str()));
        let longest = self.bars.iter().map(|(_, sizes)| sizes.iter().sum()).fold(0.0, f64::max);
        let ticks = linear_ticks(longest, 5);
        let scale = Scale::linear((0.0, ticks[ticks.len() - 1]), (left, WIDTH - 20.0));
        let bottom = top + GAP + self.bars.len() as f64 * (BAR + GAP);

        value_axis(&mut svg, &scale, &ticks, (top, bottom), &self.unit);
        let mut y = top + GAP;
        for (label, sizes) in &self.bars {
            svg.label((left - 10.0, y + BAR / 2.0 + 4.5), Anchor::End, label, left - 14.0);
            self.draw_bar(&mut svg, &scale, y, sizes);
            y += BAR + GAP;
        }
        svg.line((left, top), (left, bottom), "axis");
        svg.finish(id, bottom + 2.2 * LINE, &self.title, &self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_the_rest_is_grey() {
        let split = CpuSplit { guest: 0.5, driver: 1.0, hypervisor: 0.0, idle: 0.5 };
        let chart = StackedChart::cpu("CPU").split("x", &split);
        let svg = chart.svg("c");
        // 74 to 740 for two CPUs: a quarter, a half, nothing, a quarter.
        assert!(svg.contains(r#"class="part f0" x="74.0" y="42.0" width="166.5""#), "{svg}");
        assert!(svg.contains(r#"class="part f1" x="240.5" y="42.0" width="333.0""#), "{svg}");
        assert!(svg.contains(r#"class="part rest" x="573.5" y="42.0" width="166.5""#), "{svg}");
        assert_eq!(chart.data().rows(), [["x", "0.500", "1.00", "0", "0.500"]]);
        assert!(chart.description().contains("x: guest 0.500, driver domain 1.00"));
    }

    #[test]
    fn a_part_too_narrow_for_its_number_goes_without() {
        let svg = StackedChart::new("t", "u", ["a", "b"]).bar("x", [100.0, 1.0]).svg("c");
        assert_eq!(svg.matches("class=\"on\"").count(), 1);
    }

    #[test]
    fn sizes_without_a_name_are_dropped() {
        let chart = StackedChart::new("t", "u", ["a"]).bar("x", [1.0, 2.0]).bar("y", []);
        assert_eq!(chart.data().rows(), [["x", "1.00"], ["y", ""]]);
    }
}
