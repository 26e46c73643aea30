//! `[[guest.vif]]`: a virtual interface of a guest.

use guard::Allowed;
use netback::{GrantReuse, Offered, RxChannel, TxChannel};
use offload::Features;
use port::Coalescing;
use serde::Deserialize;
use switch::multicast::Router;
use wire::ethernet::MacAddr;

use super::attach::{Attach, Keys};
use super::capabilities::Capabilities;
use super::coalescing::coalescing;
use super::daemon::Platform;
use super::port_keys::port_table;
use super::sources::{GuardMode, Sources, deserialize_allowed};
use super::text::{parsed, parsed_if_any};

port_table! {
    /// `[[guest.vif]]`
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Vif {
        /// Its MAC address; on Xen the toolstack gives it.
        #[serde(deserialize_with = "parsed_if_any")]
        pub mac: Option<MacAddr>,
        /// IP addresses for its guest's namespace.
        pub addresses: Vec<String>,
        /// The most queues; one per CPU of the driver domain, up to eight, if absent.
        pub queues: Option<u32>,
        /// The I/O channel of the frames that the guest sends.
        #[serde(deserialize_with = "parsed")]
        pub tx: TxChannel,
        /// The I/O channel of the frames that the guest receives.
        #[serde(deserialize_with = "parsed")]
        pub rx: RxChannel,
        /// The most pages of each queue that stay mapped.
        pub persistent_grants: u16,
        /// Who decides which they are.
        #[serde(deserialize_with = "parsed")]
        pub grant_reuse: GrantReuse,
        /// Its offloads.
        pub interface: Interface,
        /// Frames of several pages. This and the next two depend on `interface` if absent.
        pub scatter_gather: Option<bool>,
        /// Partial checksums.
        pub checksum_offload: Option<bool>,
        /// TCP frames beyond the MTU.
        pub tcp_segmentation_offload: Option<bool>,
        /// Whether the guest gets unfinished checksums and TCP frames beyond the MTU, as far as its frontend takes them.
        pub guest_offloads: bool,
        /// Whether each ring has an event channel.
        pub split_event_channels: bool,
        /// Whether the guest may say which multicast groups it wants.
        pub multicast_control: bool,
        /// The guest is notified after so many frames,
        pub coalesce_frames: Option<u32>,
        /// or so many microseconds after the last one; see [`Vif::coalescing`].
        pub coalesce_us: Option<u32>,
        /// The sources that the guest's frames may have; [`Vif::sources`] has the default.
        pub guard: Option<GuardMode>,
        /// The IP addresses and networks that the guest may send from; `addresses` if empty.
        #[serde(deserialize_with = "deserialize_allowed")]
        pub guard_addresses: Vec<Allowed>,
        /// What it is joined to.
        pub attach: Option<Attach>,
        /// The name of its device on the host; `vif-` and its port's name if absent.
        pub device: Option<String>,
        /// What the network behind its device can do with the guest's frames.
        pub device_capabilities: Option<Capabilities>,
        /// The MTU of a new device.
        pub mtu: Option<u16>,
    }
    in_place: guard, guard_addresses, coalesce_frames, coalesce_us
}

impl Default for Vif {
    fn default() -> Self {
        Self {
            mac: None,
            addresses: Vec::new(),
            queues: None,
            tx: TxChannel::default(),
            rx: RxChannel::default(),
            persistent_grants: PERSISTENT_GRANTS,
            grant_reuse: GrantReuse::default(),
            interface: Interface::default(),
            scatter_gather: None,
            checksum_offload: None,
            tcp_segmentation_offload: None,
            guest_offloads: true,
            split_event_channels: true,
            multicast_control: true,
            coalesce_frames: None,
            coalesce_us: None,
            guard: None,
            guard_addresses: Vec::new(),
            limit: super::limits::Limits::default(),
            attach: None,
            device: None,
            device_capabilities: None,
            mtu: None,
            enabled: true,
            vlan: None,
            trunk: None,
            native: None,
            isolated: false,
            multicast_router: None,
            flood_copies_per_second: None,
            gro: false,
            workers: None,
            worker: None,
        }
    }
}

/// `interface`: the offloads of a virtual interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// Scatter/gather, checksum offload and TSO, also where the uplink lacks them.
    #[default]
    High,
    /// Frames of at most the MTU, in one page, with complete checksums.
    Basic,
}

/// The most queues of one vif.
const QUEUES_MAX: u32 = 64;
/// The most pages of one queue that stay mapped. [`PERSISTENT_GRANTS`] says why there is a limit.
const PERSISTENT_GRANTS_MAX: u16 = 4096;
/// The default: a ring of pages to send from and a ring of buffers, which is all that a frontend uses
/// at a time. On the embedded machine each page can be a separate mapping, of which each guest has a
/// share (`vm.max_map_count`). The pages of `pvnet guest` are adjacent, and the kernel merges them
/// into two mappings.
const PERSISTENT_GRANTS: u16 = 512;

impl Vif {
    /// Whether multicast routers are behind it by default.
    const ROUTER: Router = Router::Never;

