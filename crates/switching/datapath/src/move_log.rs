//! The log of stations that move.

use std::collections::BTreeMap;

use switch::{Move, PortId};
use tracing::{info, warn};

use crate::shared::Ports;

/// Seconds for which lines are counted.
const INTERVAL: u32 = 60;
/// The most moves that are listed in one interval, and the most ports whose refused moves are. Guests set the pace of
/// moves, and must not set that of the log.
const LINES: usize = 8;

/// Logs moves as they are reported, and refused ones once per interval.
#[derive(Default)]
pub(crate) struct MoveLog {
    /// The second in which it was written last.
    written: u32,
    /// When the interval began.
    since: u32,
    /// Moves in the interval.
    moves: usize,
    /// The count of refused moves that each port had when the interval began.
    refused: BTreeMap<PortId, u64>,
}

impl MoveLog {
    /// Whether it was written in this second. Events call for it as often as guests make them.
    pub(crate) fn is_written(&self, now: u32) -> bool {
        self.written == now
    }

    /// Logs moves that have been reported at second `now`.
    pub(crate) fn write(&mut self, moves: &[Move], ports: &Ports, now: u32) {
        self.written = now;
        if now.saturating_sub(self.since) >= INTERVAL {
            self.since = now;
            self.end_interval(ports).iter().for_each(|line| warn!("{line}"));
        }
        self.list(moves, ports).iter().for_each(|line| info!("{line}"));
    }

    fn list(&mut self, moves: &[Move], ports: &Ports) -> Vec<String> {
        let left = LINES.saturating_sub(self.moves);
        self.moves += moves.len();
        let line = |Move { mac, from, to }: &Move| {
            let [from, to] = [*from, *to].map(|id| name(ports, id));
            format!("station {mac} moved from port {from} to port {to}")
        };
        moves.iter().take(left).map(line).collect()
    }

    fn end_interval(&mut self, ports: &Ports) -> Vec<String> {
        let unlisted = std::mem::take(&mut self.moves).saturating_sub(LINES);
        let unlisted =
            (unlisted > 0).then(|| format!("{unlisted} more stations moved in {INTERVAL} s"));
        let before = std::mem::take(&mut self.refused);
        let mut refusals = Vec::new();
        for port in ports.list.iter().flatten() {
            let count = port.counters().snapshot().learning.refused_moves;
            self.refused.insert(port.id(), count);
            // With a lower count it is another port, with a number that is used again.
            let new = before.get(&port.id()).and_then(|before| count.checked_sub(*before));
            match new.unwrap_or(count) {
                0 => {}
                new => refusals.push((new, port.name())),
            }
        }
        refusals.sort_unstable_by(|a, b| b.cmp(a));
        let line = |(count, port): &(u64, &str)| {
            format!(
                "port {port} sent {count} frames with addresses of stations on other ports, which \
                 keep them"
            )
        };
        unlisted.into_iter().chain(refusals.iter().take(LINES).map(line)).collect()
    }
}

fn name(ports: &Ports, id: PortId) -> &str {
    ports.get(id).map_or("(gone)", |port| port.name())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use switch::{Learning, MacAddr, StormControl};

    use super::*;
    use crate::port::Port;

    fn ports(names: [&str; 2]) -> Ports {
        let port = |(id, name)| {
            Some(Arc::new(Port::new(PortId(id), 0, name, Vec::new(), StormControl::new(0))))
        };
        Ports { list: (0..).zip(names).map(port).collect(), ..Ports::default() }
    }

    fn moves(count: u8) -> Vec<Move> {
        let moved = |n| Move { mac: MacAddr([2, 0, 0, 0, 0, n]), from: PortId(0), to: PortId(1) };
        (0..count).map(moved).collect()
    }

    #[test]
    fn a_move_is_a_line_up_to_a_bound() {
        let (mut log, ports) = (MoveLog::default(), ports(["red", "blue"]));
        let first = log.list(&moves(1), &ports);
        assert_eq!(first, ["station 02:00:00:00:00:00 moved from port red to port blue"]);
        assert_eq!(log.list(&moves(100), &ports).len(), LINES - 1);
        assert!(log.list(&moves(3), &ports).is_empty());
        assert_eq!(log.end_interval(&ports), ["96 more stations moved in 60 s"]);
        assert_eq!(log.list(&moves(2), &ports).len(), 2);
        assert!(log.end_interval(&ports).is_empty());
    }

    #[test]
    fn a_second_is_written_once() {
        let (mut log, ports) = (MoveLog::default(), ports(["red", "blue"]));
        for second in 1..3 {
            assert!(!log.is_written(second));
            log.write(&moves(1), &ports, second);
            assert!(log.is_written(second));
        }
    }

    #[test]
    fn refused_moves_are_a_line_per_port_and_interval() {
        let (mut log, named) = (MoveLog::default(), ports(["red", "blue"]));
        let refuse = |ports: &Ports, id, count| {
            let counters = ports.get(PortId(id)).unwrap().counters();
            (0..count).for_each(|_| counters.add_learning(Learning::RefusedMove));
        };
        refuse(&named, 0, 5);
        refuse(&named, 1, 70);
        let lines = log.end_interval(&named);
        assert!(lines[0].starts_with("port blue sent 70 frames"), "{lines:?}");
        assert!(lines[1].starts_with("port red sent 5 frames"), "{lines:?}");
        assert!(log.end_interval(&named).is_empty());
        refuse(&named, 0, 1);
        assert_eq!(log.end_interval(&named).len(), 1);
        // Another port with red's number.
        let named = ports(["green", "blue"]);
        refuse(&named, 0, 2);
        assert!(log.end_interval(&named)[0].starts_with("port green sent 2 frames"));
    }
}
