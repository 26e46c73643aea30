//! Ports outside of the switch, in pairs: each takes all frames of the other.
//!
//! A guest whose interface has a device on the host is such a pair. The network behind that device decides where frames go, so
//! nothing is looked up, learnt or flooded here. All else is as for ports in the switch.

use crate::carrier::{Carrier, Pass};
use crate::peer::Peer;
use crate::route::{Route, Routes};
use crate::steer::Steer;

impl Carrier {
    /// Routes frames from a mirror's target, which sends nothing.
    pub(crate) fn route_nowhere(
        &self,
        Pass { port, window, fresh, .. }: &Pass<'_>,
        routes: &mut Routes<'_>,
    ) {
        let order = window.order();
        let lens =
            order[order.len() - *fresh..].iter().map(|slot| u64::from(window.frame(*slot).len));
        let bytes = lens.sum();
        if *fresh > 0 {
            port.counters().add_ingress(self.worker, *fresh as u64, bytes);
        }
        routes.of.extend(order.iter().map(|_| Route::Nowhere));
    }

    /// Routes the frames in hand to the other port of a pair; nowhere while that is not there.
    pub(crate) fn route_to_peer(&self, peer: &Peer, pass: &Pass<'_>, routes: &mut Routes<'_>) {
        let Pass { port, window, fresh, decided } = *pass;
        let (id, serial) = peer.get();
        let to = self.ports.get(id).filter(|to| to.serial() == serial);
        let to = to.map(|to| Steer::to(to));
        let first_fresh = window.len() - fresh;
        let mut bytes = 0;
        for (n, slot) in window.order().iter().enumerate() {
            let frame = window.frame(*slot);
            if n >= first_fresh {
                bytes += u64::from(frame.len);
            }
            routes.of.push(match &to {
                Some(to) if decided & (1 << slot) == 0 => {
                    let queue = u8::try_from(to.queue(frame)).unwrap_or(0);
                    Route::To { port: id.0, queue }
                }
                _ => Route::Nowhere,
            });
        }
        if fresh > 0 {
            port.counters().add_ingress(self.worker, fresh as u64, bytes);
        }
    }
}
