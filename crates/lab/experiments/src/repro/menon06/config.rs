//! The paper's configurations, as pvnet's.

use std::path::Path;

use crate::repro::rounds::{daemon, mac};
use crate::repro::server::{Machine, PEER, Setup, device, wire, with_prefix};

/// Where the server's program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// The program runs in a guest.
    Guest(Guest),
    /// The program runs in the driver domain.
    Driver(Buffers),
    /// The program runs on the kernel that has the NIC.
    Native,
}

/// A guest and its driver domain, in the words of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// `interface`.
    pub interface: &'static str,
    /// `tx`.
    pub tx: &'static str,
    /// `rx`.
    pub rx: &'static str,
    /// The NIC's `capabilities`.
    pub nic: &'static str,
    /// The driver domain's receive buffers; guest memory has pages of the same size.
    pub buffers: Buffers,
    /// Pages of `copy_pool`, which the guest and the driver domain share from the start; 0 for none.
    pub copy_pool: u16,
}

/// The driver domain's receive buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// `receive_buffers`.
    pub kind: &'static str,
    /// `huge_pages`: superpages, in the paper's words.
    pub huge_pages: bool,
}

const ALL: &str = "csum+sg+tso";
const RECYCLED: Buffers = Buffers { kind: "recycled", huge_pages: false };
const ZEROED: Buffers = Buffers { kind: "zeroed-pages", huge_pages: false };

const fn huge(server: ServerKind) -> ServerKind {
    match server {
        ServerKind::Guest(guest) => {
            let buffers = Buffers { huge_pages: true, ..guest.buffers };
            ServerKind::Guest(Guest { buffers, ..guest })
        }
        ServerKind::Driver(buffers) => ServerKind::Driver(Buffers { huge_pages: true, ..buffers }),
        ServerKind::Native => ServerKind::Native,
    }
}

const fn pooled(server: ServerKind) -> ServerKind {
    match server {
        ServerKind::Guest(guest) => ServerKind::Guest(Guest { copy_pool: 256, ..guest }),
        other => other,
    }
}

const fn transmitting(interface: &'static str, tx: &'static str) -> ServerKind {
    ServerKind::Guest(Guest {
        interface,
        tx,
        rx: "copy",
        nic: ALL,
        buffers: RECYCLED,
        copy_pool: 0,
    })
}

const fn receiving(rx: &'static str, buffers: Buffers) -> ServerKind {
    let interface = "basic";
    ServerKind::Guest(Guest { interface, tx: "remap", rx, nic: ALL, buffers, copy_pool: 0 })
}

// Transmit. Only acknowledgements come back, and all configurations receive them in the same way.
/// No optimisation.
pub const NONE: ServerKind = transmitting("basic", "remap");
/// Superpages alone.
pub const SP: ServerKind = huge(NONE);
/// The I/O channel alone.
pub const IOC: ServerKind = transmitting("basic", "header");
/// The high-level interface alone.
pub const HIGH: ServerKind = transmitting("high", "remap");
/// The high-level interface and the I/O channel.
pub const HIGH_IOC: ServerKind = transmitting("high", "header");
/// The high-level interface, the I/O channel and superpages.
pub const HIGH_IOC_SP: ServerKind = huge(HIGH_IOC);

// Receive. Only acknowledgements go back, and all configurations send them in the same way.
/// Page flips from zeroed pages.
pub const GUEST_NONE: ServerKind = receiving("flip", ZEROED);
/// Copies from MTU-sized buffers.
pub const GUEST_COPY: ServerKind = receiving("copy", RECYCLED);
/// The same into a set of pages for all interfaces of the guest, which is mapped from the start (§4.2): no packet
/// needs a grant operation.
pub const GUEST_COPY_POOL: ServerKind = pooled(GUEST_COPY);
/// As `GUEST_COPY`, with superpages.
pub const GUEST_COPY_SP: ServerKind = huge(GUEST_COPY);

// The driver domain.
/// Whole pages, zeroed before each use.
pub const DRIVER_NONE: ServerKind = ServerKind::Driver(ZEROED);
/// MTU-sized buffers.
pub const DRIVER_MTU: ServerKind = ServerKind::Driver(RECYCLED);
/// The same with superpages.
pub const DRIVER_MTU_SP: ServerKind = huge(DRIVER_MTU);

