//! Receive Packet Steering: which CPU a namespace's stack runs on.

use crate::{Error, Namespace, Result};
use host::join;
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

/// Makes `cpu` process what `device` in `namespace` receives. Without this, a virtual device's
/// receive path runs on the sender's CPU and counts as the sender's time.
pub fn steer_receive(namespace: &Namespace, device: &str, cpu: usize) -> Result<()> {
    let what = format!("cannot set receive steering of {device}");
    let queues = format!("class/net/{device}/queues");
    let steer = move || write_masks(&queues, &mask(cpu)).map_err(Error::io(what));
    join(namespace.thread(steer)?)
}

/// Writes `mask` for every receive queue under `queues`, a folder of the calling thread's sysfs.
fn write_masks(queues: &str, mask: &str) -> io::Result<()> {
    let sysfs = sysfs()?;
    let folder = openat(&sysfs, queues, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::read_from(&folder)? {
        let queue = entry?.file_name().to_string_lossy().into_owned();
        if queue.starts_with("rx-") {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(&folder, format!("{queue}/rps_cpus"), flags, Mode::empty())?;
            File::from(file).write_all(mask.as_bytes())?;
        }
    }
    Ok(())
}

/// The sysfs of the calling thread's network namespace, not mounted anywhere: the one at `/sys` shows the devices of
/// the namespace it was mounted in.
fn sysfs() -> io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// A CPU as the kernel's bit masks are written: hexadecimal words of 32 bits, the highest first.
fn mask(cpu: usize) -> String {
    format!("{:x}{}", 1u32 << (cpu % 32), ",00000000".repeat(cpu / 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(
            [0, 1, 31, 32, 70].map(mask),
            ["1", "2", "80000000", "1,00000000", "40,00000000,00000000"]
        );
    }
}
