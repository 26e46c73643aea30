//! Which CPU a program runs on.

use crate::{Error, Result};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs;

/// The CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// [`Error::Io`] if the system does not say.
pub fn cpus() -> Result<Vec<usize>> {
    let allowed =
        sched_getaffinity(None::<Pid>).map_err(Error::io("cannot read the CPU affinity"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Whether two CPUs are threads of one core, and so slow each other down.
#[must_use]
pub fn share_a_core(one: usize, other: usize) -> bool {
    let file = format!("/sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list");
    // If the kernel does not say, assume two cores.
    fs::read_to_string(file).is_ok_and(|list| list_holds(&list, other))
}

/// Whether a list such as `0-1,4` holds a number.
fn list_holds(list: &str, number: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bounds = (first.parse::<usize>(), last.parse::<usize>());
        matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&number))
    })
}

/// Runs `work` with the calling thread bound to `cpu`, if one is given. Programs and threads that `work` starts stay
/// there; the calling thread's affinity is restored afterwards.
///
/// # Errors
/// [`Error::Io`] if the system refuses, and those of `work`.
pub fn on_cpu<T, E: From<Error>>(
    cpu: Option<usize>,
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let Some(cpu) = cpu else { return work() };
    let refused = || Error::io(format!("cannot bind to CPU {cpu}"));
    let before = sched_getaffinity(None::<Pid>).map_err(refused())?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None::<Pid>, &one).map_err(refused())?;
    let result = work();
    sched_setaffinity(None::<Pid>, &before).map_err(refused())?;
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

    #[test]
    fn a_list_of_cpus_has_ranges() {
        for (list, number, held) in [
            ("0\n", 0, true),
            ("0-1\n", 1, true),
            ("0,4\n", 4, true),
            ("0-2,6", 4, false),
            ("", 0, false),
        ] {
            assert_eq!(list_holds(list, number), held, "{list:?}");
        }
    }
}
