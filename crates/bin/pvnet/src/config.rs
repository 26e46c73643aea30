//! The configuration file.

mod overrides;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use netback::{RxChannel, TxChannel};
use offload::Features;
use serde::Deserialize;
use wire::ethernet::MacAddr;

pub use overrides::{EVERY_GUEST, Override};

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or not what pvnet expects; tells line and column.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// The command line changes what there is not, or to what can not be.
    #[error("--set {set}: {reason}")]
    Set {
        /// The change.
        set: String,
        /// Why.
        reason: String,
    },
    /// Each value is sound by itself, but not together.
    #[error("{path}: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The whole file. `examples/pvnet.toml` documents every key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The daemon's own settings.
    #[serde(default)]
    pub daemon: Daemon,
    /// What only concerns platform `xen`.
    #[serde(default)]
    pub xen: Xen,
    /// The switch's bounds.
    #[serde(default)]
    pub switch: Switch,
    /// Who may join.
    #[serde(default, rename = "guest")]
    pub guests: Vec<Guest>,
    /// Ways out.
    #[serde(default, rename = "uplink")]
    pub uplinks: Vec<Uplink>,
}

/// `[daemon]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Where the sockets lie.
    pub directory: PathBuf,
    /// Whose guests are served.
    pub platform: Platform,
    /// Threads that carry frames.
    pub workers: usize,
    /// Microseconds a dry queue is polled.
    pub poll_us: u64,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Whether hypervisor time is measured from the start.
    pub meter: bool,
}

/// Where the sockets lie unless the file says otherwise.
pub const DIRECTORY: &str = "/run/pvnet";

impl Default for Daemon {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            directory: DIRECTORY.into(),
            platform: Platform::Machine,
            workers: (cpus / 2).max(1),
            poll_us: 20,
            metrics: None,
            meter: false,
        }
    }
}

/// `platform`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// Processes that join: `pvnet guest`.
    #[default]
    Machine,
    /// Domains of a Xen host, of which this is dom0 or a driver domain.
    Xen,
}

/// `[xen]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Xen {
    /// The backend's type: the folder of the store that its interfaces are in.
    pub backend: String,
    /// What becomes of the guests when the daemon is told to stop.
    pub on_stop: OnStop,
}

impl Default for Xen {
    fn default() -> Self {
        Self { backend: "vif".to_owned(), on_stop: OnStop::Keep }
    }
}

/// `on_stop`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStop {
    /// They stay connected, and wait for the next daemon.
    Keep,
    /// They are disconnected.
    Close,
}

/// `[switch]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// Seconds until an address is forgotten.
    pub age_seconds: u32,
    /// Addresses a port may teach.
    pub addresses_per_port: u32,
}

impl Default for Switch {
    fn default() -> Self {
        let limits = switch::Limits::default();
        Self { age_seconds: limits.age_seconds, addresses_per_port: limits.per_port }
    }
}

/// `[[guest]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Its interface's address; on Xen the toolstack gives it.
    #[serde(deserialize_with = "parsed_if_any")]
    pub mac: Option<MacAddr>,
    /// Addresses for its namespace.
    pub addresses: Vec<String>,
    /// Queues at most; as many as workers if absent.
    pub queues: Option<u32>,
    /// MiB of memory.
    pub memory_mib: usize,
    /// 2 MiB pages.
    pub huge_pages: bool,
    /// Whether what breaks large pages up is kept in blocks of its own.
    pub group_pages: bool,
    /// How bytes come from it.
    #[serde(deserialize_with = "parsed")]
    pub tx: TxChannel,
    /// How bytes go to it.
    #[serde(deserialize_with = "parsed")]
    pub rx: RxChannel,
    /// Most pages of each queue that it can have kept mapped.
    pub persistent_grants: u16,
    /// What its virtual interface can do.
    pub interface: Interface,
    /// Frames of several pages; what the interface says if absent.
    pub scatter_gather: Option<bool>,
    /// Partial checksums.
    pub checksum_offload: Option<bool>,
    /// TCP frames beyond the MTU.
    pub tcp_segmentation_offload: Option<bool>,
    /// An event channel for each ring.
    pub split_event_channels: bool,
}

impl Default for Guest {
    /// Without a name, which every guest needs.
    fn default() -> Self {
        Self {
            name: String::new(),
            mac: None,
            addresses: Vec::new(),
            queues: None,
            memory_mib: 64,
            huge_pages: false,
            group_pages: true,
            tx: TxChannel::default(),
            rx: RxChannel::default(),
            persistent_grants: PERSISTENT_GRANTS,
            interface: Interface::default(),
            scatter_gather: None,
            checksum_offload: None,
            tcp_segmentation_offload: None,
            split_event_channels: true,
        }
    }
}

