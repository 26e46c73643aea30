//! OVN's and Open vSwitch's programs, Xen's hotplug scripts, and pvnet.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xenlab::{Emulator, Error, Images, Result, Suite};

/// The packages whose programs are used.
const PACKAGES: [&str; 8] = [
    "busybox-static",
    "openvswitch-common",
    "openvswitch-switch",
    "ovn-common",
    "ovn-central",
    "ovn-host",
    "openvswitch-switch-dpdk",
    "xen-utils-common",
];
/// How many of the packages the short form needs.
const SHORT: usize = 6;
/// Where programs are.
const FOLDERS: [&str; 4] =
    ["usr/bin", "usr/sbin", "usr/lib/openvswitch-switch", "usr/lib/openvswitch-switch-dpdk"];
/// The limit for commands that wait for a daemon.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Which steps are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The steps that a test has time for. They need neither DPDK nor Xen's scripts.
    Short,
    /// All.
    Whole,
}

/// The unpacked packages, and pvnet.
#[derive(Clone, Debug)]
pub struct Programs {
    root: PathBuf,
    /// The program pvnet.
    pub(crate) pvnet: PathBuf,
    machines: Option<(Images, Emulator)>,
}

impl Programs {
    /// Fetches the packages that a form needs, from a suite, unless an earlier call has done so. They are unpacked and not installed: none
    /// of their scripts runs, and no service is started.
    pub fn prepare(
        pvnet: PathBuf,
        suite: Suite,
        cache: &Path,
        form: Form,
        quiet: bool,
    ) -> Result<Self> {
        const WHOLE: &str = "ovn-whole";
        let has_all = cache.join(WHOLE).join(suite.name()).is_dir();
        let (name, packages) = match form {
            Form::Short if !has_all => ("ovn-short", &PACKAGES[..SHORT]),
            _ => (WHOLE, &PACKAGES[..]),
        };
        let root = xenlab::unpacked_packages(suite, cache, name, packages, quiet)?;
        Ok(Self { root, pvnet, machines: None })
    }

    /// The same with images and an emulator for a virtual machine, which the whole form needs. Images are made from packages too,
    /// unless an earlier call has done so.
    pub fn with_machines(self, suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        let images = Images::prepare(suite, cache, quiet)?;
        let emulator = Emulator::any("qemu-system-x86_64")?;
        Ok(Self { machines: Some((images, emulator)), ..self })
    }

    /// The images and the emulator for a virtual machine.
    pub(crate) fn machines(&self) -> Result<&(Images, Emulator)> {
        self.machines.as_ref().ok_or_else(|| content("the lab", "it was started without images"))
    }

    /// A file of the packages.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn path(&self, program: &str) -> Result<PathBuf> {
        let mut files = FOLDERS.iter().map(|folder| self.root.join(folder).join(program));
        let missing = || lab::Error::MissingTool { tool: program.to_owned() };
        Ok(files.find(|file| file.is_file()).ok_or_else(missing)?)
    }

    /// The folders of all programs, as a search path.
    pub(crate) fn search_path(&self) -> String {
        let own: Vec<_> =
            FOLDERS.iter().map(|folder| self.root.join(folder).display().to_string()).collect();
        format!("{}:{}", own.join(":"), std::env::var("PATH").unwrap_or_default())
    }

    /// A command for one of the databases.
    pub(crate) fn client(&self, program: &str) -> Result<Command> {
        let command = lab::command(&self.path(program)?.to_string_lossy())?;
        Ok(self.with_libraries(command))
    }

    /// Adds the packages' libraries: the machine's may be older, or missing.
    pub(crate) fn with_libraries(&self, mut command: Command) -> Command {
        command.env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"));
        command
    }
}

/// Waits until `ready`.
pub(crate) fn until(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = std::time::Instant::now();
    while !ready()? {
        if start.elapsed() > LIMIT {
            return Err(lab::Error::TimedOut { what: what.to_owned(), limit: LIMIT }.into());
        }
        lab::Interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}

pub(crate) fn content(what: &str, cause: &str) -> Error {
    Error::Content { what: what.to_owned(), cause: cause.to_owned() }
}
