//! The metrics that the daemon serves: each number of a port's status is in one, or there is a reason why not; each is documented; and
//! the packaged dashboard and alert rules name no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

use control_socket::{
    BatchStatus, Counts, CpuStatus, DeviceDrops, GroStatus, GuardStatus, GuestCopyStatus,
    GuestQueueStatus, Histogram, IgnoredKey, KeptPages, LastDisabled, LimitStatus, LimitedPackets,
    LockWaits, MappedMemory, MemoryStatus, MirrorStatus, MulticastStatus, PersistentStatus,
    PortKind, PortState, PortStatus, Rates, Reason, Status, ToolstackStatus, View, VlanStatus,
    WorkerStatus, XdpQueueStatus,
};
use serde_json::Value;

use super::render;
use crate::status::tests::nic;

const DASHBOARD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/grafana/pvnet.json"));
const RULES: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../packaging/prometheus/pvnet.rules.yml"
));

/// Metrics of Prometheus itself, and labels that it adds to all.
const OF_PROMETHEUS: [&str; 1] = ["up"];
const ADDED: [&str; 2] = ["instance", "job"];

type Labels = BTreeSet<String>;

/// The status of a daemon in which everything is configured.
pub(super) fn everything() -> Status {
    let histogram = Histogram { count: 1, sum: 1, buckets: [(1, 1)].into() };
    let batches = BatchStatus {
        ingress_frames: histogram.clone(),
        egress_frames: histogram.clone(),
        nanoseconds: histogram,
        worker_nanoseconds: 1,
    };
    let rates = Rates { bytes_per_second: Some(1), packets_per_second: Some(1) };
    let pages = KeptPages { mapped: 1, hits: 1, misses: 1, evictions: 1 };
    let view = Some(View { large: 1, total: 1 });
    let ignored = IgnoredKey { key: "script".into(), value: "x".into(), why: "a test".into() };
    let port = PortStatus {
        domain: Some(1),
        mac: Some("02:00:00:00:00:01".into()),
        device: Some("vif1.0".into()),
        reason: Some(Reason::Stalled),
        reason_text: Some("stalled".into()),
        last_disabled: Some(LastDisabled { reason: "req_prod 1".into(), seconds_ago: 7 }),
        guard: Some(GuardStatus::Mac),
        limit: Some(LimitStatus {
            ingress: Some(rates),
            egress: Some(rates),
            packets: LimitedPackets::default(),
        }),
        toolstack: ToolstackStatus { rate: true, ignored: vec![ignored] },
        vlans: Some(VlanStatus { vlan: Some(1), trunk: vec![1], native: Some(1), isolated: true }),
        memory: Some(MemoryStatus { reservation: 1, huge_pages: true, daemon: view, guest: view }),
        mapped_memory: Some(MappedMemory { bytes: 1, limit: 1 }),
        persistent_grants: Some(PersistentStatus { bound: 1, bytes: 1, tx: pages, rx: pages }),
        guest_copy: Some(GuestCopyStatus::default()),
        guest_queues: vec![GuestQueueStatus {
            guest: Some("red".into()),
            copied: [("later".into(), 1)].into(),
            reason: Some("gone".into()),
            ..GuestQueueStatus::default()
        }],
        gro: GroStatus { segments: 1, frames: 1 },
        gso_checksum_fixups: 1,
        lock_waits: LockWaits { count: 1, nanoseconds: 1 },
        drops: Counts::new(|_| 1),
        guest_hash: true,
        device_drops: Some(DeviceDrops::default()),
        socket_drops: Some(1),
        xdp: vec![XdpQueueStatus { queue: 1, zero_copy: true, dropped: 1 }],
        refused_connections: 1,
        batches,
        ..PortStatus::new("red", PortKind::Guest, PortState::Up)
    };
    Status {
        pid: std::process::id(),
        ports: vec![port],
        mirrors: vec![MirrorStatus::default()],
        nics: vec![nic(1)],
        cpu: Some(CpuStatus::default()),
        workers: vec![WorkerStatus::default()],
        multicast: Some(MulticastStatus::default()),
        ..Status::default()
    }
}

