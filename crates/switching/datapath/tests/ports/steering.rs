//! Ports that say how their flows are spread over their queues.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use port::{Body, Broken, Egress, HashInput, Offer, Outcome, Queue, Steering, SteeringCell};
use port_testing::Sender;
use switch::MacAddr;
use wire::toeplitz::{MICROSOFT_KEY, Table};

use crate::common::{frame, wait_until};
use crate::{ALL, Switch, mac, plain, refresh};

/// A queue, of two, that notes its number for each frame. With each it wants the next frames in the other queue.
pub struct Fickle {
    pub number: u16,
    pub cell: Arc<SteeringCell>,
    pub log: Arc<Mutex<Vec<u16>>>,
}

/// Everything goes to this queue.
fn all_to(queue: u16) -> Option<Steering> {
    let key = Arc::new(Table::new(&MICROSOFT_KEY));
    Some(Steering::new(key, [HashInput::Ipv4], [queue].into()))
}

impl Egress for Fickle {
    fn deliver(
        &mut self,
        _body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            offer.outcome = Outcome::Delivered;
            self.log.lock().unwrap().push(self.number);
            self.cell.publish(all_to(1 - self.number));
        }
        Ok(())
    }

    fn steering(&self) -> Option<Arc<SteeringCell>> {
        Some(self.cell.clone())
    }
}

#[test]
fn a_frame_goes_to_one_queue_while_its_receiver_changes_its_mind() {
    let switch = Switch::new(1);
    let a = plain(&switch.datapath, 0);
    let (cell, log) = (Arc::new(SteeringCell::default()), Arc::<Mutex<Vec<u16>>>::default());
    let queues = [0, 1].map(|number| {
        let egress = Fickle { number, cell: cell.clone(), log: log.clone() };
        Queue { ingress: Sender::new().1, egress: Box::new(egress) }
    });
    let port = switch.datapath.attach("fickle", queues.into(), Vec::new());
    switch.datapath.teach(port.id(), MacAddr(mac(1))).unwrap();
    refresh(&switch.datapath);
    for to in [ALL, mac(1)] {
        cell.publish(all_to(0));
        for n in 0..6u32 {
            let before = a.sender.answers().len();
            a.sender.send(frame(to, a.mac, 300, n));
            wait_until("the answer", || a.sender.answers().len() == before + 1);
        }
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), [0, 1, 0, 1, 0, 1]);
    }
}
