//! Horizontal bars: medians with their range, alone or in groups.

use super::Chart;
use super::scale::{Scale, linear_ticks};
use super::svg::{Anchor, LINE, Svg, WIDTH, fill, label_column, text_width};
use crate::stats::tick;
use crate::{Stats, Table, human};

const BAR: f64 = 20.0;
const BETWEEN_BARS: f64 = 4.0;
const BETWEEN_GROUPS: f64 = 16.0;

/// Medians as bars, minimum and maximum as whiskers, the number at each bar's end.
#[derive(Clone, Debug)]
pub struct BarChart {
    title: String,
    unit: String,
    series: Vec<String>,
    groups: Vec<(String, Vec<Option<Stats>>)>,
}

impl BarChart {
    /// A chart without bars; `unit` is that of every value.
    #[must_use]
    pub fn new(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { title: title.into(), unit: unit.into(), series: Vec::new(), groups: Vec::new() }
    }

    /// Names the bars inside each group, in their order. A chart whose groups have one bar each needs none.
    #[must_use]
    pub fn series(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.series = names.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a group of bars, one per series; `None` where there was no measurement.
    #[must_use]
    pub fn group(
        mut self,
        label: impl Into<String>,
        bars: impl IntoIterator<Item = Option<Stats>>,
    ) -> Self {
        self.groups.push((label.into(), bars.into_iter().collect()));
        self
    }

    /// Adds a single bar.
    #[must_use]
    pub fn bar(self, label: impl Into<String>, stats: Stats) -> Self {
        self.group(label, [Some(stats)])
    }

    fn bars(&self) -> impl Iterator<Item = &Stats> {
        self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten())
    }

    fn series_name(&self, index: usize) -> &str {
        self.series.get(index).map_or("", String::as_str)
    }
}

impl Chart for BarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let bars = self.groups.iter().flat_map(|(label, bars)| {
            bars.iter().enumerate().filter_map(move |(index, stats)| {
                let stats = stats.as_ref()?;
                let name = [label.as_str(), self.series_name(index)].join(" ");
                Some(format!("{}: {} {}", name.trim(), human(stats.median), self.unit))
            })
        });
        format!("Bar chart of medians. {}.", bars.collect::<Vec<_>>().join("; "))
    }

    fn data(&self) -> Table {
        let mut table = Table::new().left("case");
        if !self.series.is_empty() {
            table = table.left("series");
        }
        let mut table =
            table.right(format!("median ({})", self.unit)).right("min").right("max").right("n");
        for (label, bars) in &self.groups {
            for (index, stats) in bars.iter().enumerate() {
                let Some(stats) = stats else { continue };
                let mut cells = vec![label.clone()];
                if !self.series.is_empty() {
                    cells.push(self.series_name(index).to_owned());
                }
                cells.extend([stats.median, stats.min, stats.max].map(human));
                cells.push(stats.n.to_string());
                table.row(cells);
            }
        }
        table
    }

    fn svg(&self, id: &str) -> String {
        let mut svg = Svg::default();
        let entries =
            self.series.iter().enumerate().map(|(index, name)| (name.as_str(), fill(index)));
        let top = if self.series.len() > 1 { svg.legend(entries) } else { 4.0 };

        let left = label_column(self.groups.iter().map(|(label, _)| label.as_str()));
        let ticks = linear_ticks(self.bars().map(|stats| stats.max).fold(0.0, f64::max), 5);
        let end = ticks[ticks.len() - 1];
        // The longest bar may reach the axis' end, and its number stands after it.
        let room =
            self.bars().map(|stats| text_width(&human(stats.median))).fold(0.0, f64::max) + 14.0;
        let scale = Scale::linear((0.0, end), (left, WIDTH - room));

        let heights = self.groups.iter().map(|(_, bars)| group_height(bars.len()) + BETWEEN_GROUPS);
        let bottom = top + BETWEEN_GROUPS / 2.0 + heights.sum::<f64>() - BETWEEN_GROUPS / 2.0;
        value_axis(&mut svg, &scale, &ticks, (top, bottom), &self.unit);

        let mut y = top + BETWEEN_GROUPS / 2.0;
        for (label, bars) in &self.groups {
            let middle = y + group_height(bars.len()) / 2.0;
            svg.label((left - 10.0, middle + 4.5), Anchor::End, label, left - 14.0);
            for (series, stats) in bars.iter().enumerate() {
                match stats {
                    Some(stats) => draw_bar(&mut svg, &scale, y, series, stats),
                    None => draw_missing(&mut svg, &scale, y),
                }
                y += BAR + BETWEEN_BARS;
            }
            y += BETWEEN_GROUPS - BETWEEN_BARS;
        }
        svg.line((left, top), (left, bottom), "axis");
        svg.finish(id, bottom + 2.2 * LINE, &self.title, &self.description())
    }
}

