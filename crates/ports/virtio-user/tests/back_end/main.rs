//! The driver against back-ends: pvnet's own, and some that mean harm.

mod connect;
mod fake;
mod hostile;
mod messages;
mod pvnet;

use offload::Features;
use virtio_user::Options;

/// What this side wants where a test does not say otherwise.
pub const ALL: Options =
    Options { queues: 1, packed: true, sends: Features::ALL, receives: Features::ALL };
