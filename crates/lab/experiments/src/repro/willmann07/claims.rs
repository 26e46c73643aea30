//! The paper's claims and other expectations, compared with the measurements.

use report::{Claim, Rule, Unit};

use super::config::{CDNA, Config};
use super::rows::Row;
use crate::repro::document::statement;
use crate::repro::transfer::Direction;

/// The most guests of the paper.
const MANY: u8 = 24;

fn find(rows: &[Row], config: Config, direction: Direction, guests: u8) -> Option<&Row> {
    let is = |row: &&Row| {
        (row.config, row.direction, row.guests) == (config, direction, guests) && row.mbps.is_some()
    };
    rows.iter().find(is)
}

fn mbps(row: &Row) -> Option<f64> {
    row.mbps.map(|stats| stats.median)
}

/// The rate that the server's whole CPU would allow. If the line or the client is the limit, the rate itself says
/// nothing about the server.
fn mbps_of_a_cpu(row: &Row) -> Option<f64> {
    let busy = 1.0 - row.share?.idle;
    (busy > 0.0).then_some(mbps(row)? / busy)
}

/// The claims whose rows were chosen. One that lacks a measurement cannot be told.
pub fn claims(rows: &[Row]) -> Vec<Claim> {
    let has = |guests| rows.iter().any(|row| row.config == CDNA && row.guests == guests);
    let mut claims = Vec::new();
    for direction in [Direction::Tx, Direction::Rx] {
        if has(1) {
            claims.extend(one_guest(rows, direction));
        }
        if has(MANY) {
            claims.extend(many_guests(rows, direction));
        }
    }
    claims
}

const fn workload(direction: Direction) -> &'static str {
    match direction {
        Direction::Tx => "transmit",
        Direction::Rx => "receive",
    }
}

fn one_guest(rows: &[Row], direction: Direction) -> Vec<Claim> {
    let workload = workload(direction);
    let is_tx = direction == Direction::Tx;
    let row = |config| find(rows, config, direction, 1);
    let cdna = row(CDNA);
    let share = |row: Option<&Row>| row.and_then(|row| row.share);
    let source = if is_tx { "Table 2" } else { "Table 3" };
    let idle = statement(
        source,
        "with CDNA and one guest, much of the CPU is idle",
        if is_tx { 0.508 } else { 0.409 },
        Unit::Share,
    );
    let driver =
        statement(source, "CDNA leaves the driver domain nothing to do", 0.005, Unit::Share);
    let per_interrupt = statement(
        source,
        "many packets share an interrupt of the guest",
        if is_tx { 11.8 } else { 21.9 },
        Unit::Times,
    );
    // At the same rate, or at any if a packet's cost stands for it.
    let hypervisor = |config| share(row(config)).map(|share| share.hypervisor);
    let none = hypervisor(Config::CdnaNone);
    let over_none = |config| Some(hypervisor(config)? - none?);
    let ricenic = statement(
        source,
        "at the same line rate, Xen leaves nothing of the CPU idle",
        if is_tx { 0.038 } else { 0.0 },
        Unit::Share,
    );
    // The paper only expects that an IOMMU costs less (§5.3).
    let iommu = statement(
        "§5.3",
        "an IOMMU per context protects for a fraction of the hypervisor's cost",
        0.25,
        Unit::Times,
    );
    let static_share = over_none(Config::CdnaIommuStatic).zip(over_none(CDNA));
    let protection = statement(
        "Table 4",
        "protection by the hypervisor costs a part of the CPU",
        if is_tx { 0.083 } else { 0.080 },
        Unit::Share,
    );
    vec![
        idle.compare(workload, "idle", share(cdna).map(|it| it.idle), Rule::at_least(0.4)),
        driver.compare(
            workload,
            "driver domain",
            share(cdna).map(|it| it.driver),
            Rule::at_most(0.01),
        ),
        per_interrupt.compare(
            workload,
            "packets per interrupt of the guest",
            cdna.and_then(|row| row.packets_per_interrupt),
            Rule::at_least(10.0),
        ),
        protection.compare(
            workload,
            "hypervisor's share with protection − without",
            over_none(CDNA),
            Rule::at_most(0.15),
        ),
        ricenic.compare(
            workload,
            "idle, Xen/RiceNIC",
            share(row(Config::XenRicenic)).map(|it| it.idle),
            Rule::at_most(0.05),
        ),
        iommu.compare(
            workload,
            "hypervisor's share over none: static ÷ hypervisor",
            static_share.map(|(fixed, checked)| fixed / checked),
            Rule::at_most(0.25),
        ),
    ]
}

