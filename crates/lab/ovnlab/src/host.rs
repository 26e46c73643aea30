//! A host: Open vSwitch, OVN's controller and pvnet.

use lab::Process;
use qemulab::Daemon;
use xenlab::Result;

use crate::central::{self, Central};
use crate::node::Node;
use crate::plan::{self, Attachment, Plan};
use crate::programs::LIMIT;

/// DPDK's options on a machine that is not set up for it: no large pages, and no NIC.
const DPDK: &str = "--no-huge --legacy-mem -m 512 --no-pci";

/// The name of the switch's database.
const DATABASE: &str = "db";

/// A host with its guests' daemon.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    // Dropped in this order: those that use others first.
    pub(crate) daemon: Daemon,
    _controller: Process,
    /// Open vSwitch's daemon.
    pub(crate) switch: Process,
    _database: Process,
    pub(crate) node: Node,
}

impl Host {
    /// Starts a host with this address on the network between hosts. Its pvnet has the ports of all `guests`. Either all
    /// of them are behind a vhost-user port of Open vSwitch, or none.
    pub(crate) fn start(
        central: &Central,
        name: &'static str,
        address: &str,
        guests: &[Plan],
    ) -> Result<Self> {
        let node = Node::create(&central.node.programs)?;
        let (namespace, under) = (&node.namespace, &central.node.namespace);
        let (port, own) = (format!("u{name}"), namespace.name());
        under.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", own])?;
        under.ip(&["link", "set", &port, "master", "u", "up"])?;
        namespace.ip(&["link", "set", "eth0", "up"])?;
        // Open vSwitch writes frames with finished checksums only, and takes no others from a veth.
        for (namespace, device) in [(namespace, "eth0"), (under, port.as_str())] {
            let mut ethtool = namespace.exec("ethtool")?;
            ethtool.args(["-K", device, "tx", "off"]);
            lab::run(ethtool, LIMIT)?;
        }
        let schema = "usr/share/openvswitch/vswitch.ovsschema";
        let database = node.database(DATABASE, schema, &[])?;
        vsctl(&node, "--no-wait init")?;
        let ids = format!(
            "external_ids:system-id={name} external_ids:hostname={name} external_ids:ovn-remote=tcp:{}:{} \
             external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip={address} \
             external_ids:ovn-bridge-datapath-type=netdev external_ids:ovn-bridge-mappings={}:br-phy",
            central::ADDRESS,
            central::PORT,
            central::PHYSICAL
        );
        vsctl(&node, &format!("--no-wait set open . {ids}"))?;
        let attachment = guests.first().map_or(Attachment::Device, |plan| plan.attachment);
        let program = match attachment {
            Attachment::VhostUser => {
                // One poller. The quotes are the database's.
                let options = format!(r#"other_config:dpdk-extra="{DPDK}""#);
                let words = [
                    "--no-wait",
                    "set",
                    "open",
                    ".",
                    "other_config:dpdk-init=true",
                    "other_config:pmd-cpu-mask=1",
                    &options,
                ];
                vsctl_words(&node, &words)?;
                "ovs-vswitchd-dpdk"
            }
            _ => "ovs-vswitchd",
        };
        let (socket, control) = (node.remote(DATABASE), node.control("vswitchd"));
        let arguments = [socket.as_str(), &control, "-vconsole:warn"];
        let switch = node.daemon(program, &arguments)?;
        // The tunnels' address sits on the bridge with the uplink: userspace tunnels need that.
        let bridge =
            "-- add-br br-phy -- set br br-phy datapath_type=netdev -- add-port br-phy eth0";
        vsctl(&node, bridge)?;
        namespace.ip(&["address", "add", &format!("{address}/24"), "dev", "br-phy"])?;
        namespace.ip(&["link", "set", "br-phy", "up"])?;
        let arguments = [socket.as_str(), "-vconsole:warn"];
        let controller = node.daemon("ovn-controller", &arguments)?;
        let daemon = Daemon::start(&node.programs.pvnet, namespace, |folder| {
            plan::configuration(folder, guests)
        })?;
        Ok(Self { name, daemon, _controller: controller, switch, _database: database, node })
    }

    /// Runs a command on the switch's database.
    pub(crate) fn vsctl(&self, words: &str) -> Result<String> {
        vsctl(&self.node, words)
    }

    /// Binds a guest's logical port to its device, or to the vhost-user port that the guest is behind.
    pub(crate) fn bind(&self, guest: &Plan) -> Result<()> {
        let (device, port) = (&guest.device, &guest.port);
        if guest.attachment == Attachment::VhostUser {
            let socket = self.daemon.folder().join(format!("{device}.sock"));
            let add = format!(
                "-- --may-exist add-port br-int {device} -- set interface {device} type=dpdkvhostuserclient \
                 options:vhost-server-path={} external_ids:iface-id={port}",
                socket.display()
            );
            return self.vsctl(&add).map(drop);
        }
        let add = format!(
            "-- --may-exist add-port br-int {device} -- set interface {device} external_ids:iface-id={port}"
        );
        self.vsctl(&add)?;
        self.node.namespace.ip(&["link", "set", device, "up"]).map(drop).map_err(Into::into)
    }

    /// Runs a document's block here: `ovs-vsctl` finds this host's switch, and `ovn-nbctl` the central host's database.
    pub(crate) fn paste(&self, central: &Central, block: &str) -> Result<()> {
        let programs = &self.node.programs;
        let mut command = programs.with_libraries(self.node.namespace.exec("bash")?);
        command.env("PATH", programs.search_path());
        command
            .env("OVS_RUNDIR", self.node.folder.path())
            .env("OVN_NB_DB", central.node.remote("nb"));
        command.args(["-ec", block]);
        lab::run(command, LIMIT).map(drop).map_err(Into::into)
    }

    /// Removes a guest's logical port from this host.
    pub(crate) fn unbind(&self, guest: &Plan) -> Result<()> {
        self.vsctl(&format!("--if-exists del-port br-int {}", guest.device)).map(drop)
    }
}

fn vsctl(node: &Node, words: &str) -> Result<String> {
    vsctl_words(node, &words.split(' ').collect::<Vec<_>>())
}

fn vsctl_words(node: &Node, words: &[&str]) -> Result<String> {
    node.client("ovs-vsctl", DATABASE, words)
}
