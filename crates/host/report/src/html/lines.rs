//! Lines: a value over time, or over named steps such as percentiles.

use super::Chart;
use super::scale::{Scale, linear_ticks, logarithmic_ticks};
use super::svg::{Anchor, LINE, Svg, WIDTH, stroke, text_width};
use crate::stats::tick;
use crate::{Table, human};

const HEIGHT: f64 = 260.0;
/// Each point is marked on a line of at most this many.
const MARKED: usize = 30;
/// The least distance between two numbers of the x axis.
const TICK_GAP: f64 = 14.0;
/// About how wide the room beside the plot is.
const NARROWEST: f64 = 200.0;
/// The least distance between the names of two lines.
const NAME: f64 = LINE - 3.0;

/// Series of points joined by lines, each named at its end.
#[derive(Clone, Debug)]
pub struct LineChart {
    title: String,
    x_axis: String,
    unit: String,
    steps: Vec<String>,
    logarithmic: bool,
    series: Vec<(String, Vec<(f64, f64)>)>,
    /// The numbers of the series that are drawn broken.
    broken: Vec<usize>,
    /// What happens at some places of the x axis.
    marks: Option<(String, Vec<f64>)>,
}

impl LineChart {
    /// A chart without lines; `x_axis` names what runs to the right with its unit (`time (s)`), `unit` is that of the
    /// values.
    #[must_use]
    pub fn new(
        title: impl Into<String>,
        x_axis: impl Into<String>,
        unit: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            x_axis: x_axis.into(),
            unit: unit.into(),
            steps: Vec::new(),
            logarithmic: false,
            series: Vec::new(),
            broken: Vec::new(),
            marks: None,
        }
    }

    /// Names the steps 0, 1, 2, … of the x axis, which then shows the names instead of numbers.
    #[must_use]
    pub fn steps(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.steps = names.into_iter().map(Into::into).collect();
        self
    }

    /// Draws values on a logarithmic axis: for latencies, whose tails are many times the median.
    #[must_use]
    pub fn logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }

    /// Adds a line through points `(x, value)` from left to right; points that are not finite are left out.
    #[must_use]
    pub fn line(
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        self.series.push((name.into(), points.into_iter().filter(finite).collect()));
        self
    }

    /// The same as a broken line: for what was computed beside what was measured.
    #[must_use]
    pub fn broken_line(
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.broken.push(self.series.len());
        self.line(name, points)
    }

    /// Adds a line through values at x = 0, 1, 2, …
    #[must_use]
    pub fn values(self, name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        self.line(name, (0u32..).map(f64::from).zip(values))
    }

    /// Says that something happens at these places of the x axis: thin lines from top to bottom.
    #[must_use]
    pub fn marks(mut self, name: impl Into<String>, places: impl IntoIterator<Item = f64>) -> Self {
        let finite = places.into_iter().filter(|place| place.is_finite());
        self.marks = Some((name.into(), finite.collect()));
        self
    }

    /// The places that are marked.
    fn marked(&self) -> &[f64] {
        self.marks.as_ref().map_or(&[], |(_, places)| places)
    }

    /// The names of all that is drawn, in the order of their colours.
    fn names(&self) -> impl Iterator<Item = &str> {
        let lines = self.series.iter().map(|(name, _)| name.as_str());
        lines.chain(self.marks.iter().map(|(name, _)| name.as_str()))
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|(_, points)| points)
    }

    fn y_ticks(&self) -> Vec<f64> {
        let values = || self.points().map(|(_, y)| *y);
        let max = values().fold(0.0, f64::max);
        let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        if self.logarithmic && least.is_finite() {
            logarithmic_ticks(least, max)
        } else {
            linear_ticks(max, 5)
        }
    }

    fn x_ticks(&self) -> Vec<(f64, String)> {
        if self.steps.is_empty() {
            let places = self.points().map(|(x, _)| *x).chain(self.marked().iter().copied());
            let max = places.fold(0.0, f64::max);
            // As many as have room beside each other, if all were as wide as the widest.
            let fits = |ticks: &Vec<f64>| {
                let widest =
                    ticks.iter().map(|value| text_width(&tick(*value))).fold(0.0, f64::max);
                (ticks.len() as f64) * (widest + TICK_GAP) <= WIDTH - NARROWEST
            };
            let ticks = (2..=10).rev().map(|intervals| linear_ticks(max, intervals)).find(fits);
            let ticks = ticks.unwrap_or_else(|| linear_ticks(max, 2));
            return ticks.into_iter().map(|value| (value, tick(value))).collect();
        }
        (0u32..).map(f64::from).zip(self.steps.iter().cloned()).collect()
    }

    fn draw_axes(&self, svg: &mut Svg, plot: &Plot) {
        for value in &plot.y_ticks {
            let y = plot.y.at(*value);
            svg.line((plot.left, y), (plot.right, y), "grid");
            svg.text((plot.left - 8.0, y + 4.5), Anchor::End, "tick", &tick(*value));
        }
        for (value, name) in &plot.x_ticks {
            let x = plot.x.at(*value);
            svg.line((x, plot.bottom), (x, plot.bottom + 4.0), "axis");
            svg.text((x, plot.bottom + 19.0), Anchor::Middle, "tick", name);
        }
        svg.line((plot.left, plot.bottom), (plot.right, plot.bottom), "axis");
        svg.text((0.0, 12.0), Anchor::Start, "unit", &self.unit);
        svg.text(
            ((plot.left + plot.right) / 2.0, plot.bottom + 39.0),
            Anchor::Middle,
            "unit",
            &self.x_axis,
        );
    }

    fn draw_line(&self, svg: &mut Svg, plot: &Plot, series: usize, points: &[(f64, f64)]) {
        let at = |(x, y): &(f64, f64)| (plot.x.at(*x), plot.y.at(*y));
        let places: Vec<String> =
            points.iter().map(at).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !places.is_empty() {
            let kind = if self.broken.contains(&series) { "curve broken" } else { "curve" };
            svg.path(&format!("M{}", places.join("L")), &format!("{kind} {}", stroke(series)));
        }
        if points.len() <= MARKED {
            points.iter().for_each(|point| svg.marker(at(point), series));
        }
    }

    /// Names each line at its end; names that would overlap move down.
    fn draw_names(&self, svg: &mut Svg, plot: &Plot) {
        let end = |points: &[(f64, f64)]| points.last().map(|(_, y)| plot.y.at(*y));
        let ends = self
            .series
            .iter()
            .enumerate()
            .filter_map(|(index, (_, points))| Some((end(points)?, index)));
        // The name of the marks, which have no end, is above the others if there is room.
        let marks = self.marks.iter().map(|_| (plot.y.at(f64::INFINITY), self.series.len()));
        let mut ends: Vec<(f64, usize)> = ends.chain(marks).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));

        let mut below = ends.len() as f64;
        let mut free = f64::NEG_INFINITY;
        for (y, _) in &mut ends {
            // Names at the foot of the plot have no room below: the whole stack starts higher then.
            below -= 1.0;
            *y = y.min(plot.bottom - below * NAME).max(free);
            free = *y + NAME;
        }
        for (y, index) in ends {
            svg.marker((plot.right + 16.0, y), index);
            let name = self.names().nth(index).unwrap_or_default();
            svg.text((plot.right + 26.0, y + 4.5), Anchor::Start, "label", name);
        }
    }

    fn plot(&self) -> Plot {
        let (y_ticks, x_ticks) = (self.y_ticks(), self.x_ticks());
        let left = y_ticks.iter().map(|value| text_width(&tick(*value))).fold(0.0, f64::max) + 12.0;
        let names = self.names().map(text_width).fold(0.0, f64::max);
        let right = WIDTH - names.min(220.0) - 32.0;
        let (top, bottom) = (28.0, 28.0 + HEIGHT);

        let ends = (y_ticks[0], y_ticks[y_ticks.len() - 1]);
        // Logarithmic ticks begin above zero, linear ones at it.
        let y = if ends.0 > 0.0 {
            Scale::logarithmic(ends, (bottom, top))
        } else {
            Scale::linear(ends, (bottom, top))
        };
        let last = x_ticks.last().map_or(1.0, |(value, _)| *value);
        // Named steps stand clear of the axis, numbers begin on it.
        let inset = if self.steps.is_empty() { 0.0 } else { 36.0 };
        let x = Scale::linear((0.0, last), (left + inset, right - inset));
        Plot { left, right, top, bottom, x, y, x_ticks, y_ticks }
    }
}

