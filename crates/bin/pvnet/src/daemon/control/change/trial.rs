//! Whether what a plan opens can be opened, as far as that shows without opening it: for a dry run.

use std::io;
use std::path::Path;

use control_socket::{ChangeAction, ChangeStep};
use rustix::fs::{Access, access};
use vhost_user::Mode;

use crate::config::{Config, Sandbox, Uplink, UplinkKind};
use crate::daemon::control::Control;
use crate::daemon::disk::Disk;
use crate::daemon::interfaces::InterfaceFile;
use crate::daemon::sandbox::Reach;
use crate::error::text;
use crate::netns;

impl Control {
    /// Marks the steps that would fail, and says why. What shows only by opening it is not found.
    pub(super) fn foresee(&self, config: &Config, steps: &mut [ChangeStep]) {
        for step in steps.iter_mut().filter(|step| step.action == ChangeAction::Add) {
            if let Err(reason) = self.can_open(config, &step.table, &step.name) {
                (step.action, step.reason) = (ChangeAction::Fail, Some(reason));
            }
        }
    }

    fn can_open(&self, config: &Config, table: &str, name: &str) -> Result<(), String> {
        match table {
            "uplink" => {
                let uplink = config.uplinks.iter().find(|uplink| uplink.name == name);
                uplink
                    .filter(|uplink| !self.holds_device_of(uplink))
                    .map(|uplink| self.uplink(uplink))
            }
            "port" => {
                let port = config.ports.iter().find(|port| port.name == name);
                port.filter(|port| !self.holds_socket_of(port))
                    .map(|port| self.socket(&port.socket, port.mode()))
            }
            "mirror" => {
                let mirror = config.mirrors.iter().find(|mirror| mirror.name == name);
                mirror.filter(|mirror| mirror.to.is_none()).map(|_| self.recordings())
            }
            _ => None,
        }
        .unwrap_or(Ok(()))
    }

    /// Whether a socket can be made. One that others make may come later.
    fn socket(&self, path: &Path, mode: Mode) -> Result<(), String> {
        match (mode, path.parent()) {
            (Mode::Server, Some(folder)) => on(&self.sockets_disk, folder, &self.reach)
                .map_err(|error| self.with_socket_hint(&error)),
            _ => self.may_use(mode),
        }
    }

    /// Whether files can be made in the folder of recordings: that of now, which a change leaves as it is.
    fn recordings(&self) -> Result<(), String> {
        on(&self.disk, &self.config.daemon.recordings, &self.reach)
    }

    fn uplink(&self, uplink: &Uplink) -> Result<(), String> {
        let Uplink { kind, nic, namespace, bridge, device, .. } = uplink;
        let needed = match kind {
            UplinkKind::VirtioUser => {
                return self.socket(&uplink.socket, uplink.socket_side());
            }
            // Of a card that may come later.
            _ if nic.is_some() => return Ok(()),
            _ if self.config.daemon.sandbox == Sandbox::Full => {
                return Err(self.with_hint(&"its device cannot be opened"));
            }
            UplinkKind::Tap | UplinkKind::Cdna => bridge.as_deref(),
            UplinkKind::Macvtap | UplinkKind::AfPacket | UplinkKind::AfXdp => Some(&**device),
        };
        let read = || InterfaceFile::open().and_then(|file| file.read()).map_err(text);
        let interfaces = netns::inside(namespace.as_deref(), read)?;
        match needed.filter(|name| !interfaces.has(name)) {
            Some(name) => {
                let place = namespace.as_ref().map(|name| format!(" in namespace {name}"));
                Err(format!("there is no interface {name}{}", place.unwrap_or_default()))
            }
            None => Ok(()),
        }
    }
}

/// As [`writable`], for the control thread, which must not wait for a disk.
fn on(disk: &Disk, folder: &Path, reach: &Reach) -> Result<(), String> {
    let (asked, reach) = (folder.to_owned(), reach.clone());
    let answer = disk.ask(move || writable(&asked, &reach));
    answer.map_err(|error| format!("{}: {error}", folder.display()))
}

/// Whether files and sockets can be made in a folder. What the sandbox refuses does not show in its permissions.
fn writable(folder: &Path, reach: &Reach) -> io::Result<()> {
    access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    if reach.has(folder) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_need_a_folder_in_reach() {
        let folder = host::TempDir::new().unwrap();
        assert!(writable(folder.path(), &Reach::everywhere()).is_ok());
        let error = writable(&folder.path().join("missing"), &Reach::everywhere()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = writable(folder.path(), &Reach::within(&[])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