/// Its metrics, with their labels.
fn served() -> BTreeMap<String, Labels> {
    // A worker's thread, until this function ends.
    let (ready, is_ready) = mpsc::channel();
    let (_stop, until) = mpsc::channel::<()>();
    let worker = std::thread::Builder::new().name("worker-0".to_owned());
    let worker = worker.spawn(move || (ready.send(()), until.recv()));
    worker.and_then(|_| is_ready.recv().map_err(std::io::Error::other)).unwrap();
    let text = render(everything()).unwrap();
    let mut served = BTreeMap::<String, Labels>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
        served.entry(name.to_owned()).or_default().extend(labels.map(ToOwned::to_owned));
    }
    served
}

/// What a PromQL expression names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// Each metric with the labels that it is selected by.
    metrics: Vec<(String, Labels)>,
    /// Labels that series are grouped or matched by.
    grouping: Labels,
}

impl Named {
    /// Enough of PromQL's grammar for selectors, functions, aggregations and matching.
    fn in_expression(text: &str) -> Self {
        let mut named = Self::default();
        let text = without_ranges(&without_strings(text));
        let mut rest = text.as_str();
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let is_number = rest[..start].ends_with(|c: char| c.is_ascii_digit() || c == '.');
            rest = &rest[start..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
            rest = behind.trim_start();
            match word {
                "by" | "on" | "without" | "ignoring" | "group_left" | "group_right" => {
                    let (labels, behind) = rest.split_once(')').unwrap_or_default();
                    named.grouping.extend(words(labels));
                    rest = behind;
                }
                "and" | "or" | "unless" | "offset" | "bool" => {}
                "sum" | "max" | "min" | "avg" | "count" => {}
                _ if is_number || rest.starts_with('(') => {}
                _ => {
                    let mut labels = Labels::new();
                    if let Some((matchers, behind)) =
                        rest.strip_prefix('{').and_then(|rest| rest.split_once('}'))
                    {
                        labels.extend(words(matchers));
                        rest = behind;
                    }
                    named.metrics.push((word.to_owned(), labels));
                }
            }
        }
        named
    }

    /// Fails if the daemon does not serve something of this. `shown` are the labels that a text shows.
    fn assert_served(&self, served: &BTreeMap<String, Labels>, shown: &Labels, whence: &str) {
        assert!(!self.metrics.is_empty(), "no metric in {whence}");
        let mut all: Labels = ADDED.map(ToOwned::to_owned).into();
        for (metric, labels) in &self.metrics {
            let own = match served.get(metric) {
                Some(labels) => labels.clone(),
                None if OF_PROMETHEUS.contains(&&**metric) => Labels::new(),
                None => panic!("nobody serves {metric}, in {whence}"),
            };
            let is_known =
                |label: &&String| own.contains(*label) || ADDED.contains(&label.as_str());
            let unknown: Vec<_> = labels.iter().filter(|label| !is_known(label)).collect();
            assert!(unknown.is_empty(), "{metric} has no label {unknown:?}, in {whence}");
            all.extend(own);
        }
        let unknown: Vec<_> =
            self.grouping.union(shown).filter(|label| !all.contains(*label)).collect();
        assert!(unknown.is_empty(), "no metric has the label {unknown:?}, in {whence}");
    }
}

/// The identifiers in a list of labels or of matchers without their strings.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).map(ToOwned::to_owned)
}

fn without_strings(text: &str) -> String {
    text.split('"').step_by(2).collect()
}

