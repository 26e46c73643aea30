//! `pvnet top --json`: one object per interval, on one line.

use control_socket::{ContextState, PortKind, PortState, QueueStatus, Reason, Traffic};
use document::Document;
use hypervisor::Counted;
use report::CpuSplit;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, json};

use super::contexts::ContextRates;
use super::rates::{PortRates, Rates};
use super::view::View;
use super::workers::WorkerRates;

/// Work and costs in an interval. What is per packet, gigabyte or call is null if there were none.
#[derive(Serialize, JsonSchema)]
pub struct TopDocument {
    /// The length of the interval.
    seconds: f64,
    /// The machine's processors.
    processors: u32,
    /// How many processors were kept busy.
    cpus: Cpus,
    /// CPU microseconds per packet.
    us_per_packet: Option<Work>,
    /// CPU seconds per 10⁹ bytes.
    s_per_gigabyte: Option<Work>,
    /// Packets, bytes and each kind of operation.
    #[schemars(schema_with = "per_second")]
    per_second: Map<String, serde_json::Value>,
    /// Each kind of operation.
    #[schemars(schema_with = "per_packet")]
    per_packet: Option<Map<String, serde_json::Value>>,
    /// The contexts of cards that are listed, in order.
    contexts: Vec<ContextRow>,
    /// The ports that are listed, in order.
    ports: Vec<PortRow>,
    /// The workers, by number.
    workers: Vec<WorkerRow>,
}

impl Document for TopDocument {
    const SCHEMA: &str = "pvnet-top/1";
}

/// Processors by what they did.
#[derive(Serialize, JsonSchema)]
struct Cpus {
    /// Guests, and all else that is not the daemon.
    guest: f64,
    /// The daemon, without the hypervisor's part.
    driver: f64,
    /// Operations of the hypervisor.
    hypervisor: f64,
    /// Nothing.
    idle: f64,
    /// What an outer hypervisor gave to other machines.
    stolen: f64,
}

/// Processor time by whose it is.
#[derive(Serialize, JsonSchema)]
struct Work {
    /// Guests, and all else that is not the daemon.
    guest: f64,
    /// The daemon, without the hypervisor's part.
    driver: f64,
    /// Operations of the hypervisor.
    hypervisor: f64,
}

/// One direction.
#[derive(Serialize, JsonSchema)]
struct TrafficRates {
    frames_per_second: f64,
    bits_per_second: f64,
}

/// A port.
#[derive(Serialize, JsonSchema)]
struct PortRow {
    /// Its name.
    name: String,
    /// What is plugged in.
    kind: PortKind,
    /// Whether it carries traffic.
    state: PortState,
    /// Why it carries no traffic, or not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// From the port into the switch.
    ingress: TrafficRates,
    /// Out of the port.
    egress: TrafficRates,
    /// Dropped frames.
    drops_per_second: f64,
    /// Workers' time for the port, by the clock, in seconds per second.
    worker_seconds_per_second: f64,
    /// Time that batches of frames from the port were in the daemon, all together: the workers' time, unless frames wait for room or
    /// for a device.
    batch_seconds_per_second: f64,
    /// Microseconds of that per frame from the port.
    us_per_frame: Option<f64>,
}

/// A worker.
#[derive(Serialize, JsonSchema)]
struct WorkerRow {
    /// The CPU that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<usize>,
    /// The NUMA node of that CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<usize>,
    /// Seconds per second in which it carried frames.
    carrying: f64,
    /// Seconds per second in which it polled.
    polling: f64,
    /// Seconds per second in which it slept.
    asleep: f64,
    /// What it serves, the busiest first.
    queues: Vec<QueueRow>,
}

/// A queue or a task of a worker.
#[derive(Serialize, JsonSchema)]
struct QueueRow {
    /// Its name: `red/0`.
    name: String,
    /// Seconds per second of its turns.
    busy: f64,
}

