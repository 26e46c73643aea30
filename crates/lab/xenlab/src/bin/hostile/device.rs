//! The interface that is attacked.

use std::net::Ipv4Addr;
use std::ops::Deref;

use crate::cli::Cli;
use crate::wait::Outcome;

/// An interface, and the addresses that echoes use.
pub struct Device {
    interface: xenlab::netif::device::Device,
    pub address: Ipv4Addr,
    pub peer: Ipv4Addr,
}

impl Device {
    /// Opens the interface.
    pub fn open(cli: &Cli) -> Outcome<Self> {
        let interface = xenlab::netif::device::Device::open(cli.vif)?;
        Ok(Self { interface, address: cli.address, peer: cli.peer })
    }
}

impl Deref for Device {
    type Target = xenlab::netif::device::Device;

    fn deref(&self) -> &Self::Target {
        &self.interface
    }
}
