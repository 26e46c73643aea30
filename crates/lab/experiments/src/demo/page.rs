//! The findings as a page with plots.

use report::html::{BarChart, LineChart, Report, StackedChart};
use report::{Machine, Stats, Table};

use super::cost::Cost;
use super::kill::Kill;
use super::{Findings, Step, show};
use crate::bench::isolation::{Beside, Class};
use crate::repro::menon06::Gain;

/// The page: a section for each step that was shown.
pub fn page(findings: &Findings) -> Report {
    let mut page = Report::new("What pvnet does");
    page.lead(show::INTRODUCTION);
    headline(&mut page, findings);
    if let Some(talk) = &findings.talk {
        page.section(show::title(Step::Talk)).paragraph(&show::talk(talk));
    }
    if !findings.gains.is_empty() {
        mechanisms(&mut page, &findings.gains);
    }
    if let Some(kill) = &findings.kill {
        page.section(show::title(Step::Kill)).paragraph(&show::kill(kill));
        page.figure(
            &file(kill),
            "The line stands still from the end of one pvnet to the start of the next.",
        );
    }
    if let Some(attack) = &findings.attack {
        self::attack(&mut page, attack);
    }
    if let Some(ports) = &findings.ports {
        page.section(show::title(Step::Ports)).paragraph(&show::ports(ports));
    }
    if let Some(idle) = &findings.idle {
        page.section(show::title(Step::Idle)).paragraph(&show::idle(idle));
    }
    if let Some(cost) = &findings.cost {
        self::cost(&mut page, cost);
    }
    page.machine(&Machine::detect());
    page
}

fn headline(page: &mut Report, findings: &Findings) {
    let mut facts = Vec::new();
    let all = findings.gains.iter().find(|gain| gain.mechanism.key == "all");
    if let Some(factor) = all.and_then(Gain::factor) {
        facts.push((format!("× {factor:.1}"), "by a paper's mechanisms for sending"));
    }
    if let Some(Kill { transfer, .. }) = &findings.kill {
        let pause = show::time(transfer.longest_pause.as_secs_f64() * 1e6);
        facts.push((pause, "pause when pvnet is killed; no byte is lost"));
    }
    if let Some(Beside { idle, attack, .. }) = &findings.attack {
        let kept = show::percent(attack.mbps, idle.mbps);
        facts.push((format!("{kept} %"), "of their rate is left to a hostile guest's neighbours"));
    }
    if let Some(idle) = &findings.idle {
        facts.push((format!("{:.1} %", idle.daemon), "of a CPU when nobody sends"));
    }
    page.facts(facts.iter().map(|(number, meaning)| (&**number, *meaning)));
}

fn mechanisms(page: &mut Report, gains: &[Gain]) {
    page.section(show::title(Step::Mechanisms)).paragraph(&show::mechanisms(gains));
    let rates = |gain: &Gain| {
        let samples = gain.samples.as_ref();
        let rate = |index: usize| samples.map(|samples| Stats::single(samples[index].mbps));
        [rate(0), rate(1)]
    };
    let chart = BarChart::new("Rate of a guest's stream", "Mb/s").series(["off", "on"]);
    let chart =
        gains.iter().fold(chart, |chart, gain| chart.group(gain.mechanism.label, rates(gain)));
    page.figure(
        &chart,
        "Each mechanism for sending is added to the one above it. The last two are for receiving.",
    );
    let parts = ["guest", "driver domain", "hypervisor"];
    let mut costs = StackedChart::new("Processor time of a gigabyte", "CPU s/GB", parts);
    for gain in gains {
        for (state, sample) in ["off", "on"].iter().zip(gain.samples.iter().flatten()) {
            let cost = &sample.cost;
            let parts = [cost.guest, cost.driver, cost.hypervisor];
            costs = costs.bar(format!("{}: {state}", gain.mechanism.label), parts);
        }
    }
    page.figure(&costs, "Where the server CPU's time went. Shorter is cheaper.");
    page.table("Each mechanism", &show::gains(gains));
    page.paragraph("pvnet-lab repro menon06 measures all figures of the paper, in rounds, and compares every claim.");
}

/// The file's bytes over time.
fn file(kill: &Kill) -> LineChart {
    let mib = |(at, bytes): &(f64, f64)| (*at, bytes / f64::from(1 << 20));
    let chart = LineChart::new("The file as it arrives", "seconds", "MiB");
    chart.line("arrived", kill.arrived.iter().map(mib)).marks("kill -9", [kill.at])
}

fn attack(page: &mut Report, attack: &Beside) {
    page.section(show::title(Step::Attack)).paragraph(&show::attack(attack));
    let Beside { idle, attack, .. } = attack;
    let chart = BarChart::new("The neighbours' TCP stream", "Mb/s");
    let chart = chart.bar("while it is idle", Stats::single(idle.mbps));
    let chart = chart.bar("while it attacks", Stats::single(attack.mbps));
    page.figure(&chart, "Both guests and the hostile one share one worker.");
    let classes = Class::all().len();
    page.paragraph(&format!(
        "pvnet-lab bench isolation has all {classes} classes of attack, in rounds."
    ));
}

fn cost(page: &mut Report, cost: &Cost) {
    page.section(show::title(Step::Cost)).paragraph(&show::cost(cost));
    let chart = BarChart::new("One TCP stream between two guests", "Mb/s");
    let rate = |one: &super::cost::Compared| Stats::single(one.tcp.result.mbps);
    let chart = cost.compared.iter().fold(chart, |chart, one| chart.bar(one.label, rate(one)));
    page.figure(&chart, "The kernel's bridge is one kernel. All others are processes.");
    let percentiles = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)];
    let mut chart = LineChart::new("Round trip of a datagram", "percentile", "µs")
        .steps(percentiles.map(|(name, _)| name))
        .logarithmic();
    for one in &cost.compared {
        let value = |(_, percent)| one.rtt.percentile(percent).unwrap_or(0.0);
        chart = chart.values(one.label, percentiles.map(value));
    }
    page.figure(&chart, "From the median to the slowest, on a logarithmic axis.");
    let table: Table = show::compared(cost);
    page.table("All numbers", &table);
    page.paragraph("CPU seconds are those of the whole machine per 10⁹ bytes received, with the guests' own stacks and iperf3.");
}
