//! Starting QEMU.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use lab::Process;

use super::options::{Options, PROCESSOR};
use super::overlay::Roots;
use super::port::{self, SerialPort};
use crate::image::Images;
use crate::{Error, Result};

/// Arguments for every kernel. A panic ends its domain. The others save one of eight seconds per boot: the kernel
/// neither zeroes pages before every use, nor write-protects its own pages and checks them one by one.
pub(super) const KERNEL: &str = "panic=-1 init_on_alloc=0 rodata=off";

/// The port of the agent of dom0, or of a machine without Xen.
pub(super) const AGENT_PORT: usize = 1;
/// The port of streamed output.
pub(super) const STREAM_PORT: usize = 2;
/// The first port of a guest's agent.
pub(super) const FIRST_GUEST_PORT: usize = 3;
/// How many guests' agents have a port at once.
pub(super) const GUEST_PORTS: usize = 6;

/// Byte streams into the machine.
#[derive(Debug)]
pub(super) struct Lines {
    /// The output of a streamed script.
    pub(super) stream: UnixStream,
    /// dom0's second serial port, its terminal.
    pub(super) terminal: UnixStream,
}

/// Starts QEMU. Returns the process, the byte streams, and the connections to agents, dom0's first.
pub(super) fn start(
    images: &Images,
    options: &Options,
    roots: &Roots,
    log: &Path,
    folder: &Path,
) -> Result<(Process, Lines, Vec<UnixStream>)> {
    // Created before QEMU does so: then this user can read it whatever QEMU's umask is, and an error names a bad path.
    std::fs::write(log, "").map_err(Error::path(log))?;
    let numbers = [AGENT_PORT, STREAM_PORT]
        .into_iter()
        .chain(FIRST_GUEST_PORT..FIRST_GUEST_PORT + GUEST_PORTS);
    let ports: Vec<SerialPort> =
        numbers.map(|number| SerialPort::new(folder, number)).collect::<Result<_>>()?;
    let terminal = SerialPort::new(folder, 0)?;

    let mut command = lab::command("qemu-system-x86_64")?;
    machine(&mut command, options);
    let files = Files { xen: &images.xen(), kernel: &images.kernel(), root: &roots.dom0 };
    boot(&mut command, &files, options);
    command.arg("-serial").arg(format!("file:{}", log.display()));
    command.args(["-chardev", &terminal.chardev(), "-serial", "chardev:port0"]);
    // The first virtio device: its ports are /dev/vport0pN in dom0.
    command.args(["-device", "virtio-serial-pci"]);
    for port in &ports {
        command.args(["-chardev", &port.chardev(), "-device", &port::device(port.number)]);
    }
    let share =
        format!("local,id=guests,path={},security_model=none,readonly=on", roots.guests.display());
    command.args(["-fsdev", &share, "-device", "virtio-9p-pci,fsdev=guests,mount_tag=guests"]);
    if options.outside {
        command.args(["-netdev", "user,id=outside", "-device", "virtio-net-pci,netdev=outside"]);
    }

    let mut qemu = Process::capture(command)?;
    let terminal = terminal.accept(&mut qemu, log)?;
    let mut lines = ports.iter().map(|port| port.accept(&mut qemu, log));
    let mut next = || lines.next().unwrap_or_else(|| Err(Error::content("QEMU", "no port")));
    let (agent, stream) = (next()?, next()?);
    let agents = std::iter::once(Ok(agent)).chain(lines).collect::<Result<_>>()?;
    Ok((qemu, Lines { stream, terminal }, agents))
}

fn machine(command: &mut Command, options: &Options) {
    let (accel, processor) = match options.counts_instructions {
        true => ("tcg,thread=single", PROCESSOR),
        // With QEMU 7.2's SMAP and SMEP, Xen 4.17 stops early in its boot.
        false => ("tcg,thread=multi", "max,-smap,-smep"),
    };
    if options.counts_instructions {
        // Without `sleep=off` the clock goes on while the machine waits for this computer's disks and for scripts.
        command.args(["-icount", "shift=0"]);
    }
    command.args(["-accel", accel, "-smp", "1", "-m", &options.memory_mib.to_string()]);
    let nested = if options.nested { ",+svm,-rdtscp" } else { "" };
    let vendor = if options.intel { ",vendor=GenuineIntel" } else { "" };
    command.args(["-cpu", &format!("{processor}{nested}{vendor}")]);
    command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
}

/// The files that a host boots from. The hypervisor sees each file's path.
pub(super) struct Files<'a> {
    pub(super) xen: &'a Path,
    pub(super) kernel: &'a Path,
    pub(super) root: &'a Path,
}

pub(super) fn boot(command: &mut Command, files: &Files<'_>, options: &Options) {
    let (memory, vcpus) = (options.dom0_memory_mib, options.dom0_vcpus);
    // eager-fpu: TCG's XSAVE ignores CR0.TS. Lazy switching would lose vector registers, and programs would crash at
    // random. xpti=0: switching page tables at each system call flushes TCG's translations. bootscrub=0: the memory
    // is already zero.
    let xen = format!(
        "console=com1 com1=115200,8n1 loglvl=warning guest_loglvl=warning dom0_mem={memory}M,max:{memory}M \
         dom0_max_vcpus={vcpus} spec-ctrl=eager-fpu xpti=0 bootscrub=0 {}",
        options.xen_arguments
    );
    let kernel = format!("console=hvc0 loglevel=4 {KERNEL} {}", options.kernel_arguments);
    let kernel = format!("{} {}", files.kernel.display(), kernel.trim().replace(',', ",,"));
    command.arg("-kernel").arg(files.xen).args(["-append", xen.trim()]);
    command.arg("-initrd").arg(format!("{kernel},{}", files.root.display()));
}

/// Boots the images' kernel without a hypervisor.
pub(super) fn boot_linux(command: &mut Command, images: &Images, command_line: &str, root: &Path) {
    command.arg("-kernel").arg(images.kernel()).arg("-initrd").arg(root);
    command.args(["-append", command_line]);
}

/// The arguments of a kernel without a hypervisor.
pub(super) fn linux_command_line(more: &str) -> String {
    format!("console=ttyS0 loglevel=4 {KERNEL} {more}").trim().to_owned()
}
