//! The driver against back-ends: pvnet's own, and some that mean harm.

mod connect;
mod fake;
mod hostile;
mod messages;
mod pass;
mod pvnet;

use offload::Features;
use virtio_user::Options;

/// What this side wants where a test does not say otherwise.
pub const ALL: Options =
    Options { queues: 1, packed: true, sends: Features::ALL, receives: Features::ALL };

/// A TCP segment over IPv4 with `payload` bytes and without checksums.
pub fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(u16::try_from(40 + payload).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|n| (n % 251).to_le_bytes()[0]));
    bytes
}
