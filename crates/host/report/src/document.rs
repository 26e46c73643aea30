//! The benchmark document: what `pvnet-lab bench … --json FILE` writes and what compares two runs reads.
//!
//! ```json
//! {"schema":"pvnet-bench/1","bench":"stream","machine":{…},
//!  "rows":[{"name":"tcp-1/pvnet","unit":"Mb/s","median":9410.0,"min":9377.0,"max":9433.0,"n":5}]}
//! ```

use crate::{Error, Machine, Stats, file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One benchmark's results on one machine.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Benchmark {
    /// Which benchmark, such as `stream`, `pps` or `latency`.
    pub bench: String,
    /// Where and when it ran.
    pub machine: Machine,
    /// The measurements, in the order they were taken.
    pub rows: Vec<Row>,
}

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Row {
    /// `case/subject`, such as `tcp-1/pvnet`.
    pub name: String,
    /// The unit of the statistics, such as `Mb/s`, `packets/s` or `µs`.
    pub unit: String,
    /// Median, min, max and n, written as fields of the row itself.
    #[serde(flatten)]
    pub stats: Stats,
    /// How this row compares with another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// Where the processors' time went while it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSplit>,
    /// Fields that only this benchmark has, or that a newer pvnet wrote; kept as they are.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// This row compared with another one.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Ratio {
    /// The name of the other row.
    pub to: String,
    /// The quotient of their medians, or the median of the quotients of their rounds.
    pub value: f64,
}

/// Processor time by who spent it, in CPU seconds per second of measurement: the four add up to the machine's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CpuSplit {
    /// The guests: their stacks, programs and frontends.
    pub guest: f64,
    /// The driver domain: backend, switch and uplink.
    pub driver: f64,
    /// The hypervisor's part: grant checks, copies and events.
    pub hypervisor: f64,
    /// Nobody.
    pub idle: f64,
}

impl document::Document for Benchmark {
    const SCHEMA: &str = "pvnet-bench/1";
}

impl CpuSplit {
    /// The mean of several: its parts still add up to the machine's CPUs. None if there are none.
    #[must_use]
    pub fn mean(splits: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut sum = Self::default();
        let mut n = 0.0;
        for Self { guest, driver, hypervisor, idle } in splits {
            sum.guest += guest;
            sum.driver += driver;
            sum.hypervisor += hypervisor;
            sum.idle += idle;
            n += 1.0;
        }
        let Self { guest, driver, hypervisor, idle } = sum;
        (n > 0.0).then(|| Self {
            guest: guest / n,
            driver: driver / n,
            hypervisor: hypervisor / n,
            idle: idle / n,
        })
    }
}

impl Benchmark {
    /// A document about this machine, now, with no rows yet.
    #[must_use]
    pub fn new(bench: impl Into<String>) -> Self {
        Self { bench: bench.into(), machine: Machine::detect(), rows: Vec::new() }
    }

