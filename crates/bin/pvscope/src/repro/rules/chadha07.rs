//! Chadha and others 2007.

use super::{PaperClaim, Rule, Unit, instructions, within_twice};

/// TCP whose frames are packets, as in Xen 3.0.2; its peer is in dom0.
const TCP: &str = "tx-stock-basic";
/// The only workload whose peer is not in dom0.
const UDP: &str = "tx-udp";
const RECEIVE: &str = "rx-stock-basic";

/// What the other rules begin with: ratios of the transmitting workload, which are 1 without the effect.
const TIMES: PaperClaim = PaperClaim {
    source: "",
    says: "",
    number: None,
    unit: Unit::Times,
    workload: UDP,
    what: "",
    band: Rule::Above(0.0),
    why: "",
    without: Some(1.0),
};
/// The same of shares.
const SHARE: PaperClaim = PaperClaim { unit: Unit::Share, without: Some(0.05), ..TIMES };

pub const WRITE: PaperClaim = instructions(
    "Figure 7, §4.1.1",
    "a write to the socket takes 9478 instructions of the guest, with two copies from the program",
    9478.0,
    TCP,
    "instructions from tcp_sendmsg to release_sock in the guest, for each 8 KiB written, median",
);
pub const TO_GRANT: PaperClaim = instructions(
    "Figure 8, §4.1.2",
    "1129 instructions from tcp_transmit_skb to the claim of a grant reference",
    1129.0,
    TCP,
    "instructions from __tcp_transmit_skb to gnttab_claim_grant_reference, median",
);
pub const TO_WAKE: PaperClaim = instructions(
    "Figure 8, §4.1.2",
    "279 instructions from the claim of a grant reference to vcpu_wake in Xen (1129 to 1408)",
    279.0,
    TCP,
    "instructions from the last gnttab_claim_grant_reference before it to vcpu_wake, median",
);
pub const TO_SWITCH: PaperClaim = instructions(
    "Figure 9, §4.1.3",
    "723 instructions from the timer's interrupt to the switch",
    723.0,
    TCP,
    "instructions from apic_timer_interrupt to context_switch without leaving Xen, median",
);
pub const TO_UPCALL: PaperClaim = instructions(
    "Figure 9, §4.1.3",
    "627 instructions from the switch to the upcall in dom0 (723 to 1350)",
    627.0,
    TCP,
    "instructions from context_switch to dom0's first upcall, median",
);
pub const TO_MAP: PaperClaim = instructions(
    "Figure 10, §4.1.4",
    "1963 instructions from dom0's upcall to the mapping of the first grant",
    1963.0,
    UDP,
    "instructions from dom0's upcall to Xen's mapping of a grant, median",
);
pub const TO_BRIDGE: PaperClaim = instructions(
    "Figure 10, §4.1.4",
    "2667 instructions from the mapping of the grant to br_forward (1963 to 4630)",
    2667.0,
    UDP,
    "instructions from Xen's last mapping of a grant before it to the bridge's forwarding, median",
);
pub const FROM_UNMAP: PaperClaim = instructions(
    "Figure 10, §4.1.4",
    "704 instructions from the unmapping of the grant to evtchn_send (19827 to 20531)",
    704.0,
    UDP,
    "instructions from Xen's first unmapping of a grant in a batch to evtchn_send, median",
);
pub const TIMER_SWITCHES: PaperClaim = PaperClaim {
    source: "§4.1.3",
    says: "switches are typically initiated by timer interrupts",
    workload: TCP,
    what: "share of VM switches for which Xen was entered by the timer's interrupt",
    band: Rule::Above(0.5),
    why: "What is typical happens more often than not.",
    without: Some(0.1),
    ..SHARE
};
pub const QUIET: PaperClaim = PaperClaim {
    source: "Figure 11(a, b), §4.1.5",
    says: "a period without switches and TLB flushes has negligible TLB misses",
    what: "TLB misses per instruction in time without flushes ÷ in time with them",
    band: Rule::at_most(0.1),
    why: "A tenth is the most that can be called negligible.",
    ..TIMES
};
pub const TLB_SURGE: PaperClaim = PaperClaim {
    source: "Figure 11(b, c), §4.1.5",
    says: "a surge of TLB misses with each VM switch",
    what: "TLB misses in the 2000 instructions after a VM switch ÷ on average",
    band: Rule::at_least(2.0),
    why: "A surge at least doubles the usual rate.",
    ..TIMES
};
pub const UNMAP_SURGE: PaperClaim = PaperClaim {
    source: "Figure 11(d), §4.1.5",
    says: "revoking a grant creates TLB misses similar to those of a VM switch",
    what: "TLB misses in the 2000 instructions after an unmap's flush ÷ on average",
    band: Rule::at_least(2.0),
    why: "As for a VM switch.",
    ..TIMES
};
pub const UNMAP_FLUSHES: PaperClaim = PaperClaim {
    source: "Figure 10, §4.1.4",
    says: "to revoke a grant, a complete TLB flush is executed: one for each packet",
    number: Some(1.0),
    unit: Unit::PerFrame,
    workload: UDP,
    what: "explicit flushes of whole TLBs (flush_area_local) for each frame of the guest",
    band: within_twice(1.0),
    why: "Half to twice: half of the frames may share a flush with another.",
    without: Some(0.0),
};
pub const L2_SURGE: PaperClaim = PaperClaim {
    source: "Figure 12, §4.1.5",
    says: "increases of the cache miss rate are correlated with VM switches",
    what: "L2 misses in the 2000 instructions after a VM switch ÷ on average",
    band: Rule::at_least(1.5),
    why: "Less than for TLBs, which a switch empties: half more than usual.",
    ..TIMES
};
pub const TX_L2_TO_4: PaperClaim = PaperClaim {
    source: "Figure 13, §4.2",
    says: "increasing L2 up to 4 MB gives good scaling",
    what: "share of the misses with 2 MiB that 4 MiB save",
    band: Rule::at_least(0.2),
    why: "The least that is good for a doubling of the size.",
    ..SHARE
};
pub const TX_L2_TO_8: PaperClaim = PaperClaim {
    source: "Figure 13, §4.2",
    says: "beyond 4 MB the gain is minimal",
    what: "L2 misses saved from 4 to 8 MiB ÷ from 2 to 4 MiB",
    band: Rule::at_most(0.5),
    why: "At a knee the gain falls to half or less. Without one, each doubling gains about as much as the one before.",
    ..TIMES
};
pub const TX_L2_TO_16: PaperClaim = PaperClaim {
    source: "Figure 13, §4.2",
    says: "beyond 8 MB misses are reduced only little",
    what: "L2 misses saved from 8 to 16 MiB ÷ from 2 to 4 MiB",
    band: Rule::at_most(0.25),
    why: "Half of what the doubling before may gain.",
    ..TIMES
};
/// The text says of the receive side only that it was studied similarly; its figure has the same shape.
pub const RX_L2_TO_4: PaperClaim =
    PaperClaim { source: "Figure 15, §4.2", workload: RECEIVE, ..TX_L2_TO_4 };
