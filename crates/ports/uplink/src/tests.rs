//! Frames to and from a socket that stands in for the tap: the bytes that the device would
//! get. The tests of the tap and of the whole system cover the kernel's side.

mod direct;
mod egress;
mod guest_tap;
mod ingress;
mod network;
mod packet_ring;
mod together;
mod udp;
mod unfinished;
mod xdp;
mod xdp_nic;

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use hypervisor::{Counted, Metered};
use machine::Machine;
use port::{FRAGMENTS_MAX, HEADER_MAX};
use port_testing::{deliver, offer, segments, tcp, tcp_v6, udp, whole};
use wire::virtio_net::VirtioNetHdr;
use zerocopy::{FromBytes, IntoBytes};

use crate::tap::TapQueue;
use crate::{BufferOptions, Buffers, TapIngress};

type Platform = Metered<Machine>;

const HEADERS: usize = 14 + 20 + 20;

fn platform() -> Platform {
    let platform = Metered::new(Machine::new());
    platform.meter().switch(true);
    platform
}

fn counts<const N: usize>(platform: &Platform, what: [Counted; N]) -> [u64; N] {
    what.map(|what| platform.meter().count(what))
}

/// Reads a device whose frames may be large.
fn reader(device: Arc<TapQueue>) -> TapIngress {
    let options = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };
    TapIngress::new(platform().meter().clone(), device, Buffers::new(options).unwrap())
}

/// A tap and what is behind it.
fn tap() -> (Arc<TapQueue>, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (Arc::new(TapQueue::of_socket(ours.into(), "stand-in")), theirs)
}

/// The next frame that crosses, with its metadata.
fn receive(socket: &UnixDatagram) -> Option<(VirtioNetHdr, Vec<u8>)> {
    let mut bytes = vec![0; 70_000];
    let len = socket.recv(&mut bytes).ok()?;
    let (header, frame) = VirtioNetHdr::read_from_prefix(&bytes[..len]).unwrap();
    Some((header, frame.to_vec()))
}

fn send(socket: &UnixDatagram, header: VirtioNetHdr, frame: &[u8]) {
    socket.send(&[header.as_bytes(), frame].concat()).unwrap();
}
