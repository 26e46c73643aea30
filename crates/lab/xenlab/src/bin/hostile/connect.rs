//! How a link connects to the backend.

use xenstore::XenbusState;

use crate::device::Device;
use crate::link::{Link, Shape};
use crate::wait::Outcome;

impl Link {
    /// Connects as a valid frontend does.
    pub fn connect(device: &Device) -> Outcome<Self> {
        Self::connect_as(device, Shape::default())
    }

    /// The same with another RX ring.
    pub fn connect_as(device: &Device, shape: Shape) -> Outcome<Self> {
        let link = Self::new(device, shape)?;
        link.join(device)?;
        Ok(link)
    }

    /// Starts over, and connects with this link's rings.
    pub fn join(&self, device: &Device) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_connected()
    }

    /// Starts over, offers valid rings, changes the offer with `spoil`, and tries to connect. Succeeds if the backend
    /// refuses.
    pub fn refused(&self, device: &Device, spoil: impl FnOnce(&Device) -> Outcome) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        spoil(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_closed()
    }
}