/// `interface`: what a virtual interface can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// Scatter/gather, checksum offload and TSO, whatever the way out can do.
    #[default]
    High,
    /// Frames of the MTU in one page, complete.
    Basic,
}

/// What a NIC can do on transmit; `capabilities` is these names joined by `+`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Capabilities {
    /// Finishes transport checksums.
    pub csum: bool,
    /// Gathers a frame from several places.
    pub sg: bool,
    /// Cuts TCP frames beyond the MTU.
    pub tso: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { csum: true, sg: true, tso: true }
    }
}

impl Capabilities {
    /// The capabilities as a set of offloads.
    pub fn features(self) -> Features {
        let Self { csum, sg, tso } = self;
        Features { sg, csum_v4: csum, csum_v6: csum, tso_v4: tso, tso_v6: tso }
    }
}

impl TryFrom<String> for Capabilities {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut this = Self { csum: false, sg: false, tso: false };
        for name in text.split('+').filter(|_| text != "none") {
            match name.trim() {
                "csum" => this.csum = true,
                "sg" => this.sg = true,
                "tso" => this.tso = true,
                other => {
                    return Err(format!("{other:?} is not csum, sg or tso, joined by +, or none"));
                }
            }
        }
        if this.tso && !(this.csum && this.sg) {
            return Err("tso needs csum and sg: csum+sg+tso".into());
        }
        Ok(this)
    }
}

/// `receive_buffers`: where frames from an uplink are read into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveBuffers {
    /// Buffers for a whole frame, used again as they are.
    #[default]
    Recycled,
    /// Pages that are new and zeroed for each frame, as pages that may be flipped must be.
    ZeroedPages,
}

/// `[[uplink]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// The port's name.
    pub name: String,
    /// The device's name.
    pub tap: String,
    /// The network namespace the device is made in; the daemon's own if absent.
    pub namespace: Option<String>,
    /// Whether the device stays when the daemon ends, with its addresses and its bridge.
    #[serde(default)]
    pub persistent: bool,
    /// Addresses for the host's end.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What it can do on transmit.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether frames beyond the MTU come in whole.
    #[serde(default = "yes")]
    pub large_receive: bool,
    /// What frames are read into.
    #[serde(default)]
    pub receive_buffers: ReceiveBuffers,
    /// 2 MiB pages for these buffers.
    #[serde(default)]
    pub huge_pages: bool,
}

fn yes() -> bool {
    true
}

/// A ring's worth of pages to send from and one of buffers: all that a frontend has in use at a
/// time. On the embedded machine each page can be a mapping of its own, of which a process has
/// 65530 (`vm.max_map_count`): enough for 120 queues with all pages scattered. Those of `pvnet guest`
/// lie side by side, and the kernel makes two mappings of them.
const PERSISTENT_GRANTS: u16 = 512;

/// A value that its type parses.
fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
}

fn parsed_if_any<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    parsed(deserializer).map(Some)
}

/// Most queues of one guest: `xen-netback`'s default is 8, its table of workers ends here.
const QUEUES_MAX: u32 = 64;
/// Most pages of one queue that are kept mapped, for the same reason as few by default.
const PERSISTENT_GRANTS_MAX: u16 = 4096;
/// Longest name of a guest or uplink: it names namespaces and ports.
const NAME_MAX: usize = 32;

