//! Ready-made workloads: TCP or UDP on a Xen host with one guest, or TCP on Linux alone.
//!
//! Every byte of the scripts here is part of what the machine executes, so any change of them changes recordings.

mod flows;
mod scripts;
mod sockets;
mod udp;
mod variation;

use std::path::PathBuf;

use flows::Flow;
use scope_result::Domain;
use scripts::{CARD, CARDS, NAMESPACES};
use xenlab::{Batch, DomuConfig, HostFile, NO_ASLR, Result};

use crate::error::Error;
use crate::mark;

pub use variation::Variation;

/// The path of pvnet in a guest.
pub const PVNET: &str = "/usr/local/bin/pvnet";

/// The guest's address on the link, and the other guest's.
const MAC: &str = "00:16:3e:00:00:02";
const PEER_MAC: &str = "00:16:3e:00:00:03";

/// The machine of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A Xen host with one guest.
    Xen(Backend, Traffic),
    /// A Xen host whose guests make the traffic.
    Flow(Backend, Flow),
    /// A Xen host without a guest: dom0 as [`Virtio`](Self::Virtio).
    Dom0,
    /// Linux on the machine itself, and TCP between two of its programs.
    Loopback,
    /// The same, between two namespaces, each with a virtio network card.
    Virtio,
}

/// A ready-made workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: &'static str,
    /// What [`describe`](Self::describe) says, unless its kind says it.
    about: Option<&'static str>,
    kind: Kind,
}

impl Workload {
    pub const ALL: [Self; 52] = [
        Self::xen("tx-stock", Backend::Stock, Traffic::Tx),
        Self::xen("tx-stock-basic", Backend::Basic, Traffic::Tx),
        Self::xen("rx-stock", Backend::Stock, Traffic::Rx),
        Self::xen("tx-pvnet", Backend::Pvnet(Uplink::Host), Traffic::Tx),
        Self::xen("rx-pvnet", Backend::Pvnet(Uplink::Host), Traffic::Rx),
        Self::xen("rx-stock-basic", Backend::Basic, Traffic::Rx),
        Self {
            name: "tx-udp",
            about: Some(
                "a guest sends UDP through xen-netback, a bridge and a network card to nobody",
            ),
            kind: Kind::Xen(Backend::Basic, Traffic::Udp),
        },
        Self {
            name: "tx-sendfile",
            about: Some("a guest sends a file over TCP to dom0 through xen-netback and a bridge"),
            kind: Kind::Xen(Backend::Stock, Traffic::Sendfile),
        },
        Self::xen("tx-sendfile-basic", Backend::Basic, Traffic::Sendfile),
        Self::xen("tx-frontend", Backend::Frontend(Channel::Reuse), Traffic::Tx),
        Self::xen("rx-frontend", Backend::Frontend(Channel::Reuse), Traffic::Rx),
        Self {
            name: "tx-frontend-header",
            about: Some(
                "as tx-frontend, without pages that stay mapped: with the header channel only",
            ),
            kind: Kind::Xen(Backend::Frontend(Channel::Header), Traffic::Tx),
        },
        Self {
            name: "tx-frontend-remap",
            about: Some("as tx-frontend, with every page of a frame mapped and unmapped"),
            kind: Kind::Xen(Backend::Frontend(Channel::Remap), Traffic::Tx),
        },
        Self::xen("tx-device", Backend::Pvnet(Uplink::Device), Traffic::Tx),
        Self::xen("rx-device", Backend::Pvnet(Uplink::Device), Traffic::Rx),
        Self::flow("guests-stock", Backend::Stock, Flow::Guests),
        Self::flow("guests-pvnet", Backend::Pvnet(Uplink::Host), Flow::Guests),
        Self::flow("guests-device", Backend::Pvnet(Uplink::Device), Flow::Guests),
        Self::flow("rounds-stock", Backend::Stock, Flow::Rounds),
        Self::flow("rounds-pvnet", Backend::Pvnet(Uplink::Host), Flow::Rounds),
        Self::flow("rounds-device", Backend::Pvnet(Uplink::Device), Flow::Rounds),
        Self::flow("wire-tx-stock", Backend::Stock, Flow::ToWire),
        Self::flow("wire-tx-tap", Backend::Pvnet(Uplink::Tap), Flow::ToWire),
        Self::flow("wire-tx-packet", Backend::Pvnet(Uplink::Packet), Flow::ToWire),
        Self::flow("wire-tx-xdp", Backend::Pvnet(Uplink::Xdp), Flow::ToWire),
        Self::flow("wire-tx-device", Backend::Pvnet(Uplink::Device), Flow::ToWire),
        Self::flow("wire-rx-stock", Backend::Stock, Flow::FromWire),
        Self::flow("wire-rx-tap", Backend::Pvnet(Uplink::Tap), Flow::FromWire),
        Self::flow("wire-rx-packet", Backend::Pvnet(Uplink::Packet), Flow::FromWire),
        Self::flow("wire-rx-xdp", Backend::Pvnet(Uplink::Xdp), Flow::FromWire),
        Self::flow("wire-rx-device", Backend::Pvnet(Uplink::Device), Flow::FromWire),
        Self::flow("small-tx-stock", Backend::Stock, Flow::SmallToWire),
        Self::flow("small-tx-tap", Backend::Pvnet(Uplink::Tap), Flow::SmallToWire),
        Self::flow("small-tx-packet", Backend::Pvnet(Uplink::Packet), Flow::SmallToWire),
        Self::flow("small-tx-xdp", Backend::Pvnet(Uplink::Xdp), Flow::SmallToWire),
        Self::flow("small-tx-device", Backend::Pvnet(Uplink::Device), Flow::SmallToWire),
        Self::flow("small-rx-stock", Backend::Stock, Flow::SmallFromWire),
        Self::flow("small-rx-tap", Backend::Pvnet(Uplink::Tap), Flow::SmallFromWire),
        Self::flow("small-rx-packet", Backend::Pvnet(Uplink::Packet), Flow::SmallFromWire),
        Self::flow("small-rx-xdp", Backend::Pvnet(Uplink::Xdp), Flow::SmallFromWire),
        Self::flow("small-rx-device", Backend::Pvnet(Uplink::Device), Flow::SmallFromWire),
        Self::flow("domain-tx-stock", Backend::StockDomain, Flow::ToBackend),
        Self::flow("domain-tx-pvnet", Backend::PvnetDomain, Flow::ToBackend),
        Self::flow("domain-rx-stock", Backend::StockDomain, Flow::FromBackend),
        Self::flow("domain-rx-pvnet", Backend::PvnetDomain, Flow::FromBackend),
        Self::flow("domain-guests-stock", Backend::StockDomain, Flow::Guests),
        Self::flow("domain-guests-pvnet", Backend::PvnetDomain, Flow::Guests),
        Self::flow("domain-rounds-stock", Backend::StockDomain, Flow::Rounds),
        Self::flow("domain-rounds-pvnet", Backend::PvnetDomain, Flow::Rounds),
        Self {
            name: "virtio-dom0",
            about: Some(
                "dom0 of a Xen host without a guest sends TCP from one virtio network card to another",
            ),
            kind: Kind::Dom0,
        },
        Self {
            name: "virtio",
            about: Some("a machine without Xen sends TCP from one virtio network card to another"),
            kind: Kind::Virtio,
        },
        Self {
            name: "loopback",
            about: Some("a machine without Xen sends TCP to itself"),
            kind: Kind::Loopback,
        },
    ];

