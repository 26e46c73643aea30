//! The findings as sentences for a terminal, and as rows of a benchmark.

use lab::Ping;
use report::{Benchmark, Row, Samples, Stats, Table, human};

use super::cost::{Compared, Cost};
use super::kill::Kill;
use super::links::{Links, Ports};
use super::{Findings, Step, Talk};
use crate::bench::idle::Idle;
use crate::bench::isolation::Beside;
use crate::repro::menon06::Gain;

/// The introduction to the demo.
pub const INTRODUCTION: &str = "\
pvnet is a driver domain in user space: it carries frames between guests that do not trust each other. The guests here are network \
namespaces, each with its own unmodified Linux TCP/IP stack behind an interface whose rings pvnet serves.";

/// The width of a line of text, in columns.
const WIDTH: usize = 100;
const INDENT: &str = "   ";

/// The title of a step, shown before it is measured.
pub fn title(step: Step) -> &'static str {
    match step {
        Step::Talk => "Two guests talk through shared rings",
        Step::Mechanisms => "Each mechanism of Menon, Cox and Zwaenepoel (2006), off and on",
        Step::Kill => "kill -9 of pvnet in the middle of a file",
        Step::Attack => "A hostile virtual machine beside two guests, on the same worker",
        Step::Ports => "A virtual machine's port, and a context of a network card",
        Step::Idle => "Nobody sends",
        Step::Cost => "What isolation costs",
    }
}

/// A step's findings for a terminal.
pub fn findings(step: Step, findings: &Findings) -> String {
    let text = match step {
        Step::Talk => findings.talk.as_ref().map(|talk| wrapped(&self::talk(talk))),
        Step::Mechanisms => (!findings.gains.is_empty()).then(|| {
            let lead = wrapped(&mechanisms(&findings.gains));
            lead + &indented(&gains(&findings.gains).render(false))
        }),
        Step::Kill => findings.kill.as_ref().map(|kill| wrapped(&self::kill(kill))),
        Step::Attack => findings.attack.as_ref().map(|attack| wrapped(&self::attack(attack))),
        Step::Ports => findings.ports.as_ref().map(|ports| wrapped(&self::ports(ports))),
        Step::Idle => findings.idle.as_ref().map(|idle| wrapped(&self::idle(idle))),
        Step::Cost => findings
            .cost
            .as_ref()
            .map(|cost| wrapped(&self::cost(cost)) + &indented(&compared(cost).render(false))),
    };
    text.unwrap_or_default()
}

/// How two guests talk.
pub fn talk(talk: &Talk) -> String {
    let [v4, v6] = talk.pings.each_ref().map(ping);
    let [red, blue] = talk.links.each_ref();
    let links = |links: &Links| format!("{} has {}", links.namespace, links.links.join(" and "));
    format!(
        "Ping takes {v4} (IPv4) and {v6} (IPv6), a datagram and its answer {}, and a TCP stream has {}. The kernel has no link between \
         them ({}; {}), and pvnet's ports counted all {} MB.",
        micros(&talk.rtt, 50.0),
        gbps(talk.tcp.result.mbps),
        links(red),
        links(blue),
        human(talk.tcp.carried.bytes as f64 / 1e6)
    )
}

/// The mechanisms together.
pub fn mechanisms(gains: &[Gain]) -> String {
    let all = gains.iter().find(|gain| gain.mechanism.key == "all");
    let factor = all.and_then(Gain::factor).map_or("?".to_owned(), human);
    let paper = all.and_then(|gain| gain.paper).map_or(String::new(), |paper| {
        format!(" In the paper, on a machine of 2006, it is {}.", human(paper))
    });
    format!(
        "A guest and its driver domain share one CPU, as in the paper. With all mechanisms for sending the guest's stream is {factor} times \
         as fast as with none.{paper}"
    )
}

/// The pause, and the file.
pub fn kill(kill: &Kill) -> String {
    let transfer = &kill.transfer;
    format!(
        "Nothing arrived for {} ms, with the start of the next pvnet and TCP's retransmission in it. Then the file of {} MiB went on over the \
         same connection, and arrived as it was sent: SHA-256 {}… at both ends.",
        human(transfer.longest_pause.as_secs_f64() * 1e3),
        transfer.bytes >> 20,
        &transfer.sha256[..16]
    )
}

/// The hostile guest's fate, and its neighbours' rates.
pub fn attack(attack: &Beside) -> String {
    let Beside { idle, attack, reason } = attack;
    format!(
        "It broke its rings {} times, and each time pvnet disabled its port: \"{reason}\". The guests' stream had {} before and {} \
         meanwhile ({} %); the 99th percentile of their round trips was {} and {}.",
        attack.operations,
        gbps(idle.mbps),
        gbps(attack.mbps),
        percent(attack.mbps, idle.mbps),
        time(idle.p99),
        time(attack.p99)
    )
}

