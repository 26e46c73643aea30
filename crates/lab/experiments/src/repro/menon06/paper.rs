//! The paper's numbers: Menon, Cox, Zwaenepoel, "Optimizing Network Virtualization in Xen", USENIX 2006, on a server
//! whose only CPU saturates.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use super::config::{self, ServerKind};
use crate::repro::transfer::Direction;

named::named! {
    /// A figure or table of the paper.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
    pub enum Figure {
        /// Linux, driver domain and guest, without optimisations.
        Table1 => "table1",
        /// Transmit, overall.
        #[value(name = "3")]
        Three => "3",
        /// Receive, overall.
        #[value(name = "4")]
        Four => "4",
        /// Transmit, by optimisation.
        #[value(name = "5")]
        Five => "5",
        /// The savings of each domain by the high-level interface.
        #[value(name = "6")]
        Six => "6",
        /// The high-level interface over NICs that offer less.
        #[value(name = "7")]
        Seven => "7",
        /// The savings of the hypervisor by the I/O channel.
        #[value(name = "8")]
        Eight => "8",
        /// TLB misses on transmit.
        #[value(name = "9")]
        Nine => "9",
        /// Transmit with copying writes.
        #[value(name = "10")]
        Ten => "10",
        /// Receive in the driver domain.
        #[value(name = "11")]
        Eleven => "11",
        /// Receive in guests.
        #[value(name = "13")]
        Thirteen => "13",
    }
}

impl Figure {
    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Table1 => "Table 1: network performance under Xen",
            Self::Three => "Figure 3: transmit throughput in different configurations",
            Self::Four => "Figure 4: receive throughput in different configurations",
            Self::Five => "Figure 5: contribution of individual transmit optimisations",
            Self::Six => "Figure 6: execution cost, high-level and unoptimised interface",
            Self::Seven => "Figure 7: the high-level interface over NICs that offer less",
            Self::Eight => "Figure 8: I/O channel optimisation benefit",
            Self::Nine => "Figure 9: TLB misses for the transmit benchmark",
            Self::Ten => "Figure 10: transmit performance with writes",
            Self::Eleven => "Figure 11: receive performance in driver domain configurations",
            Self::Thirteen => "Figure 13: receive performance in guest domains and Linux",
        }
    }

    /// The unoptimised configuration's name in the figure. The others are compared with it.
    pub fn none(self) -> &'static str {
        match self {
            Self::Table1 | Self::Three | Self::Four => XEN_GUEST,
            Self::Seven | Self::Thirteen => GUEST_NONE,
            Self::Eleven => DRIVER_NONE,
            Self::Eight => "high",
            Self::Five | Self::Six | Self::Nine | Self::Ten => "none",
        }
    }

    /// Whether it shows the cost of the throughput instead of the throughput.
    pub fn shows_costs(self) -> bool {
        matches!(self, Self::Six | Self::Eight)
    }
}

/// How the sending program sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// `sendfile`: pages of a file, without a copy.
    Sendfile,
    /// `write`, from the program's own buffer.
    Write,
}

/// How a bar is measured here, if it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feasibility {
    /// By measuring this server.
    Measure(ServerKind),
    /// It cannot be measured; the reason.
    Impossible(&'static str),
}

/// One bar of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Its figure.
    pub figure: Figure,
    /// The configuration's name in the figure.
    pub config: &'static str,
    /// The direction of the stream.
    pub direction: Direction,
    /// How it is sent.
    pub program: Program,
    /// Its height in the paper, in Mb/s, if the paper gives the number.
    pub mbps: Option<f64>,
    /// The rate that the stream does not exceed here, in Mb/s.
    pub pace: Option<u32>,
    /// How busy the CPU is in the paper, in per cent, at a rate that the links limit.
    pub busy_percent: Option<f64>,
    /// What the paper says in words.
    pub says: Option<&'static str>,
    /// How it is measured here.
    pub feasibility: Feasibility,
}

/// The factors by which the high-level interface divides the cost of the guest, the driver domain
/// and the hypervisor (figure 6).
pub const HIGH_DIVIDES: [f64; 3] = [4.0, 2.1, 1.9];
/// The share of the hypervisor's cost that the I/O channel saves (figure 8).
pub const CHANNEL_SAVES: f64 = 0.38;

/// Native Linux.
pub const LINUX: &str = "Linux";
/// The unoptimised guest in figures that compare all domains.
pub const XEN_GUEST: &str = "Xen-guest";
/// The unoptimised guest in figures that compare guests.
pub const GUEST_NONE: &str = "Guest-none";
/// The unoptimised driver domain.
pub const DRIVER_NONE: &str = "Driver-none";

