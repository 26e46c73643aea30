//! Which CPU a program runs on.

use crate::{Error, Result};
use cpus::{CpuList, bind, bound};
use std::fs;

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
}
