//! Writes a page with one of everything, for looking at the style:
//! `cargo run -p report --example sample > page.html`.

use report::html::{BarChart, LineChart, Report, StackedChart};
use report::{CpuSplit, Machine, Samples, Stats, Table};

fn stats(values: [f64; 5]) -> Option<Stats> {
    values.into_iter().collect::<Samples>().stats()
}

fn throughput() -> BarChart {
    BarChart::new("TCP throughput", "Mb/s")
        .series(["pvnet", "veth + bridge"])
        .group(
            "1 stream",
            [
                stats([18_210.0, 18_900.0, 17_950.0, 18_400.0, 18_320.0]),
                stats([20_110.0, 20_950.0, 19_300.0, 20_400.0, 20_200.0]),
            ],
        )
        .group(
            "4 streams",
            [
                stats([21_900.0, 22_400.0, 19_100.0, 22_100.0, 22_000.0]),
                stats([21_000.0, 21_170.0, 20_870.0, 21_060.0, 21_110.0]),
            ],
        )
        .group(
            "1 stream, no offloads",
            [
                stats([3910.0, 3950.0, 3870.0, 3920.0, 3900.0]),
                stats([2410.0, 2450.0, 2380.0, 2400.0, 2430.0]),
            ],
        )
        .group("reverse", [stats([18_000.0, 18_100.0, 17_700.0, 18_050.0, 17_990.0]), None])
}

fn processors() -> StackedChart {
    StackedChart::cpu("Where the processors' time went")
        .split(
            "pvnet, 1 stream",
            &CpuSplit { guest: 0.71, driver: 0.62, hypervisor: 0.11, idle: 0.56 },
        )
        .split(
            "pvnet, 4 streams",
            &CpuSplit { guest: 0.98, driver: 0.77, hypervisor: 0.19, idle: 0.06 },
        )
        .split("idle", &CpuSplit { guest: 0.0, driver: 0.0, hypervisor: 0.0, idle: 2.0 })
}

fn over_time() -> LineChart {
    let wave = |base: f64, swing: f64| {
        (0..=10u32).map(move |second| base + swing * (f64::from(second) * 1.3).sin())
    };
    LineChart::new("Throughput, second by second", "time (s)", "Mb/s")
        .values("pvnet", wave(18_300.0, 500.0))
        .values("veth + bridge", wave(20_300.0, 300.0))
        .values("no offloads", wave(3900.0, 50.0))
}

fn latency() -> LineChart {
    LineChart::new("Round-trip time", "percentile", "µs")
        .steps(["p50", "p90", "p99", "p99.9", "max"])
        .logarithmic()
        .values("pvnet", [38.0, 47.0, 88.0, 210.0, 930.0])
        .values("veth + bridge", [21.0, 24.0, 39.0, 77.0, 610.0])
}

fn main() {
    let mut table =
        Table::new().left("case").right("pvnet (Mb/s)").right("bridge (Mb/s)").right("ratio");
    table.row(["tcp, 1 stream", "18,320", "20,200", "0.91"]).row([
        "tcp, 4 streams",
        "22,000",
        "21,060",
        "1.04",
    ]);
    table.row(["tcp, 1 stream, no offloads", "3,910", "2,410", "1.62"]);

    let mut page = Report::new("Two guests, one driver domain");
    page.lead(
        "Two network namespaces talked through pvnet for a minute. Nothing was lost, every byte \
         arrived as it was sent, and an idle vif used no processor time.",
    );
    page.facts([
        ("18.3 Gb/s", "TCP, one stream, guest to guest"),
        ("38 µs", "median round trip"),
        ("0.00 %", "processor time when idle"),
        ("0", "bytes wrong in 64 MiB"),
    ]);
    page.section("Throughput").paragraph(
        "Each bar is the median of five runs of ten seconds; the whisker spans the slowest and the \
         fastest run. The bridge is the kernel's own path between the same two namespaces.",
    );
    page.figure(
        &throughput(),
        "Large segments cross without being cut, so one copy per packet is nearly all the work.",
    );
    page.table("Medians and ratios", &table);
    page.figure(&over_time(), "No run falters: the lines stay within a few per cent.");
    page.section("Latency")
        .figure(&latency(), "A logarithmic axis: the tail is many times the median.");
    page.section("Processors")
        .figure(&processors(), "CPU seconds per second, on a machine with two.");
    page.section("What was run").preformatted(
        "$ pvnet-lab demo\n[ 1/12] tcp 1 stream        4.2 s\n[ 2/12] tcp <4> streams     4.3 s",
    );
    print!("{}", page.machine(&Machine::detect()).to_html());
}
