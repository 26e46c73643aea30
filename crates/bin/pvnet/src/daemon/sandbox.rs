//! What the daemon gives up when it has started: capabilities, files and system calls that its configuration does not need.
//!
//! The first two are given up by a thread, so this is done before the second thread starts, and after the uplinks' devices
//! were opened. See docs/decisions/0044-the-daemons-sandbox.md.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbox::{CallRules, CapabilitySet, Enforcement, FileRules};
use tracing::{debug, info, warn};

use crate::config::{self, Attach, Config, PlatformKind};
use crate::daemon::low_latency;
use crate::daemon::ports::{self, TABLES};
use crate::daemon::reach::Reach;
use crate::daemon::xen::lock_path;

/// Where `ip`, `ethtool` and their libraries are.
const PROGRAMS: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/iproute2", "/nix/store"];

/// What the daemon keeps after its start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    capabilities: CapabilitySet,
    files: FileRules,
    calls: CallRules,
}

/// The sandbox that the calling thread is in.
pub(super) struct Sandbox {
    /// None if it is off.
    rights: Option<Rights>,
    reach: Reach,
}

impl Sandbox {
    /// Gives up capabilities and files, if the configuration wants that. What the kernel cannot do is left out. The
    /// configuration's `file` is read again at a reload.
    pub(super) fn enter(config: &Config, file: &Path) -> Self {
        if config.daemon.sandbox == config::SandboxLevel::Off {
            warn!("sandbox = \"off\": the daemon keeps all its rights");
            return Self { rights: None, reach: Reach::everywhere() };
        }
        let rights = rights(config, file);
        match sandbox::keep_capabilities(rights.capabilities) {
            Ok(kept) => info!(
                kept = names(kept),
                "capabilities that this configuration does not need are given up"
            ),
            Err(error) => warn!(%error, "the daemon keeps its capabilities"),
        }
        let reach = restrict_files(&rights.files);
        Self { rights: Some(rights), reach }
    }

    /// Gives up system calls, in all threads: the start is over. Returns where files can be made from now on.
    pub(super) fn close(mut self) -> Reach {
        let Some(rights) = self.rights else { return self.reach };
        let CallRules { programs, connects, .. } = rights.calls;
        match sandbox::restrict_calls(rights.calls) {
            Ok(()) => {
                info!(programs, connects, "system calls that it does not need are refused");
                self.reach.connects = connects;
            }
            Err(error) => warn!(%error, "system calls are not restricted"),
        }
        self.reach
    }
}

fn restrict_files(rules: &FileRules) -> Reach {
    debug!(?rules, "files");
    let reach = Reach::within(&rules.write);
    let enforced = sandbox::restrict_files(rules);
    match &enforced {
        Ok(Enforcement::Full) => info!("files that it does not need are out of reach"),
        Ok(Enforcement::Partial) => info!(
            "files that it does not need are out of reach, as far as this kernel's Landlock goes"
        ),
        Ok(Enforcement::None) => warn!(
            "files are not restricted: the kernel has no Landlock (lsm=landlock,… on its command line)"
        ),
        Err(error) => warn!(%error, "files are not restricted"),
    }
    match enforced {
        Ok(Enforcement::Full | Enforcement::Partial) => reach,
        Ok(Enforcement::None) | Err(_) => Reach::everywhere(),
    }
}

/// The names of capabilities, for the log.
fn names(capabilities: CapabilitySet) -> String {
    let names: Vec<_> = capabilities.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn rights(config: &Config, file: &Path) -> Rights {
    let opens_devices = config.daemon.sandbox == config::SandboxLevel::Devices;
    let ports: Vec<_> = TABLES
        .into_iter()
        // One whose keys do not fit together is refused when it is opened.
        .flat_map(|table| ports::of_tables(config, table, None).unwrap_or_default())
        .map(|port| port.source.needs())
        .collect();
    let any = |need: fn(&ports::Needs) -> bool| opens_devices || ports.iter().any(need);
    let programs = any(|port| port.programs);
    let calls = CallRules {
        programs,
        namespaces: programs && any(|port| port.namespace.is_some()),
        bpf: any(|port| port.bpf),
        sockets: any(|port| port.sockets),
        connects: any(|port| port.connects) || reaches_store(config),
    };
    let capabilities = capabilities(config, &ports, calls);
    Rights { capabilities, files: files(config, &ports, file, calls), calls }
}

/// Whether the daemon connects again to a xenstored of this domain, after that was started again.
fn reaches_store(config: &Config) -> bool {
    config.daemon.platform == PlatformKind::Xen && xen::store::has_socket()
}

fn capabilities(config: &Config, ports: &[ports::Needs], calls: CallRules) -> CapabilitySet {
    let locks_memory = !config.nics.is_empty() || calls.sockets;
    let low_port = config.daemon.metrics.is_some_and(|address| address.port() < 1024);
    let has_tokens = config.guests.iter().any(|guest| guest.token_file.is_some());
    // Root that has given this up is kept out of other users' folders.
    let others = written(config, ports).iter().any(|path| !is_own(path));
    let is_client = ports.iter().any(|port| port.connects);
    [
        (calls.programs || makes_devices(config), CapabilitySet::NET_ADMIN),
        (calls.sockets, CapabilitySet::NET_RAW),
        (calls.bpf, CapabilitySet::BPF),
        (calls.namespaces, CapabilitySet::SYS_ADMIN),
        (locks_memory, CapabilitySet::IPC_LOCK),
        (low_port, CapabilitySet::NET_BIND_SERVICE),
        (has_tokens, CapabilitySet::DAC_READ_SEARCH),
        // The socket that a front-end or a back-end makes is its user's.
        (others || is_client, CapabilitySet::DAC_OVERRIDE),
    ]
    .into_iter()
    .filter_map(|(needed, capability)| needed.then_some(capability))
    .collect()
}

/// Whether devices are made later: those of a Xen host's guests come with them, and one that was deleted is made again.
fn makes_devices(config: &Config) -> bool {
    let of_xen = || {
        let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
        config.daemon.platform == PlatformKind::Xen
            && (config.xen.attach == Attach::Device
                || vifs.any(|vif| config.device_of(vif, None).is_some()))
    };
    config.daemon.sandbox == config::SandboxLevel::Devices
        || config.devices().next().is_some()
        || of_xen()
}

/// Whether a folder or file is this user's. One that is not there yet will be.
fn is_own(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |file| file.uid() == geteuid().as_raw())
}

