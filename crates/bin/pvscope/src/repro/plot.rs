//! A paper's figures with their claims, as tables, plots and JSON.

use report::html::{BarChart, Chart, LineChart, Report};
use report::{Claim, Stats, Table, claims_table, human};
use schemars::JsonSchema;
use serde::Serialize;

use super::listing::Listing;

/// A plot.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The unit of its values.
    pub unit: String,
    /// The names of the places on the x axis. With names it can be shown as a table; without them x is a number.
    pub steps: Vec<String>,
    /// Whether it has bars instead of lines.
    #[serde(skip)]
    bars: bool,
    /// Its lines, or the bars of each group.
    pub lines: Vec<Line>,
    /// Events on the x axis.
    pub marks: Option<Marks>,
}

/// Events at places on an x axis.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Marks {
    /// Its name.
    pub name: String,
    /// Their places.
    pub at: Vec<f64>,
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    /// A plot of lines over numbers.
    pub fn new(title: impl Into<String>, x: impl Into<String>, unit: impl Into<String>) -> Self {
        let (title, x, unit) = (title.into(), x.into(), unit.into());
        Self { title, x, unit, steps: Vec::new(), bars: false, lines: Vec::new(), marks: None }
    }

    /// Names the places on the x axis.
    pub fn steps(mut self, steps: impl IntoIterator<Item = String>) -> Self {
        self.steps = steps.into_iter().collect();
        self
    }

    /// Shows bars instead of lines.
    pub fn bars(mut self) -> Self {
        self.bars = true;
        self
    }

    /// Adds a line.
    pub fn line(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        self.lines.push(Line { name: name.into(), points });
        self
    }

    /// Marks places on the x axis.
    pub fn marks(mut self, name: impl Into<String>, at: Vec<f64>) -> Self {
        self.marks = Some(Marks { name: name.into(), at });
        self
    }

    /// Adds a value for each step.
    pub fn values(self, name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        self.line(name, (0u32..).map(f64::from).zip(values).collect())
    }

    /// The table; none if the places have no names.
    pub fn table(&self) -> Option<Table> {
        if self.steps.is_empty() {
            return None;
        }
        let columns = Table::new().left(&self.x);
        let mut table = self.lines.iter().fold(columns, |table, line| table.right(&line.name));
        for (n, step) in self.steps.iter().enumerate() {
            let value = |line: &Line| line.points.get(n).map_or(String::new(), |(_, y)| human(*y));
            table.row(std::iter::once(step.clone()).chain(self.lines.iter().map(value)));
        }
        Some(table)
    }

    fn chart(&self) -> Box<dyn Chart> {
        if self.bars { Box::new(self.bar_chart()) } else { Box::new(self.line_chart()) }
    }

    fn bar_chart(&self) -> BarChart {
        let names = self.lines.iter().map(|line| line.name.as_str());
        let chart = BarChart::new(&self.title, &self.unit).series(names);
        self.steps.iter().enumerate().fold(chart, |chart, (n, step)| {
            let bar = |line: &Line| line.points.get(n).map(|(_, y)| Stats::single(*y));
            chart.group(step, self.lines.iter().map(bar))
        })
    }

    fn line_chart(&self) -> LineChart {
        let chart = LineChart::new(&self.title, &self.x, &self.unit).steps(&self.steps);
        let lines = self.lines.iter();
        let chart =
            lines.fold(chart, |chart, line| chart.line(&line.name, line.points.iter().copied()));
        let marks = self.marks.iter();
        marks.fold(chart, |chart, marks| chart.marks(&marks.name, marks.at.iter().copied()))
    }
}

/// A figure of the paper, or several that belong together.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Section {
    /// Which figure.
    pub title: &'static str,
    /// What the paper claims with it.
    pub claims: Vec<Claim>,
    /// The same plots from recordings.
    pub plots: Vec<Plot>,
    /// The code that ran, if the figure shows that.
    pub listings: Vec<Listing>,
}

impl Section {
    /// A section without listings.
    pub fn new(title: &'static str, claims: Vec<Claim>, plots: Vec<Plot>) -> Self {
        Self { title, claims, plots, listings: Vec::new() }
    }

