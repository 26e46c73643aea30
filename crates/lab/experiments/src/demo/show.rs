//! The findings for a terminal, and for programs.

use lab::Ping;
use report::{Benchmark, CpuSplit, Row, Samples, Stats, Table, human};

use super::isolation::Links;
use super::{Findings, Pair};
use crate::error::{Error, Result};
use crate::output;

/// `210 µs (180–302)`, with what was lost.
pub fn ping(ping: &Ping) -> String {
    let us = |time: std::time::Duration| human(time.as_secs_f64() * 1e6);
    let times = match &ping.rtt {
        Some(rtt) => format!("{} µs ({}–{})", us(rtt.avg), us(rtt.min), us(rtt.max)),
        None => "no reply".to_owned(),
    };
    match ping.sent.saturating_sub(ping.received) {
        0 => times,
        lost => format!("{times}, {lost} of {} lost", ping.sent),
    }
}

/// Prints what was found.
pub fn print(findings: &Findings) -> Result<()> {
    output::print(&format!("\n{}\n\n", proofs(findings).join("\n")))?;
    times(findings).print().map_err(Error::Print)?;
    output::print("\n")?;
    table(&findings.transfers).print().map_err(Error::Print)?;
    output::print(&format!("{NOTE}\n\n"))
}

const NOTE: &str = "\
Frames are counted where they enter the switch or bridge; a GSO frame counts once. s/GB are CPU
seconds per 10⁹ bytes received; time that is neither the daemon's nor idle counts as guest. TSO
needs checksums and scatter/gather, so it is off whenever one of them is. UDP is sent at the pace at
which the most arrives.";

/// The proof that pvnet carried the frames, and that the bytes arrived unchanged.
pub fn proofs(findings: &Findings) -> [String; 2] {
    let [red, blue] = findings.links.each_ref();
    let has = |links: &Links| format!("{} has {}", links.namespace, links.links.join(" and "));
    [
        format!("{}, {}: no link by which the kernel could forward.", has(red), has(blue)),
        format!(
            "1 GiB arrived as it was sent (SHA-256 {}…); pvnet's ports counted {} bytes in {} frames.",
            &findings.file.sha256[..16],
            human(findings.file_carried.bytes as f64),
            human(findings.file_carried.frames as f64)
        ),
    ]
}

/// Times, and what UDP lost.
pub fn times(findings: &Findings) -> Table {
    let mut table = Table::new().left("").right("pvnet").right("veth + bridge");
    let mut row = |name: &str, cells: [String; 2]| {
        let [pvnet, bridge] = cells;
        table.row([name.to_owned(), pvnet, bridge]);
    };
    row("ping, IPv4", findings.pings.each_ref().map(|pings| ping(&pings.v4)));
    row("ping, IPv6", findings.pings.each_ref().map(|pings| ping(&pings.v6)));
    for (name, percent) in [("UDP round trip, median", 50.0), ("UDP round trip, p99", 99.0)] {
        let time = |times: &Samples| human(times.percentile(percent).unwrap_or(0.0));
        row(name, findings.rtt.each_ref().map(|times| format!("{} µs", time(times))));
    }
    if let Some(pair) = findings.transfers.iter().find(|pair| pair.case.is_udp()) {
        let lost = [&pair.pvnet, &pair.bridge].map(|measured| measured.result.lost_percent);
        row("UDP transfer, lost", lost.map(|percent| format!("{} %", human(percent))));
    }
    table
}

/// The transfers, a row for each subject: what was carried, and its cost in CPU s/GB.
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
