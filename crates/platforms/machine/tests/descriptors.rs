//! A process that is out of descriptors refuses connections, and says why. One test only, because
//! the limit is the process's.

mod harness;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::Guest;
use machine::{ConnectError, Listener, Machine, MemorySize, join};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use harness::AdmitAll;

#[test]
fn guests_are_refused_without_descriptors_and_served_when_there_are_some() {
    let path = std::env::temp_dir().join(format!("pvnet-descriptors-{}", std::process::id()));
    let (machine, listener) = (Machine::new(), Arc::new(Listener::bind(&path, 0o600).unwrap()));
    let (ours, theirs) = (listener.clone(), machine.clone());
    let toolstack = Arc::new(AdmitAll(MemorySize::default()));
    let serving = std::thread::spawn(move || ours.serve(&theirs, &toolstack));
    let (first, _store) = join(&path, "first").unwrap();

    let before = getrlimit(Resource::Nofile);
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let mut refusals = 0;
    // Both ends of a connection take a descriptor here, and a guest needs several more: wherever
    // the limit is hit, the guest is refused, and the next one is served when there is room again.
    for room in 1..12 {
        setrlimit(Resource::Nofile, Rlimit { current: Some(used + room), ..before }).unwrap();
        let refused = join(&path, "second");
        setrlimit(Resource::Nofile, before).unwrap();
        match refused {
            Err(ConnectError::Refused(why)) => {
                let reasons = ["descriptors", "os error 24", "without memory"];
                assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
                refusals += 1;
            }
            // The process has none for its own end either, or just enough.
            Err(_) => {}
            Ok(second) => drop(second),
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while machine.list() != [first.domid()] {
            assert!(Instant::now() < deadline, "{room}: {:?}", machine.list());
            std::thread::sleep(Duration::from_millis(1));
        }
        join(&path, "third").unwrap();
    }
    assert!(refusals > 0, "no guest got the reason");
    listener.stop();
    serving.join().unwrap();
}
