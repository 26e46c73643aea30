//! The CPUs of threads, and the nodes of CPUs.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::CpuList;

/// The CPUs that the calling thread may run on, and that threads and programs which it starts inherit.
///
/// # Errors
/// The kernel has more CPUs than this program knows.
pub fn bound() -> io::Result<CpuList> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Has the calling thread run on these CPUs only, and the threads and programs that it starts.
///
/// # Errors
/// The process may use none of them.
pub fn bind(cpus: &CpuList) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// The NUMA node of a CPU; none if the kernel does not say.
#[must_use]
pub fn node_of(cpu: usize) -> Option<usize> {
    let nodes = fs::read_dir("/sys/devices/system/node").ok()?.flatten();
    let number = |name: &str| name.strip_prefix("node")?.parse::<usize>().ok();
    nodes.filter_map(|node| Some((number(node.file_name().to_str()?)?, node.path()))).find_map(
        |(number, path)| {
            let cpus = fs::read_to_string(path.join("cpulist")).ok()?;
            CpuList::of_kernel(&cpus).contains(cpu).then_some(number)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_what_it_starts_stay_where_they_are_bound() {
        let all = bound().unwrap();
        let last: CpuList = all.iter().last().into_iter().collect();
        let inside = std::thread::spawn({
            let last = last.clone();
            move || {
                bind(&last).unwrap();
                [bound().unwrap(), std::thread::spawn(|| bound().unwrap()).join().unwrap()]
            }
        });
        assert_eq!(inside.join().unwrap(), [last.clone(), last]);
        assert_eq!(bound().unwrap(), all, "another thread is not");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        let missing = CpuList::from_iter([CpuSet::MAX_CPU - 1]);
        assert!(std::thread::spawn(move || bind(&missing)).join().unwrap().is_err());
    }
}
