//! The forwarding decision for one frame.

use wire::ethernet::MacAddr;

use crate::{MacTable, PortId};

/// Where a frame goes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verdict {
    /// To this one port.
    Port(PortId),
    /// To every port but the ingress: a group address, or a station not (or no longer) known.
    Flood,
    /// Nowhere: the destination lives on the ingress port, or is one that no bridge may forward to.
    Drop,
}

/// Decides where a frame to `dst` that came in on `ingress` goes, at second `now`.
pub fn forward(table: &MacTable, dst: MacAddr, ingress: PortId, now: u32) -> Verdict {
    if is_link_local(dst) {
        return Verdict::Drop;
    }
    match table.lookup(dst, now) {
        Some(port) if port == ingress => Verdict::Drop,
        Some(port) => Verdict::Port(port),
        None => Verdict::Flood,
    }
}

/// 01:80:C2:00:00:00 to :0F (IEEE 802.1Q §8.6.3): pause frames, spanning tree, LACP. They end at the first
/// bridge; forwarded, a guest could pause or reconfigure the uplink's switch.
fn is_link_local(dst: MacAddr) -> bool {
    let [head @ .., last] = dst.0;
    head == [0x01, 0x80, 0xc2, 0x00, 0x00] && last <= 0x0f
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn verdicts() {
        let table = MacTable::new(64, Limits::default());
        assert_eq!(forward(&table, STATION, PortId(0), 0), Verdict::Flood);
        table.learn(STATION, PortId(3), 0);
        assert_eq!(forward(&table, STATION, PortId(0), 1), Verdict::Port(PortId(3)));
        assert_eq!(forward(&table, STATION, PortId(3), 1), Verdict::Drop);
        assert_eq!(forward(&table, STATION, PortId(0), 300), Verdict::Flood);
        let broadcast = MacAddr([0xff; 6]);
        assert_eq!(forward(&table, broadcast, PortId(0), 1), Verdict::Flood);
    }

    #[test]
    fn link_local_groups_end_here() {
        let table = MacTable::new(64, Limits::default());
        let lacp = MacAddr([0x01, 0x80, 0xc2, 0, 0, 2]);
        let beyond = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]);
        assert_eq!(forward(&table, lacp, PortId(0), 0), Verdict::Drop);
        assert_eq!(forward(&table, beyond, PortId(0), 0), Verdict::Flood);
    }
}
