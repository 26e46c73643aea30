//! What sysfs says of an interface of the calling thread's network namespace. A new one is opened each time: the one at
//! `/sys` shows the interfaces of the namespace in which it was mounted. A daemon in its sandbox cannot open one, and looks at
//! `/sys` if the interface is there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType};

/// The numbers of a macvtap's character device.
pub(crate) fn macvtap(name: &str) -> Result<(u32, u32)> {
    let taps = folder(name, "macvtap")?;
    let file_name = entries(&taps, "tap")?.pop().ok_or(Errno::NODEV)?;
    let file = open(taps.as_fd(), &format!("{file_name}/dev"), OFlags::empty())?;
    let mut text = [0; 32];
    let len = rustix::io::read(&file, &mut text)?;
    parse(&text[..len]).ok_or(Errno::INVAL)
}

/// How many receive queues an interface has.
pub(crate) fn receive_queues(name: &str) -> Result<usize> {
    Ok(entries(&folder(name, "queues")?, "rx-")?.len())
}

/// How many transmit queues an interface has.
pub(crate) fn transmit_queues(name: &str) -> Result<usize> {
    Ok(entries(&folder(name, "queues")?, "tx-")?.len())
}

/// A folder of an interface.
fn folder(name: &str, folder: &str) -> Result<OwnedFd> {
    match anew(name, folder) {
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => mounted(name, folder),
        result => result,
    }
}

/// As [`folder`], at `/sys`, which may be another namespace's: an interface there with the same name and number is taken for the
/// same.
fn mounted(name: &str, folder: &str) -> Result<OwnedFd> {
    let interface = open(CWD, &format!("/sys/class/net/{name}"), OFlags::DIRECTORY)?;
    let file = open(interface.as_fd(), "ifindex", OFlags::empty())?;
    let mut text = [0; 16];
    let len = rustix::io::read(&file, &mut text)?;
    let number = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse().ok());
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    if number != Some(name_to_index(&socket, name)?) {
        return Err(Errno::NODEV);
    }
    open(interface.as_fd(), folder, OFlags::DIRECTORY)
}

/// As [`folder`], in a new sysfs.
fn anew(name: &str, folder: &str) -> Result<OwnedFd> {
    let filesystem = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(filesystem.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(filesystem.as_fd(), flags, MountAttrFlags::empty())?;
    open(root.as_fd(), &format!("class/net/{name}/{folder}"), OFlags::DIRECTORY)
}

fn entries(folder: &OwnedFd, prefix: &str) -> Result<Vec<String>> {
    let entries = Dir::read_from(folder)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with(prefix)).collect())
}

fn open(folder: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::openat(folder, path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())
}

/// `MAJOR:MINOR`
fn parse(text: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(text).ok()?.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_sysfs_says_it_too() {
        assert_eq!(entries(&mounted("lo", "queues").unwrap(), "rx-").unwrap(), ["rx-0"]);
        assert!(mounted("no-such-one", "queues").is_err());
    }

    #[test]
    fn device_numbers_are_two_numbers() {
        assert_eq!(parse(b"236:1\n"), Some((236, 1)));
        for text in [&b""[..], b"236", b"236:x", b":1", b"1:2:3", b"\xff:1"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
