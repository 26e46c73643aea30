//! Starts a machine: from its snapshot, or by a boot that saves one.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use lab::{Interrupt, Process};
use serde_json::{Value, json};
use xenlab::{BatchHost, Emulator, Images, Monitor};

use super::identity::Identity;
use super::list::{megabytes, sizes};
use super::store::{Snapshot, Store};
use crate::command_line::escaped;
use crate::error::{Error, Result};
use crate::watch::Watch;

/// How long the plugin holds the machine after QEMU was told to stop it: QEMU's main thread has to take notice first. If that is
/// too short, the machine goes on, and there is no snapshot.
const HOLD: Duration = Duration::from_millis(500);

/// QEMU announces a loaded machine's cards for a second, by timers of the host's clock. At each it ends its budget of instructions,
/// which divides a block, and sends frames that another card may receive: at another instruction in each run.
const NO_ANNOUNCEMENTS: [&str; 2] = ["-global", "migration.announce-rounds=0"];

/// No guest is asked to announce itself after loading. QEMU 10 frees the timer for that where there are no rounds, and uses it when the
/// guest resets the card: it ended by a segmentation fault (`timer_del`). A machine is loaded with the features that it has booted with.
const NO_GUEST_ANNOUNCEMENTS: [&str; 2] = ["-global", "virtio-net-device.guest_announce=off"];

/// Each page of memory has a place in the file, and pages of zeros are holes. QEMU does not touch these when it loads a machine, so the
/// system need not make them: most of a machine's memory has not been used yet.
const BY_PAGE: [&str; 2] = ["-global", "migration.mapped-ram=on"];

/// Whether to use snapshots.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct SnapshotArgs {
    /// Boot the machine, and neither use nor save a snapshot of it at the first mark.
    #[arg(long)]
    pub no_snapshot: bool,
    /// Boot the machine even if there is a snapshot of it, and save it again.
    #[arg(long, conflicts_with = "no_snapshot")]
    pub fresh: bool,
}

/// A machine that can be started.
pub struct StartableMachine<'a> {
    /// QEMU's command line without a plugin.
    pub command: Box<dyn Fn() -> Result<Command> + 'a>,
    /// What the machine boots from.
    pub identity: Identity,
    /// The files that its consoles write to.
    pub consoles: Vec<PathBuf>,
    /// A folder for what lives as long as the machine.
    pub folder: &'a Path,
    /// Why there can be no snapshot of it.
    pub problem: Option<String>,
}

/// A machine that runs.
pub struct Running {
    pub qemu: Process,
    /// What its consoles had shown when it was saved; nothing for one that has booted.
    printed: Vec<(PathBuf, String)>,
    stdout: String,
    /// Whether it was loaded from a snapshot.
    pub from_snapshot: bool,
}

impl Running {
    fn booted(qemu: Process) -> Self {
        Self { qemu, printed: Vec::new(), stdout: String::new(), from_snapshot: false }
    }

    /// QEMU's output, and the output before it was saved.
    pub fn stdout(&self) -> String {
        format!("{}{}", self.stdout, self.qemu.stdout())
    }

    /// Puts what consoles had shown when the machine was saved before what they have shown since. The machine has ended.
    pub fn complete_consoles(&mut self) -> Result<()> {
        for (file, before) in self.printed.drain(..) {
            let since = std::fs::read(&file).unwrap_or_default();
            let text = [before.into_bytes(), since].concat();
            std::fs::write(&file, text).map_err(Error::path(&file))?;
        }
        Ok(())
    }
}

/// A machine that is loaded and waits.
pub struct Loaded {
    pub qemu: Process,
    monitor: Monitor,
}

impl Loaded {
    /// Lets it run.
    pub fn resume(mut self) -> Result<Process> {
        self.monitor.execute("cont", json!({}))?;
        Ok(self.qemu)
    }
}

/// What a boot comes to.
enum Booted {
    Saved(Snapshot),
    /// It could not be saved, and goes on.
    Runs(Process),
}