impl Config {
    /// Reads a file, changes it as the command line says, and checks it.
    pub fn read(path: &Path, overrides: &[Override]) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let parse =
            |source: toml::de::Error| Error::Parse { path: path.to_owned(), source: source.into() };
        // The file by itself first: only then do errors tell the line.
        let mut config: Self = toml::from_str(&text).map_err(parse)?;
        let mut table: toml::Table = toml::from_str(&text).map_err(parse)?;
        for set in overrides {
            config = Self::changed(&mut table, set)
                .map_err(|reason| Error::Set { set: set.to_string(), reason })?;
        }
        config.check().map_err(|reason| Error::Invalid { path: path.to_owned(), reason })?;
        Ok(config)
    }

    fn changed(table: &mut toml::Table, set: &Override) -> Result<Self, String> {
        set.apply(table)?;
        table.clone().try_into().map_err(|error| error.to_string().trim_end().to_owned())
    }

    /// Checks what TOML can not say.
    fn check(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.daemon.workers) {
            return Err(format!("daemon.workers is {}, not 1 to 64", self.daemon.workers));
        }
        let mut names = HashSet::new();
        let mut macs = HashSet::new();
        let xen = self.daemon.platform == Platform::Xen;
        let uplinks = self.uplinks.iter().map(|uplink| &uplink.name);
        for name in self.guests.iter().map(|guest| &guest.name).chain(uplinks) {
            if !(xen && name == EVERY_GUEST) {
                check_name(name)?;
            }
            if !names.insert(name) {
                return Err(format!("the name {name:?} is given twice"));
            }
        }
        for guest in &self.guests {
            let of_guest = |reason| format!("guest {:?}: {reason}", guest.name);
            guest.check().map_err(of_guest)?;
            match (xen, guest.mac) {
                (true, None) => guest.check_for_xen().map_err(of_guest)?,
                (true, Some(_)) => {
                    return Err(of_guest(
                        "on Xen the toolstack gives the mac; leave it out".into(),
                    ));
                }
                (false, None) => return Err(of_guest("mac is missing".into())),
                (false, Some(mac)) if !macs.insert(mac) => {
                    return Err(of_guest(format!("mac {mac} is given twice")));
                }
                (false, Some(_)) => {}
            }
        }
        if self.xen.backend.is_empty() || self.xen.backend.contains('/') {
            return Err(format!("xen.backend is {:?}, not a folder's name", self.xen.backend));
        }
        Ok(())
    }

    /// The settings of a guest of this name. On Xen the toolstack decides who is a guest: one
    /// without an entry has that of [`EVERY_GUEST`], or the defaults.
    pub fn guest(&self, name: &str) -> Option<Guest> {
        let entry = |name: &str| self.guests.iter().find(|guest| guest.name == name).cloned();
        match self.daemon.platform {
            Platform::Machine => entry(name),
            Platform::Xen => {
                let guest = entry(name).or_else(|| entry(EVERY_GUEST)).unwrap_or_default();
                Some(Guest { name: name.to_owned(), ..guest })
            }
        }
    }

    /// The socket guests join at.
    pub fn join_socket(&self) -> PathBuf {
        join_socket(&self.daemon.directory)
    }

    /// The socket `pvnet status` asks at.
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.daemon.directory)
    }
}

/// The socket guests join at, of a daemon in `directory`.
pub fn join_socket(directory: &Path) -> PathBuf {
    directory.join("machine.sock")
}

/// The socket `pvnet status` asks at, of a daemon in `directory`.
pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(allowed) {
        return Err(format!(
            "the name {name:?} is not 1 to {NAME_MAX} letters, digits, '-', '_' or '.'"
        ));
    }
    Ok(())
}

impl Guest {
    fn check(&self) -> Result<(), String> {
        if let Some(mac) = self.mac
            && (mac.is_multicast() || mac.is_zero())
        {
            return Err(format!("mac {mac} is not a unicast address"));
        }
        if self.queues.is_some_and(|queues| !(1..=QUEUES_MAX).contains(&queues)) {
            return Err(format!("queues is not 1 to {QUEUES_MAX}"));
        }
        if self.persistent_grants > PERSISTENT_GRANTS_MAX {
            return Err(format!("persistent_grants is not 0 to {PERSISTENT_GRANTS_MAX}"));
        }
        if !(4..=65_536).contains(&self.memory_mib) {
            return Err("memory_mib is not 4 to 65536".into());
        }
        let Features { sg, csum_v4, tso_v4, .. } = self.features();
        if tso_v4 && !(sg && csum_v4) {
            return Err("tcp_segmentation_offload needs scatter_gather and checksum_offload; \
                        switch it off as well"
                .into());
        }
        Ok(())
    }

