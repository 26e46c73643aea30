//! Frames and their metadata.

use super::vm::Vm;

/// Metadata that says nothing.
pub fn plain(vm: &Vm) -> Vec<u8> {
    vec![0; vm.header_len()]
}

/// A TCP segment over IPv4 with `payload` bytes and without checksums.
pub fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(u16::try_from(40 + payload).unwrap_or(0).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|n| (n % 251).to_le_bytes()[0]));
    bytes
}

/// The metadata of such a frame to be segmented.
pub fn tso(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 1);
    for (at, value) in [(2, 54u16), (4, size), (6, 34), (8, 16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The same over IPv6.
pub fn tcp_v6(payload: usize) -> Vec<u8> {
    let v4 = tcp(payload);
    let mut bytes = v4[..12].to_vec();
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    bytes.extend(u16::try_from(20 + payload).unwrap_or(0).to_be_bytes());
    bytes.extend([6, 64]);
    bytes.extend([[0xfd; 16], [0xfe; 16]].concat());
    bytes.extend(&v4[34..]);
    bytes
}

/// The metadata of such a frame to be segmented.
pub fn tso_v6(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = tso(vm, size);
    bytes[1] = 4;
    for (at, value) in [(2, 74u16), (6, 54)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// A datagram over IPv4 with `payload` bytes and without checksums.
pub fn udp(payload: usize) -> Vec<u8> {
    let mut bytes = tcp(0);
    bytes.truncate(34);
    bytes[23] = 17;
    let [ip, datagram] = [28, 8].map(|header| u16::try_from(header + payload).unwrap_or(0));
    bytes[16..18].copy_from_slice(&ip.to_be_bytes());
    bytes.extend([0, 1, 0, 2]);
    bytes.extend(datagram.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|n| (n % 251).to_le_bytes()[0]));
    bytes
}

/// The same over IPv6.
pub fn udp_v6(payload: usize) -> Vec<u8> {
    let v4 = udp(payload);
    let mut bytes = v4[..12].to_vec();
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    bytes.extend(&v4[38..40]);
    bytes.extend([17, 64]);
    bytes.extend([[0xfd; 16], [0xfe; 16]].concat());
    bytes.extend(&v4[34..]);
    bytes
}

/// The metadata of such a frame to be segmented, whose UDP header begins at `start`.
pub fn uso(vm: &Vm, start: u16, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 5);
    for (at, value) in [(2, start + 8), (4, size), (6, start), (8, 6)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
