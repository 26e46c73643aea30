//! Workers that are bound to CPUs.

use cpus::CpuList;
use datapath::{Config, Datapath};

use crate::common::frame;
use crate::{Switch, plain};

/// The CPUs that a thread of this process may use.
pub(crate) fn cpus_of(thread: u32) -> CpuList {
    let file = format!("/proc/self/task/{thread}/status");
    let status = std::fs::read_to_string(file).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().parse().unwrap()
}

#[test]
fn each_worker_runs_on_its_cpu_and_others_where_they_did() {
    let all = cpus::bound().unwrap();
    // Descending, so that a worker's number is not its CPU's.
    let mut named: Vec<usize> = all.iter().collect();
    named.reverse();
    let config = Config { workers: named.len(), cpus: named.clone(), ..Config::default() };
    let switch = Switch::with(&config);
    let threads = switch.datapath.worker_threads();
    let found: Vec<_> = threads.into_iter().map(cpus_of).collect();
    let expected: Vec<CpuList> = named.iter().map(|cpu| CpuList::from_iter([*cpu])).collect();
    assert_eq!(found, expected);
    assert_eq!(cpus::bound().unwrap(), all);
    let loads = switch.datapath.loads();
    assert_eq!(loads.iter().map(|load| load.cpu.unwrap()).collect::<Vec<_>>(), named);
    // They carry.
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    red.sender.send(frame(blue.mac, red.mac, 100, 0));
    crate::common::wait_until("a frame", || blue.egress.count() == 1);
}

#[test]
fn a_worker_without_its_cpu_does_not_start() {
    let config = Config { cpus: vec![1022], ..Config::default() };
    assert!(Datapath::start(&config, Box::new(|failure| panic!("{failure:?}"))).is_err());
}