    /// Adds a listing, if there is one.
    pub fn listing(mut self, listing: Option<Listing>) -> Self {
        self.listings.extend(listing);
        self
    }
}

/// A recording in the document's table of recordings.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RecordingRow {
    /// Its workload.
    pub workload: String,
    /// What the workload does.
    pub what: String,
    /// Its length in instructions.
    pub instructions: u64,
    /// The frames that were carried.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All figures of a paper.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Document {
    /// The paper.
    pub paper: &'static str,
    /// Notes that apply to all figures.
    pub notes: Vec<String>,
    /// The recordings that were used.
    pub recordings: Vec<RecordingRow>,
    /// Its figures.
    pub sections: Vec<Section>,
}

impl ::document::Document for Document {
    const SCHEMA: &str = "pvscope-repro/1";
}

impl Document {
    pub fn verdicts(&self) -> Table {
        claims_table(self.sections.iter().flat_map(|section| &section.claims))
    }

    /// The recordings as a table.
    pub fn recorded(&self) -> Table {
        let columns = Table::new().left("recorded").right("10⁶ instructions").right("frames");
        let table = columns.right("bytes per frame").left("what it is");
        self.recordings.iter().fold(table, |mut table, used| {
            table.row([
                used.workload.clone(),
                (used.instructions / 1_000_000).to_string(),
                report::count(used.frames),
                human(used.bytes as f64 / used.frames.max(1) as f64),
                used.what.clone(),
            ]);
            table
        })
    }

    pub fn page(&self) -> Report {
        let mut page = Report::new(self.paper);
        page.lead(
            "What the paper found, and whether today's system shows it too. Only ratios within one source are \
             compared, because the paper's machine differs from this one.",
        );
        page.table("What was recorded", &self.recorded());
        page.section("Verdicts").table("", &self.verdicts());
        for note in &self.notes {
            page.paragraph(&keep_units(note));
        }
        for section in &self.sections {
            page.section(section.title);
            section.claims.iter().for_each(|claim| {
                let (result, text) = (keep_units(&claim.result()), keep_units(&claim.grounds()));
                page.point(&result, &text);
            });
            section.plots.iter().for_each(|plot| {
                page.figure(&*plot.chart(), "");
            });
            section.listings.iter().for_each(|listing| {
                page.table(&listing.title, &listing.table());
            });
        }
        page
    }
}

/// Keeps numbers on one line with their units.
fn keep_units(text: &str) -> String {
    text.replace(" %", "\u{a0}%").replace("× ", "×\u{a0}")
}

#[cfg(test)]
mod tests {
    use report::{Rule, Statement, Unit};

    use super::*;

    fn document() -> Document {
        let statement =
            Statement { source: "Figure 9", says: "fewer", number: Some(3.8), unit: Unit::Times };
        let claim =
            statement.compare("tx", "misses", Some(2.0), Rule::AtLeast(3.0, 1.5)).differs("Less.");
        let plot = Plot::new("Misses", "entries", "misses");
        let plot = plot.steps(["64".to_owned(), "128".to_owned()]).values("real", [2.0, 1.0]);
        let bars = Plot { title: "Bars".to_owned(), ..plot.clone() }.bars();
        Document {
            paper: "A paper",
            notes: vec!["A note.".to_owned()],
            recordings: Vec::new(),
            sections: vec![Section::new("One", vec![claim], vec![plot, bars])],
        }
    }

    #[test]
    fn a_page_has_every_plot_and_every_claim() {
        let html = document().page().to_html();
        assert_eq!(html.matches("<figure>").count(), 2);
        for text in [
            "holds weakly: ×\u{a0}2.00",
            "×\u{a0}3.80",
            "A note.",
            "Less.",
            "holds from ×\u{a0}3.00",
        ] {
            assert!(html.contains(text), "{text}");
        }
    }

    #[test]
    fn a_plot_with_named_places_has_a_table() {
        let document = document();
        let table = document.sections[0].plots[0].table().unwrap();
        assert_eq!(table.rows(), [["64", "2.00"], ["128", "1.00"]]);
        assert_eq!(Plot::new("t", "x", "u").line("a", vec![(1.0, 2.0)]).table(), None);
        assert_eq!(document.verdicts().rows()[0][5], "holds weakly");
    }
}
