//! The pairs: the same traffic of stock guests, by xen-netback and a bridge and by pvnet.

named::named! {
    /// What a pair's costs are counted for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Unit {
        /// A byte of TCP's payload.
        Byte => "byte",
        /// A datagram that arrives; one that nobody receives, that is sent.
        Packet => "packet",
        /// A request and its answer.
        Round => "round",
    }
}

impl Unit {
    /// The fewest of a recording that says anything: fewer are traffic that did not flow.
    pub fn least(self) -> u64 {
        match self {
            Self::Byte => 1_000_000,
            Self::Packet => 200,
            Self::Round => 50,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// What is carried.
    pub about: &'static str,
    /// The unit of its costs.
    pub unit: Unit,
    /// The workload with xen-netback.
    pub netback: &'static str,
    /// The workload with pvnet.
    pub pvnet: &'static str,
}

impl Pair {
    const fn new(
        about: &'static str,
        unit: Unit,
        netback: &'static str,
        pvnet: &'static str,
    ) -> Self {
        Self { about, unit, netback, pvnet }
    }
}

const TX: &str = "guest → dom0, TCP";
const RX: &str = "dom0 → guest, TCP";
const GUESTS: &str = "guest → guest, TCP";
const WIRE_TX: &str = "guest → NIC, TCP";
const WIRE_RX: &str = "NIC → guest, TCP";
const SMALL_TX: &str = "guest → NIC, UDP of 64 B";
const SMALL_RX: &str = "NIC → guest, UDP of 64 B";
const ROUNDS: &str = "guest ⇄ guest, 100 B";
const DOMAIN_TX: &str = "guest → driver domain, TCP";
const DOMAIN_RX: &str = "driver domain → guest, TCP";

/// How many times longer than others a recording of a workload is. Between guests TCP goes through phases in which a frame has 0.25 or
/// 0.4 acknowledgements, and costs a tenth more.
pub fn length(workload: &str) -> u32 {
    if workload.contains("guests-") { 5 } else { 1 }
}

pub const PAIRS: [Pair; 26] = [
    Pair::new(TX, Unit::Byte, "tx-stock", "tx-pvnet"),
    Pair::new(RX, Unit::Byte, "rx-stock", "rx-pvnet"),
    Pair::new(GUESTS, Unit::Byte, "guests-stock", "guests-pvnet"),
    Pair::new(WIRE_TX, Unit::Byte, "wire-tx-stock", "wire-tx-tap"),
    Pair::new(WIRE_TX, Unit::Byte, "wire-tx-stock", "wire-tx-packet"),
    Pair::new(WIRE_RX, Unit::Byte, "wire-rx-stock", "wire-rx-tap"),
    Pair::new(WIRE_RX, Unit::Byte, "wire-rx-stock", "wire-rx-packet"),
    Pair::new(SMALL_TX, Unit::Packet, "small-tx-stock", "small-tx-tap"),
    Pair::new(SMALL_TX, Unit::Packet, "small-tx-stock", "small-tx-packet"),
    Pair::new(SMALL_TX, Unit::Packet, "small-tx-stock", "small-tx-xdp"),
    Pair::new(SMALL_RX, Unit::Packet, "small-rx-stock", "small-rx-tap"),
    Pair::new(SMALL_RX, Unit::Packet, "small-rx-stock", "small-rx-packet"),
    Pair::new(SMALL_RX, Unit::Packet, "small-rx-stock", "small-rx-xdp"),
    Pair::new(ROUNDS, Unit::Round, "rounds-stock", "rounds-pvnet"),
    Pair::new(TX, Unit::Byte, "tx-stock", "tx-device"),
    Pair::new(RX, Unit::Byte, "rx-stock", "rx-device"),
    Pair::new(GUESTS, Unit::Byte, "guests-stock", "guests-device"),
    Pair::new(WIRE_TX, Unit::Byte, "wire-tx-stock", "wire-tx-device"),
    Pair::new(WIRE_RX, Unit::Byte, "wire-rx-stock", "wire-rx-device"),
    Pair::new(SMALL_TX, Unit::Packet, "small-tx-stock", "small-tx-device"),
    Pair::new(SMALL_RX, Unit::Packet, "small-rx-stock", "small-rx-device"),
    Pair::new(ROUNDS, Unit::Round, "rounds-stock", "rounds-device"),
    Pair::new(DOMAIN_TX, Unit::Byte, "domain-tx-stock", "domain-tx-pvnet"),
    Pair::new(DOMAIN_RX, Unit::Byte, "domain-rx-stock", "domain-rx-pvnet"),
    Pair::new(GUESTS, Unit::Byte, "domain-guests-stock", "domain-guests-pvnet"),
    Pair::new(ROUNDS, Unit::Round, "domain-rounds-stock", "domain-rounds-pvnet"),
];

/// The pairs with one of these workloads; all if none are named.
///
/// # Errors
/// In words, if no pair has a workload of a name.
pub fn chosen(names: &[String]) -> Result<Vec<Pair>, String> {
    let has = |pair: &Pair, name: &str| pair.netback == name || pair.pvnet == name;
    if let Some(name) = names.iter().find(|name| !PAIRS.iter().any(|pair| has(pair, name))) {
        return Err(format!("no pair has a workload {name:?}"));
    }
    let is_chosen = |pair: &&Pair| names.is_empty() || names.iter().any(|name| has(pair, name));
    Ok(PAIRS.iter().filter(is_chosen).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn every_side_of_a_pair_is_a_workload_with_or_without_pvnet() {
        for pair in PAIRS {
            let [netback, pvnet] =
                [pair.netback, pair.pvnet].map(|name| Workload::named(name).unwrap());
            assert!(!netback.needs_pvnet() && pvnet.needs_pvnet(), "{pair:?}");
            assert_eq!(netback.counted().0, pvnet.counted().0, "{pair:?}");
            assert_eq!(netback.backend(), pvnet.backend(), "{pair:?}");
        }
    }

    #[test]
    fn pairs_are_chosen_by_either_workload() {
        let of = |name: &str| chosen(&[name.to_owned()]);
        assert_eq!(of("rx-pvnet").unwrap().len(), 1);
        assert_eq!(of("wire-tx-stock").unwrap().len(), 3);
        assert_eq!(chosen(&[]).unwrap().len(), PAIRS.len());
        assert!(of("loopback").is_err());
    }
}