fn many_guests(rows: &[Row], direction: Direction) -> Vec<Claim> {
    let workload = workload(direction);
    let (source, times) = match direction {
        Direction::Tx => ("Figure 3", 2.1),
        Direction::Rx => ("Figure 4", 3.3),
    };
    let rate = |config, guests| find(rows, config, direction, guests).and_then(mbps);
    let of_a_cpu = |config| find(rows, config, direction, MANY).and_then(mbps_of_a_cpu);
    let over =
        |one: Option<f64>, other: Option<f64>| Some(one? / other.filter(|other| *other > 0.0)?);
    let to_xen =
        statement(source, "24 guests have more with CDNA than with Xen", times, Unit::Times);
    let equal =
        statement(source, "24 guests cost less with CDNA than with Xen", times, Unit::Times);
    // Compare NICs with equal abilities: on transmit both segment, on receive neither merges.
    let (cdna, what) = match direction {
        Direction::Tx => (Config::CdnaTso, "CDNA with TSO ÷ Xen/Intel, 24 guests, Mb/s of a CPU"),
        Direction::Rx => (CDNA, "CDNA ÷ Xen/Intel, 24 guests, Mb/s of a CPU"),
    };
    let to_one = statement(source, "24 guests have as much as one", 1.0, Unit::Times);
    let even = statement(source, "bandwidth is balanced", 1.0, Unit::Times);
    let jain = find(rows, CDNA, direction, MANY).and_then(|row| row.jain);
    vec![
        to_xen.compare(
            workload,
            "CDNA ÷ Xen/Intel, 24 guests",
            over(rate(CDNA, MANY), rate(Config::XenIntel, MANY)),
            Rule::at_least(times),
        ),
        equal.compare(
            workload,
            what,
            over(of_a_cpu(cdna), of_a_cpu(Config::XenIntel)),
            Rule::at_least(times),
        ),
        to_one.compare(
            workload,
            "24 guests ÷ one",
            over(rate(CDNA, MANY), rate(CDNA, 1)),
            Rule::at_least(0.95),
        ),
        even.compare(workload, "Jain's index of 24 guests", jain, Rule::at_least(0.95)),
    ]
}

#[cfg(test)]
mod tests {
    use report::Verdict;

    use super::super::paper::Part;
    use super::super::rows::tests::sample;
    use super::super::rows::{Measurements, Transferred, rows};
    use super::*;

    #[test]
    fn claims_follow_the_measurements() {
        let mut seen = Measurements::new();
        let mut keys = Vec::new();
        for (config, guests, mbps) in
            [(CDNA, 1, 1000.0), (CDNA, 24, 990.0), (Config::XenIntel, 24, 400.0)]
        {
            let key = Transferred { config, direction: Direction::Tx, guests };
            keys.push(key);
            seen.push(key, sample(mbps, 0.5));
        }
        let rows = rows(&[Part::Figure3], &keys, &[1, 24], &seen);
        let claims = claims(&rows);
        let verdict = |what: &str, workload| {
            let found = claims.iter().find(|it| it.what.contains(what) && it.workload == workload);
            found.unwrap_or_else(|| panic!("{what}")).verdict
        };
        assert_eq!(verdict("CDNA ÷ Xen/Intel", "transmit"), Verdict::Holds);
        assert_eq!(verdict("24 guests ÷ one", "transmit"), Verdict::Holds);
        assert_eq!(verdict("idle", "transmit"), Verdict::Holds);
        assert_eq!(verdict("with protection", "transmit"), Verdict::CannotBeTold);
        assert_eq!(verdict("idle", "receive"), Verdict::CannotBeTold);
    }
}
