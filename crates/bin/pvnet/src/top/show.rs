//! Rates as tables.

use report::{CpuSplit, Table, human};

use super::contexts;
use super::layout::{TableColumn, table};
use super::rates::{PortRates, Rates};
use super::screen::Size;
use super::view::{Column, View};
use super::workers;

/// An interval as tables, followed by an empty line. A terminal of a known size gets what fits.
pub fn text(rates: &Rates, view: &View, size: Option<Size>) -> String {
    let carried = &rates.measured.carried;
    let head = format!(
        "{} packets/s, {} Mb/s, over {} s",
        human(rates.measured.frames_per_second()),
        human(megabits(rates, carried.bytes)),
        human(rates.measured.wall.as_secs_f64())
    );
    // The longest table is the last: a low terminal cuts it off.
    let (processors, operations) = (processors(rates).to_string(), operations(rates));
    let workers = workers::text(&rates.workers, seconds(rates), size.map(|size| size.columns));
    let above = processors.lines().count() + workers.lines().count() + HEAD_LINES;
    let ports = ports(rates, view, size, above);
    let contexts = view.list(&rates.contexts);
    let contexts = contexts::text(&contexts, seconds(rates), size.map(|size| size.columns));
    format!("{head}\n\n{processors}\n{workers}{ports}\n{contexts}{operations}\n")
}

/// Lines of the view's order, of the head, around the tables and of the ports' header.
const HEAD_LINES: usize = 6;
/// Ports that are shown in however low a terminal.
const PORTS_MIN: usize = 3;

/// A share of the machine's time: its name, and its field of a split.
type Share = (&'static str, fn(&CpuSplit) -> f64);

const WORK: [Share; 3] = [
    ("others", |split| split.guest),
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

/// The ports that a view lists, below `above` lines, and a line for each that has a reason.
fn ports(rates: &Rates, view: &View, size: Option<Size>, above: usize) -> String {
    let listed = view.list(&rates.ports);
    let room = size.map_or(usize::MAX, |size| size.rows.saturating_sub(above + 1).max(PORTS_MIN));
    let shown = &listed[..listed.len().min(room)];
    let rate = |n: u64| human(rates.per_second(n));
    let column = |header, rank, cell: &dyn Fn(&PortRates) -> String| TableColumn {
        header,
        is_left: matches!(header, "port" | "kind" | "state"),
        cells: shown.iter().map(|port| cell(port)).collect(),
        rank,
    };
    // What is sorted by is always shown.
    let rank = |column, rank| if view.sort == Some(column) { 0 } else { rank };
    let columns = vec![
        column("port", 0, &|port| port.name.clone()),
        column("kind", 5, &|port| port.kind.to_string()),
        column("state", 1, &|port| port.state.to_string()),
        column("frames/s in", 0, &|port| rate(port.ingress.frames)),
        column("Mb/s in", 0, &|port| human(megabits(rates, port.ingress.bytes))),
        column("frames/s out", 0, &|port| rate(port.egress.frames)),
        column("Mb/s out", 0, &|port| human(megabits(rates, port.egress.bytes))),
        column("drops/s", 0, &|port| rate(port.drops)),
        column("cpu %", rank(Column::Cpu, 2), &|port| {
            human(rates.per_second(port.worker_nanoseconds) / 1e7)
        }),
        column("time %", rank(Column::Time, 3), &|port| {
            human(rates.per_second(port.nanoseconds) / 1e7)
        }),
        column("µs/frame", rank(Column::Cost, 4), &|port| or_dash(port.us_per_frame())),
    ];
    let mut text = table(columns, size.map(|size| size.columns)).to_string();
    let hidden = listed.len() - shown.len();
    if hidden > 0 {
        text += &format!("{hidden} more do not fit\n");
    }
    if listed.len() < rates.ports.len() {
        text += &format!("{} of {} ports\n", listed.len(), rates.ports.len());
    }
    let reason =
        |port: &&PortRates| port.reason.as_ref().map(|why| format!("{}: {why}\n", port.name));
    text + &shown.iter().filter_map(reason).collect::<String>()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::rates;
    use control_socket::{Reason, Traffic};
    use hypervisor::Counted;

    #[test]
    fn the_tables_show_rates_costs_and_reasons() {
        let mut rates = rates();
        rates.ports[1].reason = Some(Reason::Stalled);
        let text = text(&rates, &View::default(), None);
        for line in [
            "600 packets/s, 4.80 Mb/s, over 2.00 s",
            // Guests cannot be distinguished from other programs.
            "others          1.00  50.0      1,667  1,667",
            "driver domain  0.400  20.0        667    667",
            "stolen         0.250  12.5",
            "copies                    1,200     2.00",
            "red   guest   up             500     4.00           250      2.00     50.0  0.0150  0.0200     0.400",
            "out: its other side takes no frames",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(Counted::ALL.iter().all(|what| text.contains(&what.name().replace('_', " "))));
    }

    #[test]
    fn without_packets_nothing_is_per_packet() {
        let mut rates = rates();
        rates.measured.carried.frames = 0;
        rates.measured.carried.bytes = 0;
        assert!(text(&rates, &View::default(), None).contains('–'));
    }

    #[test]
    fn a_terminal_gets_lines_that_fit_and_the_first_ports_of_the_order() {
        let mut rates = rates();
        let guest = |number: u64| PortRates {
            name: format!("a-guest-with-a-long-name-{number:03}"),
            ingress: Traffic { frames: number * 1_000_000, bytes: number << 30 },
            ..rates.ports[0].clone()
        };
        let guests: Vec<_> = (0..100_u64).map(guest).collect();
        rates.ports.extend(guests);
        let view = View { sort: Some(Column::Rate), ..View::default() };
        let size = Some(Size { rows: 24, columns: 80 });
        let shown = text(&rates, &view, size);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{shown}");
        // The numbers are whole, and what is left out is said within the screen.
        assert!(lines[..23].iter().any(|line| line.contains("49,500,000")), "{shown}");
        assert!(lines[..23].iter().any(|line| line.contains("more do not fit")), "{shown}");
        assert!(!shown.contains("\nred "), "{shown}");

        // What is sorted by is shown in place of what is not.
        let by_cost = View { sort: Some(Column::Cost), ..View::default() };
        let costs = text(&rates, &by_cost, size);
        assert!(costs.lines().all(|line| line.chars().count() <= 80), "{costs}");
        let has_cost = |text: &str| text.lines().any(|line| line.ends_with("µs/frame"));
        assert!(has_cost(&costs) && !has_cost(&shown), "{costs}");

        let view = View { filter: "guest red".to_owned(), ..View::default() };
        let shown = text(&rates, &view, size);
        assert!(shown.contains("\nred ") && shown.contains("1 of 102 ports"), "{shown}");
        assert!(!shown.contains("a-guest"), "{shown}");
    }
}