/// The streams through the other kinds of ports.
pub fn ports(ports: &Ports) -> String {
    format!(
        "Between two virtual machines' ports (vhost-user, driven by pvnet's own virtio driver) a TCP stream has {}. From a guest's own context \
         of a card to the wire it has {}, in frames of the MTU, and the daemon used {:.1} % of a CPU meanwhile: it only assigns contexts.",
        gbps(ports.machines.mbps),
        gbps(ports.card.mbps),
        100.0 * ports.daemon
    )
}

/// The daemon's CPU time and memory while nobody sends.
pub fn idle(idle: &Idle) -> String {
    format!(
        "The daemon with two connected guests used {:.1} % of a CPU, and has {} MiB of memory. Its workers sleep; a switch that polls uses a \
         whole CPU.",
        idle.daemon,
        human(idle.rss)
    )
}

/// The comparison in sentences.
pub fn cost(cost: &Cost) -> String {
    let [pvnet, bridge, ..] = &cost.compared[..] else { return String::new() };
    let absent = match &cost.not_installed[..] {
        [] => String::new(),
        absent => format!(" RIVALS=1 (--rivals) installs and shows more: {}.", absent.join(", ")),
    };
    let failed: String =
        cost.failed.iter().map(|failure| format!(" Not shown: {failure}.")).collect();
    format!(
        "The same stream over the kernel's bridge is {} times as fast: it has no wall between guests, passes pages by reference and copies a byte \
         twice. pvnet checks all that a guest writes and copies a byte five times.{failed}{absent}",
        human(bridge.tcp.result.mbps / pvnet.tcp.result.mbps.max(f64::EPSILON))
    )
}

/// A row for each mechanism.
pub fn gains(gains: &[Gain]) -> Table {
    let table = Table::new().left("mechanism").right("off Mb/s").right("on Mb/s");
    let mut table = table.right("factor").right("in the paper");
    let factor = |factor: Option<f64>| factor.map_or("–".to_owned(), |it| format!("× {it:.2}"));
    for gain in gains {
        let rates = gain.samples.as_ref().map(|samples| samples.each_ref().map(|s| human(s.mbps)));
        let [off, on] = rates.unwrap_or_else(|| ["–".to_owned(), "–".to_owned()]);
        let label = gain.mechanism.label.to_owned();
        table.row([label, off, on, factor(gain.factor()), factor(gain.paper)]);
    }
    table
}

/// A row for each compared program.
pub fn compared(cost: &Cost) -> Table {
    let table = Table::new().left("over").left("between the guests").right("TCP Mb/s");
    let mut table = table.right("CPU s/GB").right("round trip µs").right("p99");
    for one in &cost.compared {
        let rtt = |percent| human(one.rtt.percentile(percent).unwrap_or(0.0));
        let rate = human(one.tcp.result.mbps);
        let cpu = format!("{:.2}", one.cpu());
        table.row([one.label.into(), one.wall.into(), rate, cpu, rtt(50.0), rtt(99.0)]);
    }
    table
}

/// The mean time of a ping, and its losses.
fn ping(ping: &Ping) -> String {
    let time = ping.rtt.map_or("?".to_owned(), |rtt| self::time(rtt.avg.as_secs_f64() * 1e6));
    match ping.sent.saturating_sub(ping.received) {
        0 => time,
        lost => format!("{time}, {lost} of {} lost", ping.sent),
    }
}

fn gbps(mbps: f64) -> String {
    format!("{} Gb/s", human(mbps / 1e3))
}

fn micros(samples: &Samples, percent: f64) -> String {
    time(samples.percentile(percent).unwrap_or(0.0))
}

/// A number of microseconds, as text in µs or ms.
pub fn time(us: f64) -> String {
    if us < 1000.0 { format!("{} µs", human(us)) } else { format!("{} ms", human(us / 1e3)) }
}

/// A share in whole per cent.
pub fn percent(part: f64, whole: f64) -> String {
    format!("{:.0}", 100.0 * part / whole.max(f64::EPSILON))
}

/// Text in lines, indented.
pub fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::from(INDENT));
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += line.trim_end();
            lines.push('\n');
            INDENT.clone_into(&mut line);
        }
        line += word;
        line.push(' ');
    }
    lines + line.trim_end() + "\n"
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("{INDENT}{line}\n")).collect()
}