/// Native Linux at a rate that all configurations of Table 1 reach.
pub const LINUX_PACED: &str = "Linux, paced";
/// The unoptimised driver domain at that rate.
pub const DRIVER_PACED: &str = "Xen-driver, paced";
/// The optimised driver domain at that rate.
pub const DRIVER_OPT_PACED: &str = "Xen-driver-opt, paced";

const GLOBAL_PAGES: &str = "only the kernel can choose global pages on x86; programs cannot";
const TLB_MISSES: &str = "TLB misses need performance counters; throughput is in figure 5";
const NO_GAIN: &str = "no significant gain over none";
/// The rate of the rows that compare how busy the CPU is, in Mb/s. All configurations reach it here; in the paper,
/// its four links limit it.
const PACE: u32 = 1000;
const LINK: &str = "limited by the paper's four links, not by the CPU";

/// Every bar of every figure, in the paper's order.
pub fn bars() -> Vec<Bar> {
    [
        table1(),
        overall(),
        transmit(),
        costs(),
        capabilities(),
        writes(),
        driver_receive(),
        guest_receive(),
    ]
    .concat()
}

fn bar(figure: Figure, config: &'static str, direction: Direction, server: ServerKind) -> Bar {
    let (program, feasibility) = (Program::Sendfile, Feasibility::Measure(server));
    let (mbps, pace, busy_percent, says) = (None, None, None, None);
    Bar { figure, config, direction, program, mbps, pace, busy_percent, says, feasibility }
}

impl Bar {
    fn mbps(self, mbps: u32) -> Self {
        Self { mbps: Some(f64::from(mbps)), ..self }
    }

    /// At a rate that all configurations reach.
    fn paced(self, busy_percent: u32) -> Self {
        let busy_percent = Some(f64::from(busy_percent));
        Self { pace: Some(PACE), busy_percent, says: Some(LINK), ..self }
    }

    fn says(self, says: &'static str) -> Self {
        Self { says: Some(says), ..self }
    }

    fn impossible(self, why: &'static str) -> Self {
        Self { feasibility: Feasibility::Impossible(why), ..self }
    }
}

fn table1() -> Vec<Bar> {
    let tx = |config, server| bar(Figure::Table1, config, Direction::Tx, server);
    let rx = |config, server| bar(Figure::Table1, config, Direction::Rx, server);
    vec![
        tx(LINUX, ServerKind::Native).mbps(3760).says(LINK),
        tx("Xen-driver", config::DRIVER_NONE).mbps(3760).says(LINK),
        tx(XEN_GUEST, config::NONE).mbps(750),
        tx(LINUX_PACED, ServerKind::Native).paced(40),
        tx(DRIVER_PACED, config::DRIVER_NONE).paced(46),
        tx(DRIVER_OPT_PACED, config::DRIVER_MTU_SP).paced(43),
        rx(LINUX, ServerKind::Native).mbps(2508),
        rx("Xen-driver", config::DRIVER_NONE).mbps(1738),
        rx(XEN_GUEST, config::GUEST_NONE).mbps(820),
    ]
}

/// Figures 3 and 4.
fn overall() -> Vec<Bar> {
    let tx = |config, server| bar(Figure::Three, config, Direction::Tx, server);
    let rx = |config, server| bar(Figure::Four, config, Direction::Rx, server);
    vec![
        tx(LINUX, ServerKind::Native).mbps(3760).says(LINK),
        tx("Xen-driver", config::DRIVER_NONE).mbps(3760).says(LINK),
        tx("Xen-driver-opt", config::DRIVER_MTU_SP).mbps(3760).says(LINK),
        tx(XEN_GUEST, config::NONE).mbps(750),
        tx("Xen-guest-opt", config::HIGH_IOC_SP).mbps(3310),
        rx(LINUX, ServerKind::Native).mbps(2508),
        rx("Xen-driver", config::DRIVER_NONE).mbps(1738),
        rx("Xen-driver-opt", config::DRIVER_MTU_SP).mbps(2343).says("with global pages as well"),
        rx(XEN_GUEST, config::GUEST_NONE).mbps(820),
        rx("Xen-guest-opt", config::GUEST_COPY_SP).mbps(970),
    ]
}