impl<'a> StartableMachine<'a> {
    /// A machine of the lab: its name and QEMU's version, and what it boots from.
    pub fn of_lab(
        names: (&str, &str),
        host: &'a BatchHost,
        images: &Images,
        emulator: &'a Emulator,
    ) -> Result<Self> {
        // Without Xen its image is not read, but it belongs to the same images.
        let files = vec![host.root().to_owned(), images.kernel(), images.xen()];
        let identity = Identity::new(names, &host.command(emulator)?, host.folder(), files);
        let consoles = vec![host.log(), host.printed()];
        let command = Box::new(|| Ok(host.command(emulator)?));
        Ok(Self { command, identity, consoles, folder: host.folder(), problem: None })
    }

    /// Starts the machine with the plugin, whose argument is `plugin`: from a snapshot, unless `args` or the machine forbid it.
    pub fn start(&self, plugin: &str, args: SnapshotArgs, watch: &Watch<'_>) -> Result<Running> {
        if let Some(problem) = self.problem.as_ref().filter(|_| !args.no_snapshot) {
            watch.progress.note(&format!("no snapshot: {problem}"));
        }
        if args.no_snapshot || self.problem.is_some() {
            watch.progress.step(BOOT);
            return Ok(Running::booted(Process::capture(self.with_plugin(plugin)?)?));
        }
        let store = Store::of_this_machine()?;
        let snapshot = match self.snapshot(&store, plugin, args, watch)? {
            Booted::Saved(snapshot) => snapshot,
            Booted::Runs(qemu) => return Ok(Running::booted(qemu)),
        };
        watch.progress.step("load the snapshot");
        match self.load(&snapshot, Some(plugin)).and_then(Loaded::resume) {
            Ok(qemu) => {
                let mut printed = snapshot.printed().iter().cloned();
                let stdout = printed.next().unwrap_or_default();
                Ok(Running {
                    qemu,
                    printed: self.consoles.iter().cloned().zip(printed).collect(),
                    stdout,
                    from_snapshot: true,
                })
            }
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => {
                watch
                    .progress
                    .note(&format!("the snapshot cannot be loaded, and is removed: {error}"));
                snapshot.remove()?;
                watch.progress.step(BOOT);
                Ok(Running::booted(Process::capture(self.with_plugin(plugin)?)?))
            }
        }
    }

    /// The machine's snapshot, for those who start it without recording; it is made if there is none.
    pub fn saved(&self, plugin: &str, args: SnapshotArgs, watch: &Watch<'_>) -> Result<Snapshot> {
        let store = Store::of_this_machine()?;
        match self.snapshot(&store, plugin, args, watch)? {
            Booted::Saved(snapshot) => Ok(snapshot),
            Booted::Runs(_) => {
                Err(Error::Usage("the machine could not be saved: try again".to_owned()))
            }
        }
    }

    fn snapshot(
        &self,
        store: &Store,
        plugin: &str,
        args: SnapshotArgs,
        watch: &Watch<'_>,
    ) -> Result<Booted> {
        let name = self.identity.digest()?;
        let known = store.find(&name).filter(|_| !args.fresh);
        let booted = match known {
            Some(snapshot) => {
                snapshot.touch();
                Booted::Saved(snapshot)
            }
            None => self.boot(store, &name, plugin, watch)?,
        };
        if let Booted::Saved(snapshot) = &booted {
            let sizes = sizes(store, &store.all());
            let megabytes = megabytes(snapshot.bytes());
            watch.progress.note(&format!("from the snapshot {name} of {megabytes} MB ({sizes})"));
        }
        Ok(booted)
    }

    fn with_plugin(&self, plugin: &str) -> Result<Command> {
        let mut command = self.own_command()?;
        command.arg("-plugin").arg(plugin);
        Ok(command)
    }

    fn own_command(&self) -> Result<Command> {
        let mut command = (self.command)()?;
        command.args(NO_GUEST_ANNOUNCEMENTS);
        Ok(command)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("monitor")
    }

