//! The metadata of frames.

use super::vm::Vm;

/// Metadata that says nothing.
pub fn plain(vm: &Vm) -> Vec<u8> {
    vec![0; vm.header_len()]
}

/// The metadata of a TCP segment over IPv4 that is to be segmented.
pub fn tso(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 1);
    for (at, value) in [(2, 54u16), (4, size), (6, 34), (8, 16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The same over IPv6.
pub fn tso_v6(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = tso(vm, size);
    bytes[1] = 4;
    for (at, value) in [(2, 74u16), (6, 54)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The metadata of a datagram that is to be segmented, whose UDP header begins at `start`.
pub fn uso(vm: &Vm, start: u16, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 5);
    for (at, value) in [(2, start + 8), (4, size), (6, start), (8, 6)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
