//! Sockets at which front-ends and back-ends come, with the owner that an operator wants.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, OFlags};
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
        // Members of the named group may connect, other members of the daemon's group may not.
        set_mode(path, permissions.unwrap_or(if group.is_some() { 0o660 } else { 0o600 }))
    })
}

/// Sets the permissions of a socket's file, and of nothing else: see [`file_of`].
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let file = file_of(path)?;
    // A descriptor of this kind has permissions by this name only.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(name, Permissions::from_mode(mode))
}

/// A socket's file. Whoever may write to its folder can put something else in its place, a link to a file of the daemon's perhaps, which
/// then would be given away.
fn file_of(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::Socket => Ok(file),
        _ => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "another file took the socket's place",
        )),
    }
}

/// Gives a socket's file to the group that this key names.
pub(super) fn give_to_group(path: &Path, group: u32, key: &str) -> io::Result<()> {
    let file = file_of(path)?;
    let wanted = Some(Gid::from_raw(group));
    rustix::fs::chownat(&file, "", None, wanted, AtFlags::EMPTY_PATH).map_err(|error| {
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
    use std::os::unix::net::UnixListener;

    use host::TempDir;

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

    /// Whoever may write to the folder of a socket can do that before its permissions are set.
    #[test]
    fn what_has_taken_the_place_of_a_socket_stays_as_it_was() {
        let folder = TempDir::new().unwrap();
        let [path, own, other] =
            ["vm.sock", "own", "control.sock"].map(|name| folder.path().join(name));
        std::fs::write(&own, "").unwrap();
        let _listener = UnixListener::bind(&other).unwrap();
        let group = rustix::process::getgid().as_raw();
        for target in [&own, &other] {
            std::fs::set_permissions(target, Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::symlink(target, &path).unwrap();
            assert!(set_mode(&path, 0o666).is_err() && give_to_group(&path, group, "").is_err());
            assert_eq!(std::fs::metadata(target).unwrap().mode() & 0o777, 0o600);
            std::fs::remove_file(&path).unwrap();
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