/// The configurations of figures 5 and 10.
const COMBINATIONS: [(&str, ServerKind); 6] = [
    ("none", config::NONE),
    ("sp", config::SP),
    ("ioc", config::IOC),
    ("high", config::HIGH),
    ("high-ioc", config::HIGH_IOC),
    ("high-ioc-sp", config::HIGH_IOC_SP),
];

/// Figure 5.
fn transmit() -> Vec<Bar> {
    let fill = |(config, server)| {
        let bar = bar(Figure::Five, config, Direction::Tx, server);
        match config {
            "none" => bar.mbps(750),
            "high" => bar.mbps(2794),
            "high-ioc" => bar.mbps(3230),
            "high-ioc-sp" => bar.mbps(3310),
            _ => bar.says(NO_GAIN),
        }
    };
    COMBINATIONS.map(fill).into()
}

/// Figures 6, 8 and 9.
fn costs() -> Vec<Bar> {
    let tx = |figure, config, server| bar(figure, config, Direction::Tx, server);
    let misses = |config, server| tx(Figure::Nine, config, server).impossible(TLB_MISSES);
    vec![
        tx(Figure::Six, "none", config::NONE),
        tx(Figure::Six, "high", config::HIGH).says("guest ÷ 4, driver domain ÷ 2.1, Xen ÷ 1.9"),
        tx(Figure::Eight, "high", config::HIGH),
        tx(Figure::Eight, "high-ioc", config::HIGH_IOC).says("Xen − 38 %"),
        misses("Base", config::HIGH_IOC),
        misses("SP", config::HIGH_IOC_SP).says("data TLB misses ÷ 3.8"),
        misses("SP-GP", config::HIGH_IOC_SP).says("no gain from global pages"),
    ]
}

/// Figure 7.
fn capabilities() -> Vec<Bar> {
    let tx = |config, server| bar(Figure::Seven, config, Direction::Tx, server);
    vec![
        tx(GUEST_NONE, config::NONE).mbps(750),
        tx("high/none", config::high_over("none")).mbps(1461),
        tx("high/csum", config::high_over("csum")).mbps(1461).says("comparable to none offered"),
        tx("high/csum+sg", config::high_over("csum+sg")).mbps(2007),
        tx("high/csum+sg+tso", config::HIGH).mbps(2794),
    ]
}

/// Figure 10.
fn writes() -> Vec<Bar> {
    let fill = |(config, server)| {
        let bar = bar(Figure::Ten, config, Direction::Tx, server);
        let bar = Bar { program: Program::Write, ..bar };
        if config == "high-ioc-sp" { bar.mbps(1848) } else { bar.says("similar to figure 5") }
    };
    COMBINATIONS.map(fill).into()
}

/// Figure 11.
fn driver_receive() -> Vec<Bar> {
    let rx = |config, server| bar(Figure::Eleven, config, Direction::Rx, server);
    vec![
        rx(DRIVER_NONE, config::DRIVER_NONE).mbps(1738),
        rx("Driver-MTU", config::DRIVER_MTU).mbps(2033),
        rx("Driver-MTU-GP", config::DRIVER_MTU)
            .impossible(GLOBAL_PAGES)
            .says("no significant gain over Driver-MTU"),
        rx("Driver-MTU-SP", config::DRIVER_MTU_SP).mbps(2301),
        rx("Driver-MTU-SP-GP", config::DRIVER_MTU_SP).mbps(2343).impossible(GLOBAL_PAGES),
        rx(LINUX, ServerKind::Native).mbps(2508),
    ]
}

/// Figure 13.
fn guest_receive() -> Vec<Bar> {
    let rx = |config, server| bar(Figure::Thirteen, config, Direction::Rx, server);
    vec![
        rx(GUEST_NONE, config::GUEST_NONE).mbps(820),
        rx("Guest-copy", config::GUEST_COPY).mbps(970),
        rx("Guest-copy-pool", config::GUEST_COPY_POOL)
            .says("its copies go to pages that all interfaces share from the set-up on"),
        rx("Guest-copy-SP", config::GUEST_COPY_SP).mbps(970).says("no noticeable difference"),
        rx(LINUX, ServerKind::Native).mbps(2508),
    ]
}

/// The paper's ratio of a bar to another one of the same figure and direction. `None` if the paper gives no number
/// for one of them.
pub fn ratio(bar: &Bar, to: &str) -> Option<f64> {
    let other = bars().into_iter().find(|other| {
        other.figure == bar.figure && other.direction == bar.direction && other.config == to
    })?;
    Some(bar.mbps? / other.mbps?)
}

#[cfg(test)]
mod tests;
