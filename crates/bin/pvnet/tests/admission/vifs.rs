//! Guests with several vifs: each vif is a port, which comes and goes alone.

use std::sync::Arc;

use control_socket::{PortState, PortStatus, Reason};
use hypervisor::EventChannel;
use machine::MachineGuest;
use netfront::{ConnectError, Frontend, FrontendQueue, Received};
use offload::Checksum;
use shm::Iovec;
use wire::ethernet::MacAddr;
use xenstore::{Store, StoreError};

use super::{Daemon, connect_vif, guest, join, wait};

/// Bytes of a frame.
const LEN: u16 = 60;

/// A guest `two` with two vifs, and a guest `peer`.
fn tables() -> String {
    let vif = |number: u8| format!("[[guest.vif]]\nmac = \"{}\"\nqueues = 1\n", mac(number));
    format!("[[guest]]\nname = \"two\"\n{}{}{}", vif(1), vif(2), guest(3, "peer", ""))
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A connected vif.
struct Vif {
    frontend: Frontend<MachineGuest>,
    queue: FrontendQueue<MachineGuest>,
}

impl Vif {
    fn connect(guest: &MachineGuest, store: &Arc<dyn Store>, handle: u32) -> Self {
        let (frontend, queues) = connect_vif(guest, store, handle).unwrap();
        let [queue] = <[_; 1]>::try_from(queues).ok().unwrap();
        Self { frontend, queue }
    }

    fn send(&mut self, to: &Self, number: u8) {
        let mut frame = [number; LEN as usize];
        frame[..6].copy_from_slice(&to.frontend.mac().0);
        frame[6..12].copy_from_slice(&self.frontend.mac().0);
        // An EtherType for local experiments.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        let tx = &mut self.queue.tx;
        tx.reclaim().unwrap();
        let place = tx.buffers().next().unwrap();
        place.region.copy_in(place.offset, &frame).unwrap();
        tx.send(LEN, Checksum::Unknown, None).unwrap();
        tx.publish();
    }

    /// The last byte of the next frame.
    fn receive(&mut self) -> u8 {
        let mut frame = Received::default();
        wait("a frame", || self.queue.rx.receive(&mut frame).unwrap());
        let Some(Iovec::Shared { region, offset, len }) = self.queue.rx.fragments(&frame).next()
        else {
            panic!("a frame without bytes")
        };
        let last = region.read(offset + len - 1).unwrap();
        self.queue.rx.publish();
        last
    }

    /// Sends a frame in each direction.
    fn talk(&mut self, peer: &mut Self, number: u8) {
        self.send(peer, number);
        assert_eq!(peer.receive(), number);
        peer.send(self, number + 1);
        assert_eq!(self.receive(), number + 1);
    }
}

fn port(daemon: &Daemon, name: &str) -> PortStatus {
    let status = control_socket::status(&daemon.folder.path().join("control.sock")).unwrap();
    status.ports.into_iter().find(|port| port.name == name).unwrap()
}

/// Writes an index into a vif's TX ring that claims more requests than the ring has.
fn forge_index(
    guest: &MachineGuest,
    store: &dyn Store,
    handle: u32,
    queue: &FrontendQueue<MachineGuest>,
) {
    let node = machine::toolstack::device_path(handle);
    let gref = store.read(None, &format!("{node}/tx-ring-ref")).unwrap();
    let gref: usize = gref.parse().unwrap();
    // A grant's entry has 8 bytes, the page's number last.
    let page: u32 = guest.region().read(gref * 8 + 4).unwrap();
    guest.region().write(page as usize * 4096, 100_000u32).unwrap();
    queue.tx.event().notify().unwrap();
}

#[test]
fn a_guest_talks_on_both_of_its_vifs() {
    let daemon = Daemon::start("", &tables());
    let (two, store) = join(&daemon.socket(), "two");
    let (peer, peers_store) = join(&daemon.socket(), "peer");
    let mut peer = Vif::connect(&peer, &peers_store, 0);
    let mut vifs = [0, 1].map(|handle| Vif::connect(&two, &store, handle));
    for (number, vif) in [10, 20].into_iter().zip(&mut vifs) {
        vif.talk(&mut peer, number);
    }
    let ports = ["two", "two.1"].map(|name| port(&daemon, name));
    assert_eq!(ports[0].domain, ports[1].domain);
    for (port, number) in ports.iter().zip([1, 2]) {
        assert_eq!((port.state, port.ingress.frames), (PortState::Up, 1), "{port:?}");
        assert_eq!(port.mac, Some(mac(number).to_string()));
    }
    // A guest's memory is counted once.
    assert_eq!(ports.map(|port| port.memory.is_some()), [true, false]);
}

#[test]
fn a_vif_that_ends_leaves_the_other_alone() {
    let daemon = Daemon::start("", &tables());
    let (two, store) = join(&daemon.socket(), "two");
    let (peer, peers_store) = join(&daemon.socket(), "peer");
    let mut peer = Vif::connect(&peer, &peers_store, 0);
    let [mut first, mut second] = [0, 1].map(|handle| Vif::connect(&two, &store, handle));
    second.frontend.close(super::LIMIT).unwrap();
    wait("the end", || port(&daemon, "two.1").state == PortState::Down);
    assert_eq!(port(&daemon, "two.1").reason, Some(Reason::FrontendClosed));
    first.talk(&mut peer, 1);
    drop(second);

    let mut second = Vif::connect(&two, &store, 1);
    second.talk(&mut peer, 3);
    first.talk(&mut peer, 5);
    forge_index(&two, &*store, 1, &second.queue);
    wait("the end", || port(&daemon, "two.1").state == PortState::Down);
    let reason = port(&daemon, "two.1").reason;
    assert!(matches!(reason, Some(Reason::Disabled(_))), "{reason:?}");
    first.talk(&mut peer, 7);
    assert_eq!(port(&daemon, "two").state, PortState::Up);
    // A guest that connects again does not make an operator forget it.
    drop(second);
    let _second = Vif::connect(&two, &store, 1);
    let status = port(&daemon, "two.1");
    assert_eq!((status.state, &status.reason), (PortState::Up, &None));
    let Some(Reason::Disabled(how)) = reason else { return };
    assert_eq!(status.last_disabled.map(|last| last.reason), Some(how));
}

#[test]
fn a_guest_that_wants_a_further_vif_is_refused() {
    let daemon = Daemon::start("", &tables());
    let (two, store) = join(&daemon.socket(), "two");
    let _vifs = [0, 1].map(|handle| Vif::connect(&two, &store, handle));
    assert_eq!(store.directory(None, "device/vif").unwrap(), ["0", "1"]);
    let denied = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Denied(_))), "{result:?}");
    };
    denied(store.mkdir(None, "device/vif/2"));
    denied(store.write(None, "device/vif/2/backend", "/local/domain/0/backend/vif/1/0"));
    denied(store.write(None, "device/vif/2/state", "4"));
    denied(store.mkdir(None, "/local/domain/0/backend/vif/1/2"));
    let error = connect_vif(&two, &store, 2).err().unwrap();
    assert!(matches!(error, ConnectError::Key(_)), "{error}");
    assert!(error.to_string().contains("device/vif/2/backend is missing"), "{error}");
    // Event channels are those of two vifs with one queue each, twice.
    let channels = || hypervisor::Guest::alloc_unbound(&two, machine::DRIVER_DOMAIN);
    let more: Vec<_> = (0..100).map_while(|_| channels().ok()).collect();
    assert_eq!(more.len(), 2 * 2 * 3 - 2 * 3);
    let error = channels().err().unwrap().to_string();
    assert!(error.contains("event channels"), "{error}");
}
