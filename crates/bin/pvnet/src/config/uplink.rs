//! `[[uplink]]`: a tap or a NIC, and what it can do, or a card's context.

use offload::Features;
use port::Coalescing;
use serde::Deserialize;
use switch::Membership;
use wire::ethernet::MacAddr;

use super::coalescing::coalescing;
use super::limits::Limits;
use super::nic::Protection;
use super::text::parsed_if_any;
use super::vlans::Keys;

/// The NIC's capabilities on transmit. `capabilities` is their names joined by `+`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Capabilities {
    /// Completes transport checksums.
    pub csum: bool,
    /// Gathers a frame from several pieces.
    pub sg: bool,
    /// Segments TCP frames beyond the MTU.
    pub tso: bool,
    /// Segments UDP frames beyond the MTU. A device whose kernel cannot say so has it not.
    pub uso: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { csum: true, sg: true, tso: true, uso: true }
    }
}

impl Capabilities {
    /// The capabilities as a set of offloads.
    pub fn features(self) -> Features {
        let Self { csum, sg, tso, uso } = self;
        Features {
            sg,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: tso,
            tso_v6: tso,
            uso_v4: uso,
            uso_v6: uso,
        }
    }
}

impl TryFrom<String> for Capabilities {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut this = Self { csum: false, sg: false, tso: false, uso: false };
        for name in text.split('+').filter(|_| text != "none") {
            match name.trim() {
                "csum" => this.csum = true,
                "sg" => this.sg = true,
                "tso" => this.tso = true,
                "uso" => this.uso = true,
                other => {
                    return Err(format!(
                        "{other:?} is not csum, sg, tso or uso, joined by +, or none"
                    ));
                }
            }
        }
        if (this.tso || this.uso) && !(this.csum && this.sg) {
            return Err("tso and uso need csum and sg: csum+sg+tso+uso".into());
        }
        Ok(this)
    }
}

/// `receive_buffers`: the memory that frames from an uplink are read into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveBuffers {
    /// Buffers for a whole frame, reused without zeroing.
    #[default]
    Recycled,
    /// Pages zeroed for each frame, as pages that may be flipped must be.
    ZeroedPages,
}

/// `[[uplink]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// The port's name.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub kind: UplinkKind,
    /// The tap's name.
    #[serde(default)]
    pub tap: String,
    /// The name of the physical or virtual NIC.
    #[serde(default)]
    pub device: String,
    /// The card whose first context it is.
    pub nic: Option<String>,
    /// The context's MAC address.
    #[serde(default, deserialize_with = "parsed_if_any")]
    pub mac: Option<MacAddr>,
    /// How the context is protected. The driver domain is trusted.
    #[serde(default = "no_protection")]
    pub protection: Protection,
    /// The network namespace of the device; the daemon's if absent.
    pub namespace: Option<String>,
    /// Whether the device stays after the daemon ends, with its addresses and its bridge.
    #[serde(default)]
    pub persistent: bool,
    /// IP addresses for the host's end.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The NIC's capabilities on transmit.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether frames beyond the MTU arrive unsegmented.
    #[serde(default = "yes")]
    pub large_receive: bool,
    /// The memory that frames are read into.
    #[serde(default)]
    pub receive_buffers: ReceiveBuffers,
    /// Whether these buffers have 2 MiB pages.
    #[serde(default)]
    pub huge_pages: bool,
    /// Who shares its receive queues.
    #[serde(default)]
    pub queues: Queues,
    /// How many guests can have a queue at a time; by default all in the configuration that want one.
    pub guest_queues: Option<u16>,
    /// A worker is woken up for so many frames,
    pub coalesce_frames: Option<u32>,
    /// or so many microseconds after the last one; see [`Uplink::coalescing`].
    pub coalesce_us: Option<u32>,
    /// The rates at which frames may come in and go out.
    #[serde(default)]
    pub limit: Limits,
    /// Whether it carries frames; otherwise it drops them.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The VLAN of all its frames, which have no tags.
    pub vlan: Option<u16>,
    /// The VLANs whose frames have tags.
    pub trunk: Option<Vec<u16>>,
    /// With `trunk`: the VLAN of frames without a tag.
    pub native: Option<u16>,
    /// Whether it reaches only ports that are not isolated.
    #[serde(default)]
    pub isolated: bool,
}

fn no_protection() -> Protection {
    Protection { mode: contexts::Protection::None, ..Protection::default() }
}

