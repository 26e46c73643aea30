//! A flame graph: stacks of calls, as wide as they weigh.

use std::collections::BTreeMap;

use super::Chart;
use super::svg::{Anchor, Svg, WIDTH, fill};
use crate::{Table, human};

const ROW: f64 = 18.0;
/// The least width of a frame: what is narrower is left out.
const LEAST: f64 = 0.4;
/// The width of a frame from which on it has a name.
const NAMED: f64 = 24.0;
/// Functions in the table behind the picture.
const ROWS: usize = 30;

/// A frame of the stacks, and the frames above it.
#[derive(Clone, Debug, Default)]
struct Frame {
    weight: f64,
    own: f64,
    above: BTreeMap<String, Frame>,
}

impl Frame {
    fn height(&self) -> usize {
        1 + self.above.values().map(Self::height).max().unwrap_or(0)
    }

    fn add_sums(&self, name: &str, sums: &mut BTreeMap<String, f64>) {
        *sums.entry(name.to_owned()).or_default() += self.own;
        self.above.iter().for_each(|(name, frame)| frame.add_sums(name, sums));
    }
}

/// Stacks of calls: callers below callees, each as wide as its weight. The order from left to right is that of names.
#[derive(Clone, Debug)]
pub struct FlameGraph {
    title: String,
    unit: String,
    all: Frame,
}

impl FlameGraph {
    /// A flame graph without stacks; `unit` is that of weights.
    #[must_use]
    pub fn new(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { title: title.into(), unit: unit.into(), all: Frame::default() }
    }

    /// Adds a stack, whose callers come first, with the weight of its last function. Weights that are not above 0 are left out.
    #[must_use]
    pub fn stack(mut self, names: impl IntoIterator<Item = impl AsRef<str>>, weight: f64) -> Self {
        if weight.is_finite() && weight > 0.0 {
            let mut frame = &mut self.all;
            frame.weight += weight;
            for name in names {
                frame = frame.above.entry(name.as_ref().to_owned()).or_default();
                frame.weight += weight;
            }
            frame.own += weight;
        }
        self
    }

    /// The flame graph as a document of its own, with its style.
    #[must_use]
    pub fn document(&self) -> String {
        const STYLE: &str = "<style>text{font:12px sans-serif}.f0{fill:#f2a65a}.f1{fill:#eec170}.f2{fill:#e08e79}\
                             .f3{fill:#9fc2cc}.f4{fill:#b5c99a}.f5{fill:#d9b8c4}rect{stroke:#fff;stroke-width:.5}</style>";
        let svg = self.svg("flame");
        let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
        match svg.split_once('>') {
            Some((head, rest)) => format!("{head}>\n{STYLE}{rest}"),
            None => svg,
        }
    }

    /// The sums of functions, the largest first.
    fn sums(&self) -> Vec<(String, f64)> {
        let mut sums = BTreeMap::new();
        self.all.above.iter().for_each(|(name, frame)| frame.add_sums(name, &mut sums));
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, weight)| *weight > 0.0).collect();
        sums.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        sums
    }

    fn draw(&self, svg: &mut Svg, frames: &BTreeMap<String, Frame>, from: f64, bottom: f64) {
        let mut x = from;
        for (name, frame) in frames {
            let width = frame.weight / self.all.weight * WIDTH;
            if width >= LEAST {
                let share = 100.0 * frame.weight / self.all.weight;
                let note = format!("{name}: {} {} ({share:.1} %)", human(frame.weight), self.unit);
                let hash = name
                    .bytes()
                    .fold(0, |hash: usize, byte| hash.wrapping_mul(31) + usize::from(byte));
                svg.open_group(&note);
                svg.rect((x, bottom - ROW), (width, ROW - 1.0), &fill(hash % 6));
                if width >= NAMED {
                    svg.label((x + 3.0, bottom - 5.0), Anchor::Start, name, width - 6.0);
                }
                svg.close_group();
                self.draw(svg, &frame.above, x, bottom - ROW);
            }
            x += width;
        }
    }
}

impl Chart for FlameGraph {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let sums = self.sums();
        let sums = sums.iter().take(5).map(|(name, weight)| format!("{name}: {}", human(*weight)));
        let all = human(self.all.weight);
        format!("Flame graph of {all} {}. {}.", self.unit, sums.collect::<Vec<_>>().join("; "))
    }

    fn data(&self) -> Table {
        let table = Table::new().left("function").right(&*self.unit);
        self.sums().into_iter().take(ROWS).fold(table, |mut table, (name, weight)| {
            table.row([name, human(weight)]);
            table
        })
    }

    fn svg(&self, id: &str) -> String {
        let mut svg = Svg::default();
        let height = self.all.height().saturating_sub(1) as f64 * ROW;
        self.draw(&mut svg, &self.all.above, 0.0, height);
        svg.finish(id, height + 2.0, &self.title, &self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_as_wide_as_their_callees_and_below_them() {
        let chart = FlameGraph::new("t", "cycles")
            .stack(["main", "a<b>"], 25.0)
            .stack(["main"], 25.0)
            .stack(["other"], 50.0)
            .stack(["nothing"], 0.0);
        let svg = chart.svg("c");
        // Half the width each; the lower row ends at 36.
        assert!(svg.contains(r#"x="0.0" y="18.0" width="380.0""#), "{svg}");
        assert!(svg.contains(r#"x="380.0" y="18.0" width="380.0""#), "{svg}");
        assert!(svg.contains(r#"x="0.0" y="0.0" width="190.0""#), "{svg}");
        assert!(svg.contains("a&lt;b&gt;: 25.0 cycles (25.0 %)") && !svg.contains("nothing"));
        assert_eq!(chart.data().rows().len(), 3);
        let document = chart.document();
        assert!(document.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "), "{document}");
        assert_eq!(document.matches("<style>").count(), 1);
        assert_eq!(document.matches("<g>").count(), document.matches("</g>").count());
    }
}
