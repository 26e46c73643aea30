//! Shows a benchmark: a table for the terminal, and a page with plots.

use report::html::{BarChart, Report, StackedChart};
use report::{Benchmark, Row, Table, human};

use crate::error::{Error, Result};
use crate::output;

/// The subjects' names in rows, and in tables.
const SUBJECTS: [(&str, &str); 3] =
    [("pvnet", "pvnet"), ("same-shape", "same shape"), ("veth-bridge", "veth + bridge")];

/// A benchmark for programs and for people.
pub struct Shown {
    /// Its rows.
    pub benchmark: Benchmark,
    /// For the terminal.
    pub table: Table,
    /// Sentences below the table, if there are any.
    pub notes: String,
    /// For a browser.
    pub page: Report,
}

impl From<Benchmark> for Shown {
    /// The table and the page that suit any benchmark.
    fn from(benchmark: Benchmark) -> Self {
        let (table, page) = (table(&benchmark), page(&benchmark));
        Self { benchmark, table, notes: String::new(), page }
    }
}

impl Shown {
    /// Prints a summary of the machine, the table and the notes.
    pub fn print(&self) -> Result<()> {
        output::print(&format!("{}\n\n", self.benchmark.machine.summary()))?;
        self.table.print().map_err(Error::Print)?;
        match self.notes.as_str() {
            "" => Ok(()),
            notes => output::print(&format!("\n{notes}\n")),
        }
    }
}

/// The part of a row's name before the subject.
fn case(row: &Row) -> &str {
    row.name.split_once('/').map_or(&row.name, |(case, _)| case)
}

/// The cases, each once, in their order.
fn cases(benchmark: &Benchmark) -> Vec<&str> {
    let mut cases: Vec<&str> = benchmark.rows.iter().map(case).collect();
    let mut seen = std::collections::BTreeSet::new();
    cases.retain(|case| seen.insert(*case));
    cases
}

/// The rows of a case, one per subject. A row without a subject is pvnet's.
fn rows<'a>(benchmark: &'a Benchmark, case: &str) -> [Option<&'a Row>; 3] {
    let mut rows = SUBJECTS.map(|(name, _)| benchmark.row(&format!("{case}/{name}")));
    rows[0] = rows[0].or_else(|| benchmark.row(case));
    rows
}

/// Which subjects have rows. pvnet has.
fn present(benchmark: &Benchmark) -> [bool; 3] {
    let cases = cases(benchmark);
    let has_rows =
        |subject: usize| cases.iter().any(|case| rows(benchmark, case)[subject].is_some());
    [true, has_rows(1), has_rows(2)]
}

/// Those of the subjects that have rows.
fn of_present<T>(present: [bool; 3], all: [T; 3]) -> impl Iterator<Item = T> {
    all.into_iter().zip(present).filter_map(|(one, is_present)| is_present.then_some(one))
}

fn table(benchmark: &Benchmark) -> Table {
    let compared = benchmark.rows.iter().any(|row| row.ratio.is_some());
    let present = present(benchmark);
    let mut table = Table::new().left("case").left("unit").right("pvnet: median (min–max)");
    for (_, name) in of_present(present, SUBJECTS).skip(1) {
        table = table.right(name);
    }
    if compared {
        table = table.right("ratio");
    }
    for case in cases(benchmark) {
        let rows = rows(benchmark, case);
        let unit = rows.iter().flatten().next().map_or("", |row| &row.unit);
        let numbers = rows.map(|row| row.map_or(String::new(), |row| row.stats.spread()));
        let ratio = rows[0].and_then(|row| row.ratio.as_ref()).map(|ratio| human(ratio.value));
        let mut cells = vec![case.to_owned(), unit.to_owned()];
        cells.extend(of_present(present, numbers));
        if compared {
            cells.push(ratio.unwrap_or_default());
        }
        table.row(cells);
    }
    table
}

/// The page: the table, a chart for each unit, processor time where it was measured.
fn page(benchmark: &Benchmark) -> Report {
    let mut page = Report::new(format!("pvnet-lab bench {}", benchmark.bench));
    let rounds = benchmark.rows.iter().map(|row| row.stats.n).max().unwrap_or(0);
    page.lead(&format!(
        "Medians of {rounds} rounds. Compared subjects were measured in turn, in one run."
    ));
    page.table("", &table(benchmark));
    let mut units: Vec<&str> = benchmark.rows.iter().map(|row| row.unit.as_str()).collect();
    units.dedup();
    let mut seen = std::collections::BTreeSet::new();
    for unit in units.into_iter().filter(|unit| seen.insert(*unit)) {
        page.figure(&bars(benchmark, unit), "Bars are medians, whiskers the extremes.");
    }
    if benchmark.rows.iter().any(|row| row.cpu.is_some()) {
        let caption = "CPU seconds per second. All time that is neither the daemon's nor idle \
                       counts as guest: stacks, programs, frontends, and other programs that ran.";
        page.figure(&processors(benchmark), caption);
    }
    page.machine(&benchmark.machine);
    page
}

fn bars(benchmark: &Benchmark, unit: &str) -> BarChart {
    let of_unit = |case: &&str| rows(benchmark, case).iter().flatten().any(|row| row.unit == unit);
    let cases: Vec<&str> = cases(benchmark).into_iter().filter(of_unit).collect();
    let present = present(benchmark);
    let mut chart = BarChart::new(format!("{}, {unit}", benchmark.bench), unit);
    if present[1..].contains(&true) {
        chart = chart.series(of_present(present, SUBJECTS.map(|(_, name)| name)));
    }
    for case in cases {
        let stats = rows(benchmark, case).map(|row| row.map(|row| row.stats));
        chart = chart.group(case, of_present(present, stats));
    }
    chart
}

fn processors(benchmark: &Benchmark) -> StackedChart {
    let rows = benchmark.rows.iter();
    rows.fold(StackedChart::cpu("Where the processors' time went"), |chart, row| match &row.cpu {
        Some(cpu) => chart.split(&*row.name, cpu),
        None => chart,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::Rows;

    fn benchmark() -> Benchmark {
        let mut rows = Rows::default();
        for value in [90.0, 100.0, 110.0] {
            rows.push("tcp-1/pvnet", "Mb/s", value);
            rows.push("tcp-1/veth-bridge", "Mb/s", value * 2.0);
        }
        rows.push("idle-cpu", "%", 0.5);
        rows.finish("sample")
    }

    #[test]
    fn subjects_stand_side_by_side() {
        let table = table(&benchmark());
        assert_eq!(
            table.rows(),
            [
                ["tcp-1", "Mb/s", "100 (90.0–110)", "200 (180–220)", "0.500"],
                ["idle-cpu", "%", "0.500", "", ""]
            ]
        );
    }

    #[test]
    fn a_page_has_a_chart_for_each_unit() {
        let page = page(&benchmark()).to_html();
        assert_eq!(page.matches("<figure>").count(), 2);
        assert!(page.contains("veth + bridge") && page.contains("Medians of 3 rounds"));
    }
}
