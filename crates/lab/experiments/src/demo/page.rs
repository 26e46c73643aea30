//! The findings as a page with plots.

use accounting::Measured;
use lab::Throughput;
use report::html::{BarChart, LineChart, Report, StackedChart};
use report::{Machine, Samples, Stats, Table, human};

use super::{Findings, INTRODUCTION, Pair, show};

/// The names of what is compared.
const SUBJECTS: [&str; 2] = ["pvnet", "veth + bridge"];

/// The page.
pub fn page(findings: &Findings) -> Report {
    let mut page = Report::new("Two guests talk through pvnet");
    page.lead(&INTRODUCTION.replace('\n', " "));
    headline(&mut page, findings);
    proof(&mut page, findings);
    throughput(&mut page, findings);
    processors(&mut page, findings);
    latency(&mut page, findings);
    page.section("All numbers").table("Throughput", &rates(findings));
    page.table("Processor time, CPU seconds per gigabyte", &costs(findings));
    page.paragraph(
        "Frames are counted where they enter the switch or the bridge, in both directions \
         together. A GSO frame, which the receiver's stack takes whole, counts once. A gigabyte is \
         10⁹ bytes received. TSO needs checksum offload and scatter/gather, so it is off whenever \
         one of them is.",
    );
    if let Some(stolen) = stolen(findings) {
        page.paragraph(&stolen);
    }
    page.machine(&Machine::detect());
    page
}

fn find<'a>(findings: &'a Findings, key: &str) -> Option<&'a Pair> {
    findings.transfers.iter().find(|pair| pair.case.key == key)
}

fn headline(page: &mut Report, findings: &Findings) {
    let tcp = find(findings, "tcp-1");
    let gbps = tcp.map_or(0.0, |pair| pair.pvnet.result.mbps / 1e3);
    let ratio = tcp.map_or(0.0, |pair| 100.0 * pair.ratio());
    let rtt = findings.rtt[0].percentile(50.0).unwrap_or(0.0);
    page.facts([
        (&*format!("{} Gb/s", human(gbps)), "TCP, one stream, guest to guest"),
        (&*format!("{} %", human(ratio)), "of what veth + bridge does in the kernel"),
        (&*format!("{} µs", human(rtt)), "median round trip of a datagram"),
        ("1 GiB", "sent, and received unchanged (SHA-256)"),
    ]);
}

fn proof(page: &mut Report, findings: &Findings) {
    page.section("Proof").paragraph(
        "A guest's interface is a tap device, whose other end is the guest's process. That process \
         is a netif frontend: it grants pages to the driver domain, puts references to them on a \
         shared ring and notifies through an event channel. The kernel has no link between the two \
         namespaces, and the daemon's ports account for every byte that arrived.",
    );
    for sentence in show::proofs(findings) {
        page.paragraph(&sentence);
    }
    page.table("Times and losses", &show::times(findings));
}

fn throughput(page: &mut Report, findings: &Findings) {
    page.section("Throughput").paragraph(
        "The same transfers by iperf3 over pvnet and over the kernel's own veth + bridge, one \
         after the other. The kernel passes references to pages from one namespace to the other. \
         Between guests, bytes are copied into granted pages, then between guests, then out.",
    );
    let (with, without): (Vec<_>, Vec<_>) =
        findings.transfers.iter().partition(|pair| pair.case.offloads == lab::Offloads::ALL);
    page.figure(
        &bars("Throughput by transfer", &with),
        "UDP is sent at the pace at which the most arrives.",
    );
    let offloads: Vec<_> = find(findings, "tcp-1").into_iter().chain(without).collect();
    page.figure(
        &bars("One TCP stream, each offload switched off in turn", &offloads),
        "Without segmentation offload, each 1500-byte frame costs as much as 64 KiB with it.",
    );
    page.figure(&seconds(findings), "As the sending guest's iperf3 saw it, second by second.");
}

fn bars(title: &str, pairs: &[&Pair]) -> BarChart {
    let single = |measured: &Measured<Throughput>| Some(Stats::single(measured.result.mbps));
    pairs.iter().fold(BarChart::new(title, "Mb/s").series(SUBJECTS), |chart, pair| {
        chart.group(pair.case.label, [single(&pair.pvnet), single(&pair.bridge)])
    })
}

