//! The findings for a terminal, and for programs.

use lab::Ping;
use report::{Benchmark, CpuSplit, Row, Samples, Stats, Table, human};

use super::{Findings, Pair, Pings};
use crate::testbed::{Error, Result};

/// `0.21 ms (0.18–0.30)`, with what was lost.
pub fn ping(ping: &Ping) -> String {
    let ms = |time: std::time::Duration| human(time.as_secs_f64() * 1e3);
    let times = match &ping.rtt {
        Some(rtt) => format!("{} ms ({}–{})", ms(rtt.avg), ms(rtt.min), ms(rtt.max)),
        None => "no reply".to_owned(),
    };
    match ping.sent - ping.received.min(ping.sent) {
        0 => times,
        lost => format!("{times}, {lost} of {} lost", ping.sent),
    }
}

/// Prints what was found.
pub fn print(findings: &Findings) -> Result<()> {
    for (topic, text) in facts(findings) {
        println!("{topic:<10} {text}");
    }
    println!();
    table(&findings.transfers).print().map_err(Error::Print)?;
    println!("{NOTE}\n");
    Ok(())
}

const NOTE: &str = "\
Frames are counted where they enter the switch or bridge; one far larger than the MTU (GSO) counts
once. s/GB are CPU seconds per 10⁹ bytes received; what is neither the daemon's nor idle counts as guest.";

/// What is not in the table: topic and finding.
pub fn facts(findings: &Findings) -> [(&'static str, String); 5] {
    let pings = |pings: &Pings| format!("IPv4 {}, IPv6 {}", ping(&pings.v4), ping(&pings.v6));
    let [pvnet, bridge] = &findings.pings;
    [
        ("Isolation", isolation(findings)),
        ("Ping", format!("{}; over veth + bridge {}", pings(pvnet), pings(bridge))),
        ("Round trip", round_trips(&findings.rtt)),
        ("File", file(findings)),
        ("UDP", udp(findings)),
    ]
}

fn isolation(findings: &Findings) -> String {
    let namespaces = findings.links.each_ref().map(|links| {
        format!("{} has {}", links.namespace, links.links.join(", "))
    });
    format!("{}: no link by which the kernel could forward", namespaces.join("; "))
}

fn round_trips(rtt: &[Samples; 2]) -> String {
    let [pvnet, bridge] = rtt.each_ref().map(|times| {
        let time = |percent| human(times.percentile(percent).unwrap_or(0.0));
        format!("median {} µs, p99 {} µs", time(50.0), time(99.0))
    });
    format!("UDP, {pvnet}; over veth + bridge {bridge}")
}

fn file(findings: &Findings) -> String {
    format!(
        "1 GiB arrived as it was sent, SHA-256 {}…; pvnet's ports counted {} bytes in {} frames",
        &findings.file.sha256[..16],
        human(findings.file_counts.bytes as f64),
        human(findings.file_counts.frames as f64)
    )
}

fn udp(findings: &Findings) -> String {
    let udp = findings.transfers.iter().find(|pair| pair.case.is_udp());
    udp.map_or(String::new(), |pair| {
        let [pvnet, bridge] = [&pair.pvnet, &pair.bridge].map(|measured| &measured.result);
        format!(
            "at the fastest pace found with at most 1 % lost: {} Mb/s, {} % lost; over veth + \
             bridge {} Mb/s, {} % lost",
            human(pvnet.mbps),
            human(pvnet.lost_percent),
            human(bridge.mbps),
            human(bridge.lost_percent)
        )
    })
}

/// The transfers, a row for each subject.
pub fn table(transfers: &[Pair]) -> Table {
    let mut table = Table::new()
        .left("transfer")
        .left("over")
        .right("Mb/s")
        .right("ratio")
        .right("packets/s")
        .right("guest s/GB")
        .right("driver dom.")
        .right("hypervisor")
        .right("idle");
    for pair in transfers {
        let subjects = [
            (pair.case.label, "pvnet", &pair.pvnet, human(pair.ratio())),
            ("", "veth + bridge", &pair.bridge, String::new()),
        ];
        for (label, over, measured, ratio) in subjects {
            let CpuSplit { guest, driver, hypervisor, idle } =
                measured.per_gigabyte(measured.result.bytes);
            let parts = [guest, driver, hypervisor, idle].map(|part| format!("{part:.2}"));
            let rates = [measured.result.mbps, measured.frames_per_second()].map(human);
            let [mbps, frames] = rates;
            let cells = [label.to_owned(), over.to_owned(), mbps, ratio, frames];
            table.row(cells.into_iter().chain(parts));
        }
    }
    table
}

/// The findings as benchmark rows of one round.
pub fn benchmark(findings: &Findings) -> Benchmark {
    let mut benchmark = Benchmark::new("demo");
    for pair in &findings.transfers {
        for (over, measured) in [("pvnet", &pair.pvnet), ("veth-bridge", &pair.bridge)] {
            let result = &measured.result;
            let name = format!("{}/{over}", pair.case.key);
            let row = Row::new(name, "Mb/s", Stats::single(result.mbps)).with_cpu(measured.cpu);
            let row = row.with("frames_per_second", measured.frames_per_second());
            benchmark.rows.push(match pair.case.is_udp() {
                true => row.with("lost_percent", result.lost_percent),
                false => row.with("retransmits", result.retransmits),
            });
        }
        let case = pair.case.key;
        benchmark.compare(&format!("{case}/pvnet"), &format!("{case}/veth-bridge"));
    }
    for (name, percent) in [("rtt-p50", 50.0), ("rtt-p99", 99.0)] {
        for (over, times) in ["pvnet", "veth-bridge"].into_iter().zip(&findings.rtt) {
            let time = Stats::single(times.percentile(percent).unwrap_or(0.0));
            benchmark.rows.push(Row::new(format!("{name}/{over}"), "µs", time));
        }
        benchmark.compare(&format!("{name}/pvnet"), &format!("{name}/veth-bridge"));
    }
    benchmark
}