/// The high-level interface alone, over a NIC with these capabilities.
pub const fn high_over(nic: &'static str) -> ServerKind {
    match HIGH {
        ServerKind::Guest(guest) => ServerKind::Guest(Guest { nic, ..guest }),
        other => other,
    }
}

/// The name of the NIC's port.
pub const NIC_PORT: &str = "nic";

impl ServerKind {
    /// Whether it has superpages.
    pub fn huge_pages(self) -> bool {
        match self {
            Self::Guest(Guest { buffers, .. }) | Self::Driver(buffers) => buffers.huge_pages,
            Self::Native => false,
        }
    }

    /// The same with pages of 4 KiB.
    pub fn small_pages(self) -> Self {
        let small = |buffers| Buffers { huge_pages: false, ..buffers };
        match self {
            Self::Guest(guest) => Self::Guest(Guest { buffers: small(guest.buffers), ..guest }),
            Self::Driver(buffers) => Self::Driver(small(buffers)),
            Self::Native => self,
        }
    }
}

impl Setup for ServerKind {
    fn toml(self, folder: &Path, machine: &Machine<'_>) -> Option<String> {
        let (server, client) = (machine.guests[0], machine.peer);
        let (nic, inner) = match self {
            Self::Guest(guest) => (uplink(guest.nic, guest.buffers, client), guest.toml(server)),
            Self::Driver(buffers) => (uplink(ALL, buffers, client), stack(buffers)),
            Self::Native => return None,
        };
        Some(daemon(folder) + &nic + &inner)
    }

    fn has_cards(self) -> bool {
        false
    }

    fn peer_segments_early(self) -> bool {
        false
    }

    fn is_driver_domain(self) -> bool {
        matches!(self, Self::Driver(_))
    }

    fn starts_guests(self) -> bool {
        matches!(self, Self::Guest(_))
    }
}

/// The NIC. The client's stack is at its other end.
fn uplink(capabilities: &str, buffers: Buffers, client: &str) -> String {
    format!(
        "\n[[uplink]]\nname = \"{NIC_PORT}\"\ntap = \"{}\"\nnamespace = \"{client}\"\n\
         addresses = [\"{}\"]\ncapabilities = \"{capabilities}\"\nlarge_receive = false\ngro = false\n\
         receive_buffers = \"{}\"\nhuge_pages = {}\n",
        wire(0),
        with_prefix(0, PEER),
        buffers.kind,
        buffers.huge_pages
    )
}

/// The driver domain's own stack, in the daemon's own namespace.
fn stack(buffers: Buffers) -> String {
    format!(
        "\n[[uplink]]\nname = \"stack\"\ntap = \"{}\"\naddresses = [\"{}\"]\n\
         huge_pages = {}\ngro = false\n",
        device(0),
        with_prefix(0, 1),
        buffers.huge_pages
    )
}

impl Guest {
    fn toml(&self, name: &str) -> String {
        // The paper is older than GRO and persistent grants. Its driver domain kept only the pages of the copy
        // channel mapped.
        let persistent_grants = if self.copy_pool > 0 { 512 } else { 0 };
        format!(
            "\n[[guest]]\nname = \"{name}\"\nmac = \"{}\"\naddresses = [\"{}\"]\n\
             interface = \"{}\"\ntx = \"{}\"\nrx = \"{}\"\nhuge_pages = {}\n\
             copy_pool = {}\npersistent_grants = {persistent_grants}\ngro = false\n",
            mac(0, 1),
            with_prefix(0, 1),
            self.interface,
            self.tx,
            self.rx,
            self.buffers.huge_pages,
            self.copy_pool
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pages_change_nothing_else() {
        assert_eq!(HIGH_IOC_SP.small_pages(), HIGH_IOC);
        assert_eq!(DRIVER_MTU_SP.small_pages(), DRIVER_MTU);
        assert!(HIGH_IOC_SP.huge_pages() && !HIGH_IOC.huge_pages());
    }
}
