//! A disk that hangs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk that hangs, over a folder: whoever asks it for anything waits until it is dropped, and gets an error then.
///
/// It is a file system of FUSE whose server never says a word. Make it in a mount namespace of the test's own.
#[derive(Debug)]
pub struct HungDisk {
    /// The server's descriptor. When it is closed, nobody waits any more.
    server: Option<File>,
    folder: PathBuf,
}

impl HungDisk {
    /// Mounts it over a folder.
    ///
    /// # Errors
    /// The kernel has no FUSE, or this user may not mount.
    pub fn over(folder: &Path) -> io::Result<Self> {
        Ok(Self { server: Some(mount_fuse(folder, "hung")?), folder: folder.to_owned() })
    }
}

/// Mounts a file system of FUSE over a folder. Returns its server's descriptor.
pub(crate) fn mount_fuse(folder: &Path, name: &str) -> io::Result<File> {
    let server = File::options().read(true).write(true).open("/dev/fuse")?;
    let mut mount = Command::new("mount");
    // The number is that of standard input.
    let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
    mount.args(["-i", "-t", "fuse", "-o", options, name]).arg(folder);
    let status = mount.stdin(server.try_clone()?).status()?;
    match status.success() {
        true => Ok(server),
        false => Err(io::Error::other(format!("mount: {status}"))),
    }
}

/// Takes a file system out of the tree. Whoever has a file of it keeps that.
pub(crate) fn unmount(folder: &Path) -> io::Result<()> {
    let status = Command::new("umount").arg("--lazy").arg(folder).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("umount: {status}"))),
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Err(error) = unmount(&self.folder) {
            eprintln!("clean-up: {}: {error}", self.folder.display());
        }
    }
}
