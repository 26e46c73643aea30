//! The host with OVN's databases, and the network between the hosts.

use lab::{Namespace, Process, TempDir};
use xenlab::Result;

use crate::programs::{LIMIT, Programs};

/// The address where hosts find the southbound database.
pub(crate) const ADDRESS: &str = "172.31.0.1";
pub(crate) const PORT: u16 = 6642;
/// OVN's name for the network that the hosts' own interface is in.
pub(crate) const PHYSICAL: &str = "physical";

/// The central host, whose bridge `u` is the network between the hosts.
pub(crate) struct Central {
    programs: Programs,
    // Dropped in this order: northd before the databases.
    _northd: Process,
    _databases: [Process; 2],
    folder: TempDir,
    pub(crate) namespace: Namespace,
}

impl Central {
    pub(crate) fn start(programs: &Programs) -> Result<Self> {
        let (namespace, folder) = (Namespace::create("ovnlab")?, TempDir::new()?);
        for line in
            ["link add u type bridge", &format!("address add {ADDRESS}/24 dev u"), "link set u up"]
        {
            namespace.ip(&line.split(' ').collect::<Vec<_>>())?;
        }
        let database = |name, schema, remotes: &[&str]| {
            programs.database(&namespace, folder.path(), name, schema, remotes)
        };
        let hosts = format!("--remote=ptcp:{PORT}:{ADDRESS}");
        let north = database("nb", "usr/share/ovn/ovn-nb.ovsschema", &[])?;
        let south = database("sb", "usr/share/ovn/ovn-sb.ovsschema", &[&hosts])?;
        let socket =
            |kind: &str| format!("unix:{}", folder.path().join(format!("{kind}.sock")).display());
        let arguments = [
            &format!("--ovnnb-db={}", socket("nb")),
            &format!("--ovnsb-db={}", socket("sb")),
            &format!("--unixctl={}", folder.path().join("northd.ctl").display()),
            "-vconsole:warn",
        ];
        let northd = programs.daemon(&namespace, folder.path(), "ovn-northd", &arguments)?;
        let databases = [north, south];
        Ok(Self {
            programs: programs.clone(),
            _northd: northd,
            _databases: databases,
            folder,
            namespace,
        })
    }

    /// Runs a command on the northbound database. Words are separated by a space.
    pub(crate) fn north(&self, words: &str) -> Result<String> {
        self.run("ovn-nbctl", "nb", &words.split(' ').collect::<Vec<_>>())
    }

    /// The same with words that may have spaces.
    pub(crate) fn north_words(&self, words: &[&str]) -> Result<String> {
        self.run("ovn-nbctl", "nb", words)
    }

    /// Runs a command on the southbound database.
    pub(crate) fn south(&self, words: &str) -> Result<String> {
        self.run("ovn-sbctl", "sb", &words.split(' ').collect::<Vec<_>>())
    }

    fn run(&self, program: &str, database: &str, words: &[&str]) -> Result<String> {
        let mut command = self.programs.client(program)?;
        let socket = self.folder.path().join(format!("{database}.sock"));
        command.arg(format!("--db=unix:{}", socket.display())).arg("--timeout=30").args(words);
        Ok(lab::run(command, LIMIT)?)
    }
}
