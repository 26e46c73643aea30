//! Guests.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::channel::{Channel, WaitError};
use super::qemu::{FIRST_GUEST_PORT, GUEST_PORTS, KERNEL};
use super::shell::{Job, Shell};
use crate::{Error, Result};

/// How long the toolstack may take. It waits ten seconds for a backend; an overloaded machine is slow, not broken.
const TOOLSTACK: Duration = Duration::from_secs(180);

/// How a guest is virtualised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestType {
    /// Paravirtual.
    #[default]
    Pv,
    /// By the processor, without an emulator.
    Pvh,
    /// By the processor, with emulated devices. Needs images of [`Edition::Network`](crate::Edition::Network).
    Hvm,
    /// As [`Hvm`](Self::Hvm), but iPXE fetches the kernel and the archive over the guest's interface from a server that the caller runs.
    Ipxe,
}

impl GuestType {
    /// Its lines of `xl.cfg`.
    fn lines(self) -> &'static str {
        match self {
            Self::Pv => "type=\"pv\"\nkernel=\"/lab/guests/vmlinux\"",
            Self::Pvh => "type=\"pvh\"\nkernel=\"/lab/guests/vmlinux\"",
            Self::Hvm => "type=\"hvm\"\nkernel=\"/lab/guests/vmlinuz\"\nvga=\"none\"\nvnc=0",
            Self::Ipxe => "type=\"hvm\"\nkernel=\"/boot/ipxe.lkrn\"\nvga=\"none\"\nvnc=0",
        }
    }
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct DomuConfig {
    /// Its name.
    pub name: String,
    /// How it is virtualised. All but [`GuestType::Pv`] need [`Options::nested`](crate::Options::nested).
    pub guest_type: GuestType,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// Its virtual CPUs.
    pub vcpus: u32,
    /// Its network interfaces, as in `xl.cfg`'s `vif`: `mac=00:16:3e:00:00:01,bridge=xenbr0,script=vif-lab`.
    pub vifs: Vec<String>,
    /// More kernel arguments.
    pub kernel_arguments: String,
    /// Whether the toolstack starts it again when it reboots. Otherwise it is destroyed.
    pub restarts: bool,
    /// More lines of `xl.cfg`, such as `driver_domain=1`.
    pub more: Vec<String>,
}

impl DomuConfig {
    /// A guest with one virtual CPU, 256 MiB and no interface.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            guest_type: GuestType::Pv,
            memory_mib: 256,
            vcpus: 1,
            vifs: Vec::new(),
            kernel_arguments: String::new(),
            restarts: false,
            more: Vec::new(),
        }
    }

    /// Adds an interface.
    #[must_use]
    pub fn vif(mut self, vif: impl Into<String>) -> Self {
        self.vifs.push(vif.into());
        self
    }

    /// Adds a line of `xl.cfg`.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.more.push(line.into());
        self
    }

    /// Its kernel's command line.
    #[must_use]
    pub fn command_line(&self) -> String {
        let Self { name, kernel_arguments, .. } = self;
        format!("console=hvc0 quiet loglevel=1 {KERNEL} lab.name={name} {kernel_arguments}")
    }

    /// The `xl.cfg`.
    pub(super) fn text(&self) -> String {
        let vifs: Vec<String> = self.vifs.iter().map(|vif| format!("'{vif}'")).collect();
        let Self { name, memory_mib, vcpus, .. } = self;
        // iPXE would read an archive or a command line as a script.
        let linux = match self.guest_type {
            GuestType::Ipxe => String::new(),
            GuestType::Pv | GuestType::Pvh | GuestType::Hvm => {
                format!("ramdisk=\"/lab/guests/domu.cpio\"\nextra=\"{}\"\n", self.command_line())
            }
        };
        format!(
            "name=\"{name}\"\n{}\n{linux}memory={memory_mib}\nvcpus={vcpus}\nvif=[{}]\n\
             on_crash=\"destroy\"\non_reboot=\"{}\"\n{}\n",
            self.guest_type.lines(),
            vifs.join(", "),
            if self.restarts { "restart" } else { "destroy" },
            self.more.join("\n"),
        )
    }
}

