//! A report as a document for programs: JSON, whose form has a version, and CSV.

use std::fmt::Write as _;

use document::Document;
use schemars::JsonSchema;
use scope_model::{Config, CostEvent, Costs, Counters, L2_BYTES, TLB_ENTRIES};
use scope_result::{InterfaceFrames, Provenance, Work};
use serde::Serialize;

use crate::filter::FilterArgs;
use crate::source_lines::{Place, SourceLines};
use crate::summary::{Part, Summary, function_name, mode_name};

/// The counts of each function, in total.
#[derive(JsonSchema, Serialize)]
pub struct ReportData<'a> {
    model: Model,
    costs: Costs,
    work: &'a Work,
    interfaces: &'a [InterfaceFrames],
    provenance: &'a Provenance,
    total: Row,
    functions: Vec<Row>,
    lines: Vec<LineRow<'a>>,
}

impl Document for ReportData<'_> {
    const SCHEMA: &'static str = "pvscope-report/1";
}

/// The counts of a source line in a function.
#[derive(JsonSchema, Serialize)]
struct LineRow<'a> {
    file: &'a str,
    line: u32,
    inlined: Vec<InlinedRow<'a>>,
    #[serde(flatten)]
    row: Row,
}

/// An inlined function, and where it is called.
#[derive(JsonSchema, Serialize)]
struct InlinedRow<'a> {
    inlined_function: &'a str,
    call_file: &'a str,
    call_line: u32,
}

impl<'a> LineRow<'a> {
    fn new(summary: &Summary<'a>, place: &Place, counters: &Counters) -> Self {
        let recording = summary.recording;
        let name = |names: &'a [String], number: u32| {
            names.get(number as usize).map_or("", String::as_str)
        };
        let inlined = place.inlined.iter().map(|inlined| InlinedRow {
            inlined_function: name(&recording.inlined, inlined.name),
            call_file: name(&recording.files, inlined.call.file),
            call_line: inlined.call.line,
        });
        Self {
            file: name(&recording.files, place.line.file),
            line: place.line.line,
            inlined: inlined.collect(),
            row: Row::new(summary, Some(&place.part), counters),
        }
    }
}

/// The modelled processor.
#[derive(JsonSchema, Serialize)]
pub struct Model {
    preset: &'static str,
    l1_bytes: usize,
    l2_bytes: usize,
    l3_bytes: Option<usize>,
    tlb_entries: u16,
    tlb2_entries: Option<u16>,
    tlb_policy: &'static str,
}

impl Model {
    /// The processor of these sizes.
    pub fn new(config: &Config) -> Self {
        Self {
            preset: config.preset.name(),
            l1_bytes: config.l1_bytes,
            l2_bytes: L2_BYTES[config.l2],
            l3_bytes: config.l3.map(|l3| L2_BYTES[l3]),
            tlb_entries: TLB_ENTRIES[config.tlb],
            tlb2_entries: config.tlb2.map(|tlb2| TLB_ENTRIES[tlb2]),
            tlb_policy: config.policy.name(),
        }
    }
}

/// The counts of a function in a domain. All are totals, not per frame.
#[derive(JsonSchema, Serialize)]
struct Row {
    who: String,
    code: String,
    module: String,
    function: String,
    model_cycles: f64,
    executions: u64,
    instructions: u64,
    l1i_lines: u64,
    l1d_reads: u64,
    l1d_writes: u64,
    l1i_misses: u64,
    l1d_read_misses: u64,
    l1d_write_misses: u64,
    l1_sequential: u64,
    l2_misses: u64,
    l2_sequential: u64,
    memory: u64,
    memory_sequential: u64,
    itlb_misses: u64,
    dtlb_misses: u64,
    page_walks: u64,
    events: std::collections::BTreeMap<&'static str, u64>,
}

impl Row {
    fn new(summary: &Summary<'_>, part: Option<&Part>, counters: &Counters) -> Self {
        let (module, function) =
            part.map_or_else(Default::default, |part| function_name(&part.function));
        let names = Costs::default().event.named().map(|(name, _)| name);
        let events = names.into_iter().zip(counters.events);
        Self {
            who: part.map_or("all".to_owned(), |part| part.who.to_string()),
            code: part.map_or("", |part| mode_name(part.mode)).to_owned(),
            module,
            function,
            model_cycles: summary.cycles(counters),
            executions: counters.executions,
            instructions: counters.instructions,
            l1i_lines: counters.l1i,
            l1d_reads: counters.reads,
            l1d_writes: counters.writes,
            l1i_misses: counters.l1i_misses,
            l1d_read_misses: counters.read_misses,
            l1d_write_misses: counters.write_misses,
            l1_sequential: counters.l1_sequential,
            l2_misses: counters.l2i_misses + counters.l2d_misses,
            l2_sequential: counters.l2_sequential,
            memory: counters.l3_misses,
            memory_sequential: counters.l3_sequential,
            itlb_misses: counters.itlb_misses,
            dtlb_misses: counters.dtlb_misses,
            page_walks: counters.page_walks,
            events: events.collect(),
        }
    }