    const fn xen(name: &'static str, backend: Backend, traffic: Traffic) -> Self {
        Self { name, about: None, kind: Kind::Xen(backend, traffic) }
    }

    const fn flow(name: &'static str, backend: Backend, flow: Flow) -> Self {
        Self { name, about: None, kind: Kind::Flow(backend, flow) }
    }

    /// Its description, which recordings contain.
    pub fn describe(self) -> String {
        let (backend, does) = match (self.about, self.kind) {
            (None, Kind::Xen(backend, traffic)) => (backend, traffic.does()),
            (None, Kind::Flow(backend, flow)) => (backend, flow.does()),
            (about, _) => return about.unwrap_or_default().to_owned(),
        };
        let whose = if backend == Backend::Basic { " whose interface has no offloads" } else { "" };
        format!("a guest{whose} {does} through {}", backend.about())
    }

    pub fn named(name: &str) -> crate::error::Result<Self> {
        let unknown = || Error::Usage(format!("no workload {name:?}: `pvscope list` shows all"));
        Self::ALL.into_iter().find(|workload| workload.name == name).ok_or_else(unknown)
    }

    /// Whether it runs pvnet.
    pub fn needs_pvnet(self) -> bool {
        let (Kind::Xen(backend, _) | Kind::Flow(backend, _)) = self.kind else { return false };
        matches!(backend, Backend::Pvnet(_) | Backend::PvnetDomain | Backend::Frontend(_))
    }

    /// Whether there is a hypervisor.
    pub fn has_xen(self) -> bool {
        self.has_guest() || self.is_dom0_alone()
    }

    /// Whether a Xen host runs dom0 and no guest.
    pub fn is_dom0_alone(self) -> bool {
        self.kind == Kind::Dom0
    }

