//! The CPUs of threads, and the nodes of CPUs.

use std::fs;
use std::io;
use std::path::Path;

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
    node_in(Path::new("/sys"), cpu)
}

/// The NUMA node of a NIC of this network namespace; none if the kernel does not say, as for devices that are software.
#[must_use]
pub fn node_of_nic(name: &str) -> Option<usize> {
    nic_node_in(Path::new("/sys"), name)
}

/// [`node_of_nic`], by what lies in `sys`.
fn nic_node_in(sys: &Path, name: &str) -> Option<usize> {
    // Where the firmware names no node the kernel says -1.
    let file = sys.join("class/net").join(name).join("device/numa_node");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// [`node_of`], by what lies in `sys`.
fn node_in(sys: &Path, cpu: usize) -> Option<usize> {
    let nodes = fs::read_dir(sys.join("devices/system/node")).ok()?.flatten();
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
    fn nodes_are_what_the_kernel_says() {
        let sys = std::env::temp_dir().join(format!("cpus-nodes-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = sys.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("devices/system/node/node0/cpulist", "0-3,8\n");
        write("devices/system/node/node1/cpulist", "4-7\n");
        write("devices/system/node/online", "0-1\n");
        write("class/net/near/device/numa_node", "1\n");
        write("class/net/nowhere/device/numa_node", "-1\n");
        let node = |cpu| node_in(&sys, cpu);
        assert_eq!([node(0), node(8), node(5), node(9)], [Some(0), Some(0), Some(1), None]);
        let nic = |name| nic_node_in(&sys, name);
        assert_eq!([nic("near"), nic("nowhere"), nic("absent")], [Some(1), None, None]);
        fs::remove_dir_all(&sys).unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        let missing = CpuList::from_iter([CpuSet::MAX_CPU - 1]);
        assert!(std::thread::spawn(move || bind(&missing)).join().unwrap().is_err());
    }
}