    /// The row of that name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Notes, in the row `name`, its median over that of the row `to`. Does nothing if either is missing or the
    /// other's median is zero: there is no ratio then.
    pub fn compare(&mut self, name: &str, to: &str) {
        let Some(base) = self.row(to).map(|row| row.stats.median).filter(|median| *median != 0.0)
        else {
            return;
        };
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.ratio = Some(Ratio { to: to.to_owned(), value: row.stats.median / base });
        }
    }

    /// The document as a line of JSON, with the name of its schema.
    ///
    /// # Errors
    /// [`Error::Json`] if a row holds a value that JSON cannot carry.
    pub fn to_json(&self) -> Result<String, Error> {
        Ok(document::line(self)?)
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Json`] if the text has another shape, [`Error::Row`] if a row's statistics contradict themselves.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let document: Self = serde_json::from_str(json)?;
        match document.rows.iter().find(|row| !row.stats.is_consistent()) {
            Some(row) => Err(Error::Row { name: row.name.clone() }),
            None => Ok(document),
        }
    }

    /// Writes the document to `path` in one step (see [`crate::write_atomic`]).
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        file::write_atomic(path, self.to_json()?.as_bytes())
    }

    /// Reads the document at `path`.
    ///
    /// # Errors
    /// [`Error::Read`], or [`Error::InFile`] round those of [`from_json`](Self::from_json).
    pub fn read(path: &Path) -> Result<Self, Error> {
        let in_file = |cause| Error::InFile { path: path.to_owned(), cause: Box::new(cause) };
        Self::from_json(&file::read(path)?).map_err(in_file)
    }
}

impl Row {
    /// A row with nothing but its statistics.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: impl Into<String>, stats: Stats) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            stats,
            ratio: None,
            cpu: None,
            extra: BTreeMap::new(),
        }
    }

    /// The row with the split of processor time.
    #[must_use]
    pub fn with_cpu(mut self, cpu: CpuSplit) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// The row with a field of its own.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(field.into(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine() -> Machine {
        Machine {
            cpu: "Test CPU".into(),
            cpus: 2,
            cache_line_ns: None,
            memory_bytes: 1 << 30,
            kernel: "6.1.0".into(),
            virtualised: true,
            pvnet: "0.1.0".into(),
            date: "2026-11-21T01:05:09Z".into(),
        }
    }

    fn document(rows: Vec<Row>) -> Benchmark {
        Benchmark { bench: "stream".into(), machine: machine(), rows }
    }

    #[test]
    fn the_shape_is_the_documented_one() {
        let stats = Stats { median: 9410.5, min: 9377.0, max: 9433.0, n: 5 };
        let json = document(vec![Row::new("tcp-1/pvnet", "Mb/s", stats)]).to_json().expect("json");
        let expected = concat!(
            r#"{"schema":"pvnet-bench/1","bench":"stream","machine":{"cpu":"Test CPU","cpus":2,"memory_bytes":1073741824,"kernel":"6.1.0","#,
            r#""virtualised":true,"pvnet":"0.1.0","date":"2026-11-21T01:05:09Z"},"#,
            r#""rows":[{"name":"tcp-1/pvnet","unit":"Mb/s","median":9410.5,"min":9377.0,"max":9433.0,"n":5}]}"#,
            "\n",
        );
        assert_eq!(json, expected);
    }

    #[test]
    fn what_is_written_is_as_the_schema_says() {
        let cpu = CpuSplit { guest: 0.5, driver: 0.75, hypervisor: 0.25, idle: 0.5 };
        let full = Row::new("a", "Mb/s", Stats::single(4.0)).with_cpu(cpu).with("retransmits", 3);
        let mut written = document(vec![full, Row::new("b", "Mb/s", Stats::single(8.0))]);
        written.compare("a", "b");
        let json = serde_json::from_str(&written.to_json().expect("json")).expect("json");
        let schema = document::schema::<Benchmark>();
        assert_eq!(document::errors(&schema, &json), [""; 0]);
        for (place, value) in [("/rows/0/n", "1".into()), ("/machine/cpus", Value::Null)] {
            let mut other = json.clone();
            *other.pointer_mut(place).expect(place) = value;
            assert!(!document::errors(&schema, &other).is_empty(), "{place}");
        }
    }

    #[test]
    fn extra_fields_travel_both_ways() {
        let cpu = CpuSplit { guest: 0.5, driver: 0.75, hypervisor: 0.25, idle: 0.5 };
        let row = Row::new("tcp-1/pvnet", "Mb/s", Stats::single(4.0))
            .with_cpu(cpu)
            .with("retransmits", 3);
        let mut written = document(vec![row, Row::new("tcp-1/bridge", "Mb/s", Stats::single(8.0))]);
        written.compare("tcp-1/pvnet", "tcp-1/bridge");

        let read = Benchmark::from_json(&written.to_json().expect("json")).expect("own output");
        assert_eq!(read, written);
        let row = read.row("tcp-1/pvnet").expect("row");
        assert_eq!(row.ratio, Some(Ratio { to: "tcp-1/bridge".into(), value: 0.5 }));
        assert_eq!(row.extra["retransmits"], 3);
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        let mut rows = document(vec![
            Row::new("a", "s", Stats::single(1.0)),
            Row::new("b", "s", Stats::single(0.0)),
        ]);
        rows.compare("a", "b");
        rows.compare("a", "absent");
        assert_eq!(rows.row("a").expect("row").ratio, None);
    }

    #[test]
    fn impossible_statistics_are_refused_by_name() {
        let stats = Stats { median: 1.0, min: 2.0, max: 3.0, n: 3 };
        let json = document(vec![Row::new("upside-down", "s", stats)]).to_json().expect("json");
        let message = Benchmark::from_json(&json).expect_err("min > median").to_string();
        assert!(message.contains("upside-down"), "{message}");
    }

    #[test]
    fn errors_in_a_file_name_the_file() {
        let folder = host::TempDir::new().unwrap();
        let path = folder.path().join("document.json");
        file::write_atomic(&path, b"{\"bench\":1}").expect("write");
        let message = Benchmark::read(&path).expect_err("not a document").to_string();
        assert!(message.starts_with(&path.display().to_string()), "{message}");

        let written = document(vec![Row::new("a", "s", Stats::single(1.0))]);
        written.write(&path).expect("write");
        assert_eq!(Benchmark::read(&path).expect("read"), written);
    }

    proptest! {
        #[test]
        fn any_row_survives_the_journey(
            name in ".*",
            unit in ".*",
            values in prop::collection::vec(-1e300..1e300f64, 1..9),
        ) {
            let stats = values.into_iter().collect::<crate::Samples>().stats().expect("some");
            let written = document(vec![Row::new(name, unit, stats)]);
            prop_assert_eq!(Benchmark::from_json(&written.to_json().expect("json")).expect("own output"), written);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".*") {
            let _ = Benchmark::from_json(&text);
        }
    }
}