    /// The domain of the backend, or of a machine without Xen.
    pub fn backend(self) -> Domain {
        match self.kind {
            Kind::Flow(backend, _) => Domain::Xen(backend.domain()),
            Kind::Xen(..) | Kind::Dom0 => Domain::Xen(0),
            Kind::Loopback | Kind::Virtio => Domain::Machine,
        }
    }

    /// The interface whose frames are counted, and whose it is: dom0's or the machine's that the frames cross, or that of the guest that
    /// receives them or asks.
    pub fn counted(self) -> (Domain, &'static str) {
        match self.kind {
            Kind::Flow(backend, flow) => {
                (Domain::Xen(backend.domain() + flows::counted(flow)), "eth0")
            }
            _ => (self.backend(), self.interface()),
        }
    }

    /// The interface of dom0 or of the machine that the frames cross.
    fn interface(self) -> &'static str {
        match self.kind {
            Kind::Xen(backend, _) => backend.interface(),
            Kind::Loopback => "lo",
            Kind::Virtio | Kind::Dom0 | Kind::Flow(..) => "eth0",
        }
    }

    /// Whether iperf3 makes its traffic, and starts in the host or in dom0.
    fn has_client(self) -> bool {
        !matches!(self.kind, Kind::Xen(_, Traffic::Udp | Traffic::Sendfile) | Kind::Flow(..))
    }

    /// Whether there is a guest.
    fn has_guest(self) -> bool {
        matches!(self.kind, Kind::Xen(..) | Kind::Flow(..))
    }

    /// Whether its traffic is UDP.
    fn is_udp(self) -> bool {
        matches!(self.kind, Kind::Xen(_, Traffic::Udp))
    }

    /// Checks that it has what is changed.
    ///
    /// # Errors
    /// It has not.
    pub fn check(self, variation: &Variation) -> crate::error::Result<()> {
        let Variation { xen_append, guest_config, iperf, pause, guest_script, .. } = variation;
        let missing = [
            ("--xen-append", !xen_append.is_empty() && !self.has_xen()),
            ("--guest-config", !guest_config.is_empty() && !self.has_guest()),
            ("--iperf", !iperf.is_empty() && !self.has_client()),
            ("--pause", pause.is_some() && !self.is_udp()),
            ("--guest-script", !guest_script.is_empty() && !self.has_guest()),
        ];
        match missing.into_iter().find(|(_, wrong)| *wrong) {
            Some((option, _)) => {
                Err(Error::Usage(format!("{option} changes nothing in {}", self.name)))
            }
            None => Ok(()),
        }
    }

    /// The machine and its scripts: endless traffic, and marks around a part of it.
    pub fn batch(
        self,
        milliseconds: u32,
        pvnet: Option<PathBuf>,
        variation: &Variation,
    ) -> Result<Batch> {
        let file = |path| Ok(HostFile::new(path)?.at(PVNET));
        let files = pvnet.into_iter().map(file).collect::<Result<_>>()?;
        let programs = mark::programs();
        let Variation { xen_append, guest_config, pause, script, guest_script, .. } = variation;
        let xen_arguments = xen_append.clone();
        let batch =
            Batch { xen: self.has_xen(), files, programs, xen_arguments, ..Batch::default() };
        let cards = |cards: &str| cards.split_whitespace().map(str::to_owned).collect();
        Ok(match self.kind {
            Kind::Xen(backend, traffic) => {
                let batch = Batch {
                    script: scripts::xen(backend, traffic, milliseconds, variation),
                    guest_script: scripts::guest(backend, traffic, guest_script),
                    guests: vec![backend.guest(GUEST, MAC, guest_config)],
                    ..batch
                };
                if traffic == Traffic::Udp {
                    let programs =
                        batch.programs.into_iter().chain([udp::sender(*pause)]).collect();
                    Batch { programs, devices: cards(CARD), ..batch }
                } else {
                    batch
                }
            }
            Kind::Flow(backend, flow) => {
                let peer = flow.has_peer().then(|| backend.guest(PEER, PEER_MAC, guest_config));
                let guest = backend.guest(GUEST, MAC, guest_config);
                let driver = backend.driver_domain();
                Batch {
                    script: flows::dom0((backend, flow), milliseconds, script),
                    guest_script: flows::guest((backend, flow), guest_script),
                    guests: driver.into_iter().chain(peer).chain([guest]).collect(),
                    programs: batch.programs.into_iter().chain(flows::programs(flow)).collect(),
                    devices: cards(flows::cards(flow)),
                    ..batch
                }
            }
            Kind::Loopback => {
                let address = "127.0.0.1";
                let script = scripts::linux("", self.interface(), address, milliseconds, variation);
                Batch { script, ..batch }
            }
            Kind::Virtio | Kind::Dom0 => Batch {
                script: scripts::linux(
                    NAMESPACES,
                    self.interface(),
                    "10.0.0.2",
                    milliseconds,
                    variation,
                ),
                devices: cards(CARDS),
                ..batch
            },
        })
    }
}