/// Without durations, and without Grafana's variables, which stand in their place.
fn without_ranges(text: &str) -> String {
    let parts = text.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// The labels in the templates of a text: `{{port}}` and `{{ $labels.port }}`.
fn shown(text: &str) -> Labels {
    let inner = text.split("{{").skip(1).filter_map(|part| Some(part.split_once("}}")?.0.trim()));
    let labels = inner.filter_map(|inner| match inner.strip_prefix('$') {
        None => Some(inner),
        Some(variable) => variable.strip_prefix("labels."),
    });
    labels.map(ToOwned::to_owned).collect()
}

/// Calls `each` for each object in a document.
fn objects<'a>(value: &'a Value, each: &mut impl FnMut(&'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            each(object);
            object.values().for_each(|value| objects(value, each));
        }
        Value::Array(values) => values.iter().for_each(|value| objects(value, each)),
        _ => {}
    }
}

#[test]
fn every_panel_of_the_dashboard_shows_something_that_is_served() {
    let (served, dashboard) = (served(), serde_json::from_str::<Value>(DASHBOARD).unwrap());
    let mut expressions = 0;
    objects(&dashboard, &mut |object| {
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        if let Some(expression) = text("expr") {
            let legend = shown(text("legendFormat").unwrap_or_default());
            Named::in_expression(expression).assert_served(&served, &legend, expression);
            expressions += 1;
        }
        // A variable: label_values(METRIC, LABEL).
        if let Some((inner, label)) = text("definition").and_then(|text| {
            text.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")
        }) {
            let label = [label.to_owned()].into();
            Named::in_expression(inner).assert_served(&served, &label, inner);
            expressions += 1;
        }
    });
    assert!(expressions > 20, "{expressions}");
}

/// A counter is in the metrics by its row, in the status by the field that the row names, and here an operator reads what it says.
#[test]
fn every_metric_is_in_the_table_of_the_operations_page() {
    let page = include_str!("../../../../../../docs/operations.md");
    let named = |metric: &String| {
        let histogram =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| metric.strip_suffix(end));
        [Some(&**metric), histogram]
            .into_iter()
            .flatten()
            .any(|name| page.contains(&format!("`{name}`")))
    };
    let missing: Vec<_> = served().into_keys().filter(|metric| !named(metric)).collect();
    assert_eq!(missing, [""; 0]);
}

/// Numbers of a port's status that are no metrics, alone or as a part of it, and why not.
const NOT_MEASURED: &[(&str, &str)] = &[
    ("/domain", "a name"),
    ("/last_disabled", "an event, which the log has"),
    ("/vlans", "names, from the configuration"),
    ("/memory", "takes /proc, which `pvnet status` reads and a scrape does not"),
    ("/persistent_grants/bound", "from the configuration"),
    ("/persistent_grants/bytes", "the pages are: pvnet_port_mapped_pages"),
    ("/guest_copy/pool_pages", "from the configuration"),
    ("/queues", "each is a series of pvnet_queue_worker"),
    ("/xdp/0/queue", "a name"),
    ("/xdp/0/dropped", "in socket_drops, with those of the other queues"),
];

/// The places of all numbers in a value.
fn numbers(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at.to_owned()),
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| numbers(value, &format!("{at}/{key}"), found));
        }
        Value::Array(values) => {
            (0..)
                .zip(values)
                .for_each(|(n, value): (u32, _)| numbers(value, &format!("{at}/{n}"), found));
        }
        _ => {}
    }
}

/// The fields of a schema that a value lacks, and lists without an item.
fn left_out(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        left_out(root, root.pointer(&name[1..]).unwrap(), value, at, found);
    }
    for one in schema["anyOf"].as_array().into_iter().flatten() {
        left_out(root, one, value, at, found);
    }
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fields = fields.map(|(key, schema)| (key.as_str(), schema, value.get(key)));
    let items = schema.get("items").map(|schema| ("0", schema, value.get(0)));
    for (key, schema, value) in fields.chain(items) {
        let at = format!("{at}/{key}");
        match value {
            Some(value) => left_out(root, schema, value, &at, found),
            None => found.push(at),
        }
    }
}