    fn csv(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let names = [&self.who, &self.code, &self.module, &self.function].map(|name| quoted(name));
        let counts = [
            self.executions,
            self.instructions,
            self.l1i_lines,
            self.l1d_reads,
            self.l1d_writes,
            self.l1i_misses,
            self.l1d_read_misses,
            self.l1d_write_misses,
            self.l1_sequential,
            self.l2_misses,
            self.l2_sequential,
            self.memory,
            self.memory_sequential,
            self.itlb_misses,
            self.dtlb_misses,
            self.page_walks,
        ];
        let counts = counts.iter().chain(self.events.values()).map(ToString::to_string);
        let cycles = format!("{:.1}", self.model_cycles);
        let cells: Vec<String> = names.into_iter().chain([cycles]).chain(counts).collect();
        cells.join(",")
    }
}

/// The names of the columns before those of the events.
const COLUMNS: &str = "who,code,module,function,model_cycles,executions,instructions,l1i_lines,l1d_reads,l1d_writes,\
                       l1i_misses,l1d_read_misses,l1d_write_misses,l1_sequential,l2_misses,l2_sequential,memory,memory_sequential,itlb_misses,dtlb_misses,page_walks";

impl<'a> ReportData<'a> {
    /// The counts of a recording, the most expensive function first. The filter selects lines, as it has selected functions.
    pub fn new(summary: &Summary<'a>, filter: &FilterArgs) -> Self {
        let functions = summary.by(Part::clone);
        let places = SourceLines::new(summary.recording).places(filter);
        Self {
            model: Model::new(&summary.recording.config),
            costs: *summary.costs(),
            work: &summary.recording.work,
            interfaces: &summary.recording.frames,
            provenance: &summary.recording.provenance,
            total: Row::new(summary, None, &summary.total),
            functions: functions
                .iter()
                .map(|(part, counters)| Row::new(summary, Some(part), counters))
                .collect(),
            lines: places
                .iter()
                .map(|(place, counters)| LineRow::new(summary, place, counters))
                .collect(),
        }
    }

    /// One line for each function, below a line of names.
    pub fn csv(&self) -> String {
        let mut text = COLUMNS.to_owned();
        // A row's events are sorted by name.
        self.total.events.keys().for_each(|name| {
            let _ = write!(text, ",{name}");
        });
        text.push('\n');
        for row in &self.functions {
            text += &row.csv();
            text.push('\n');
        }
        text
    }
}

/// The number of events, which have a column each.
const _: () = assert!(CostEvent::ALL.len() == 9, "the schema names nine events");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::recording;
    use crate::source_lines::tests::recording as with_lines;
    use scope_result::FileDigest;

    /// The names in the first column of the tables below a heading of the documentation.
    fn documented() -> Vec<String> {
        let text = include_str!("../../../../docs/pvscope.md");
        let (_, section) = text.split_once("\n## For programs\n").expect("the section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split('|').next());
        let names = cells.flat_map(|cell| cell.split('`').map(str::to_owned).collect::<Vec<_>>());
        names.filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).collect()
    }

    #[test]
    fn every_field_is_documented_and_every_documented_field_exists() {
        let mut recording = with_lines();
        recording.provenance.images.push(FileDigest::default());
        let summary = Summary::new(&recording, Costs::default());
        let data = ReportData::new(&summary, &FilterArgs::default());
        let json = document::checked(&data);
        let fields = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
        };
        let mut expected = fields(&json);
        let line = json["lines"].as_array().and_then(|lines| {
            lines.iter().find(|line| line["inlined"].as_array().is_some_and(|all| !all.is_empty()))
        });
        let line = line.expect("a line of an inlined function");
        let (provenance, inlined) = (&json["provenance"], &line["inlined"][0]);
        for value in [&json["total"], line, inlined, provenance, &provenance["images"][0]] {
            expected.extend(fields(value));
        }
        let mut documented: Vec<String> =
            documented().into_iter().filter(|name| !name.is_empty()).collect();
        expected.sort();
        expected.dedup();
        documented.sort();
        documented.dedup();
        assert_eq!(documented, expected);
    }

    #[test]
    fn both_forms_have_every_function_and_the_same_columns() {
        let recording = recording();
        let summary = Summary::new(&recording, Costs::default());
        let data = ReportData::new(&summary, &FilterArgs::default());
        let json: serde_json::Value = serde_json::to_value(&data).expect("JSON");
        assert_eq!(json["total"]["instructions"], 111);
        assert_eq!(json["model"]["l2_bytes"], 1 << 20);
        let functions = json["functions"].as_array().expect("a list");
        assert_eq!(functions.len(), 3);
        let csv = data.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 4);
        let columns = |line: &str| line.split(',').count();
        assert!(lines.iter().all(|line| columns(line) == columns(lines[0])), "{csv}");
        for name in lines[0].split(',').filter(|name| !name.is_empty()) {
            let row = &functions[0];
            assert!(!row[name].is_null() || !row["events"][name].is_null(), "{name}");
        }
        assert!(csv.contains("\"dom0\",\"kernel\",\"vmlinux\",\"tcp \"\"ack\"\"\""), "{csv}");
    }
}