pub const RX_L2_TO_8: PaperClaim =
    PaperClaim { source: "Figure 15, §4.2", workload: RECEIVE, ..TX_L2_TO_8 };
pub const TX_DTLB_TO_128: PaperClaim = PaperClaim {
    source: "Figure 14, §4.2",
    says: "a sharp decrease of the DTLB's misses from 64 to 128 entries",
    what: "share of the DTLB misses with 64 entries that 128 save",
    band: Rule::at_least(0.2),
    why: "The least that is sharp for a doubling of the size.",
    ..SHARE
};
pub const TX_DTLB_PAST_128: PaperClaim = PaperClaim {
    source: "Figure 14, §4.2",
    says: "nearly constant for larger sizes",
    what: "share of the DTLB misses with 128 entries that 1024 save",
    band: Rule::at_most(0.1),
    why: "Three doublings that save a tenth together are nearly constant.",
    without: Some(0.5),
    ..SHARE
};
pub const TX_ITLB: PaperClaim = PaperClaim {
    source: "Figure 14, §4.2",
    says: "the ITLB's misses decrease slightly, the DTLB's more sharply",
    what: "share of misses saved from 64 to 128 entries, ITLB ÷ DTLB",
    band: Rule::at_most(0.5),
    why: "Half of a sharp decrease is the most that is slight beside it.",
    ..TIMES
};
pub const RX_DTLB_TO_128: PaperClaim =
    PaperClaim { source: "Figure 16, §4.2", workload: RECEIVE, ..TX_DTLB_TO_128 };
pub const RX_DTLB_PAST_128: PaperClaim =
    PaperClaim { source: "Figure 16, §4.2", workload: RECEIVE, ..TX_DTLB_PAST_128 };
pub const GLOBAL_DTLB: PaperClaim = PaperClaim {
    source: "Figure 17, §4.2",
    says: "a global bit for the hypervisor's pages reduces DTLB misses substantially",
    what: "share of no-global's DTLB misses that global-hypervisor saves",
    band: Rule::at_least(0.2),
    why: "As for the sizes: the least that is substantial.",
    ..SHARE
};
pub const GLOBAL_ITLB: PaperClaim = PaperClaim {
    source: "Figure 17, §4.2",
    says: "and ITLB misses to a lesser extent",
    what: "share of misses saved by global-hypervisor, ITLB ÷ DTLB",
    band: Rule::at_most(0.9),
    why: "A lesser extent is less by more than a tenth.",
    ..TIMES
};

/// All of them.
#[cfg(test)]
pub const ALL: [PaperClaim; 26] = [
    WRITE,
    TO_GRANT,
    TO_WAKE,
    TO_SWITCH,
    TO_UPCALL,
    TO_MAP,
    TO_BRIDGE,
    FROM_UNMAP,
    TIMER_SWITCHES,
    QUIET,
    TLB_SURGE,
    UNMAP_SURGE,
    UNMAP_FLUSHES,
    L2_SURGE,
    TX_L2_TO_4,
    TX_L2_TO_8,
    TX_L2_TO_16,
    RX_L2_TO_4,
    RX_L2_TO_8,
    TX_DTLB_TO_128,
    TX_DTLB_PAST_128,
    TX_ITLB,
    RX_DTLB_TO_128,
    RX_DTLB_PAST_128,
    GLOBAL_DTLB,
    GLOBAL_ITLB,
];
