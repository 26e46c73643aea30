//! A report as a document for programs: JSON, whose form has a version, and CSV.

use std::fmt::Write as _;

use document::Document;
use schemars::JsonSchema;
use scope_model::{Config, CostEvent, Costs, Counters, L2_BYTES, TLB_ENTRIES};
use scope_result::{InterfaceFrames, Provenance, Work};
use serde::Serialize;
use serde_json::Value;

use crate::filter::FilterArgs;
use crate::source_lines::{Place, SourceLines};
use crate::summary::{Part, Summary, function_name, mode_name};

/// The counts of each function, in total.
#[derive(JsonSchema, Serialize)]
pub struct ReportData<'a> {
    /// The modelled processor.
    model: Model,
    /// The costs in model cycles.
    costs: Costs,
    /// The work between the marks.
    work: &'a Work,
    /// Frames by interface.
    interfaces: &'a [InterfaceFrames],
    /// What the recording was made with.
    provenance: &'a Provenance,
    /// Counts of everything.
    total: Row,
    /// Counts of each function in each domain, the most expensive first. CSV has these rows.
    functions: Vec<Row>,
    /// Counts of source lines, of programs with debug information.
    lines: Vec<LineRow<'a>>,
}

impl Document for ReportData<'_> {
    const SCHEMA: &'static str = "pvscope-report/1";
}

/// The counts of a source line in a function.
#[derive(JsonSchema, Serialize)]
struct LineRow<'a> {
    /// The source file; of inlined code, that of the code.
    file: &'a str,
    /// The line in it.
    line: u32,
    /// The functions that were inlined there, the outermost first.
    inlined: Vec<InlinedRow<'a>>,
    #[serde(flatten)]
    row: Row,
}

/// An inlined function, and where it is called.
#[derive(JsonSchema, Serialize)]
struct InlinedRow<'a> {
    /// Its name.
    inlined_function: &'a str,
    /// The file in which the function around it calls it.
    call_file: &'a str,
    /// The line of that call.
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
    /// The preset that it began with.
    preset: &'static str,
    /// The size of L1I, and of L1D.
    l1_bytes: usize,
    /// The size of L2.
    l2_bytes: usize,
    /// The size of L3, if it has one.
    l3_bytes: Option<usize>,
    /// Entries of each first-level TLB for small pages.
    tlb_entries: u16,
    /// Entries of the second level, if it has one.
    tlb2_entries: Option<u16>,
    /// What the TLBs keep over flushes (`run --tlb-policy`).
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
    /// The domain, or Xen.
    who: String,
    /// `hypervisor`, `kernel` or `user`.
    code: String,
    /// The program, library or kernel; `unknown` where there is no name.
    module: String,
    /// The function; `unknown` where there is no name.
    function: String,
    /// The counts below times the costs.
    model_cycles: f64,
    /// Executions of blocks.
    executions: u64,
    /// Instructions.
    instructions: u64,
    /// Lookups in L1I: the lines of code of each block.
    l1i_lines: u64,
    /// Lookups in L1D for reads: a line once per access.
    l1d_reads: u64,
    /// Lookups in L1D for writes.
    l1d_writes: u64,
    /// Lines of code that L1I missed.
    l1i_misses: u64,
    /// Lines that L1D missed for reads.
    l1d_read_misses: u64,
    /// Lines that L1D missed for writes.
    l1d_write_misses: u64,
    /// Of all lines that L1 missed, those next to one used shortly before.
    l1_sequential: u64,
    /// Lines that L2 missed.
    l2_misses: u64,
    /// Of these, those next to one used shortly before.
    l2_sequential: u64,
    /// Lines from memory.
    memory: u64,
    /// Of these, those next to one used shortly before.
    memory_sequential: u64,
    /// Pages of code that the first level of TLBs missed.
    itlb_misses: u64,
    /// Pages of data that the first level of TLBs missed.
    dtlb_misses: u64,
    /// Walks of the page tables.
    page_walks: u64,
    /// Other events, by the names of their costs; a column each in CSV.
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

    /// Its line: the columns before those of the events, and these.
    fn csv(&self) -> String {
        let row = serde_json::to_value(self).unwrap_or_default();
        let cell = |name: &str| match &row[name] {
            Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            _ if name == "model_cycles" => format!("{:.1}", self.model_cycles),
            count => count.to_string(),
        };
        let events = self.events.values().map(ToString::to_string);
        COLUMNS.split(',').map(cell).chain(events).collect::<Vec<_>>().join(",")
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

    /// The names of properties below a part of a schema that have no description.
    fn undescribed(part: &serde_json::Value, found: &mut Vec<String>) {
        for (key, value) in part.as_object().into_iter().flatten() {
            let properties = value.as_object().filter(|_| key == "properties");
            for (name, property) in properties.into_iter().flatten() {
                if property.get("description").is_none() && name != "schema" {
                    found.push(name.clone());
                }
            }
            undescribed(value, found);
        }
    }

    #[test]
    fn the_schema_describes_every_field() {
        let recording = with_lines();
        let summary = Summary::new(&recording, Costs::default());
        document::checked(&ReportData::new(&summary, &FilterArgs::default()));
        let mut found = Vec::new();
        undescribed(&document::schema::<ReportData<'_>>(), &mut found);
        assert_eq!(found, [""; 0]);
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
        // Each column has a field of its name.
        assert!(!csv.contains("null"), "{csv}");
        for name in lines[0].split(',').filter(|name| !name.is_empty()) {
            let row = &functions[0];
            assert!(!row[name].is_null() || !row["events"][name].is_null(), "{name}");
        }
        assert!(csv.contains("\"dom0\",\"kernel\",\"vmlinux\",\"tcp \"\"ack\"\"\""), "{csv}");
    }
}
