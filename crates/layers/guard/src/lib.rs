//! A wrapper around a port that refuses frames with a false source.
//!
//! A switch learns from source addresses, and neighbours learn from ARP and neighbour discovery.
//! A guest that forges either diverts its neighbours' traffic: one frame is enough. A [`Guard`]
//! refuses the frames of a port that have another source than the operator gave the port.
//!
//! ```
//! use guard::{Guard, Policy};
//!
//! # fn plug_in(port: Box<dyn port::Ingress>) -> Result<Box<dyn port::Ingress>, Box<dyn std::error::Error>> {
//! let policy = Policy {
//!     mac: "00:16:3e:00:00:01".parse()?,
//!     addresses: Some(vec!["10.77.0.1/24".parse()?, "fd00:77::1".parse()?]),
//! };
//! # Ok(
//! Guard::wrap(port, &policy)
//! # )
//! # }
//! ```
//!
//! # What is refused
//! | reason | the frame is |
//! | --- | --- |
//! | `spoofed_mac` | from another MAC address than the policy's |
//! | `spoofed_arp` | ARP with another sender MAC address, with another sender IP address\*, or not for Ethernet and IPv4 |
//! | `spoofed_ipv4` | IPv4 from another address\* |
//! | `spoofed_ipv6` | IPv6 from another address\*, or false neighbour discovery |
//! | `malformed` | of a form that hides its protocol, where nobody can check it |
//!
//! The checks with a star need [`Policy::addresses`]. Without them a guest may use any IP address,
//! but only its own MAC address.
//!
//! Frames of other protocols pass if their MAC address is right. VLAN tags change nothing: what is
//! behind up to eight tags is checked as if it were not tagged.
//!
//! # What hides a protocol
//! Some receivers take these headers off and go on with what is behind, so frames with them are
//! refused, behind VLAN tags too:
//! - A ninth VLAN tag.
//! - A length in place of the EtherType, as IEEE 802.3 has it: SNAP carries any protocol. IS-IS
//!   passes if the frame has that length. No other LLC protocol passes, so neither do spanning trees.
//! - Tags of other kinds: VLAN tags of old (0x9100, 0x9200, 0x9300), and those of backbone bridges,
//!   port extenders, Cisco's, IEEE 802.1CB, switch chips (DSA, Realtek's), HSR, PRP, TRILL and NSH; a
//!   whole frame within a frame (0x6558).
//!
//! PPPoE, MPLS and MACsec pass, as tunnels over IP do: a receiver unpacks them only if it was set
//! up for this sender.
//!
//! # Which addresses are a port's own
//! Those of the policy ([`Allowed`] says how they are written), and the link-local IPv6 address that
//! follows from the MAC address (EUI-64). A guest that makes its link-local address otherwise
//! (RFC 7217, as NetworkManager does) needs it in the policy, or `fe80::/64`.
//!
//! A host that has no address yet sends from the unspecified address. That passes where it claims
//! nothing that is another's:
//! - ARP probes (RFC 5227), for addresses of its own.
//! - IPv4: DHCP requests, from UDP port 68 to 67. Nothing else.
//! - IPv6: duplicate address detection for addresses of its own, router solicitations, and
//!   multicast listener reports.
//!
//! # Neighbour discovery
//! These rules hold with and without addresses:
//! - Router advertisements and redirects are refused: a guest is no router (RFC 6105).
//! - Link-layer addresses in options are the policy's.
//! - A message must be whole in the private header ([`port::HEADER_MAX`] bytes), must not be
//!   fragmented (RFC 6980), and must have no extension header before it. Hosts send no others. Also
//!   refused are a first fragment that does not show what it is a fragment of (RFC 7112), and a
//!   packet whose extension headers go on behind the private header.
//!
//! With addresses, a neighbour advertisement and duplicate address detection are for addresses of
//! the port's own.
//!
//! # What it does not do
//! Filter by destination or payload: a guest may still answer DHCP requests from its own address,
//! as it may offer any other service.
//!
//! # Cost
//! A comparison of the MAC address and one of each allowed address of the frame's protocol, per
//! frame. No lock, no allocation, no access to the frame's body.

#![forbid(unsafe_code)]

mod addresses;
mod checker;
mod nd;
mod settings;

use port::{Broken, Budget, DropReason, Ingress, IngressWrapper, Layer, Received};

pub use addresses::{Allowed, ParseAllowedError};
pub use checker::Checker;
pub use settings::{GuardMode, GuardStatus, Policy, Sources, deserialize_allowed};

/// An ingress queue whose frames all have the source that a policy allows.
pub struct Guard {
    inner: Box<dyn Ingress>,
    checker: Checker,
}

impl Guard {
    /// Wraps a queue. All queues of a port have the same policy.
    #[must_use]
    pub fn wrap(inner: Box<dyn Ingress>, policy: &Policy) -> Box<dyn Ingress> {
        Box::new(Self { inner, checker: Checker::new(policy) })
    }
}

/// The guard of a port, if its policy is checked.
pub struct GuardLayer(pub Option<Policy>);

impl Layer for GuardLayer {
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress.strip(|Guard { inner, .. }| inner)
    }

    fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        match &self.0 {
            Some(policy) => Guard::wrap(ingress, policy),
            None => ingress,
        }
    }
}

/// Refuses a frame, unless a wrapper within this one has already.
#[cold]
fn refuse(received: &mut Received, slot: u8, reason: DropReason) {
    if received.refused.iter().all(|(refused, _)| *refused != slot) {
        received.refused.push((slot, reason));
    }
}

impl IngressWrapper for Guard {
    port::wraps!(inner: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.inner.receive(budget, received)?;
        if received.fresh == 0 {
            return Ok(());
        }
        let window = self.inner.window();
        let order = window.order();
        for &slot in &order[order.len().saturating_sub(received.fresh)..] {
            if let Err(reason) = self.checker.check(window.frame(slot)) {
                refuse(received, slot, reason);
            }
        }
        Ok(())
    }
}
