//! Whether what a plan opens can be opened, as far as that shows without opening it: for a dry run.

use std::io;
use std::path::Path;

use control_socket::{ChangeAction, ChangeStep};
use rustix::fs::{Access, access};
use vhost_user::Mode;

use crate::config::{Config, Sandbox, Uplink, UplinkKind};
use crate::daemon::control::Control;
use crate::daemon::interfaces::InterfaceFile;
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
                port.filter(|port| !self.holds_socket_of(port)).map(|port| {
                    socket(&port.socket, port.mode()).map_err(|error| self.with_socket_hint(&error))
                })
            }
            "mirror" => {
                let mirror = config.mirrors.iter().find(|mirror| mirror.name == name);
                mirror.filter(|mirror| mirror.to.is_none()).map(|_| self.recordings())
            }
            _ => None,
        }
        .unwrap_or(Ok(()))
    }

    /// Whether files can be made in the folder of recordings: that of now, which a change leaves as it is.
    fn recordings(&self) -> Result<(), String> {
        let path = self.config.daemon.recordings.clone();
        let shown = path.display().to_string();
        self.disk.ask(move || writable(&path)).map_err(|error| format!("{shown}: {error}"))
    }

    fn uplink(&self, uplink: &Uplink) -> Result<(), String> {
        let Uplink { kind, nic, namespace, bridge, device, .. } = uplink;
        let needed = match kind {
            UplinkKind::VirtioUser => {
                let checked = socket(&uplink.socket, uplink.socket_mode());
                return checked.map_err(|error| self.with_socket_hint(&error));
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

/// Whether a socket can be made. One that others make may come later.
fn socket(path: &Path, mode: Mode) -> Result<(), String> {
    match (mode, path.parent()) {
        (Mode::Server, Some(parent)) => {
            writable(parent).map_err(|error| format!("{}: {error}", parent.display()))
        }
        _ => Ok(()),
    }
}

/// Whether files can be made in a folder.
fn writable(folder: &Path) -> io::Result<()> {
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_needs_a_folder_unless_others_make_it() {
        let folder = lab::TempDir::new().unwrap();
        let [there, missing] = ["vm.sock", "missing/vm.sock"].map(|name| folder.path().join(name));
        assert_eq!(socket(&there, Mode::Server), Ok(()));
        let error = socket(&missing, Mode::Server).unwrap_err();
        assert!(error.contains("missing: No such file"), "{error}");
        assert_eq!(socket(&missing, Mode::Client), Ok(()));
    }
}
