//! Whether what a plan opens can be opened, as far as that shows without opening it: for a dry run.

use std::io;
use std::path::Path;

use control_socket::{ChangeAction, ChangeStep, TableKind};
use rustix::fs::{Access, access};

use crate::config::{Config, SandboxLevel};
use crate::daemon::control::Control;
use crate::daemon::disk::Disk;
use crate::daemon::interfaces::InterfaceFile;
use crate::daemon::ports::{Needs, of_tables};
use crate::daemon::reach::Reach;
use crate::netns;
use crate::program::text;

impl Control {
    /// Marks the steps that would fail, and says why. What shows only by opening it is not found.
    pub(super) fn foresee(&self, config: &Config, steps: &mut [ChangeStep]) {
        for step in steps.iter_mut().filter(|step| step.action == ChangeAction::Add) {
            if let Err(reason) = self.can_open(config, step.table, &step.name) {
                (step.action, step.reason) = (ChangeAction::Fail, Some(reason));
            }
        }
    }

    fn can_open(&self, config: &Config, table: TableKind, name: &str) -> Result<(), String> {
        let mirror =
            config.mirrors.iter().find(|mirror| table == TableKind::Mirror && mirror.name == name);
        if mirror.is_some_and(|mirror| mirror.to.is_none()) {
            // In the folder of now, which a change leaves as it is.
            return on(&self.disk, &self.host.config.daemon.recordings, &self.host.reach);
        }
        let ports = of_tables(config, table, Some(name)).map_err(text)?;
        let mut new = ports.into_iter().filter(|port| !self.has_place_of(port));
        new.try_for_each(|port| self.has_what_it_needs(&port.source.needs()))
    }

    fn has_what_it_needs(&self, needs: &Needs) -> Result<(), String> {
        if let Some(folder) = &needs.folder {
            return on(&self.sockets_disk, folder, &self.host.reach)
                .map_err(|error| self.with_socket_hint(&error));
        }
        // A socket that others make may come later.
        if needs.connects {
            return self.may_connect();
        }
        if needs.device && self.host.config.daemon.sandbox == SandboxLevel::Full {
            return Err(self.with_hint(&"its device cannot be opened"));
        }
        if !needs.device {
            return Ok(());
        }
        let Needs { namespace, interface, .. } = needs;
        let read = || InterfaceFile::open().and_then(|file| file.read()).map_err(text);
        let interfaces = netns::inside(namespace.as_deref(), read)?;
        match interface.as_ref().filter(|name| !interfaces.has(name)) {
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