/// Each number is changed in turn, and the metrics must change with it.
#[test]
fn every_number_of_a_port_is_in_the_metrics_or_there_is_a_reason() {
    let port = serde_json::to_value(&everything().ports[0]).unwrap();
    let schema = document::schema::<Status>();
    let mut missing = Vec::new();
    left_out(&schema, &schema["$defs"]["PortStatus"], &port, "", &mut missing);
    assert_eq!(missing, [""; 0], "everything() leaves them out");
    let metrics = |port: Value| {
        let ports = vec![serde_json::from_value(port).unwrap()];
        render(Status { ports, ..Status::default() }).unwrap()
    };
    let is_in = |place: &str, part: &str| {
        place.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let (before, mut places) = (metrics(port.clone()), Vec::new());
    numbers(&port, "", &mut places);
    for place in &places {
        let mut other = port.clone();
        let number = other.pointer_mut(place).unwrap();
        *number = (number.as_u64().unwrap() + 1).into();
        let is_measured = metrics(other) != before;
        let reason = NOT_MEASURED.iter().find(|(part, _)| is_in(place, part));
        assert_ne!(
            is_measured,
            reason.is_some(),
            "{place}: in the metrics {is_measured}, {reason:?}"
        );
    }
    let is_there = |part: &str| places.iter().any(|place| is_in(place, part));
    assert!(NOT_MEASURED.iter().all(|(part, _)| is_there(part)));
}

#[test]
fn every_rule_asks_for_something_that_is_served() {
    let served = served();
    let mut rules = 0;
    for rule in RULES.split("- alert: ").skip(1) {
        let expression = rule.lines().find_map(|line| line.trim().strip_prefix("expr: "));
        let expression = expression.expect("an expression on one line");
        Named::in_expression(expression).assert_served(&served, &shown(rule), expression);
        rules += 1;
    }
    assert_eq!(rules, RULES.matches("expr:").count());
    assert!(rules > 10, "{rules}");
}

/// A port can be up and useless, as that of a virtual machine that shares no memory.
#[test]
fn each_reason_has_a_rule_whether_the_port_is_up_or_down() {
    let expressions: Vec<_> =
        RULES.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    let up = "pvnet_port_reason{reason!=\"stalled\"} and on (instance, port) pvnet_port_up == 1";
    assert!(expressions.contains(&up));
    assert!(expressions.contains(&"pvnet_port_reason{reason=\"stalled\"} == 1"));
    for kind in ["guest", "uplink"] {
        let down = format!(
            "pvnet_port_up == 0 and on (instance, port) pvnet_port_info{{kind=\"{kind}\"}}"
        );
        assert!(expressions.iter().any(|expression| expression.contains(&down)), "{kind}");
    }
}

#[test]
fn what_an_expression_names_is_found() {
    let labels =
        |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect::<Labels>();
    let named = Named::in_expression(
        "8 * histogram_quantile(0.99, sum by (instance, le) (rate(a_bucket{port=~\"$port\",x!=\"b c\"}[$__rate_interval]))) \
         > 1e3 and on (port) b_total unless c{} offset 5m or vector(0)",
    );
    let metrics =
        [("a_bucket", labels(&["port", "x"])), ("b_total", labels(&[])), ("c", labels(&[]))];
    let metrics = metrics.map(|(name, labels)| (name.to_owned(), labels)).to_vec();
    assert_eq!(named, Named { metrics, grouping: labels(&["instance", "le", "port"]) });
    let text = "{{ $labels.port }} has {{ $value | humanize }}: {{reason}}";
    assert_eq!(shown(text), labels(&["port", "reason"]));
}

#[test]
#[should_panic(expected = "nobody serves pvnet_port_gone")]
fn a_metric_that_is_gone_is_noticed() {
    let named = Named::in_expression("rate(pvnet_port_gone{port=\"x\"}[5m])");
    named.assert_served(&served(), &Labels::new(), "a test");
}

#[test]
#[should_panic(expected = "pvnet_port_up has no label")]
fn a_label_that_is_gone_is_noticed() {
    let named = Named::in_expression("pvnet_port_up{guest=\"x\"}");
    named.assert_served(&served(), &Labels::new(), "a test");
}
