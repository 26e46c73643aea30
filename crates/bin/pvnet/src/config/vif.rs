//! `[[guest.vif]]`: a virtual interface of a guest.

use std::time::Duration;

use netback::{GrantReuse, Offered, RxChannel, TxChannel};
use offload::Features;
use schemars::JsonSchema;
use serde::Deserialize;
use switch::multicast::Router;
use wire::ethernet::MacAddr;

use super::daemon::{PlatformKind, Poll};
use super::port_settings::Rules;
use super::table::{Effort, parsed, table};

table! {
    /// `[[guest.vif]]`
    Vif is Guest [Effort::Connection] {
        /// The most queues; one per CPU of the driver domain, up to eight, if absent.
        queues: Option<u32> = None;
        /// The I/O channel of the frames that the guest sends.
        #[serde(deserialize_with = "parsed")]
        #[schemars(with = "String", extend("enum" = TxChannel::NAMES))]
        tx: TxChannel = TxChannel::default();
        /// The I/O channel of the frames that the guest receives.
        #[serde(deserialize_with = "parsed")]
        #[schemars(with = "String", extend("enum" = RxChannel::NAMES))]
        rx: RxChannel = RxChannel::default();
        /// The most pages of each queue that stay mapped.
        persistent_grants: u16 = PERSISTENT_GRANTS;
        /// Who decides which pages stay mapped.
        #[serde(deserialize_with = "parsed")]
        #[schemars(with = "String", extend("enum" = GrantReuse::NAMES))]
        grant_reuse: GrantReuse = GrantReuse::default();
        /// Its offloads.
        interface: Interface = Interface::High;
        /// Frames of several pages; depends on `interface` if absent.
        scatter_gather: Option<bool> = None;
        /// Whether each ring has an event channel; depends on the platform if absent.
        split_event_channels: Option<bool> = None;
        /// Whether the guest may say which multicast groups it wants.
        multicast_control: bool = true;
    }
}

/// `interface`: the offloads of a virtual interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// Scatter/gather, checksum offload and TSO, also where the uplink lacks them.
    #[default]
    High,
    /// Frames of at most the MTU, in one page, with complete checksums.
    Basic,
}

/// On Xen a notification is a system call, a hypercall and an interrupt that wakes the guest. Most round trips of a local network are shorter.
const COMPLETION_DELAY: Duration = Duration::from_millis(1);

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
    /// Checks what TOML cannot express. On Xen the toolstack may know the addresses.
    pub(super) fn check(&self, is_xen: bool) -> Result<(), String> {
        let settings = &self.settings;
        settings.check()?;
        match (is_xen, settings.mac) {
            (true, Some(_)) => {
                return Err("on Xen the toolstack gives the mac; leave it out".into());
            }
            (false, None) => return Err("mac is missing".into()),
            (true, None) | (false, Some(_)) => {}
        }
        if self.queues.is_some_and(|queues| !(1..=QUEUES_MAX).contains(&queues)) {
            return Err(format!("queues must be 1 to {QUEUES_MAX}"));
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
            return Err(format!("persistent_grants must be 0 to {PERSISTENT_GRANTS_MAX}"));
        }
        settings.check_attachment(is_xen)?;
        if settings.membership()?.is_some_and(|one| one.tagging.is_some())
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
        if !(is_xen && settings.wants_addresses()) {
            settings.sources()?;
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
    pub fn has_own_queue(&self, platform: PlatformKind) -> bool {
        self.rx.lends() || (platform == PlatformKind::Xen && self.rx == RxChannel::GuestCopy)
    }

    /// The most queues, if by default it has `default`.
    pub fn queues(&self, default: u32) -> usize {
        // An uplink has one queue for a guest.
        let default = if self.rx.lends() { 1 } else { default };
        self.queues.unwrap_or(default) as usize
    }

    /// What its backend offers on a platform, where workers wait as `poll` says, if it has as many queues as `default` says by default.
    pub fn offered(&self, default: u32, platform: PlatformKind, poll: Poll) -> Offered {
        let is_xen = platform == PlatformKind::Xen;
        Offered {
            max_queues: u32::try_from(self.queues(default)).unwrap_or(1),
            features: self.features(),
            guest_offloads: self.settings.guest_offloads,
            // With one channel, frames for the guest announce what it has sent, too.
            split_event_channels: self.split_event_channels.unwrap_or(!is_xen),
            tx: self.tx,
            rx: self.rx,
            persistent_grants: self.persistent_grants,
            reuse: self.grant_reuse,
            multicast_control: self.multicast_control,
            // Checked when the configuration was read.
            coalescing: self.settings.coalescing().unwrap_or_default(),
            // A worker announces late what it held back when it is about to sleep.
            completion_delay: (is_xen && poll != Poll::Always).then_some(COMPLETION_DELAY),
        }
    }

    /// What is enforced of it, with this address.
    pub fn rules(&self, mac: MacAddr) -> Result<Rules, String> {
        self.settings.rules(self.settings.sources()?.policy(mac), Router::Never)
    }

    /// The offloads as a set.
    pub fn features(&self) -> Features {
        let or_interface =
            |option: Option<bool>| option.unwrap_or(self.interface == Interface::High);
        let csum = or_interface(self.settings.checksum_offload);
        let tso = or_interface(self.settings.tcp_segmentation_offload);
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