    /// Checks what TOML cannot express. On Xen the toolstack may know the addresses.
    pub(super) fn check(&self, is_xen: bool) -> Result<(), String> {
        if let Some(mac) = self.mac
            && (mac.is_multicast() || mac.is_zero())
        {
            return Err(format!("mac {mac} is not a unicast address"));
        }
        match (is_xen, self.mac) {
            (true, Some(_)) => {
                return Err("on Xen the toolstack gives the mac; leave it out".into());
            }
            (false, None) => return Err("mac is missing".into()),
            (true, None) | (false, Some(_)) => {}
        }
        if self.queues.is_some_and(|queues| !(1..=QUEUES_MAX).contains(&queues)) {
            return Err(format!("queues is not 1 to {QUEUES_MAX}"));
        }
        if self.rx.lends() {
            if is_xen {
                return Err(
                    "rx = \"direct\" is not for Xen, whose frontends take responses in order"
                        .into(),
                );
            }
            if self.queues.is_some_and(|queues| queues > 1) {
                return Err(
                    "rx = \"direct\" takes one queue: set queues = 1, or leave it out".into()
                );
            }
        }
        if self.persistent_grants > PERSISTENT_GRANTS_MAX {
            return Err(format!("persistent_grants is not 0 to {PERSISTENT_GRANTS_MAX}"));
        }
        self.coalescing()?;
        self.attach_keys().check(is_xen)?;
        if self.membership()?.is_some_and(|one| one.tagging.is_some())
            && !matches!(self.rx, RxChannel::Copy | RxChannel::Flip)
        {
            return Err(format!(
                "rx = \"{}\" is not for an interface with vlan or trunk; use \"copy\"",
                self.rx
            ));
        }
        if is_xen && self.rx == RxChannel::Flip {
            return Err(
                "rx = \"flip\" is not for Xen, because Linux lets no process transfer pages".into(),
            );
        }
        if is_xen && self.rx == RxChannel::GuestCopyMapped {
            return Err("rx = \"guest-copy-mapped\" is not for Xen; use \"guest-copy\"".into());
        }
        if is_xen && self.rx == RxChannel::GuestCopy && self.queues.is_some_and(|queues| queues > 1)
        {
            return Err(
                "rx = \"guest-copy\" takes one queue on Xen: set queues = 1, or leave it out"
                    .into(),
            );
        }
        if is_xen && self.grant_reuse == GrantReuse::OnDemand {
            return Err(
                "grant_reuse = \"on-demand\" is not for Xen: a guest cannot end a grant that \
                        the daemon has mapped, and Linux's netfront then gives up its interface; \
                        use \"agreed\""
                    .into(),
            );
        }
        if !(is_xen && self.wants_addresses()) {
            self.sources()?;
        }
        let Features { sg, csum_v4, tso_v4, .. } = self.features();
        if tso_v4 && !(sg && csum_v4) {
            return Err("tcp_segmentation_offload needs scatter_gather and checksum_offload; \
                        switch it off as well"
                .into());
        }
        Ok(())
    }

    /// Whether an uplink's queue for one guest puts frames where this guest takes them from.
    pub fn has_own_queue(&self, platform: Platform) -> bool {
        self.rx.lends() || (platform == Platform::Xen && self.rx == RxChannel::GuestCopy)
    }

    /// The most queues, if by default it has `default`.
    pub fn queues(&self, default: u32) -> usize {
        // An uplink has one queue for a guest.
        let default = if self.rx.lends() { 1 } else { default };
        self.queues.unwrap_or(default) as usize
    }

    /// What its backend offers, if it has as many queues as `default` says by default.
    pub fn offered(&self, default: u32) -> Offered {
        Offered {
            max_queues: u32::try_from(self.queues(default)).unwrap_or(1),
            features: self.features(),
            guest_offloads: self.guest_offloads,
            split_event_channels: self.split_event_channels,
            tx: self.tx,
            rx: self.rx,
            persistent_grants: self.persistent_grants,
            reuse: self.grant_reuse,
            multicast_control: self.multicast_control,
            // Checked when the configuration was read.
            coalescing: self.coalescing().unwrap_or_default(),
        }
    }

    /// What it is joined to.
    pub(super) fn attach_keys(&self) -> Keys<'_> {
        Keys {
            attach: self.attach,
            device: self.device.as_deref(),
            capabilities: self.device_capabilities,
            mtu: self.mtu,
        }
    }

    /// When the guest is notified of frames; none for the default, which costs a single frame nothing.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn coalescing(&self) -> Result<Option<Coalescing>, String> {
        coalescing(self.coalesce_frames, self.coalesce_us)
    }

    /// The sources that its frames may have.
    ///
    /// # Errors
    /// Its addresses are to check, but unknown or malformed.
    pub fn sources(&self) -> Result<Sources, String> {
        Sources::new(self.guard, &self.guard_addresses, &self.addresses)
    }

    /// Whether its addresses must be checked and only the toolstack may know them.
    pub fn wants_addresses(&self) -> bool {
        let is_known = !(self.guard_addresses.is_empty() && self.addresses.is_empty());
        self.guard == Some(GuardMode::Addresses) && !is_known
    }

    /// The offloads as a set.
    pub fn features(&self) -> Features {
        let or_interface =
            |option: Option<bool>| option.unwrap_or(self.interface == Interface::High);
        let csum = or_interface(self.checksum_offload);
        let tso = or_interface(self.tcp_segmentation_offload);
        Features {
            sg: or_interface(self.scatter_gather),
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: tso,
            tso_v6: tso,
            ..Features::NONE
        }
    }
}
