//! What is done about a worker that was held up by a guest.
//!
//! Another thread has its place already ([`datapath::Sleep`]). Here what it has locked is replaced, and the port whose memory it was is cut off: whoever
//! makes a hole in memory that a worker uses does it on purpose, because a guest's driver gives up its buffers before. A port against which nothing is
//! proven has to [rest](crate::daemon::ports) between such times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::{Cause, Port, Sleep};
use tracing::warn;

use super::Control;
use crate::daemon::ports::{PluggedPort, PortId};

/// Samples of the memory of the suspects, and the time between two of them. A gigabyte of small pages takes some 200 ms to be freed.
const SAMPLES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(1);
/// The least by which memory must shrink meanwhile: a balloon gives up less in that time.
const HOLE: u64 = 4 << 20;

/// What is said of the culprit.
const HOLE_MADE: &str = "its memory was taken away while a worker used it, which slept until the kernel had freed it (a hole in the memory's file)";

impl Control {
    /// A worker was held up by a guest.
    pub(super) fn slept(&mut self, sleep: &Sleep) {
        let Sleep { from, queue, to, are_copies, time, cause, has_left, is_replaced } = sleep;
        if *is_replaced {
            self.replace_uplinks(from.as_ref().zip(*queue), to.as_ref());
        }
        // It had queues of both in hand.
        let [mut in_hand, mut suspects] = [Vec::new(), Vec::new()];
        for (id, PluggedPort { record, source }) in &self.ports {
            let is_at =
                |port: &Option<Arc<Port>>| port.as_ref().is_some_and(|port| record.is_at(port));
            if source.memory_in_use().is_none() || !(is_at(from) || is_at(to)) {
                continue;
            }
            in_hand.push(*id);
            if is_at(to) || to.is_none() || !are_copies {
                suspects.push(*id);
            }
        }
        // One that is cut off already is the culprit, and honest machines do not wait for the samples.
        let culprit = match &*suspects {
            _ if *has_left || *cause == Cause::Lock => None,
            [alone] if *cause == Cause::Hole => Some(*alone),
            all => self.shrinking(all),
        };
        if let Some(PluggedPort { record, source }) = culprit.and_then(|id| self.ports.get_mut(&id))
        {
            warn!(port = record.name(), why = HOLE_MADE, "it is cut off until it is added again");
            let (id, why) = (record.identity.id, source.condemn(HOLE_MADE));
            self.disconnect(id, why);
            self.disconnect_condemned();
        }
        let rests = match &*suspects {
            _ if culprit.is_some() || *has_left || *cause == Cause::Lock => None,
            all => self.suspect(all, to.as_ref(), *time),
        };
        for id in in_hand.into_iter().filter(|id| culprit != Some(*id)) {
            let Some(PluggedPort { record, source }) = self.ports.get_mut(&id) else { continue };
            match rests.filter(|(resting, _)| *resting == id) {
                Some((_, time)) => source.rest(record, &self.host.datapath, time),
                None if *is_replaced => source.renew(record, &self.host.datapath),
                None => {}
            }
        }
    }

    /// Nothing is proven against these ports. From now on no thread has one of them in hand together with others. If it was so this time, that one
    /// pays, and may have to rest for some time.
    fn suspect(
        &mut self,
        ports: &[PortId],
        to: Option<&Arc<Port>>,
        time: Duration,
    ) -> Option<(PortId, Duration)> {
        let now = Instant::now();
        for id in ports {
            let Some(PluggedPort { record, .. }) = self.ports.get_mut(id) else { continue };
            record.suspicion.begin(now);
            if let Some(port) = &record.port {
                port.suspect(true);
            }
        }
        let [alone] = ports else { return None };
        let PluggedPort { record, .. } = self.ports.get_mut(alone)?;
        // Otherwise it may have been the other port's device.
        let is_its = to.is_none_or(|to| record.is_at(to));
        let rest = is_its.then(|| record.suspicion.charge(time, now)).flatten();
        rest.map(|rest| (*alone, rest))
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

    /// All ports share an uplink: other handles of its device replace those with which a worker sleeps.
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
        for _ in 0..SAMPLES {
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
