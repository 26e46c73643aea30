//! Shows the outcomes: a table, the rules, and a page.

use report::html::{BarChart, Report};
use report::{Benchmark, Stats, Table, Verdict, human};

use super::outcome::{Outcome, Quantity};

/// The text above the table, which explains the columns.
const LEAD: &str = "Two good guests beside a hostile one: a TCP stream from one to the other, then round trips \
    of datagrams (first, where the attacker's first attempt is its last). Each round measures them beside the hostile guest attached but idle, attacking, \
    idle while its process uses as much CPU as the attack cost it and the daemon (spin; in classes with holes it makes them in memory of its own), and sending ordinary frames to itself as \
    fast as they are taken (busy). Ratios are medians of the rounds' ratios, with the smallest and the largest.";

/// A row for each class.
pub fn table(outcomes: &[Outcome]) -> Table {
    let table = Table::new().left("hostile guest").left("victims").right("workers");
    let ratios = |table: Table| {
        ["idle", "spin", "busy"].iter().fold(table, |table, of| table.right(format!("attack/{of}")))
    };
    let table = ratios(table.right("TCP Mb/s, idle"));
    let table = ratios(table.right("p99 µs, idle"));
    let table = table.right("latest ms: idle, spin, busy, attack");
    let table = table.right("its CPU").right("daemon's CPU: idle, attack");
    let table = table.left("TCP").left("p99").left("latest").left("");
    outcomes.iter().fold(table, |mut table, outcome| {
        table.row(cells(outcome));
        table
    })
}

fn cells(outcome: &Outcome) -> [String; 18] {
    let [tcp, rtt, _] = Quantity::ALL;
    let number = |number: Option<f64>| number.map_or(String::new(), human);
    let percent =
        |cpus: Option<f64>| cpus.map_or(String::new(), |cpus| format!("{:.0} %", 100.0 * cpus));
    let spread = |quotient: Option<Stats>| {
        quotient.map_or(String::new(), |Stats { median, min, max, .. }| {
            format!("{median:.2} ({min:.2}–{max:.2})")
        })
    };
    let median = |quotient: Option<Stats>| number(quotient.map(|quotient| quotient.median));
    let [tcp_verdict, rtt_verdict, latest_verdict] =
        Quantity::ALL.map(|quantity| outcome.verdict(quantity).words().to_owned());
    let latest = [
        outcome.latest(|round| &round.idle),
        outcome.latest(|round| &round.spin),
        outcome.latest(|round| &round.busy),
        outcome.latest(|round| &round.attack),
    ];
    let latest = latest.map(|us| us.map_or(String::new(), |us| human(us / 1000.0)));
    let daemon =
        [outcome.median(|round| round.idle.daemon), outcome.median(|round| round.attack.daemon)];
    [
        outcome.class.to_string(),
        outcome.victims.name().to_owned(),
        outcome.workers.to_string(),
        number(outcome.median(|round| round.idle.mbps)),
        spread(outcome.against_idle(tcp)),
        median(outcome.against_spin(tcp)),
        median(outcome.against_busy(tcp)),
        number(outcome.median(|round| round.idle.p99)),
        spread(outcome.against_idle(rtt)),
        median(outcome.against_spin(rtt)),
        median(outcome.against_busy(rtt)),
        latest.join(", "),
        percent(outcome.median(|round| round.attack.hostile)),
        daemon.map(percent).join(", "),
        tcp_verdict,
        rtt_verdict,
        latest_verdict,
        remark(outcome),
    ]
}

/// The explanation of the verdicts.
fn remark(outcome: &Outcome) -> String {
    let verdicts = Quantity::ALL.map(|quantity| outcome.verdict(quantity));
    let attacks = || outcome.rounds.iter().map(|round| &round.attack);
    let joined_again: u64 = attacks().map(|attack| attack.failures).sum();
    let mut remarks: Vec<String> = outcome.failure.iter().cloned().collect();
    remarks.extend(attacks().find_map(|attack| attack.no_stream.clone()));
    if joined_again > 0 {
        remarks.push(format!("it was disabled and joined again {joined_again} times"));
    }
    if verdicts.contains(&Verdict::CannotBeTold) {
        remarks.push("the attack did nothing".to_owned());
    }
    let [shares @ .., latest] = verdicts;
    if shares.contains(&Verdict::HoldsWeakly) {
        remarks.push("weakly: a fair share of the CPUs explains it".to_owned());
    }
    if latest == Verdict::HoldsWeakly {
        remarks.push("late: a round trip without the attack was as late".to_owned());
    }
    remarks.join("; ")
}

/// The rules, in a sentence.
pub fn rules() -> String {
    let [tcp, rtt, latest] = Quantity::ALL.map(Quantity::rule_in_words);
    format!(
        "Throughput {tcp}; p99 {rtt}; the latest round trip of all rounds {latest}. Throughput and p99 hold weakly if \
         only attack/spin or attack/busy is within these bounds: a fair share of the CPUs explains it. The latest \
         holds weakly if one without the attack was as late."
    )
}

/// The page.
pub fn page(benchmark: &Benchmark, outcomes: &[Outcome]) -> Report {
    let mut page = Report::new("pvnet-lab bench isolation");
    page.lead(LEAD).paragraph(&rules()).table("", &table(outcomes));
    let charts = [(Quantity::Throughput, "Throughput"), (Quantity::RoundTrip, "99th percentile")];
    for (quantity, title) in charts {
        let chart = BarChart::new(format!("{title}, attack/idle"), "×");
        let chart =
            outcomes.iter().fold(chart, |chart, outcome| match outcome.against_idle(quantity) {
                Some(quotient) => chart.bar(outcome.label(), quotient),
                None => chart,
            });
        page.figure(&chart, "Bars are medians of the rounds' ratios, whiskers their extremes.");
    }
    page.machine(&benchmark.machine);
    page
}
