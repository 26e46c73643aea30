//! A ring as it is connected.

use std::sync::Arc;

use hypervisor::Hypervisor;
use ring::{BackRing, RegionPage, Slots};

/// A ring, and the event channel beside it.
pub(crate) struct EventRing<S: Slots, H: Hypervisor> {
    pub(crate) ring: BackRing<S, RegionPage<H::Mapping>>,
    pub(crate) event: Arc<H::Event>,
}
