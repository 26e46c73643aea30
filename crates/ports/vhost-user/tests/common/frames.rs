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
