//! What is done about a worker that slept in the memory of a guest.
//!
//! Another thread has its place already ([`datapath::Sleep`]). Here what it has locked is replaced, and the port whose memory it was is cut off: whoever
//! makes a hole in memory that a worker uses does it on purpose, because a guest's driver gives up its buffers before.

use std::sync::Arc;
use std::time::Duration;

use datapath::{Port, Sleep};
use tracing::warn;

use super::Control;
use crate::daemon::ports::{PluggedPort, PortId, Record};

/// Looks at the memory of the suspects, and the time between two of them. A gigabyte of small pages takes some 200 ms to be freed.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(1);
/// The least by which memory must shrink meanwhile: a balloon gives up less in that time.
const HOLE: u64 = 4 << 20;

/// What is said of the culprit.
const HOLE_MADE: &str = "its memory was taken away while a worker used it, which slept until the kernel had freed it (a hole in the memory's file)";

impl Control {
    /// A worker slept in the memory of a guest.
    pub(super) fn slept(&mut self, sleep: &Sleep) {
        let Sleep { from, queue, to, has_left, is_replaced } = sleep;
        if *is_replaced {
            self.replace_uplinks(from.as_ref().zip(*queue), to.as_ref());
        }
        let is_its = |own: &Record| [from, to].into_iter().flatten().any(|port| own.is_at(port));
        let is_suspect =
            |port: &PluggedPort| is_its(&port.record) && port.source.memory_in_use().is_some();
        let suspects = self.ports.iter().filter(|(_, port)| is_suspect(port));
        let suspects: Vec<_> = suspects.map(|(id, _)| *id).collect();
        // One that is cut off already is the culprit, and honest machines do not wait for the looks.
        let culprit = if *has_left { None } else { self.shrinking(&suspects) };
        if let Some(PluggedPort { record, source }) = culprit.and_then(|id| self.ports.get_mut(&id))
        {
            warn!(port = record.name(), why = HOLE_MADE, "it is cut off until it is added again");
            let (id, why) = (record.identity.id, source.condemn(HOLE_MADE));
            self.disconnect(id, why);
            self.disconnect_condemned();
        }
        for id in suspects.into_iter().filter(|id| culprit != Some(*id) && *is_replaced) {
            if let Some(PluggedPort { record, source }) = self.ports.get_mut(&id) {
                source.renew(record, &self.host.datapath);
            }
        }
    }

    /// Drops the queues of the other ports of the culprit's process or guest, without waiting for their sessions' threads.
    fn disconnect_condemned(&mut self) {
        let of_port = |(id, port): (&PortId, &PluggedPort)| {
            port.record.port.as_ref()?;
            Some((*id, port.source.condemned()?))
        };
        let condemned: Vec<_> = self.ports.iter().filter_map(of_port).collect();
        for (id, why) in condemned {
            self.disconnect(id, why);
        }
    }

    /// An uplink is everybody's: other handles of its device take the places of those with which a worker sleeps.
    fn replace_uplinks(&self, from: Option<(&Arc<Port>, usize)>, to: Option<&Arc<Port>>) {
        let datapath = &self.host.datapath;
        for PluggedPort { record, source } in self.ports.values() {
            if let Some((_, queue)) = from.filter(|(port, _)| record.is_at(port)) {
                source.replace_sleeping_ingress(record, queue, datapath);
            }
            if to.is_some_and(|port| record.is_at(port)) {
                source.replace_sleeping_egress(record, datapath);
            }
        }
    }

    /// The port of these whose guest's memory shrinks the most; none if none does.
    fn shrinking(&self, ports: &[PortId]) -> Option<PortId> {
        let bytes = || ports.iter().map(|id| self.ports[id].source.memory_in_use().unwrap_or(0));
        let mut before: Vec<u64> = bytes().collect();
        let mut lost = vec![0; ports.len()];
        for _ in 0..LOOKS {
            if ports.is_empty() || lost.iter().any(|lost| *lost >= HOLE) {
                break;
            }
            std::thread::sleep(PAUSE);
            let now: Vec<u64> = bytes().collect();
            for ((lost, before), now) in lost.iter_mut().zip(&before).zip(&now) {
                *lost += before.saturating_sub(*now);
            }
            before = now;
        }
        let most = lost.iter().zip(ports).max()?;
        if *most.0 < HOLE {
            warn!("no guest's memory shrinks: the machine may be short of memory");
            return None;
        }
        Some(*most.1)
    }
}
