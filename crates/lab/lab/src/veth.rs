//! The baseline: two namespaces that the kernel's veth devices and bridge connect.
//!
//! ```text
//!  left namespace        bridge namespace         right namespace
//!  ┌───────────┐      ┌──────────────────────┐      ┌───────────┐
//!  │      eth0 │══════│ left ── br0 ── right │══════│ eth0      │
//!  └───────────┘ veth └──────────────────────┘ veth └───────────┘
//! ```

use crate::{Namespace, Offloads, Result};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The kernel's counterpart of two guests and the switch. Ratios in reports are relative to it.
#[derive(Debug)]
pub struct VethBridge {
    /// One end.
    pub left: Endpoint,
    /// The other end.
    pub right: Endpoint,
    /// The bridge's own namespace: the host gets no bridge.
    bridge: Namespace,
}

/// A namespace with one configured device.
#[derive(Debug)]
pub struct Endpoint {
    /// The namespace, deleted with this value.
    pub namespace: Namespace,
    /// Its device.
    pub device: &'static str,
    /// The device's address, in a /24 with the other end.
    pub ipv4: Ipv4Addr,
    /// The device's unique local address, in a /64 with the other end.
    pub ipv6: Ipv6Addr,
}

/// The device inside of each end.
const DEVICE: &str = "eth0";

impl VethBridge {
    /// Makes the three namespaces, links and addresses; everything is up on return. Namespaces are named after
    /// `prefix` (see [`Namespace::create`]). Offloads are set on every device that a frame passes, the bridge's
    /// ports included.
    pub fn create(prefix: &str, offloads: Offloads) -> Result<Self> {
        let bridge = Namespace::create(prefix)?;
        bridge.ip(&["link", "add", "br0", "type", "bridge"])?;
        bridge.ip(&["link", "set", "br0", "up"])?;
        let left = Endpoint::attach(prefix, &bridge, "left", 1, offloads)?;
        let right = Endpoint::attach(prefix, &bridge, "right", 2, offloads)?;
        Ok(Self { left, right, bridge })
    }

    /// The namespace of the bridge, whose ports are called `left` and `right`.
    #[must_use]
    pub fn bridge(&self) -> &Namespace {
        &self.bridge
    }
}

impl Endpoint {
    /// A new namespace, plugged into `br0` of `bridge` at `port`.
    fn attach(
        prefix: &str,
        bridge: &Namespace,
        port: &str,
        host: u8,
        offloads: Offloads,
    ) -> Result<Self> {
        let namespace = Namespace::create(prefix)?;
        let ipv4 = Ipv4Addr::new(10, 77, 0, host);
        // "pvnet" in a unique local prefix, which no real network uses.
        let ipv6 = Ipv6Addr::new(0xfd70, 0x766e, 0x6574, 0, 0, 0, 0, u16::from(host));

        // Both ends are created in their namespaces, so that the host never sees them.
        let (name, home) = (namespace.name(), bridge.name());
        let link = [
            "link", "add", "name", DEVICE, "netns", name, "type", "veth", "peer", "name", port,
            "netns", home,
        ];
        host::ip(&link)?;
        offloads.apply(&namespace, DEVICE)?;
        offloads.apply(bridge, port)?;

        bridge.ip(&["link", "set", port, "master", "br0", "up"])?;
        namespace.ip(&["addr", "add", &format!("{ipv4}/24"), "dev", DEVICE])?;
        // The link has no other hosts: without duplicate detection the address is usable at once.
        namespace.ip(&["addr", "add", &format!("{ipv6}/64"), "dev", DEVICE, "nodad"])?;
        namespace.ip(&["link", "set", DEVICE, "up"])?;
        Ok(Self { namespace, device: DEVICE, ipv4, ipv6 })
    }
}