/// The connections for guests' agents. Each serves one guest at a time.
#[derive(Debug)]
pub(super) struct GuestPorts {
    free: Mutex<Vec<(usize, Arc<Channel>)>>,
}

impl GuestPorts {
    pub(super) fn new(channels: Vec<Arc<Channel>>) -> Self {
        let mut free: Vec<_> = (FIRST_GUEST_PORT..).zip(channels).collect();
        // Ports are taken from the end of the list: the first port first.
        free.reverse();
        Self { free: Mutex::new(free) }
    }

    fn take(ports: &Arc<Self>) -> Result<GuestPort> {
        let taken = ports.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (number, channel) = taken.ok_or(Error::TooManyDomains(GUEST_PORTS))?;
        Ok(GuestPort { number, channel, ports: Arc::clone(ports) })
    }
}

/// One of the [`GuestPorts`], returned when dropped.
#[derive(Debug)]
struct GuestPort {
    number: usize,
    channel: Arc<Channel>,
    ports: Arc<GuestPorts>,
}

impl Drop for GuestPort {
    fn drop(&mut self) {
        let mut free = self.ports.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push((self.number, Arc::clone(&self.channel)));
    }
}

/// A guest. It runs on when this value is dropped, until its host ends or [`destroy`](Self::destroy) is called.
#[derive(Debug)]
pub struct Domu {
    name: String,
    id: u32,
    shell: Shell,
    dom0: Shell,
    link: Job,
    port: GuestPort,
}

impl Deref for Domu {
    type Target = Shell;

    fn deref(&self) -> &Shell {
        &self.shell
    }
}

impl Domu {
    pub(super) fn create(
        dom0: &Shell,
        ports: &Arc<GuestPorts>,
        config: &DomuConfig,
        limit: Duration,
    ) -> Result<Self> {
        let (name, text) = (&config.name, config.text());
        let script = format!(
            "cat >{name}.cfg <<'END'\n{text}END\nxl create -q {name}.cfg && xl domid {name}"
        );
        Self::start(dom0, ports, name, &script, limit)
    }

