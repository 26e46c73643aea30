//! Rates as tables and as JSON.

use control_socket::Traffic;
use report::{CpuSplit, Table, human};
use serde_json::{Map, Value, json};

use super::contexts;
use super::rates::{PortRates, Rates};

/// An interval as tables, followed by an empty line.
pub fn text(rates: &Rates) -> String {
    let carried = &rates.measured.carried;
    let head = format!(
        "{} packets/s, {} Mb/s, over {} s",
        human(rates.measured.frames_per_second()),
        human(megabits(rates, carried.bytes)),
        human(rates.measured.wall.as_secs_f64())
    );
    // The longest table is the last: a low terminal cuts it off.
    let (processors, ports, operations) = (processors(rates), ports(rates), operations(rates));
    let contexts = contexts::text(&rates.contexts, seconds(rates));
    format!("{head}\n\n{processors}\n{ports}\n{contexts}{operations}\n")
}

/// A share of the machine's time: its name, and its field of a split.
type Share = (&'static str, fn(&CpuSplit) -> f64);

const WORK: [Share; 3] = [
    ("guest", |split| split.guest),
    ("driver domain", |split| split.driver),
    ("hypervisor", |split| split.hypervisor),
];

fn processors(rates: &Rates) -> Table {
    let mut table =
        Table::new().left("time of").right("CPUs").right("%").right("µs/packet").right("s/GB");
    let percent = |cpus: f64| human(cpus * 100.0 / f64::from(rates.processors.max(1)));
    let cpu = &rates.measured.cpu;
    let (packet, gigabyte) = (rates.per_packet(), rates.per_gigabyte());
    for (name, part) in WORK {
        let cost = |split: Option<CpuSplit>| or_dash(split.map(|split| part(&split)));
        let cpus = part(cpu);
        table.row([name.to_owned(), human(cpus), percent(cpus), cost(packet), cost(gigabyte)]);
    }
    let stolen = Some(rates.stolen()).filter(|cpus| *cpus > 0.0).map(|cpus| ("stolen", cpus));
    for (name, cpus) in [("idle", cpu.idle)].into_iter().chain(stolen) {
        table.row([name.to_owned(), human(cpus), percent(cpus), String::new(), String::new()]);
    }
    table
}

fn operations(rates: &Rates) -> Table {
    let mut table = Table::new().left("operation").right("/s").right("/packet");
    for (name, per_second, per_packet) in rates.operations() {
        table.row([name.replace('_', " "), human(per_second), or_dash(per_packet)]);
    }
    table
}

/// The ports, and a line for each that has a reason.
fn ports(rates: &Rates) -> String {
    let mut table = Table::new()
        .left("port")
        .left("state")
        .right("frames/s in")
        .right("Mb/s in")
        .right("frames/s out")
        .right("Mb/s out")
        .right("drops/s");
    for port in &rates.ports {
        table.row([
            port.name.clone(),
            port.state.to_string(),
            human(rates.per_second(port.ingress.frames)),
            human(megabits(rates, port.ingress.bytes)),
            human(rates.per_second(port.egress.frames)),
            human(megabits(rates, port.egress.bytes)),
            human(rates.per_second(port.drops)),
        ]);
    }
    let reason =
        |port: &PortRates| port.reason.as_ref().map(|why| format!("{}: {why}\n", port.name));
    table.to_string() + &rates.ports.iter().filter_map(reason).collect::<String>()
}

fn seconds(rates: &Rates) -> f64 {
    rates.measured.wall.as_secs_f64().max(f64::EPSILON)
}

fn megabits(rates: &Rates, bytes: u64) -> f64 {
    rates.per_second(bytes) * 8.0 / 1e6
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), human)
}

/// An interval as a line with a JSON object; `pvnet top --help` lists its fields.
pub fn json(rates: &Rates) -> String {
    let measured = &rates.measured;
    let CpuSplit { guest, driver, hypervisor, idle } = measured.cpu;
    let stolen = rates.stolen();
    let work = |split: CpuSplit| {
        let CpuSplit { guest, driver, hypervisor, .. } = split;
        json!({ "guest": guest, "driver": driver, "hypervisor": hypervisor })
    };
    let operations = rates.operations();
    let mut per_second: Map<_, _> =
        operations.iter().map(|(name, rate, _)| ((*name).to_owned(), json!(rate))).collect();
    per_second.insert("packets".to_owned(), json!(measured.frames_per_second()));
    per_second.insert("bytes".to_owned(), json!(rates.per_second(measured.carried.bytes)));
    let per_packet: Option<Map<_, _>> = operations
        .iter()
        .map(|(name, _, each)| Some(((*name).to_owned(), json!((*each)?))))
        .collect();
    let object = json!({
        "seconds": measured.wall.as_secs_f64(),
        "processors": rates.processors,
        "cpus": {
            "guest": guest, "driver": driver, "hypervisor": hypervisor,
            "idle": idle, "stolen": stolen,
        },
        "us_per_packet": rates.per_packet().map(work),
        "s_per_gigabyte": rates.per_gigabyte().map(work),
        "per_second": per_second,
        "per_packet": per_packet,
        "contexts": contexts::json(&rates.contexts, seconds(rates)),
        "ports": rates.ports.iter().map(|port| port_json(rates, port)).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn port_json(rates: &Rates, port: &PortRates) -> Value {
    let rates_of = |traffic: Traffic| {
        json!({
            "frames_per_second": rates.per_second(traffic.frames),
            "bits_per_second": rates.per_second(traffic.bytes) * 8.0,
        })
    };
    let mut object = json!({
        "name": port.name,
        "state": port.state,
        "ingress": rates_of(port.ingress),
        "egress": rates_of(port.egress),
        "drops_per_second": rates.per_second(port.drops),
    });
    if let Some(reason) = &port.reason {
        object["reason"] = json!(reason);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::rates;
    use control_socket::Reason;
    use hypervisor::Counted;

    #[test]
    fn the_tables_show_rates_costs_and_reasons() {
        let mut rates = rates();
        rates.ports[1].reason = Some(Reason::Stalled);
        let text = text(&rates);
        for line in [
            "600 packets/s, 4.80 Mb/s, over 2.00 s",
            "driver domain  0.400  20.0        667    667",
            "stolen         0.250  12.5",
            "copies                    1,200     2.00",
            "red   up             500     4.00           250      2.00     50.0",
            "out: the guest takes no frames",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(Counted::ALL.iter().all(|what| text.contains(&what.name().replace('_', " "))));
    }

    #[test]
    fn json_is_a_line_with_the_documented_fields() {
        let line = json(&rates());
        assert_eq!(line.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&line).unwrap();
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
        assert!(port.get("reason").is_none());
    }

    #[test]
    fn without_packets_nothing_is_per_packet() {
        let mut rates = rates();
        rates.measured.carried.frames = 0;
        rates.measured.carried.bytes = 0;
        let object: Value = serde_json::from_str(&json(&rates)).unwrap();
        for field in ["us_per_packet", "s_per_gigabyte", "per_packet"] {
            assert_eq!(object.get(field), Some(&Value::Null), "{field}");
        }
        assert!(text(&rates).contains('–'));
    }
}
