//! Sockets at which front-ends and back-ends come, with the owner that an operator wants.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid};
use vhost_user::{Mode, Socket};

use crate::config::SocketFile;

/// Opens a socket. The file of one that the daemon makes has these permissions and this group before anybody can connect.
///
/// # Errors
/// The system's, with what to do about a group.
pub(super) fn open(mode: Mode, path: &Path, file: SocketFile) -> io::Result<Socket> {
    let SocketFile { mode: permissions, group } = file;
    Socket::open(mode, path, |path| {
        if let Some(group) = group {
            give_to_group(path, group, "socket_group")?;
        }
        // A group that is named is to connect; whoever else is in the daemon's is not.
        let mode = permissions.unwrap_or(if group.is_some() { 0o660 } else { 0o600 });
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    })
}

/// Gives a socket's file to the group that this key names.
pub(super) fn give_to_group(path: &Path, group: u32, key: &str) -> io::Result<()> {
    let wanted = Some(Gid::from_raw(group));
    rustix::fs::chownat(CWD, path, None, wanted, AtFlags::empty()).map_err(|error| {
        let reason = format!(
            "{key}: {error}: the daemon's user must be in the group {group} when the daemon starts \
             (SupplementaryGroups= in its unit)"
        );
        io::Error::new(io::Error::from(error).kind(), reason)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use lab::TempDir;

    use super::*;

    #[test]
    fn a_socket_has_the_permissions_and_the_group_that_are_wanted() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("vm.sock");
        let own = rustix::process::getgid().as_raw();
        for mode in [0o600, 0o660, 0o666] {
            let file = SocketFile { mode: Some(mode), group: Some(own) };
            let _socket = open(Mode::Server, &path, file).unwrap();
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!((metadata.mode() & 0o777, metadata.gid()), (mode, own));
        }
        for (group, mode) in [(None, 0o600), (Some(own), 0o660)] {
            let _socket = open(Mode::Server, &path, SocketFile { mode: None, group }).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode, "{group:?}");
        }
    }

    #[test]
    fn a_group_that_the_process_may_not_give_it_to_is_refused_with_a_word() {
        if rustix::process::geteuid().is_root() {
            return eprintln!("skipped: root may give a file to any group");
        }
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("vm.sock");
        let file = SocketFile { mode: None, group: Some(0) };
        let error = open(Mode::Server, &path, file).unwrap_err();
        assert!(error.to_string().contains("socket_group"), "{error}");
        assert!(!path.exists(), "a socket of the wrong group is left");
    }
}