    /// Starts a guest by a script, whose last line of output is the domain id.
    pub(super) fn start(
        dom0: &Shell,
        ports: &Arc<GuestPorts>,
        name: &str,
        script: &str,
        limit: Duration,
    ) -> Result<Self> {
        let port = GuestPorts::take(ports)?;
        let before = port.channel.boots();
        let id = number(&dom0.run(script, TOOLSTACK)?)?;
        let link = link(dom0, id, &port)?;
        let shell = Shell::new(name, Arc::clone(&port.channel), None);
        let domu = Self { name: name.to_owned(), id, shell, dom0: dom0.clone(), link, port };
        domu.wait_up(before, limit)?;
        Ok(domu)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its domain id, which changes when it is started again.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its shell.
    #[must_use]
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Destroys it without a shutdown.
    pub fn destroy(self) -> Result<()> {
        self.dom0.run(&format!("xl destroy {}", self.id), TOOLSTACK).map(drop)
    }

    /// Shuts it down, and waits until it is gone.
    pub fn shutdown(self) -> Result<()> {
        self.dom0.run(&format!("xl shutdown -w {}", self.id), TOOLSTACK).map(drop)
    }

    /// Reboots it, which gives it a new domain id, and waits until it takes commands again, for `limit` at
    /// most. Its configuration must say that it [restarts](DomuConfig::restarts).
    pub fn reboot(&mut self, limit: Duration) -> Result<()> {
        let (name, old) = (&self.name, self.id);
        let before = self.port.channel.boots();
        // Wait by a watch first: polling for the id would take the processor from the toolstack. A watch reports once
        // when it is set, hence two events.
        let script = format!(
            "xenstore-watch -n 2 @introduceDomain >/dev/null & xl reboot {name} && wait $!"
        );
        self.dom0.run(&script, limit)?;
        let other = format!("id=$(xl domid {name}) && [ \"$id\" -ne {old} ] && echo \"$id\"");
        self.id = number(&self.dom0.until(&format!("the restart of {name}"), &other, limit)?)?;
        self.relink()?;
        self.wait_up(before, limit)
    }

    /// Saves it into a file of dom0, which ends the domain, and restores it from there with a new domain id.
    pub fn save_and_restore(&mut self) -> Result<()> {
        let name = &self.name;
        let script = format!(
            "xl save {name} /run/{name}.saved >/dev/null && xl restore /run/{name}.saved >/dev/null\n\
             status=$?; rm -f /run/{name}.saved; [ $status = 0 ] && xl domid {name}"
        );
        self.id = number(&self.dom0.run(&script, TOOLSTACK)?)?;
        self.relink()
    }

    /// Connects the guest's new console.
    fn relink(&mut self) -> Result<()> {
        // The old link ends with the old console, but perhaps only later.
        self.link.stop()?;
        self.link = link(&self.dom0, self.id, &self.port)?;
        Ok(())
    }

    fn wait_up(&self, before: u64, limit: Duration) -> Result<()> {
        let cause = match self.port.channel.wait_up(before, limit)? {
            Ok(_) => return Ok(()),
            Err(WaitError::TimedOut) => format!("nothing after {} s", limit.as_secs()),
            Err(WaitError::Closed) => "its host is gone".to_owned(),
        };
        let what = format!("the guest {}", self.name);
        Err(Error::Boot { what, cause, console: self.shell.console() })
    }
}

impl Drop for Domu {
    fn drop(&mut self) {
        // Another guest uses the port next. If dom0 is gone, so is the link.
        let _ = self.link.stop();
    }
}

fn link(dom0: &Shell, id: u32, port: &GuestPort) -> Result<Job> {
    dom0.spawn(&format!("sh /lab/link {id} {}", port.number))
}

/// The domain id on the last line of the toolstack's output.
fn number(text: &str) -> Result<u32> {
    let last = text.lines().last().unwrap_or_default();
    last.trim().parse().map_err(|_| Error::parse("the toolstack", "no domain id", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_configuration_is_what_xl_reads() {
        let config =
            DomuConfig::new("u1").vif("mac=00:16:3e:00:00:01,bridge=xenbr0").vif("backend=drv");
        let text = DomuConfig { restarts: true, vcpus: 2, ..config }.line("driver_domain=1").text();
        for line in [
            "name=\"u1\"",
            "type=\"pv\"",
            "vcpus=2",
            "vif=['mac=00:16:3e:00:00:01,bridge=xenbr0', 'backend=drv']",
            "on_reboot=\"restart\"",
            "driver_domain=1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }

    #[test]
    fn an_emulator_reads_the_kernel_as_a_boot_loader_does() {
        for (guest_type, kernel) in [
            (GuestType::Pv, "kernel=\"/lab/guests/vmlinux\""),
            (GuestType::Pvh, "kernel=\"/lab/guests/vmlinux\""),
            (GuestType::Hvm, "kernel=\"/lab/guests/vmlinuz\""),
            (GuestType::Ipxe, "kernel=\"/boot/ipxe.lkrn\""),
        ] {
            let text = DomuConfig { guest_type, ..DomuConfig::new("u1") }.text();
            assert!(text.lines().any(|line| line == kernel), "{text}");
            let has = |key| text.lines().any(|line| line.starts_with(key));
            let linux = guest_type != GuestType::Ipxe;
            assert_eq!([has("ramdisk="), has("extra=")], [linux; 2], "{text}");
        }
    }

    #[test]
    fn a_port_belongs_to_one_guest_at_a_time() {
        let channel = || {
            let (ours, _theirs) = UnixStream::pair().expect("pair");
            Arc::new(Channel::new(ours).expect("channel"))
        };
        let ports = Arc::new(GuestPorts::new(vec![channel(), channel()]));
        let first = GuestPorts::take(&ports).expect("free");
        let second = GuestPorts::take(&ports).expect("free");
        assert_eq!((first.number, second.number), (FIRST_GUEST_PORT, FIRST_GUEST_PORT + 1));
        assert!(matches!(GuestPorts::take(&ports), Err(Error::TooManyDomains(_))));
        drop(first);
        assert_eq!(GuestPorts::take(&ports).expect("given back").number, FIRST_GUEST_PORT);
    }

    #[test]
    fn the_domain_id_is_on_the_last_line() {
        assert_eq!(number("warning\n12\n").expect("number"), 12);
        assert!(number("").is_err() && number("12 or so").is_err());
    }
}
