//! A virtual machine without Xen: Debian's kernel and programs under QEMU, as on a KVM host.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::{Process, TempDir};

use super::channel::{Channel, WaitError};
use super::console_tail;
use super::monitor::Monitor;
use super::overlay::{HostFile, add, concatenate, read, script};
use super::port::{self, SerialPort};
use super::qemu::{self, AGENT_PORT};
use super::shell::Shell;
use crate::image::{Archive, Images, Kind};
use crate::{Emulator, Error, Result};

/// The port of QEMU's monitor.
const MONITOR_PORT: usize = 0;

/// The first script number of a machine that moves here: beyond all numbers that it has used.
const MOVED: u64 = 1 << 32;

/// The configuration of a virtual machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Its name.
    pub name: String,
    /// Its virtual CPUs.
    pub vcpus: u32,
    /// Its memory in MiB, which other processes can map.
    pub memory_mib: u32,
    /// More arguments for QEMU, such as devices.
    pub devices: Vec<String>,
    /// Files of this machine to copy into it.
    pub files: Vec<HostFile>,
    /// More arguments for its kernel.
    pub kernel_arguments: String,
    /// Arguments for QEMU that make it boot by its firmware, instead of from the kernel and [its root](Self::write_root).
    pub firmware: Option<Vec<String>>,
    /// The host's network namespace that QEMU runs in; the caller's if there is none.
    pub namespace: Option<String>,
    /// Whether it waits for another machine's state instead of booting (live migration).
    pub is_incoming: bool,
    /// How long booting may take.
    pub limit: Duration,
}

impl MachineConfig {
    /// A machine with one virtual CPU, 256 MiB and no device.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            vcpus: 1,
            memory_mib: 256,
            devices: Vec::new(),
            files: Vec::new(),
            kernel_arguments: String::new(),
            firmware: None,
            namespace: None,
            is_incoming: false,
            limit: Duration::from_secs(300),
        }
    }

    /// Adds arguments for QEMU.
    #[must_use]
    pub fn with<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.devices.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Writes the archive that it boots from: dom0's programs, with another init.
    pub fn write_root(&self, images: &Images, destination: &Path) -> Result<()> {
        let files: Vec<(&str, Vec<u8>)> = self.files.iter().map(read).collect::<Result<_>>()?;
        let mut overlay = Archive::new();
        script(&mut overlay, "init", include_str!("../guest/machine.sh"));
        script(&mut overlay, "lab/agent", include_str!("../guest/agent.sh"));
        add(&mut overlay, images.libraries(Kind::Dom0)?, &files)?;
        concatenate(&images.root(Kind::Dom0), &overlay.finish(), destination)
    }

    /// Its kernel's command line.
    #[must_use]
    pub fn command_line(&self) -> String {
        let Self { name, kernel_arguments, .. } = self;
        qemu::linux_command_line(&format!("lab.name={name} {kernel_arguments}"))
    }
}

/// A running virtual machine. It ends when this value is dropped, or when this process dies.
///
/// Start it from a thread that outlives it (see [`lab::command`]).
#[derive(Debug)]
pub struct Machine {
    // Dropped before its working folder.
    qemu: Process,
    shell: Shell,
    monitor: Monitor,
    log: PathBuf,
    limit: Duration,
    _folder: TempDir,
}

impl Deref for Machine {
    type Target = Shell;

    fn deref(&self) -> &Shell {
        &self.shell
    }
}

impl Machine {
    /// Boots a machine. Returns once it takes commands, or once it waits for another machine's state.
    pub fn boot(images: &Images, emulator: &Emulator, config: &MachineConfig) -> Result<Self> {
        let mut machine = Self::start(images, emulator, config)?;
        if !config.is_incoming {
            machine.wait_up(0)?;
        }
        Ok(machine)
    }