impl Uplink {
    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { kind, queues, guest_queues, .. } = self;
        self.coalescing()?;
        let in_vlans = self.membership()?.is_some_and(|one| one.tagging.is_some());
        if in_vlans && *queues == Queues::PerGuest {
            return Err("vlan and trunk are not for queues = \"per-guest\", whose frames are put into guests' buffers".into());
        }
        match (queues, guest_queues) {
            (Queues::Shared, Some(_)) => {
                return Err("guest_queues is for queues = \"per-guest\"".into());
            }
            (_, Some(count)) if !(1..=GUEST_QUEUES_MAX).contains(count) => {
                return Err(format!("guest_queues is not 1 to {GUEST_QUEUES_MAX}"));
            }
            _ => {}
        }
        match kind {
            UplinkKind::Tap | UplinkKind::Cdna => self.check_tap_or_context(),
            UplinkKind::Macvtap | UplinkKind::AfPacket | UplinkKind::AfXdp => self.check_device(),
        }
    }

    fn check_tap_or_context(&self) -> Result<(), String> {
        let Self { kind, tap, device, nic, mac, protection, guest_queues, .. } = self;
        match kind {
            _ if !device.is_empty() => {
                Err("device is for kind = \"macvtap\", \"af-packet\" or \"af-xdp\"".into())
            }
            UplinkKind::Tap if tap.is_empty() => Err("tap is missing".into()),
            UplinkKind::Tap if nic.is_some() || mac.is_some() => {
                Err("nic and mac are for kind = \"cdna\"".into())
            }
            UplinkKind::Cdna if nic.is_none() || mac.is_none() => {
                Err("kind = \"cdna\" needs nic and mac".into())
            }
            UplinkKind::Cdna if guest_queues.is_some() => {
                Err("guest_queues is for a tap; a card has as many as contexts".into())
            }
            UplinkKind::Cdna if !tap.is_empty() => Err("tap is not for kind = \"cdna\"".into()),
            _ => protection.check(),
        }
    }

    fn check_device(&self) -> Result<(), String> {
        let Self { kind, tap, device, nic, mac, queues, .. } = self;
        if device.is_empty() {
            return Err("device is missing: the name of the NIC".into());
        }
        if !tap.is_empty() || nic.is_some() || mac.is_some() {
            return Err("tap, nic and mac are not for a kind with a device".into());
        }
        if self.persistent || !self.addresses.is_empty() {
            return Err("persistent and addresses are for a tap, which pvnet makes".into());
        }
        match (kind, queues) {
            (UplinkKind::AfPacket, Queues::PerGuest) => Err(
                "a packet socket has no queues for guests: set kind = \"af-xdp\" or \"macvtap\"".into(),
            ),
            (UplinkKind::AfXdp, Queues::Shared) => Err(
                "kind = \"af-xdp\" needs queues = \"per-guest\"; without it, set kind = \"af-packet\"".into(),
            ),
            _ => Ok(()),
        }
    }

    /// In which VLANs it is, and whether it is isolated; none for a port without that.
    ///
    /// # Errors
    /// There is no such VLAN, or the keys do not fit together.
    pub fn membership(&self) -> Result<Option<Membership>, String> {
        let Self { vlan, native, isolated, .. } = *self;
        Keys { vlan, trunk: self.trunk.as_deref(), native, isolated }.membership()
    }

    /// When a worker is woken up for frames that come in; none if each wakes one that sleeps.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn coalescing(&self) -> Result<Option<Coalescing>, String> {
        coalescing(self.coalesce_frames, self.coalesce_us)
    }
}

/// `queues`: who shares the receive queues of an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queues {
    /// Everybody.
    #[default]
    Shared,
    /// Each guest with `rx = "direct"` has one, whose frames are put into the guest's buffers; on Xen each with
    /// `rx = "guest-copy"`, whose frames are put into its pool.
    PerGuest,
}

/// The most guests with a queue: a tap has 256 queues, of which workers read some.
const GUEST_QUEUES_MAX: u16 = 192;

/// `kind`: what an uplink is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkKind {
    /// A tap device.
    #[default]
    Tap,
    /// A macvtap over a NIC, which it takes over.
    Macvtap,
    /// Packet sockets on a NIC, which the host goes on using.
    AfPacket,
    /// The same, with AF_XDP sockets for guests.
    AfXdp,
    /// A card's context that is kept for the driver domain.
    Cdna,
}

fn yes() -> bool {
    true
}