/// The plot area, its scales and their ticks.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale,
    y: Scale,
    x_ticks: Vec<(f64, String)>,
    y_ticks: Vec<f64>,
}

impl Chart for LineChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let lines = self.series.iter().map(|(name, points)| {
            let values = points.iter().map(|(_, y)| *y);
            let (low, high) = (
                values.clone().fold(f64::INFINITY, f64::min),
                values.fold(f64::NEG_INFINITY, f64::max),
            );
            match points.len() {
                0 => format!("{name}: no points"),
                count => format!(
                    "{name}: {count} points from {} to {} {}",
                    human(low),
                    human(high),
                    self.unit
                ),
            }
        });
        let marks = self.marks.iter().map(|(name, places)| format!("{name}: {}", places.len()));
        let parts: Vec<String> = lines.chain(marks).collect();
        format!("Line chart over {}. {}.", self.x_axis, parts.join("; "))
    }

    fn data(&self) -> Table {
        let places = self.points().map(|(x, _)| *x).chain(self.marked().iter().copied());
        let mut places: Vec<f64> = places.collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let columns = Table::new().left(&self.x_axis);
        let mut table = self
            .series
            .iter()
            .fold(columns, |table, (name, _)| table.right(format!("{name} ({})", self.unit)));
        table = self.marks.iter().fold(table, |table, (name, _)| table.left(name));
        for place in places {
            let step = (0u32..).map(f64::from).zip(&self.steps).find(|(index, _)| *index == place);
            let mut cells = vec![step.map_or_else(|| tick(place), |(_, name)| name.clone())];
            cells.extend(self.series.iter().map(|(_, points)| {
                points.iter().find(|(x, _)| *x == place).map_or(String::new(), |(_, y)| human(*y))
            }));
            cells.extend(
                self.marks.iter().map(|(_, marked)| {
                    if marked.contains(&place) { "here" } else { "" }.to_owned()
                }),
            );
            table.row(cells);
        }
        table
    }

    fn svg(&self, id: &str) -> String {
        let mut svg = Svg::default();
        let plot = self.plot();
        self.draw_axes(&mut svg, &plot);
        for x in self.marked().iter().map(|place| plot.x.at(*place)) {
            let class = format!("mark {}", stroke(self.series.len()));
            svg.line((x, plot.top), (x, plot.bottom), &class);
        }
        for (index, (_, points)) in self.series.iter().enumerate() {
            self.draw_line(&mut svg, &plot, index, points);
        }
        self.draw_names(&mut svg, &plot);
        svg.finish(id, plot.bottom + 2.3 * LINE, &self.title, &self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_the_axes_say() {
        let chart = LineChart::new("t", "time (s)", "Mb/s").line("a", [(0.0, 0.0), (10.0, 100.0)]);
        let plot = chart.plot();
        let expected = format!("M{:.1} {:.1}L{:.1} 28.0", plot.left, plot.bottom, plot.right);
        assert!(chart.svg("c").contains(&expected), "{expected}");
    }

    #[test]
    fn a_broken_line_is_one_of_several() {
        let svg = LineChart::new("t", "x", "u")
            .values("measured", [1.0, 2.0])
            .broken_line("model", [(0.0, 1.0), (1.0, 3.0)])
            .svg("c");
        assert_eq!(svg.matches(r#"class="curve broken s1""#).count(), 1, "{svg}");
        assert_eq!(svg.matches(r#"class="curve s0""#).count(), 1);
    }

    #[test]
    fn steps_have_names_and_gaps_stay_gaps() {
        let chart = LineChart::new("t", "percentile", "µs")
            .steps(["p50", "p99"])
            .logarithmic()
            .values("a", [10.0, 1000.0])
            .values("b", [20.0, f64::NAN]);
        assert_eq!(chart.data().rows(), [["p50", "10.0", "20.0"], ["p99", "1,000", ""]]);
        assert!(chart.svg("c").contains(">p99</text>"));
        assert!(chart.description().contains("b: 1 points from 20.0 to 20.0 µs"));
    }

    #[test]
    fn names_of_equal_ends_do_not_overlap() {
        let chart = ["a", "b", "c"]
            .into_iter()
            .fold(LineChart::new("t", "x", "u"), |chart, name| chart.values(name, [1.0, 0.0]));
        let (plot, svg) = (chart.plot(), chart.svg("c"));
        for place in 0..3u32 {
            let y = plot.bottom - f64::from(2 - place) * NAME + 4.5;
            assert!(
                svg.contains(&format!(r#"class="label" x="{:.1}" y="{y:.1}""#, plot.right + 26.0)),
                "{svg}"
            );
        }
    }

    #[test]
    fn marks_reach_from_top_to_bottom_and_have_a_name() {
        let chart = LineChart::new("t", "x", "u")
            .line("a", [(0.0, 1.0), (10.0, 2.0)])
            .marks("switches", [5.0, f64::NAN, 10.0]);
        let (plot, svg) = (chart.plot(), chart.svg("c"));
        let line = format!(r#"class="mark s1" x1="{:.1}" y1="28.0""#, plot.right);
        assert!(svg.contains(&line) && svg.contains(">switches</text>"), "{svg}");
        assert_eq!(svg.matches("mark s1").count(), 2);
        assert_eq!(chart.data().rows()[1], ["5", "", "here"]);
        assert!(chart.description().ends_with("; switches: 2."));
    }

    #[test]
    fn numbers_of_the_x_axis_do_not_overlap() {
        for max in [9.0, 225e6, 1e12] {
            let ticks = LineChart::new("t", "x", "u").line("a", [(max, 1.0)]).x_ticks();
            let wide: f64 = ticks.iter().map(|(_, name)| text_width(name)).sum();
            assert!(ticks.len() >= 3 && wide < WIDTH - NARROWEST, "{ticks:?}");
        }
    }

    #[test]
    fn a_chart_without_points_is_still_a_drawing() {
        assert!(LineChart::new("t", "x", "u").svg("c").ends_with("</svg>\n"));
        assert!(
            LineChart::new("t", "x", "u")
                .logarithmic()
                .values("zero", [0.0])
                .svg("c")
                .ends_with("</svg>\n")
        );
    }
}