/// A context of a card.
#[derive(Serialize, JsonSchema)]
struct ContextRow {
    /// The card's name.
    nic: String,
    /// Its number on the card.
    context: u8,
    /// Its guest.
    guest: String,
    /// How it is protected.
    protection: String,
    /// Its state.
    state: ContextState,
    /// References to the guest's pages.
    references: u64,
    /// From the guest.
    tx: TrafficRates,
    /// To the guest.
    rx: TrafficRates,
    /// Dropped frames.
    drops_per_second: f64,
    /// Virtual interrupts.
    interrupts_per_second: f64,
    /// Hypercalls.
    calls_per_second: f64,
    /// Descriptors that a hypercall put on a ring.
    descriptors_per_call: Option<f64>,
}

/// The names of operations, with the bytes that guests copied.
fn operations() -> impl Iterator<Item = &'static str> {
    Counted::ALL.into_iter().map(Counted::name).chain(["guest_bytes"])
}

fn numbers<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Schema {
    let properties = names.clone().map(|name| (name.to_owned(), json!({ "type": "number" })));
    let (properties, required): (Map<_, _>, Vec<_>) = (properties.collect(), names.collect());
    schemars::json_schema!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

fn per_second(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = operations().chain(["packets", "bytes"]).collect();
    numbers(names.iter().copied())
}

fn per_packet(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = operations().collect();
    schemars::json_schema!({ "anyOf": [numbers(names.iter().copied()), { "type": "null" }] })
}

impl TopDocument {
    /// An interval, with what a view lists.
    pub fn new(rates: &Rates, view: &View) -> Self {
        let measured = &rates.measured;
        let CpuSplit { guest, driver, hypervisor, idle } = measured.cpu;
        let operations = rates.operations();
        let mut per_second: Map<_, _> =
            operations.iter().map(|(name, rate, _)| ((*name).to_owned(), json!(rate))).collect();
        per_second.insert("packets".to_owned(), json!(measured.frames_per_second()));
        per_second.insert("bytes".to_owned(), json!(rates.per_second(measured.carried.bytes)));
        let per_packet = operations
            .iter()
            .map(|(name, _, each)| Some(((*name).to_owned(), json!((*each)?))))
            .collect();
        let ports = view.list(&rates.ports);
        let contexts = view.list(&rates.contexts);
        Self {
            seconds: measured.wall.as_secs_f64(),
            processors: rates.processors,
            cpus: Cpus { guest, driver, hypervisor, idle, stolen: rates.stolen() },
            us_per_packet: rates.per_packet().map(Work::from),
            s_per_gigabyte: rates.per_gigabyte().map(Work::from),
            per_second,
            per_packet,
            contexts: contexts.iter().map(|context| ContextRow::new(rates, context)).collect(),
            ports: ports.iter().map(|port| PortRow::new(rates, port)).collect(),
            workers: rates.workers.iter().map(|worker| WorkerRow::new(rates, worker)).collect(),
        }
    }
}

impl WorkerRow {
    fn new(rates: &Rates, worker: &WorkerRates) -> Self {
        let share = |nanoseconds: u64| rates.per_second(nanoseconds) / 1e9;
        let queue = |(queue, busy): &(QueueStatus, u64)| QueueRow {
            name: queue.to_string(),
            busy: share(*busy),
        };
        Self {
            cpu: worker.cpu,
            node: worker.node,
            carrying: share(worker.carrying),
            polling: share(worker.polling),
            asleep: share(worker.asleep),
            queues: worker.queues.iter().map(queue).collect(),
        }
    }
}

impl From<CpuSplit> for Work {
    fn from(CpuSplit { guest, driver, hypervisor, .. }: CpuSplit) -> Self {
        Self { guest, driver, hypervisor }
    }
}

impl TrafficRates {
    fn new(rates: &Rates, traffic: Traffic) -> Self {
        Self {
            frames_per_second: rates.per_second(traffic.frames),
            bits_per_second: rates.per_second(traffic.bytes) * 8.0,
        }
    }
}

impl PortRow {
    fn new(rates: &Rates, port: &PortRates) -> Self {
        Self {
            name: port.name.clone(),
            kind: port.kind,
            state: port.state,
            reason: port.reason.clone(),
            ingress: TrafficRates::new(rates, port.ingress),
            egress: TrafficRates::new(rates, port.egress),
            drops_per_second: rates.per_second(port.drops),
            worker_seconds_per_second: rates.per_second(port.worker_nanoseconds) / 1e9,
            batch_seconds_per_second: rates.per_second(port.nanoseconds) / 1e9,
            us_per_frame: port.us_per_frame(),
        }
    }
}

impl ContextRow {
    fn new(rates: &Rates, context: &ContextRates) -> Self {
        Self {
            nic: context.nic.clone(),
            context: context.context,
            guest: context.guest.clone(),
            protection: context.protection.clone(),
            state: context.state,
            references: context.references,
            tx: TrafficRates::new(rates, context.tx),
            rx: TrafficRates::new(rates, context.rx),
            drops_per_second: rates.per_second(context.drops),
            interrupts_per_second: rates.per_second(context.interrupts),
            calls_per_second: rates.per_second(context.calls),
            descriptors_per_call: context.per_call(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::top::rates::tests::rates;
    use crate::top::view::Column;

    fn object(rates: &Rates, view: &View) -> Value {
        let line = document::line(&TopDocument::new(rates, view)).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn json_is_a_line_with_the_documented_fields() {
        let object = object(&rates(), &View::default());
        assert_eq!(object["schema"], "pvnet-top/1");
        assert_eq!(object["seconds"], 2.0);
        assert_eq!(object["processors"], 2);
        assert_eq!(object["cpus"]["driver"], 0.4);
        assert_eq!(object["cpus"]["stolen"], 0.25);
        assert_eq!(object["per_second"]["packets"], 600.0);
        assert_eq!(object["per_second"]["bytes"], 600_000.0);
        assert_eq!(object["per_packet"]["copies"], 2.0);
        assert_eq!(object["per_packet"]["guest_bytes"], 1250.0);
        assert!(object["us_per_packet"]["guest"].as_f64() > Some(1666.0));
        assert!(object["s_per_gigabyte"]["hypervisor"].as_f64() > Some(166.0));
        let port = &object["ports"][0];
        assert_eq!((&port["name"], &port["state"]), (&"red".into(), &"up".into()));
        assert_eq!(port["ingress"]["bits_per_second"], 4e6);
        assert_eq!(port["egress"]["frames_per_second"], 250.0);
        assert_eq!(port["drops_per_second"], 50.0);
        assert_eq!(port["us_per_frame"], 0.4);
        assert!((port["worker_seconds_per_second"].as_f64().unwrap() - 0.00015).abs() < 1e-12);
        assert!((port["batch_seconds_per_second"].as_f64().unwrap() - 0.0002).abs() < 1e-12);
        assert!(port.get("reason").is_none());
    }

    #[test]
    fn the_view_chooses_the_ports() {
        let names = |view: &View| -> Vec<String> {
            let object = object(&rates(), view);
            let ports = object["ports"].as_array().unwrap().iter();
            ports.map(|port| port["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&View { sort: Some(Column::Name), ..View::default() }), ["out", "red"]);
        assert_eq!(names(&View { filter: "uplink".to_owned(), ..View::default() }), ["out"]);
    }

    #[test]
    fn without_packets_nothing_is_per_packet() {
        let mut rates = rates();
        rates.measured.carried.frames = 0;
        rates.measured.carried.bytes = 0;
        let object = object(&rates, &View::default());
        for field in ["us_per_packet", "s_per_gigabyte", "per_packet"] {
            assert_eq!(object.get(field), Some(&Value::Null), "{field}");
        }
    }
}
