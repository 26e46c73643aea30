//! Ports that say how their flows are spread over their queues.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::PortParts;
use port::{Body, Broken, Egress, HashInput, Offer, Outcome, Queue, Steering, SteeringCell};
use port_testing::{Sender, udp};
use switch::MacAddr;
use wire::toeplitz::{MICROSOFT_KEY, Table};

use crate::common::{frame, wait_until};
use crate::{ALL, Receiver, Switch, mac, plain, refresh};

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

/// A port with two queues: what the test holds of them, and the address of the port.
struct Wide {
    queues: [(Sender, Receiver); 2],
    mac: [u8; 6],
}

impl Wide {
    fn attach(switch: &Switch, n: u8) -> Self {
        let sides = [(); 2].map(|()| (Sender::new(), Receiver::new()));
        let (queues, held): (Vec<_>, Vec<_>) = sides
            .into_iter()
            .map(|((sender, ingress), (receiver, egress))| {
                (Queue { ingress, egress }, (sender, receiver))
            })
            .unzip();
        let parts = PortParts { queues, steers_flows: true, ..PortParts::default() };
        let port = switch.datapath.attach_member(&format!("wide{n}"), parts, None);
        switch.datapath.teach(port.id(), MacAddr(mac(n))).unwrap();
        refresh(&switch.datapath);
        Self { queues: held.try_into().ok().unwrap(), mac: mac(n) }
    }

    /// Sends a frame through a queue, and waits until it is done with.
    fn send(&self, queue: usize, frame: Vec<u8>) {
        let sender = &self.queues[queue].0;
        let before = sender.answers().len();
        sender.send(frame);
        wait_until("the answer", || sender.answers().len() > before);
    }

    /// How many frames have come in each queue.
    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|queue| self.queues[queue].1.count())
    }
}

/// A datagram of flow `flow`; `back`: the other way.
fn datagram(to: [u8; 6], from: [u8; 6], flow: u16, back: bool) -> Vec<u8> {
    let mut bytes = udp(100);
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    let ports = [flow, 80].map(u16::to_be_bytes);
    let order = if back { [1, 0] } else { [0, 1] };
    bytes[34..38].copy_from_slice(&order.map(|n| ports[n]).concat());
    if back {
        let (source, destination) = bytes[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
    }
    bytes
}

#[test]
fn a_flow_comes_back_to_the_queue_that_it_left_through() {
    let switch = Switch::new(2);
    let (wide, peer) = (Wide::attach(&switch, 1), plain(&switch.datapath, 2));
    for flow in 0..32 {
        wide.send(usize::from(flow % 2), datagram(peer.mac, wide.mac, flow, false));
    }
    let mut expected = [0, 0];
    for flow in 0..32 {
        expected[usize::from(flow % 2)] += 1;
        peer.sender.send(datagram(wide.mac, peer.mac, flow, true));
    }
    wait_until("the answers", || wide.counts().iter().sum::<usize>() == 32);
    // Flows may share an entry.
    let moved = wide.counts()[0].abs_diff(expected[0]);
    assert!(moved <= 4, "{:?}", wide.counts());
}

#[test]
fn a_guest_that_sends_in_anothers_name_changes_no_queue_of_it() {
    let switch = Switch::new(1);
    let (wide, peer) = (Wide::attach(&switch, 1), plain(&switch.datapath, 2));
    let (hostile, other) = (Wide::attach(&switch, 3), plain(&switch.datapath, 4));
    wide.send(1, datagram(peer.mac, wide.mac, 7, false));
    for n in 0..200 {
        // The victim's flow in both directions, with its addresses and with the hostile one's own.
        let from = if n % 4 < 2 { hostile.mac } else { peer.mac };
        hostile.send(n % 2, datagram(other.mac, from, 7, n % 3 == 0));
    }
    for _ in 0..8 {
        peer.sender.send(datagram(wide.mac, peer.mac, 7, true));
    }
    wait_until("the answers", || wide.counts() == [0, 8]);
}

#[test]
fn a_guest_that_flips_its_queue_with_each_frame_loses_none() {
    let switch = Switch::new(2);
    let (wide, peer) = (Wide::attach(&switch, 1), plain(&switch.datapath, 2));
    for n in 0..300 {
        wide.send(n % 2, datagram(peer.mac, wide.mac, 7, false));
        peer.sender.send(datagram(wide.mac, peer.mac, 7, true));
    }
    wait_until("the answers", || wide.counts().iter().sum::<usize>() == 300);
    assert_eq!(peer.egress.count(), 300);
}
