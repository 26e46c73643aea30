//! The CPUs that programs run on, and, by Receive Packet Steering, the one that a namespace's network stack runs on.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use cpus::{CpuList, bind, bound};
use host::join;
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::{Error, Namespace, Result};

/// The CPUs that the calling thread may use, in ascending order.
pub fn cpus() -> Result<Vec<usize>> {
    Ok(bound().map_err(Error::io("cannot read the CPU affinity"))?.iter().collect())
}

/// Whether two CPUs are threads of one core, and so slow each other down.
#[must_use]
pub fn share_a_core(one: usize, other: usize) -> bool {
    let file = format!("/sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list");
    // If the kernel does not say, assume two cores.
    let siblings = fs::read_to_string(file).ok().and_then(|list| list.trim().parse().ok());
    siblings.is_some_and(|siblings: CpuList| siblings.contains(other))
}

/// Runs `work` with the calling thread bound to `cpu`, if one is given. Programs and threads that `work` starts stay
/// there; the calling thread's affinity is restored afterwards.
pub fn on_cpu<T, E: From<Error>>(
    cpu: Option<usize>,
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let Some(cpu) = cpu else { return work() };
    let refused = || Error::io(format!("cannot bind to CPU {cpu}"));
    let before = bound().map_err(refused())?;
    bind(&CpuList::from_iter([cpu])).map_err(refused())?;
    let result = work();
    bind(&before).map_err(refused())?;
    result
}

/// Has `cpu` process the frames that `device` in `namespace` receives. Without this, a virtual device's receive path
/// runs on the sender's CPU and counts as the sender's time.
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

/// The sysfs of the calling thread's network namespace, not mounted anywhere. `/sys` would show the devices of the
/// namespace in which it was mounted.
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
    fn what_is_started_on_a_cpu_stays_there() {
        let all = cpus().expect("affinity");
        let last = all[all.len() - 1];
        let inside = || Ok::<_, Error>(std::thread::spawn(cpus).join().expect("no panic"));
        assert_eq!(on_cpu(Some(last), inside).expect("allowed").expect("affinity"), [last]);
        assert_eq!(on_cpu(None, cpus).expect("affinity"), all);
        assert_eq!(cpus().expect("affinity"), all);
        // The affinity is restored after a failure, too.
        let failed = on_cpu(Some(last), || Err::<(), _>(Error::Interrupted));
        assert!(matches!(failed, Err(Error::Interrupted)));
        assert_eq!(cpus().expect("affinity"), all);
    }

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(
            [0, 1, 31, 32, 70].map(mask),
            ["1", "2", "80000000", "1,00000000", "40,00000000,00000000"]
        );
    }
}