impl Backend {
    fn about(self) -> &'static str {
        match self {
            Self::Stock => "the kernel's xen-netback and a bridge",
            Self::Basic => "xen-netback and a bridge",
            Self::StockDomain => "the kernel's xen-netback and a bridge in a driver domain",
            Self::PvnetDomain => "pvnet in a driver domain",
            Self::Frontend(_) => "pvnet and pvnet frontend",
            Self::Pvnet(Uplink::Host) => "pvnet",
            Self::Pvnet(Uplink::Tap) => "pvnet, whose tap is in a bridge with the card",
            Self::Pvnet(Uplink::Packet) => "pvnet, which has a packet socket of the card",
            Self::Pvnet(Uplink::Xdp) => "pvnet, which has AF_XDP on the card",
            Self::Pvnet(Uplink::Device) => "pvnet, with a device for each guest in a bridge",
        }
    }

    fn guest(self, name: &str, mac: &str, line: &str) -> DomuConfig {
        let guest = domu(name).vif(self.vif(mac));
        if line.is_empty() { guest } else { guest.line(line) }
    }

    /// Its domain's number: a driver domain is created before all guests.
    fn domain(self) -> u16 {
        u16::from(matches!(self, Self::StockDomain | Self::PvnetDomain))
    }

    /// Its driver domain, if it has one. Time stamps trap into Xen in a domU whose processor has no invariant TSC, as the emulated one; no
    /// driver domain of a real host has that, nor dom0.
    fn driver_domain(self) -> Option<DomuConfig> {
        let driver = || domu(DRIVER).line("driver_domain=1").line("tsc_mode=\"native\"");
        (self.domain() != 0).then(driver)
    }

    fn interface(self) -> &'static str {
        match self {
            Self::Stock | Self::Basic | Self::StockDomain | Self::Pvnet(Uplink::Device) => "vif1.0",
            Self::Pvnet(_) | Self::PvnetDomain | Self::Frontend(_) => "pvnet0",
        }
    }

    fn vif(self, mac: &str) -> String {
        match self {
            Self::Stock | Self::Basic | Self::Pvnet(Uplink::Device) => {
                format!("mac={mac},bridge=xenbr0,script=vif-lab")
            }
            Self::Pvnet(_) | Self::Frontend(_) => format!("mac={mac},script=/bin/true"),
            // dom0's toolstack runs no scripts for a backend elsewhere.
            Self::StockDomain | Self::PvnetDomain => {
                format!("backend={DRIVER},mac={mac},script=/bin/true")
            }
        }
    }
}

/// A domain without interfaces.
fn domu(name: &str) -> DomuConfig {
    DomuConfig { kernel_arguments: NO_ASLR.to_owned(), ..DomuConfig::new(name) }
}

pub const GUEST: &str = "guest";
/// The other guest.
pub const PEER: &str = "peer";
/// The driver domain.
pub const DRIVER: &str = "driver";

/// The guest's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's xen-netback and a bridge.
    Stock,
    /// The same for an interface without offloads: frames have a checksum and are no longer than the MTU.
    Basic,
    /// As [`Stock`](Self::Stock), in a driver domain.
    StockDomain,
    Pvnet(Uplink),
    /// pvnet in a driver domain, whose stack is the other end of its tap.
    PvnetDomain,
    /// pvnet, and `pvnet frontend` in place of the guest's xen-netfront.
    Frontend(Channel),
}

/// Where pvnet's frames from and to the outside go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A tap, whose other end is dom0's stack.
    Host,
    /// A tap in a bridge, which has the network card too.
    Tap,
    /// A packet socket of the network card.
    Packet,
    /// AF_XDP on the network card.
    Xdp,
    /// No switch of pvnet's: each interface has a device in a bridge, as with xen-netback.
    Device,
}

/// How frames come from `pvnet frontend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Every page is mapped and unmapped.
    Remap,
    /// Headers lie in pages that stay mapped; each body needs a grant operation when it is sent.
    Header,
    /// The same, and buffers stay mapped too.
    Reuse,
}

/// What a guest sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP from the guest to dom0.
    Tx,
    /// TCP from dom0 to the guest.
    Rx,
    /// TCP from the guest to dom0 with `sendfile`.
    Sendfile,
    /// UDP from the guest through dom0's bridge to a network card. Nobody answers.
    Udp,
}

impl Traffic {
    fn does(self) -> &'static str {
        match self {
            Self::Tx => "sends TCP to dom0",
            Self::Rx => "receives TCP from dom0",
            Self::Sendfile => "sends a file over TCP to dom0",
            Self::Udp => "sends UDP to nobody",
        }
    }
}
