//! What is done about a worker that slept in the memory of a guest.
//!
//! Another thread has its place already ([`datapath::Sleep`]). Here what it has locked is replaced, and the port whose memory it was is cut off: whoever
//! makes a hole in memory that a worker uses does it on purpose, because a guest's driver gives up its buffers before.

use std::sync::Arc;
use std::time::Duration;

use control_socket::Reason;
use datapath::{Port, Sleep};
use tracing::warn;

use super::Control;

/// Looks at the memory of the suspects, and the time between two of them. A gigabyte of small pages takes some 200 ms to be freed.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(3);
/// Memory must shrink by so much meanwhile: what a balloon gives up in that time is less.
const HOLE: u64 = 4 << 20;

impl Control {
    /// A worker slept in the memory of a guest.
    pub(super) fn slept(&mut self, sleep: &Sleep) {
        let Sleep { from, queue, to, is_replaced } = sleep;
        if *is_replaced {
            self.replace_uplinks(from.as_ref().zip(*queue), to.as_ref());
        }
        let is_suspect = |port: &Option<Arc<Port>>, at: usize| {
            port.as_ref().is_some_and(|port| self.machines[at].is_at(port))
        };
        let suspects: Vec<usize> = (0..self.machines.len())
            .filter(|at| is_suspect(from, *at) || is_suspect(to, *at))
            .collect();
        let culprit = self.shrinking(&suspects);
        if let Some(culprit) = culprit {
            let why = "its front-end took memory away while a worker used it, which slept until the kernel had freed it (a hole in the \
                       memory's file); add the port again to let it come back";
            self.machines[culprit].cut_off(Reason::Disabled(why.to_owned()), &self.datapath);
        }
        for at in suspects.into_iter().filter(|at| culprit != Some(*at) && *is_replaced) {
            self.machines[at].renew(&self.datapath);
        }
    }

    /// An uplink is everybody's: other handles of its device take the places of those with which a worker sleeps.
    fn replace_uplinks(&self, from: Option<(&Arc<Port>, usize)>, to: Option<&Arc<Port>>) {
        for uplink in &self.uplinks {
            if let Some((_, queue)) = from.filter(|(port, _)| uplink.is_at(port)) {
                uplink.replace_sleeping_ingress(queue, &self.datapath);
            }
            if to.is_some_and(|port| uplink.is_at(port)) {
                uplink.replace_sleeping_egress(&self.datapath);
            }
        }
    }

    /// The machine of these whose memory shrinks the most; none if none does.
    fn shrinking(&self, machines: &[usize]) -> Option<usize> {
        let bytes = || machines.iter().map(|at| self.machines[*at].memory_in_use());
        let mut before: Vec<u64> = bytes().collect();
        let mut lost = vec![0; machines.len()];
        for _ in 0..LOOKS {
            if machines.is_empty() || lost.iter().any(|lost| *lost >= HOLE) {
                break;
            }
            std::thread::sleep(PAUSE);
            let now: Vec<u64> = bytes().collect();
            for ((lost, before), now) in lost.iter_mut().zip(&before).zip(&now) {
                *lost += before.saturating_sub(*now);
            }
            before = now;
        }
        let most = lost.iter().zip(machines).max()?;
        if *most.0 < HOLE {
            warn!("no guest's memory shrinks: the machine may be short of memory");
            return None;
        }
        Some(*most.1)
    }
}
