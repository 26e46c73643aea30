//! Frames to and from a socket that stands in for the tap: the bytes that the device would
//! get. The tests of the tap and of the whole system cover the kernel's side.

mod deleted;
mod direct;
mod egress;
mod guest_tap;
mod ingress;
mod merged;
mod network;
mod packet_ring;
mod socket_drops;
mod together;
mod udp;
mod unfinished;
mod xdp;
mod xdp_nic;

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use hypervisor::{Counted, Metered};
use machine::Machine;
use port::{HEADER_MAX, PIECES_MAX};
use wire::checksum::{pseudo_v4, pseudo_v6};
use wire::virtio_net::VirtioNetHdr;
use zerocopy::{FromBytes, IntoBytes};

use crate::tap::TapQueue;

type Platform = Metered<Machine>;

const HEADERS: usize = 14 + 20 + 20;
const TCP: u8 = 6;
const UDP: u8 = 17;

fn platform() -> Platform {
    let platform = Metered::new(Machine::new());
    platform.meter().switch(true);
    platform
}

fn counts<const N: usize>(platform: &Platform, what: [Counted; N]) -> [u64; N] {
    what.map(|what| platform.meter().count(what))
}

/// A tap and what is behind it.
fn tap() -> (Arc<TapQueue>, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (Arc::new(TapQueue::of_socket(ours.into(), "stand-in")), theirs)
}

/// A TCP frame with `payload` bytes and a partial checksum.
fn tcp_frame(payload: usize) -> Vec<u8> {
    let [source, dest] = [[10, 9, 0, 1], [10, 9, 0, 2]];
    let tcp_len = u16::try_from(20 + payload).unwrap();
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0]);
    bytes.extend((20 + tcp_len).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, TCP, 0, 0]);
    bytes.extend([source, dest].concat());
    let header_sum = wire::checksum::Sum::of(&bytes[14..34]).finish();
    bytes[24..26].copy_from_slice(&header_sum.to_be_bytes());
    bytes.extend([4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0]);
    let pseudo = pseudo_v4(source.into(), dest.into(), TCP, tcp_len);
    bytes.extend(pseudo.fold().to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|at| (at * 7 + at / 251).to_le_bytes()[0]));
    bytes
}

/// A UDP frame with `payload` bytes and a partial checksum.
fn udp_frame(payload: usize) -> Vec<u8> {
    let mut bytes = tcp_frame(payload);
    let udp_len = u16::try_from(8 + payload).unwrap();
    bytes.drain(34 + 8..54);
    bytes[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
    (bytes[23], bytes[24], bytes[25]) = (UDP, 0, 0);
    let header_sum = wire::checksum::Sum::of(&bytes[14..34]).finish();
    bytes[24..26].copy_from_slice(&header_sum.to_be_bytes());
    bytes[38..40].copy_from_slice(&udp_len.to_be_bytes());
    let [source, dest] = [[10, 9, 0, 1], [10, 9, 0, 2]];
    let pseudo = pseudo_v4(source.into(), dest.into(), UDP, udp_len);
    bytes[40..42].copy_from_slice(&pseudo.fold().to_be_bytes());
    bytes
}

/// A TCP frame over IPv6.
fn tcp_frame_v6(payload: usize) -> Vec<u8> {
    let v4 = tcp_frame(payload);
    let [source, dest] = [[0xfd; 16], [0xfe; 16]];
    let tcp_len = u16::try_from(20 + payload).unwrap();
    let mut bytes = v4[..12].to_vec();
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    bytes.extend(tcp_len.to_be_bytes());
    bytes.extend([TCP, 64]);
    bytes.extend([source, dest].concat());
    bytes.extend(&v4[34..50]);
    let pseudo = pseudo_v6(source.into(), dest.into(), TCP, tcp_len.into());
    bytes.extend(pseudo.fold().to_be_bytes());
    bytes.extend(&v4[52..]);
    bytes
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