    fn check_for_xen(&self) -> Result<(), String> {
        if self.rx == RxChannel::Flip {
            return Err("rx = \"flip\" is not for Xen: Linux lets no process transfer pages".into());
        }
        Ok(())
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    const UP: &str = "[[uplink]]\nname = \"up\"\ntap = \"up0\"\n";
    const RED: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n";

    #[test]
    fn the_example_is_sound_and_shows_the_defaults() {
        let text = include_str!("../../../../examples/pvnet.toml");
        let config = parse(text).unwrap();
        assert_eq!(config.guests.len(), 2);
        // What the example sets on `red` is what `blue` gets by saying nothing.
        let [red, blue] = &config.guests[..] else { panic!() };
        assert_eq!(red.features(), blue.features());
        assert_eq!(red.memory_mib, blue.memory_mib);
        assert_eq!(red.group_pages, blue.group_pages);
        assert_eq!(red.persistent_grants, blue.persistent_grants);
        assert_eq!(red.split_event_channels, blue.split_event_channels);
        assert_eq!(config.daemon.poll_us, Daemon::default().poll_us);
        assert_eq!(config.daemon.directory, Daemon::default().directory);
        assert_eq!(config.switch.age_seconds, Switch::default().age_seconds);
        assert_eq!(config.switch.addresses_per_port, Switch::default().addresses_per_port);
    }

    #[test]
    fn the_example_for_xen_is_sound_and_shows_the_defaults() {
        let config = parse(include_str!("../../../../examples/xen.toml")).unwrap();
        let any = config.guest("any").unwrap();
        let other = Guest::default();
        assert_eq!(any.features(), other.features());
        assert_eq!((any.queues, any.tx, any.rx), (other.queues, other.tx, other.rx));
        assert_eq!(any.split_event_channels, other.split_event_channels);
        let default = Xen::default();
        assert_eq!((config.xen.backend, config.xen.on_stop), (default.backend, default.on_stop));
    }

    #[test]
    fn an_interface_is_a_set_of_offloads_that_can_be_refined() {
        let features = |more: &str| parse(&format!("{RED}{more}")).map(|c| c.guests[0].features());
        assert_eq!(features("").unwrap(), Features::ALL);
        assert_eq!(features("interface = \"basic\"\n").unwrap(), Features::NONE);
        let refined = features("interface = \"basic\"\nscatter_gather = true\n").unwrap();
        assert_eq!(refined, Features { sg: true, ..Features::NONE });
        assert!(features("checksum_offload = false\n").is_err());
    }

    #[test]
    fn capabilities_are_a_set() {
        let of = |set: &str| {
            parse(&format!("{UP}capabilities = \"{set}\"\n")).unwrap().uplinks[0].capabilities
        };
        assert_eq!(of("none"), Capabilities { csum: false, sg: false, tso: false });
        assert_eq!(of("csum+sg"), Capabilities { csum: true, sg: true, tso: false });
        assert_eq!(of("csum+sg+tso"), Capabilities::default());
        assert_eq!(parse(UP).unwrap().uplinks[0].capabilities, Capabilities::default());
    }

    #[test]
    fn the_command_line_changes_what_there_is() {
        let text = format!("{RED}{UP}");
        let changed = |set: &str| {
            let mut table = toml::from_str(&text).unwrap();
            Config::changed(&mut table, &set.parse().unwrap())
        };
        let config = changed("up.capabilities=csum+sg").unwrap();
        assert_eq!(config.uplinks[0].capabilities.features(), {
            Features { sg: true, csum_v4: true, csum_v6: true, ..Features::NONE }
        });
        assert_eq!(changed("*.queues=2").unwrap().guests[0].queues, Some(2));
        for (set, reason) in [
            ("green.queues=2", "there are: red, up"),
            ("red.colour=2", "colour"),
            ("up.capabilities=lro", "lro"),
            ("red.queues=many", "many"),
        ] {
            let error = changed(set).unwrap_err();
            assert!(error.contains(reason), "{set}: {error}");
        }
    }

    #[test]
    fn on_xen_the_toolstack_decides_who_is_a_guest() {
        const XEN: &str = "[daemon]\nplatform = \"xen\"\n";
        let config = parse(&format!(
            "{XEN}[[guest]]\nname = \"*\"\nqueues = 3\n[[guest]]\nname = \"web\"\nqueues = 2\n"
        ))
        .unwrap();
        let queues = |name| config.guest(name).map(|guest| (guest.name, guest.queues));
        assert_eq!(queues("web"), Some(("web".to_owned(), Some(2))));
        assert_eq!(queues("any"), Some(("any".to_owned(), Some(3))));
        assert_eq!(parse(XEN).unwrap().guest("any").unwrap().queues, None);
        for (text, reason) in [
            (RED.to_owned(), "leave it out"),
            ("[[guest]]\nname = \"red\"\nrx = \"flip\"\n".to_owned(), "not for Xen"),
            ("[xen]\nbackend = \"a/b\"\n".to_owned(), "folder"),
        ] {
            let error = parse(&format!("{XEN}{text}")).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = parse("[[guest]]\nname = \"*\"\n").unwrap_err();
        assert!(error.contains("letters"), "{error}");
    }

    #[test]
    fn errors_name_the_line_and_the_reason() {
        let error = parse("[daemon]\nworkres = 2\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("workres"), "{error}");
        let error = parse("[[guest]]\nname = \"x\"\nmac = \"02:zz\"\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("02:zz"), "{error}");
        for (text, reason) in [
            (format!("{RED}{RED}"), "twice"),
            (RED.replace("02:", "03:"), "unicast"),
            ("[[guest]]\nname = \"red\"\n".to_owned(), "mac is missing"),
            (RED.replace("red", "r e d"), "letters"),
            (format!("{RED}queues = 0\n"), "queues"),
            (format!("{RED}scatter_gather = false\n"), "needs scatter_gather"),
            (format!("{RED}memory_mib = 1\n"), "memory_mib"),
            (format!("{RED}persistent_grants = 5000\n"), "persistent_grants"),
            (format!("{RED}tx = \"flip\"\n"), "remap"),
            (format!("{UP}capabilities = \"tso\"\n"), "needs csum"),
            (format!("{UP}capabilities = \"csum+lro\"\n"), "lro"),
            ("[daemon]\nworkers = 0\n".to_owned(), "workers"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
