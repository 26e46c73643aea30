//! Menon, Cox and Zwaenepoel 2006: the figures of cycles and TLB misses. `pvnet-lab repro menon06` judges the throughput.

use super::{PaperClaim, Rule, Unit, near};

/// A guest without offloads, with nobody in dom0 to receive.
const UNOPTIMISED: &str = "tx-udp";
const UNOPTIMISED_RECEIVE: &str = "rx-stock-basic";
const SENDFILE_BASIC: &str = "tx-sendfile-basic";
const SENDFILE: &str = "tx-sendfile";
const HEADER: &str = "tx-frontend-header";
const DRIVER_DOMAIN: &str = "virtio-dom0";

const ROUGHLY: &str = "The paper says roughly, in tens: 5 points.";

/// A share of a packet's cost (§2).
const fn share(
    says: &'static str,
    number: f64,
    workload: &'static str,
    what: &'static str,
) -> PaperClaim {
    let (source, unit, why, without) = ("§2", Unit::Share, ROUGHLY, Some(0.1));
    let (number, band) = (Some(number), Rule::Between(number - 0.05, number + 0.05));
    PaperClaim { source, says, number, unit, workload, what, band, why, without }
}

/// The guest's share follows from these two.
pub const TX_XEN: PaperClaim =
    share("30 % of a transmit's cost is Xen's", 0.3, UNOPTIMISED, "Xen's share of all cycles");
pub const TX_DRIVER: PaperClaim = share(
    "30 % of a transmit's cost is the driver domain's",
    0.3,
    UNOPTIMISED,
    "dom0's share of all cycles",
);
pub const RX_XEN: PaperClaim = share(
    "40 % of a receive's cost is Xen's",
    0.4,
    UNOPTIMISED_RECEIVE,
    "Xen's share of all cycles",
);
pub const RX_DRIVER: PaperClaim = share(
    "30 % of a receive's cost is the driver domain's",
    0.3,
    UNOPTIMISED_RECEIVE,
    "dom0's share of all cycles",
);

/// What rules on Figure 12 begin with: shares that nothing saves.
const DRIVER: PaperClaim = PaperClaim {
    source: "Figure 12, §6.4.1",
    says: "",
    number: None,
    unit: Unit::Share,
    workload: DRIVER_DOMAIN,
    what: "",
    band: Rule::Above(0.0),
    why: "",
    without: Some(0.0),
};
/// The same on Figure 9.
const TLB: PaperClaim = PaperClaim { source: "Figure 9, §6.3.3", workload: SENDFILE, ..DRIVER };

const FACTOR: &str = "Within 1.5 times of the paper's factor.";

/// A factor by which the high-level interface divides a cost (Figure 6).
const fn offloads(says: &'static str, number: f64, what: &'static str) -> PaperClaim {
    let (source, unit, why, without) = ("Figure 6, §6.3.1", Unit::Times, FACTOR, Some(1.0));
    let (number, band, workload) = (Some(number), near(number), SENDFILE_BASIC);
    PaperClaim { source, says, number, unit, workload, what, band, why, without }
}

pub const OFFLOADS_GUEST: PaperClaim = offloads(
    "the high-level interface divides the guest's cost by almost 4",
    4.0,
    "the guest's cycles per byte of payload without offloads ÷ with them (tx-sendfile)",
);
pub const OFFLOADS_XEN: PaperClaim = offloads(
    "and Xen's by 1.9",
    1.9,
    "Xen's cycles per byte of payload without offloads ÷ with them",
);
pub const OFFLOADS_DRIVER: PaperClaim = offloads(
    "and the driver domain's by 2.1",
    2.1,
    "dom0's cycles per byte of payload without offloads ÷ with them",
);
pub const HEADER_CHANNEL: PaperClaim = PaperClaim {
    source: "Figure 8, §6.3.2",
    says: "the header channel saves 38 % of Xen's cost",
    number: Some(0.38),
    unit: Unit::Share,
    workload: HEADER,
    what: "share of Xen's cycles per byte of payload that the header channel saves of mapping (tx-frontend-remap)",
    band: Rule::at_least(0.25),
    why: "Two thirds of the paper's saving. A larger one is no objection to the claim.",
    without: Some(0.0),
};
pub const SUPERPAGES: PaperClaim = PaperClaim {
    says: "superpages divide DTLB misses by 3.8",
    number: Some(3.8),
    unit: Unit::Times,
    what: "real's DTLB misses ÷ grouped-superpages'",
    band: near(3.8),
    why: FACTOR,
    without: Some(1.0),
    ..TLB
};
pub const GLOBAL_DTLB: PaperClaim = PaperClaim {
    says: "global pages have no significant impact on DTLB misses",
    what: "change of DTLB misses, grouped-superpages to guest-global-superpages, either way",
    band: Rule::at_most(0.05),
    why: "A twentieth: half of what is called small elsewhere here.",
    without: Some(0.2),
    ..TLB
};
pub const GLOBAL_XEN_ITLB: PaperClaim = PaperClaim {
    says: "global pages increase Xen's ITLB misses significantly",
    what: "more ITLB misses in Xen, grouped-superpages to guest-global-superpages",
    band: Rule::at_least(0.15),
    why: "Three times what is called insignificant for the DTLB.",
    ..TLB
};
pub const DRIVER_MISSES: PaperClaim = PaperClaim {
    says: "the driver domain has 18 times the DTLB misses of native Linux",
    number: Some(18.0),
    unit: Unit::Times,
    what: "dom0's DTLB misses per byte of payload ÷ native Linux's (virtio)",
    band: near(18.0),
    why: FACTOR,
    without: Some(1.0),
    ..DRIVER
};
pub const DRIVER_SUPERPAGES: PaperClaim = PaperClaim {
    says: "superpages save 86 % of the driver domain's DTLB misses",
    number: Some(0.86),
    what: "share of real's DTLB misses of dom0 that grouped-superpages saves",
    band: Rule::at_least(0.79),
    why: "1.5 times the misses that the paper leaves, 14 %.",
    ..DRIVER
};
pub const DRIVER_GLOBAL: PaperClaim = PaperClaim {
    says: "global pages alone are only a small improvement",
    what: "share of real's DTLB misses of dom0 that guest-global saves",
    band: Rule::Between(-0.1, 0.1),
    why: "A tenth is small beside 86 %.",
    without: Some(0.86),
    ..DRIVER
};
pub const DRIVER_BOTH: PaperClaim = PaperClaim {
    says: "with superpages and global pages it comes within 26 % of native Linux",
    number: Some(1.26),
    unit: Unit::Times,
    what: "dom0's DTLB misses per byte of payload with guest-global-superpages ÷ native Linux's",
    band: Rule::at_most(1.5),
    why: "Twice the paper's distance from native Linux.",
    without: Some(18.0),
    ..DRIVER
};

/// All of them.
#[cfg(test)]
pub const ALL: [PaperClaim; 15] = [
    TX_XEN,
    TX_DRIVER,
    RX_XEN,
    RX_DRIVER,
    OFFLOADS_GUEST,
    OFFLOADS_XEN,
    OFFLOADS_DRIVER,
    HEADER_CHANNEL,
    SUPERPAGES,
    GLOBAL_DTLB,
    GLOBAL_XEN_ITLB,
    DRIVER_MISSES,
    DRIVER_SUPERPAGES,
    DRIVER_GLOBAL,
    DRIVER_BOTH,
];
