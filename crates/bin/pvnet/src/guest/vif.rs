//! A Xen virtual interface as a device of this guest.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::Guest;
use machine::toolstack;
use netfront::{Frontend, Queue};
use offload::Features;
use xenstore::Store;

use super::options::Options;
use crate::error::text;

/// How long the backend may take for each step of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects the frontend of interface `handle`. `own` are this end's offloads.
pub(super) fn connect<G: Guest>(
    guest: &G,
    store: &Arc<dyn Store>,
    handle: u32,
    own: Features,
    options: &Options,
) -> Result<(Frontend<G>, Vec<Queue<G>>), String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = netfront::Config {
        queues: options.queues.unwrap_or(u32::try_from(cpus).unwrap_or(1)),
        features: own,
        split_event_channels: !options.one_event_channel,
        header_channel: !options.no_header_channel,
        persistent_grants: !options.no_persistent_grants,
        timeout: HANDSHAKE_TIMEOUT,
    };
    let node = toolstack::device_path(handle);
    Frontend::connect(guest, store.clone(), &node, &config).map_err(text)
}
