//! The forwarding decision for one frame.

use frame::Frame;

use crate::{MacTable, PortId, PortSet};

/// Where a frame goes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verdict<'a> {
    /// To this one port.
    Port(PortId),
    /// To every port of the set but the ingress: its destination is a group address, or a station not (or no
    /// longer) known.
    Flood(&'a PortSet),
    /// Nowhere: the destination is on the ingress port, or is an address that no bridge may forward to.
    Drop,
}

/// Decides where a frame that came in on `ingress` goes, at second `now`. `ports` are the ports that a frame of
/// this ingress may be flooded to.
pub fn forward<'a>(
    table: &MacTable,
    ports: &'a PortSet,
    ingress: PortId,
    frame: &Frame,
    now: u32,
) -> Verdict<'a> {
    let destination = frame.destination();
    if destination.is_link_local_group() {
        return Verdict::Drop;
    }
    match table.lookup(destination, now) {
        Some(port) if port == ingress => Verdict::Drop,
        Some(port) => Verdict::Port(port),
        None => Verdict::Flood(ports),
    }
}

#[cfg(test)]
mod tests {
    use wire::ethernet::MacAddr;

    use super::*;
    use crate::Limits;

    const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn to(destination: MacAddr) -> Frame {
        let mut frame = Frame::empty();
        frame.bytes[..6].copy_from_slice(&destination.0);
        frame
    }

    #[test]
    fn verdicts() {
        let table = MacTable::new(64, Limits::default());
        let ports: PortSet = [0, 1, 3].map(PortId).into_iter().collect();
        let verdict =
            |station, ingress, now| forward(&table, &ports, PortId(ingress), &to(station), now);
        assert_eq!(verdict(STATION, 0, 0), Verdict::Flood(&ports));
        table.learn(STATION, PortId(3), 0);
        assert_eq!(verdict(STATION, 0, 1), Verdict::Port(PortId(3)));
        assert_eq!(verdict(STATION, 3, 1), Verdict::Drop);
        assert_eq!(verdict(STATION, 0, 300), Verdict::Flood(&ports));
        assert_eq!(verdict(MacAddr([0xff; 6]), 0, 1), Verdict::Flood(&ports));
    }

    #[test]
    fn link_local_groups_end_here() {
        let table = MacTable::new(64, Limits::default());
        let ports = PortSet::default();
        let verdict = |last| {
            let group = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
            forward(&table, &ports, PortId(0), &to(group), 0)
        };
        assert_eq!(verdict(2), Verdict::Drop);
        assert_eq!(verdict(0x10), Verdict::Flood(&ports));
    }
}