    /// Starts a machine, which may never take commands.
    pub fn start(images: &Images, emulator: &Emulator, config: &MachineConfig) -> Result<Self> {
        let folder = TempDir::new()?;
        let log = folder.path().join("console.log");
        std::fs::write(&log, "").map_err(Error::path(&log))?;
        let agent = SerialPort::new(folder.path(), AGENT_PORT)?;
        let monitor = SerialPort::new(folder.path(), MONITOR_PORT)?;

        let mut command = match &config.namespace {
            None => emulator.command()?,
            Some(namespace) => inside(namespace, &emulator.command()?)?,
        };
        let (memory, vcpus) = (config.memory_mib.to_string(), config.vcpus.to_string());
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", &vcpus, "-m", &memory]);
        let backend = format!("memory-backend-memfd,id=ram,size={memory}M,share=on");
        command.args(["-object", &backend, "-machine", "memory-backend=ram"]);
        command.args(["-nodefaults", "-display", "none"]);
        match &config.firmware {
            Some(arguments) => drop(command.args(arguments)),
            None => {
                let root = folder.path().join("root.cpio");
                config.write_root(images, &root)?;
                qemu::boot_linux(&mut command, images, &config.command_line(), &root);
            }
        }
        command.arg("-serial").arg(format!("file:{}", log.display()));
        command.args(["-chardev", &monitor.chardev(), "-mon", "chardev=port0,mode=control"]);
        // Its ports are /dev/vport0pN in the guest.
        command.args(["-device", "virtio-serial-pci"]);
        command.args(["-chardev", &agent.chardev(), "-device", &port::device(AGENT_PORT)]);
        command.args(&config.devices);
        if config.is_incoming {
            command.args(["-incoming", "defer"]);
        }

        let mut qemu = Process::capture(command)?;
        let monitor = Monitor::new(monitor.accept(&mut qemu, &log)?)?;
        let first = if config.is_incoming { MOVED } else { 1 };
        let channel = Channel::counting_from(first, agent.accept(&mut qemu, &log)?)?;
        let shell = Shell::new(&config.name, channel.into(), Some(log.clone()));
        Ok(Self { qemu, shell, monitor, log, limit: config.limit, _folder: folder })
    }

    /// Its shell.
    #[must_use]
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// QEMU's monitor.
    pub fn monitor(&mut self) -> &mut Monitor {
        &mut self.monitor
    }

    /// QEMU's standard error.
    #[must_use]
    pub fn complaints(&self) -> String {
        self.qemu.stderr()
    }

    /// Reboots it within the same QEMU, and waits until it takes commands again.
    pub fn reboot(&mut self) -> Result<()> {
        self.restarted_by("busybox reboot -f")
    }

    /// Runs a command that starts another kernel, and waits until that takes commands.
    pub fn restarted_by(&mut self, command: &str) -> Result<()> {
        let before = self.shell.channel().boots();
        // The command never answers.
        let _ = self.spawn(command)?;
        self.wait_up(before)
    }

    /// Kills QEMU (SIGKILL), and waits for its end.
    pub fn kill(mut self) -> Result<()> {
        self.qemu.kill()?;
        Ok(())
    }

    fn wait_up(&mut self, before: u64) -> Result<()> {
        let cause = match self.shell.channel().wait_up(before, self.limit)? {
            Ok(_) => return Ok(()),
            Err(WaitError::TimedOut) => format!("nothing after {} s", self.limit.as_secs()),
            Err(WaitError::Closed) => {
                format!("QEMU ended ({}): {}", self.qemu.stop()?, self.qemu.stderr().trim())
            }
        };
        let console = console_tail(&self.log);
        Err(Error::Boot { what: self.name().to_owned(), cause, console })
    }
}

/// The same command in a network namespace.
fn inside(namespace: &str, command: &Command) -> Result<Command> {
    let mut inside = lab::command("ip")?;
    // The variables are for the program, not for `ip`: they may name other libraries.
    inside.args(["netns", "exec", namespace, "env"]);
    for (name, value) in command.get_envs() {
        let mut pair = name.to_owned();
        pair.push("=");
        pair.push(value.unwrap_or_default());
        inside.arg(pair);
    }
    inside.arg(command.get_program()).args(command.get_args());
    Ok(inside)
}