fn seconds(findings: &Findings) -> LineChart {
    let mut chart = LineChart::new("One TCP stream over time", "second", "Mb/s");
    for (key, suffix) in [("tcp-1", ""), ("tcp-1-no-offload", ", no offload")] {
        let Some(pair) = find(findings, key) else { continue };
        for (subject, measured) in SUBJECTS.into_iter().zip([&pair.pvnet, &pair.bridge]) {
            let values = measured.result.per_second.iter().copied();
            let points = (1u32..).map(f64::from).zip(values);
            chart = chart.line(format!("{subject}{suffix}"), points);
        }
    }
    chart
}

fn processors(page: &mut Report, findings: &Findings) {
    page.section("Processor time").paragraph(
        "Where the whole machine's processor time went. The driver domain is the daemon without \
         its grant and event operations, which count as the hypervisor. All other busy time counts \
         as guests: frontends, TCP/IP stacks, iperf3, and other programs that ran.",
    );
    let (large, small): (Vec<_>, Vec<_>) =
        findings.transfers.iter().partition(|pair| pair.case.offloads.tso && !pair.case.is_udp());
    page.figure(
        &cost_bars("Processor time per gigabyte, in large frames", &large),
        "Shorter is cheaper. Bars without a driver domain are the kernel's.",
    );
    page.figure(
        &cost_bars("Processor time per gigabyte, in frames of 1500 bytes", &small),
        "The same bytes in about forty times as many frames.",
    );
}

fn cost_bars(title: &str, pairs: &[&Pair]) -> StackedChart {
    let parts = ["guest", "driver domain", "hypervisor"];
    let mut chart = StackedChart::new(title, "CPU s/GB", parts).rest("idle");
    for pair in pairs {
        for (subject, measured) in [("pvnet", &pair.pvnet), ("bridge", &pair.bridge)] {
            let cost = measured.per_gigabyte(measured.result.bytes);
            let sizes = [cost.guest, cost.driver, cost.hypervisor, cost.idle];
            chart = chart.bar(format!("{}: {subject}", pair.case.label), sizes);
        }
    }
    chart
}

fn latency(page: &mut Report, findings: &Findings) {
    page.section("Latency").paragraph(
        "Round trips of a 64-byte datagram between two programs, one after the other without a \
         pause. Each crosses the driver domain twice. It wakes the driver domain, the frontend and \
         the program if they sleep.",
    );
    let percentiles =
        [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];
    let values = |times: &Samples| percentiles.map(|(_, p)| times.percentile(p).unwrap_or(0.0));
    let names = percentiles.map(|(name, _)| name);
    let mut chart =
        LineChart::new("Round-trip time", "percentile", "µs").steps(names).logarithmic();
    for (subject, times) in SUBJECTS.into_iter().zip(&findings.rtt) {
        chart = chart.values(subject, values(times));
    }
    page.figure(&chart, "From the median to the slowest, on a logarithmic axis.");
}

fn rates(findings: &Findings) -> Table {
    let mut table = Table::new()
        .left("transfer")
        .right("pvnet Mb/s")
        .right("bridge Mb/s")
        .right("ratio")
        .right("pvnet frames/s")
        .right("bridge frames/s");
    for pair in &findings.transfers {
        let [pvnet, bridge] = [&pair.pvnet, &pair.bridge];
        let numbers = [
            pvnet.result.mbps,
            bridge.result.mbps,
            pair.ratio(),
            pvnet.frames_per_second(),
            bridge.frames_per_second(),
        ];
        table.row(std::iter::once(pair.case.label.to_owned()).chain(numbers.map(human)));
    }
    table
}

fn costs(findings: &Findings) -> Table {
    let mut table = Table::new()
        .left("transfer")
        .right("guest")
        .right("driver dom.")
        .right("hypervisor")
        .right("idle")
        .right("bridge: guest")
        .right("idle");
    for pair in &findings.transfers {
        let [pvnet, bridge] = [&pair.pvnet, &pair.bridge]
            .map(|measured| measured.per_gigabyte(measured.result.bytes));
        let numbers =
            [pvnet.guest, pvnet.driver, pvnet.hypervisor, pvnet.idle, bridge.guest, bridge.idle];
        let cells = numbers.map(|seconds| format!("{seconds:.2}"));
        table.row(std::iter::once(pair.case.label.to_owned()).chain(cells));
    }
    table
}

/// A sentence if the host took processor time away.
fn stolen(findings: &Findings) -> Option<String> {
    let all = findings.transfers.iter().flat_map(|pair| [&pair.pvnet, &pair.bridge]);
    let most = all.map(|measured| measured.stolen).fold(0.0, f64::max);
    (most > 0.01).then(|| {
        format!(
            "The host gave up to {} % of the processors' time to others during a transfer. On a \
             dedicated machine pvnet would have been faster.",
            human(100.0 * most)
        )
    })
}
