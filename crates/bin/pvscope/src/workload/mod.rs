//! Ready-made workloads: TCP or UDP on a Xen host with one guest, or TCP on Linux alone.
//!
//! Every byte of the scripts here is part of what the machine executes, so any change of them changes recordings.

mod scripts;
mod traffic;
mod udp;
mod variation;

use std::path::PathBuf;

use xenlab::{Batch, DomuConfig, HostFile, NO_ASLR, Result};

use crate::error::Error;
use crate::mark;
use scripts::{CARD, CARDS, NAMESPACES};

pub use traffic::{Backend, Channel, GUEST, Traffic};
pub use variation::Variation;

/// The guest's address on the link.
const MAC: &str = "00:16:3e:00:00:02";

/// The machine of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A Xen host with one guest.
    Xen(Backend, Traffic),
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
    /// Its name.
    pub name: &'static str,
    /// Its description, which recordings contain.
    pub about: &'static str,
    kind: Kind,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 16] = [
        Self {
            name: "tx-stock",
            about: "a guest sends TCP to dom0 through the kernel's xen-netback and a bridge",
            kind: Kind::Xen(Backend::Stock, Traffic::Tx),
        },
        Self {
            name: "tx-stock-basic",
            about: "a guest whose interface has no offloads sends TCP to dom0 through xen-netback and a bridge",
            kind: Kind::Xen(Backend::Basic, Traffic::Tx),
        },
        Self {
            name: "rx-stock",
            about: "a guest receives TCP from dom0 through the kernel's xen-netback and a bridge",
            kind: Kind::Xen(Backend::Stock, Traffic::Rx),
        },
        Self {
            name: "tx-pvnet",
            about: "a guest sends TCP to dom0 through pvnet",
            kind: Kind::Xen(Backend::Pvnet, Traffic::Tx),
        },
        Self {
            name: "rx-pvnet",
            about: "a guest receives TCP from dom0 through pvnet",
            kind: Kind::Xen(Backend::Pvnet, Traffic::Rx),
        },
        Self {
            name: "rx-stock-basic",
            about: "a guest whose interface has no offloads receives TCP from dom0 through xen-netback and a bridge",
            kind: Kind::Xen(Backend::Basic, Traffic::Rx),
        },
        Self {
            name: "tx-udp",
            about: "a guest sends UDP through xen-netback, a bridge and a network card to nobody",
            kind: Kind::Xen(Backend::Basic, Traffic::Udp),
        },
        Self {
            name: "tx-sendfile",
            about: "a guest sends a file over TCP to dom0 through xen-netback and a bridge",
            kind: Kind::Xen(Backend::Stock, Traffic::Sendfile),
        },
        Self {
            name: "tx-sendfile-basic",
            about: "a guest whose interface has no offloads sends a file over TCP to dom0 through xen-netback and a bridge",
            kind: Kind::Xen(Backend::Basic, Traffic::Sendfile),
        },
        Self {
            name: "tx-frontend",
            about: "a guest sends TCP to dom0 through pvnet and pvnet frontend",
            kind: Kind::Xen(Backend::Frontend(Channel::Reuse), Traffic::Tx),
        },
        Self {
            name: "rx-frontend",
            about: "a guest receives TCP from dom0 through pvnet and pvnet frontend",
            kind: Kind::Xen(Backend::Frontend(Channel::Reuse), Traffic::Rx),
        },
        Self {
            name: "tx-frontend-header",
            about: "as tx-frontend, without pages that stay mapped: with the header channel only",
            kind: Kind::Xen(Backend::Frontend(Channel::Header), Traffic::Tx),
        },
        Self {
            name: "tx-frontend-remap",
            about: "as tx-frontend, with every page of a frame mapped and unmapped",
            kind: Kind::Xen(Backend::Frontend(Channel::Remap), Traffic::Tx),
        },
        Self {
            name: "virtio-dom0",
            about: "dom0 of a Xen host without a guest sends TCP from one virtio network card to another",
            kind: Kind::Dom0,
        },
        Self {
            name: "virtio",
            about: "a machine without Xen sends TCP from one virtio network card to another",
            kind: Kind::Virtio,
        },
        Self {
            name: "loopback",
            about: "a machine without Xen sends TCP to itself",
            kind: Kind::Loopback,
        },
    ];

    /// The workload of this name.
    pub fn named(name: &str) -> crate::error::Result<Self> {
        let unknown = || Error::Usage(format!("no workload {name:?}: `pvscope list` shows all"));
        Self::ALL.into_iter().find(|workload| workload.name == name).ok_or_else(unknown)
    }

    /// Whether it runs pvnet.
    pub fn needs_pvnet(self) -> bool {
        matches!(self.kind, Kind::Xen(Backend::Pvnet | Backend::Frontend(_), _))
    }

    /// Whether there is a hypervisor.
    pub fn has_xen(self) -> bool {
        matches!(self.kind, Kind::Xen(..) | Kind::Dom0)
    }

    /// Whether a Xen host runs dom0 and no guest.
    pub fn is_dom0_alone(self) -> bool {
        self.kind == Kind::Dom0
    }

    /// The interface of dom0 or of the machine that the frames cross.
    pub fn interface(self) -> &'static str {
        match self.kind {
            Kind::Xen(backend, _) => backend.interface(),
            Kind::Loopback => "lo",
            Kind::Virtio | Kind::Dom0 => "eth0",
        }
    }

    /// Whether iperf3 makes its traffic, and starts in the host or in dom0.
    fn has_client(self) -> bool {
        !matches!(self.kind, Kind::Xen(_, Traffic::Udp | Traffic::Sendfile))
    }

    /// Whether there is a guest.
    fn has_guest(self) -> bool {
        matches!(self.kind, Kind::Xen(..))
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
        let files = pvnet.into_iter().map(HostFile::new).collect::<Result<_>>()?;
        let programs = mark::programs();
        let Variation { xen_append, guest_config, iperf, pause, script, guest_script } = variation;
        let changes = (&**script, &**iperf);
        let xen_arguments = xen_append.clone();
        let batch =
            Batch { xen: self.has_xen(), files, programs, xen_arguments, ..Batch::default() };
        let cards = |cards: &str| cards.split_whitespace().map(str::to_owned).collect();
        Ok(match self.kind {
            Kind::Xen(backend, traffic) => {
                let batch = Batch {
                    script: scripts::xen((backend, traffic), milliseconds, changes),
                    guest_script: scripts::guest(backend, traffic, guest_script),
                    guests: vec![backend.guest(guest_config)],
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
            Kind::Loopback => {
                let address = "127.0.0.1";
                let script = scripts::linux("", (self.interface(), address), milliseconds, changes);
                Batch { script, ..batch }
            }
            Kind::Virtio | Kind::Dom0 => Batch {
                script: scripts::linux(
                    NAMESPACES,
                    (self.interface(), "10.0.0.2"),
                    milliseconds,
                    changes,
                ),
                devices: cards(CARDS),
                ..batch
            },
        })
    }
}

impl Backend {
    fn guest(self, line: &str) -> DomuConfig {
        let kernel_arguments = NO_ASLR.to_owned();
        let guest = DomuConfig { kernel_arguments, ..DomuConfig::new(GUEST).vif(self.vif()) };
        if line.is_empty() { guest } else { guest.line(line) }
    }

    fn interface(self) -> &'static str {
        match self {
            Self::Stock | Self::Basic => "vif1.0",
            Self::Pvnet | Self::Frontend(_) => "pvnet0",
        }
    }

    fn vif(self) -> String {
        match self {
            Self::Stock | Self::Basic => format!("mac={MAC},bridge=xenbr0,script=vif-lab"),
            Self::Pvnet | Self::Frontend(_) => format!("mac={MAC},script=/bin/true"),
        }
    }
}
