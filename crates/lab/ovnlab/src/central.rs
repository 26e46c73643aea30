//! The host with OVN's databases, and the network between the hosts.

use lab::Process;
use xenlab::Result;

use crate::node::Node;
use crate::programs::Programs;

/// The address where hosts find the southbound database.
pub(crate) const ADDRESS: &str = "172.31.0.1";
pub(crate) const PORT: u16 = 6642;
/// OVN's name for the physical network of the hosts' own interfaces.
pub(crate) const PHYSICAL: &str = "physical";

/// The central host, whose bridge `u` is the network between the hosts.
pub(crate) struct Central {
    // Dropped in this order: northd before the databases.
    _northd: Process,
    _databases: [Process; 2],
    pub(crate) node: Node,
}

impl Central {
    pub(crate) fn start(programs: &Programs) -> Result<Self> {
        let node = Node::create(programs)?;
        for line in
            ["link add u type bridge", &format!("address add {ADDRESS}/24 dev u"), "link set u up"]
        {
            node.namespace.ip(&line.split(' ').collect::<Vec<_>>())?;
        }
        let hosts = format!("--remote=ptcp:{PORT}:{ADDRESS}");
        let north = node.database("nb", "usr/share/ovn/ovn-nb.ovsschema", &[])?;
        let south = node.database("sb", "usr/share/ovn/ovn-sb.ovsschema", &[&hosts])?;
        let arguments = [
            &format!("--ovnnb-db={}", node.remote("nb")),
            &format!("--ovnsb-db={}", node.remote("sb")),
            &node.control("northd"),
            "-vconsole:warn",
        ];
        let northd = node.daemon("ovn-northd", &arguments)?;
        Ok(Self { _northd: northd, _databases: [north, south], node })
    }

    /// Runs a command on the northbound database. Words are separated by a space.
    pub(crate) fn north(&self, words: &str) -> Result<String> {
        self.node.client("ovn-nbctl", "nb", &words.split(' ').collect::<Vec<_>>())
    }

    /// As `north`, for words that may have spaces.
    pub(crate) fn north_words(&self, words: &[&str]) -> Result<String> {
        self.node.client("ovn-nbctl", "nb", words)
    }

    /// Runs a command on the southbound database.
    pub(crate) fn south(&self, words: &str) -> Result<String> {
        self.node.client("ovn-sbctl", "sb", &words.split(' ').collect::<Vec<_>>())
    }
}
