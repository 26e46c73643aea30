//! Which worker has which queue, and which CPU.

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use cpus::CpuList;
use datapath::{Config, Datapath};
use port::{
    Armed, Broken, Budget, Doorbell, Event, Ingress, IngressWrapper, Queue, Received, Task,
};
use port_testing::Sender;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{Switch, plain};

/// A control ring on which nothing happens.
struct Idle(Arc<Doorbell>);

impl Task for Idle {
    fn event(&self) -> Arc<dyn Event> {
        self.0.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        Ok(false)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Asleep)
    }
}

/// Notes which thread serves a queue.
struct Where {
    inner: Box<dyn Ingress>,
    thread: Arc<Mutex<Option<ThreadId>>>,
}

impl IngressWrapper for Where {
    port::wraps!(inner: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        *self.thread.lock().unwrap() = Some(std::thread::current().id());
        self.inner.receive(budget, received)
    }
}

/// Attaches a port with so many queues and a control ring. Returns the threads that serve its queues.
fn attach(switch: &Switch, queues: usize) -> Vec<ThreadId> {
    let threads: Vec<_> = (0..queues).map(|_| Arc::new(Mutex::new(None))).collect();
    let queue = |thread: &Arc<Mutex<Option<ThreadId>>>| {
        let ingress = Where { inner: Sender::new().1, thread: thread.clone() };
        Queue { ingress: Box::new(ingress), egress: Receiver::new().1 }
    };
    let task: Box<dyn Task> = Box::new(Idle(Arc::new(Doorbell::new().unwrap())));
    switch.datapath.attach("guest", threads.iter().map(queue).collect(), vec![task]);
    wait_until("the queues' first turns", || threads.iter().all(|t| t.lock().unwrap().is_some()));
    threads.iter().map(|thread| thread.lock().unwrap().unwrap()).collect()
}

/// How many queues the thread that has the most of them has.
fn most(threads: &[ThreadId]) -> usize {
    let count = |thread: &ThreadId| threads.iter().filter(|other| *other == thread).count();
    threads.iter().map(count).max().unwrap_or(0)
}

#[test]
fn guests_with_one_queue_and_a_control_ring_do_not_share_one_worker() {
    for (workers, guests, fair) in [(2, 2, 1), (2, 4, 2), (4, 4, 1), (3, 7, 3)] {
        let switch = Switch::new(workers);
        let threads: Vec<_> = (0..guests).flat_map(|_| attach(&switch, 1)).collect();
        assert_eq!(most(&threads), fair, "{workers} workers, {guests} guests");
    }
}

#[test]
fn a_guest_with_several_queues_has_them_on_different_workers() {
    let switch = Switch::new(2);
    for _ in 0..3 {
        assert_eq!(most(&attach(&switch, 2)), 1);
    }
}

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