/// The folders of the daemon's sockets, and that of recordings if there are some, or may be later.
fn written(config: &Config, ports: &[ports::Needs]) -> Vec<PathBuf> {
    let recordings = &config.daemon.recordings;
    let records = config.mirrors.iter().any(|mirror| mirror.file.is_some())
        || config.daemon.capture && recordings.exists() && is_own(recordings);
    let folders = ports.iter().filter_map(|port| port.folder.clone());
    let recordings = records.then(|| recordings.clone());
    std::iter::once(config.daemon.directory.clone()).chain(folders).chain(recordings).collect()
}

fn files(config: &Config, ports: &[ports::Needs], file: &Path, calls: CallRules) -> FileRules {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let mut rules = FileRules { read: paths(&["/proc", "/sys"]), ..FileRules::default() };
    // The folder, because an editor may replace the file. Of a bare name it is the working directory.
    let file = std::path::absolute(file);
    rules.read.extend(file.iter().filter_map(|file| file.parent()).map(Path::to_owned));
    rules.read.extend(config.guests.iter().filter_map(|guest| guest.token_file.clone()));
    // For the names of functions after a panic.
    rules.read.extend(std::env::current_exe());
    rules.write = written(config, ports);
    if config.daemon.low_latency {
        rules.write.push(low_latency::DEVICE.into());
    }
    if config.daemon.platform == PlatformKind::Xen {
        rules.read.extend(paths(&["/dev/urandom", "/run/xen"]));
        rules.write.extend(paths(&["/dev/xen", "/proc/xen"]));
        let lock = lock_path(&config.xen.backend);
        // A rule needs the file. If it cannot be made, opening it will say why.
        let _ = std::fs::File::options().create(true).append(true).open(&lock);
        rules.write.push(lock);
    }
    if calls.programs {
        rules.run = paths(&PROGRAMS);
        rules.read.extend(paths(&["/run/netns", "/dev/null"]));
        rules.write.push("/dev/null".into());
    }
    if calls.sockets || makes_devices(config) {
        rules.write.push("/dev/net/tun".into());
    }
    rules.bind = config.daemon.metrics.iter().map(std::net::SocketAddr::port).collect();
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights_of(text: &str) -> Rights {
        rights(&Config::parse(text).unwrap(), Path::new("/etc/pvnet/pvnet.toml"))
    }

    fn kept(text: &str) -> CapabilitySet {
        rights_of(text).capabilities
    }

    #[test]
    fn an_ordinary_configuration_needs_no_capability_and_no_program() {
        let rights = rights_of(
            "[[guest]]\nname = \"red\"\n[[uplink]]\nname = \"up\"\ntap = \"tap0\"\nnamespace = \"x\"\n\
             [[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/nonexistent/vm.sock\"\n",
        );
        assert_eq!(rights.capabilities, CapabilitySet::empty());
        assert_eq!(rights.calls, CallRules::default());
        let files = rights.files;
        assert_eq!(files.run, Vec::<PathBuf>::new());
        assert!(files.write.contains(&"/nonexistent".into()), "{files:?}");
    }

    #[test]
    fn each_feature_keeps_what_it_needs() {
        let uplink = "[[uplink]]\nname = \"up\"\n";
        let tap = "tap = \"tap0\"\nqueues = \"per-guest\"\n";
        assert_eq!(kept(&format!("{uplink}{tap}")), CapabilitySet::BPF);
        let macvtap = "kind = \"macvtap\"\ndevice = \"eth0\"\n";
        assert_eq!(kept(&format!("{uplink}{macvtap}")), CapabilitySet::NET_ADMIN);
        let namespace = "namespace = \"x\"\n";
        assert_eq!(
            kept(&format!("{uplink}{macvtap}{namespace}")),
            CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN
        );
        let xdp = "kind = \"af-xdp\"\ndevice = \"eth0\"\nqueues = \"per-guest\"\n";
        let all = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        assert_eq!(kept(&format!("{uplink}{xdp}")), all | CapabilitySet::IPC_LOCK);
        // Its sockets are open, and have all their memory.
        let taken = xdp.replace("queues = \"per-guest\"\n", "");
        assert_eq!(kept(&format!("{uplink}{taken}")), CapabilitySet::empty());
        let client =
            "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/x\"\nmode = \"client\"\n";
        assert_eq!(kept(client), CapabilitySet::DAC_OVERRIDE);
        let connects = |text: &str| rights_of(text).calls.connects;
        assert!(connects(client) && !connects(&client.replace("client", "server")));
        let dialler = "[[uplink]]\nname = \"up\"\nkind = \"virtio-user\"\nsocket = \"/nonexistent/up.sock\"\n";
        assert_eq!(kept(&format!("{dialler}mode = \"client\"\n")), CapabilitySet::DAC_OVERRIDE);
        assert!(connects(&format!("{dialler}mode = \"client\"\n")) && !connects(dialler));
        let Rights { capabilities, files, calls } = rights_of(dialler);
        assert_eq!((capabilities, calls), (CapabilitySet::empty(), CallRules::default()));
        assert!(files.write.contains(&"/nonexistent".into()));
        let low = "[daemon]\nmetrics = \"127.0.0.1:80\"\n";
        assert_eq!(kept(low), CapabilitySet::NET_BIND_SERVICE);
        assert_eq!(
            kept("[[nic]]\nname = \"card0\"\nwire = { tap = \"wire0\" }\n"),
            CapabilitySet::IPC_LOCK
        );
        let token = "[[guest]]\nname = \"red\"\ntoken_file = \"/x\"\n";
        assert_eq!(kept(token), CapabilitySet::DAC_READ_SEARCH);
    }

    #[test]
    fn a_daemon_that_opens_devices_later_keeps_what_that_needs() {
        let rights = rights_of("[daemon]\nsandbox = \"devices\"\n");
        let all = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        assert!(rights.capabilities.contains(all | CapabilitySet::SYS_ADMIN), "{rights:?}");
        assert!(rights.files.write.contains(&"/dev/net/tun".into()));
        assert!(rights.calls.connects, "of a port that comes later, another may make the socket");
    }

    /// Such a device is made again after somebody has deleted it, and on a Xen host when its guest comes.
    #[test]
    fn guests_with_devices_keep_the_right_to_make_them() {
        let machine = "[[guest]]\nname = \"red\"\nattach = \"device\"\n";
        let port = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/nonexistent/vm.sock\"\nattach = \"device\"\n";
        let xen = "[daemon]\nplatform = \"xen\"\n";
        let all = format!("{xen}[xen]\nattach = \"device\"\n");
        let one = format!("{xen}{machine}");
        for text in [machine, port, &all, &one] {
            let Rights { capabilities, files, calls } = rights_of(text);
            assert_eq!(capabilities, CapabilitySet::NET_ADMIN, "{text}");
            assert_eq!(calls, CallRules::default(), "no programs, and no sockets of the network");
            assert!(files.write.contains(&"/dev/net/tun".into()), "{text}");
        }
        let Rights { capabilities, files, .. } =
            rights_of(&format!("{xen}[[guest]]\nname = \"red\"\n"));
        assert_eq!(capabilities, CapabilitySet::empty());
        assert!(!files.write.contains(&"/dev/net/tun".into()));
    }

    /// `pvnet run --config pvnet.toml`: a reload reads it again.
    #[test]
    fn the_folder_of_a_file_without_one_is_the_working_directory() {
        let files = rights(&Config::parse("").unwrap(), Path::new("pvnet.toml")).files;
        assert!(files.read.contains(&std::env::current_dir().unwrap()), "{files:?}");
    }

    /// The folder of recordings is written to if it is the daemon's, or wanted.
    #[test]
    fn recordings_keep_their_folder() {
        let mirror = "[[mirror]]\nname = \"m\"\nfrom = [\"up\"]\nfile = \"m\"\n";
        let daemon = "[daemon]\nrecordings = \"/nonexistent/records\"\n";
        let written = |text: &str| {
            let files = rights_of(text).files;
            files.write.contains(&"/nonexistent/records".into())
        };
        assert!(written(&format!("{daemon}{mirror}")));
        assert!(!written(daemon), "nobody has made it");
    }

    /// How the guest's process has its memory mapped is not worth a right: `sandbox = "off"` shows it.
    #[test]
    fn guests_with_huge_pages_are_not_inspected() {
        let huge = rights_of("[[guest]]\nname = \"red\"\nhuge_pages = true\n");
        assert_eq!(huge, rights_of("[[guest]]\nname = \"red\"\n"));
    }
}
