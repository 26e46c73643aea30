//! How a link connects to the backend.

use std::net::Ipv4Addr;
use std::ops::Deref;

use xenstore::XenbusState;

use crate::Cli;
use crate::device::Outcome;
use crate::link::{Link, Shape};

impl Link {
    /// Connects as a valid frontend does.
    pub fn connect(device: &HostileDevice) -> Outcome<Self> {
        Self::connect_as(device, Shape::default())
    }

    /// The same with another RX ring.
    pub fn connect_as(device: &HostileDevice, shape: Shape) -> Outcome<Self> {
        let link = Self::new(device, shape)?;
        link.join(device)?;
        Ok(link)
    }

    /// Starts over, and connects with this link's rings.
    pub fn join(&self, device: &HostileDevice) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_connected()
    }

    /// Starts over, offers valid rings, changes the offer with `spoil`, and tries to connect. Succeeds if the backend
    /// refuses.
    pub fn refused(
        &self,
        device: &HostileDevice,
        spoil: impl FnOnce(&HostileDevice) -> Outcome,
    ) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        spoil(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_closed()
    }
}

/// An interface, and the addresses that echoes use.
pub struct HostileDevice {
    interface: xenlab::netif::device::Device,
    pub address: Ipv4Addr,
    pub peer: Ipv4Addr,
}

impl HostileDevice {
    /// Opens the interface.
    pub fn open(cli: &Cli) -> Outcome<Self> {
        let interface = xenlab::netif::device::Device::open(cli.vif)?;
        Ok(Self { interface, address: cli.address, peer: cli.peer })
    }
}

impl Deref for HostileDevice {
    type Target = xenlab::netif::device::Device;

    fn deref(&self) -> &Self::Target {
        &self.interface
    }
}