/// The findings as benchmark rows of one round.
pub fn benchmark(findings: &Findings) -> Benchmark {
    let mut benchmark = Benchmark::new("demo");
    let row = |name: &str, unit: &str, value: f64| Row::new(name, unit, Stats::single(value));
    let rows = &mut benchmark.rows;
    let trips = |name: &str, rtt: &Samples| {
        let percentile = |percent| rtt.percentile(percent).unwrap_or(0.0);
        [("rtt-p50", 50.0), ("rtt-p99", 99.0)]
            .map(|(of, percent)| row(&format!("{of}/{name}"), "µs", percentile(percent)))
    };
    if let Some(talk) = &findings.talk {
        rows.push(row("talk-tcp", "Mb/s", talk.tcp.result.mbps).with_cpu(talk.tcp.cpu));
        rows.extend(trips("talk", &talk.rtt));
    }
    for gain in &findings.gains {
        let Some([off, on]) = &gain.samples else { continue };
        for (state, sample) in [("off", off), ("on", on)] {
            let name = format!("{}/{state}", gain.mechanism.key);
            rows.push(row(&name, "Mb/s", sample.mbps).with_cpu(sample.cpu));
        }
        if let (Some(row), Some(paper)) = (rows.last_mut(), gain.paper) {
            row.extra.insert("paper_factor".to_owned(), paper.into());
        }
    }
    if let Some(Kill { transfer, .. }) = &findings.kill {
        let pause = row("kill-pause", "ms", transfer.longest_pause.as_secs_f64() * 1e3);
        rows.push(pause.with("bytes", transfer.bytes).with("sha256", transfer.sha256.clone()));
    }
    if let Some(Beside { idle, attack, reason }) = &findings.attack {
        let seen = [("before", idle), ("during", attack)];
        rows.extend(seen.map(|(when, it)| row(&format!("attack-tcp/{when}"), "Mb/s", it.mbps)));
        rows.extend(seen.map(|(when, it)| row(&format!("attack-p99/{when}"), "µs", it.p99)));
        let broken = row("attack-disabled", "times", attack.operations as f64);
        rows.push(broken.with("reason", reason.clone()));
    }
    if let Some(ports) = &findings.ports {
        rows.push(row("ports-vhost-user", "Mb/s", ports.machines.mbps));
        rows.push(row("ports-card", "Mb/s", ports.card.mbps).with("daemon_cpus", ports.daemon));
    }
    if let Some(idle) = &findings.idle {
        rows.push(row("idle-cpu", "%", idle.daemon));
        rows.push(row("idle-rss", "MiB", idle.rss));
    }
    let compared: &[Compared] = findings.cost.as_ref().map_or(&[], |cost| &cost.compared);
    for one in compared {
        let tcp = row(&format!("cost-tcp/{}", one.key), "Mb/s", one.tcp.result.mbps);
        rows.push(tcp.with_cpu(one.tcp.cpu).with("cpu_s_per_gb", one.cpu()));
        rows.extend(trips(one.key, &one.rtt));
    }
    for gain in &findings.gains {
        let key = gain.mechanism.key;
        benchmark.compare(&format!("{key}/on"), &format!("{key}/off"));
    }
    for what in ["attack-tcp", "attack-p99"] {
        benchmark.compare(&format!("{what}/during"), &format!("{what}/before"));
    }
    for one in compared {
        benchmark.compare(&format!("cost-tcp/{}", one.key), "cost-tcp/pvnet");
    }
    benchmark
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use lab::Transfer;

    use super::*;

    #[test]
    fn text_is_wrapped_and_indented() {
        let text = wrapped(&"word ".repeat(40));
        assert!(text.lines().all(|line| line.starts_with("   word") && line.len() <= WIDTH));
        assert_eq!(text.split_whitespace().count(), 40);
        assert!(text.ends_with("word\n"));
    }

    #[test]
    fn a_step_that_was_not_asked_for_tells_and_counts_nothing() {
        let findings = Findings::default();
        let steps = <Step as clap::ValueEnum>::value_variants();
        assert!(steps.iter().all(|step| super::findings(*step, &findings).is_empty()));
        assert!(benchmark(&findings).rows.is_empty());
    }

    #[test]
    fn the_killed_daemon_has_its_pause_and_the_files_digest() {
        let transfer = Transfer {
            bytes: 256 << 20,
            duration: Duration::from_secs(1),
            longest_pause: Duration::from_micros(23_400),
            sha256: "0123456789abcdef00".to_owned(),
            source: Ipv4Addr::LOCALHOST.into(),
        };
        let kill = Some(Kill { transfer, arrived: Vec::new(), at: 0.5 });
        let findings = Findings { kill, ..Findings::default() };
        let text = super::findings(Step::Kill, &findings);
        assert!(text.contains("23.4 ms") && text.contains("256 MiB"), "{text}");
        assert!(text.contains("0123456789abcdef…"), "{text}");
        let benchmark = benchmark(&findings);
        let row = benchmark.row("kill-pause").unwrap();
        assert!((row.stats.median - 23.4).abs() < 1e-9, "{row:?}");
        assert_eq!(row.extra["sha256"], "0123456789abcdef00");
    }
}