fn draw_bar(svg: &mut Svg, scale: &Scale, y: f64, series: usize, stats: &Stats) {
    let origin = scale.at(0.0);
    svg.rect((origin, y), (scale.at(stats.median) - origin, BAR), &format!("bar {}", fill(series)));

    let (low, high, middle) = (scale.at(stats.min), scale.at(stats.max), y + BAR / 2.0);
    if high - low >= 1.0 {
        let caps = format!(
            "M{low:.1} {:.1}v8M{low:.1} {middle:.1}H{high:.1}M{high:.1} {:.1}v8",
            middle - 4.0,
            middle - 4.0
        );
        svg.path(&caps, "halo");
        svg.path(&caps, "whisker");
    }
    let end = high.max(scale.at(stats.median));
    svg.text((end + 8.0, middle + 4.5), Anchor::Start, "value", &human(stats.median));
}

/// Says that there is no number, where an empty place could mean zero.
fn draw_missing(svg: &mut Svg, scale: &Scale, y: f64) {
    svg.text((scale.at(0.0) + 8.0, y + BAR / 2.0 + 4.5), Anchor::Start, "missing", "not measured");
}

/// The height of a group of bars; one without any still needs a line for its label.
fn group_height(bars: usize) -> f64 {
    let bars = bars.max(1) as f64;
    bars * BAR + (bars - 1.0) * BETWEEN_BARS
}

/// A horizontal value axis: grid lines, numbers below, the unit under the numbers' end.
pub(super) fn value_axis(
    svg: &mut Svg,
    scale: &Scale,
    ticks: &[f64],
    (top, bottom): (f64, f64),
    unit: &str,
) {
    for &value in ticks {
        let x = scale.at(value);
        svg.line((x, top), (x, bottom), "grid");
        svg.text((x, bottom + 17.0), Anchor::Middle, "tick", &tick(value));
    }
    let middle = ticks.last().map_or(0.0, |&last| (scale.at(0.0) + scale.at(last)) / 2.0);
    svg.text((middle, bottom + 36.0), Anchor::Middle, "unit", unit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> BarChart {
        let stats = Stats { median: 50.0, min: 40.0, max: 100.0, n: 5 };
        BarChart::new("Throughput", "Mb/s")
            .series(["pvnet", "bridge"])
            .group("tcp <1>", [Some(stats), None])
    }

    #[test]
    fn a_bar_ends_at_its_median_and_the_whisker_at_the_extremes() {
        let svg = BarChart::new("t", "u")
            .bar("x", Stats { median: 50.0, min: 40.0, max: 100.0, n: 5 })
            .svg("c");
        // One short label: the plot runs from 74 to 760 - room("50.0").
        let end = WIDTH - text_width("50.0") - 14.0;
        let half = (end - 74.0) / 2.0;
        assert!(
            svg.contains(&format!(r#"class="bar f0" x="74.0" y="12.0" width="{half:.1}""#)),
            "{svg}"
        );
        assert!(svg.contains(&format!("H{end:.1}")), "{svg}");
    }

    #[test]
    fn labels_are_escaped_and_missing_bars_left_out() {
        let svg = chart().svg("c");
        assert!(svg.contains("tcp &lt;1&gt;") && !svg.contains("<1>"));
        assert_eq!(svg.matches("class=\"bar").count(), 1);
        assert_eq!(svg.matches("not measured").count(), 1);
        assert_eq!(chart().data().rows(), [["tcp <1>", "pvnet", "50.0", "40.0", "100", "5"]]);
        assert!(chart().description().contains("tcp <1> pvnet: 50.0 Mb/s"));
    }

    #[test]
    fn a_chart_without_bars_is_still_a_drawing() {
        assert!(BarChart::new("t", "u").svg("c").ends_with("</svg>\n"));
    }
}