    /// Loads the machine, with a plugin if there is an argument for one. It waits before the first mark.
    pub fn load(&self, snapshot: &Snapshot, plugin: Option<&str>) -> Result<Loaded> {
        let mut command = match plugin {
            Some(plugin) => self.with_plugin(plugin)?,
            None => self.own_command()?,
        };
        // A socket of an earlier machine would be connected to.
        let _ = std::fs::remove_file(self.socket());
        command.args(arguments(&self.socket()));
        command.args(NO_ANNOUNCEMENTS).args(BY_PAGE);
        command.arg("-incoming").arg(format!("file:{}", snapshot.state().display()));
        let mut qemu = Process::capture(command)?;
        let mut monitor = connect(&self.socket(), &mut qemu)?;
        wait_for_migration(&mut monitor, &mut qemu)?;
        Ok(Loaded { qemu, monitor })
    }

    /// Boots the machine to its first mark, and saves it there.
    fn boot(&self, store: &Store, name: &str, plugin: &str, watch: &Watch<'_>) -> Result<Booted> {
        let hold = self.folder.join("hold");
        std::fs::write(&hold, "").map_err(Error::path(&hold))?;
        let held = format!("{plugin},hold={}", escaped(&hold.display().to_string()));
        let mut command = self.with_plugin(&held)?;
        command.args(BY_PAGE);
        let _ = std::fs::remove_file(self.socket());
        command.args(arguments(&self.socket()));
        watch.progress.step(BOOT);
        let mut qemu = Process::capture(command)?;
        watch.hold(&mut qemu)?;
        watch.progress.step("save a snapshot");
        let mut monitor = connect(&self.socket(), &mut qemu)?;
        // QEMU answers when the machine has stopped, which it cannot while the plugin holds it.
        monitor.send("stop", json!({}))?;
        Interrupt::sleep(HOLD)?;
        std::fs::remove_file(&hold).map_err(Error::path(&hold))?;
        monitor.answer("stop")?;
        let files = self.consoles.iter().map(|file| std::fs::read(file).unwrap_or_default());
        let files = files.map(|text| String::from_utf8_lossy(&text).into_owned());
        let printed = std::iter::once(qemu.stdout()).chain(files).collect();
        let saved = store.add(name, &self.identity, printed, |state| {
            let uri = format!("file:{}", state.display());
            monitor.execute("migrate", json!({ "uri": uri }))?;
            wait_for_migration(&mut monitor, &mut qemu)?;
            // Not before: the plugin's message may arrive later than QEMU's answer.
            if Watch::is_recording(&qemu) {
                let what = "this host was too busy to stop the machine in time".to_owned();
                return Err(Error::Usage(what));
            }
            Ok(())
        });
        match saved {
            Ok(snapshot) => {
                qemu.kill()?;
                Ok(Booted::Saved(snapshot))
            }
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => {
                watch.progress.note(&format!("no snapshot: {error}"));
                monitor.execute("cont", json!({}))?;
                Ok(Booted::Runs(qemu))
            }
        }
    }
}

/// The most steps of a recording, those of its start among them.
pub const STEPS: usize = 6;
/// The step of a recording that boots the machine.
const BOOT: &str = "boot, to the first mark";

/// The longest that QEMU may take to listen, or to save a machine.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// QEMU's arguments for a monitor at `socket`.
pub fn arguments(socket: &Path) -> [String; 2] {
    ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]
}

/// Connects as soon as QEMU listens.
pub fn connect(socket: &Path, qemu: &mut Process) -> Result<Monitor> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(Monitor::new(stream)?),
            Err(_) if start.elapsed() < LIMIT && qemu.ended()?.is_none() => {
                Interrupt::sleep(POLL)?;
            }
            Err(cause) => return Err(failed(format!("{cause}; {}", qemu.stderr().trim()))),
        }
    }
}

/// Waits until a migration to or from a file has ended.
pub fn wait_for_migration(monitor: &mut Monitor, qemu: &mut Process) -> Result<()> {
    let start = Instant::now();
    loop {
        // QEMU ends if it cannot load a machine.
        if qemu.ended()?.is_some() {
            return Err(failed(qemu.stderr().trim()));
        }
        let answer = monitor.execute("query-migrate", json!({}))?;
        match answer.get("status").and_then(Value::as_str) {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => return Err(failed(answer)),
            _ if start.elapsed() > LIMIT => return Err(failed("saving takes too long")),
            _ => Interrupt::sleep(POLL)?,
        }
    }
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Usage(format!("QEMU's monitor: {what}"))
}
