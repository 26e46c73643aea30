//! A process that is out of descriptors refuses connections, and says why. One test only, because
//! the limit is the process's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{DomId, Guest};
use machine::{
    Admitted, Applicant, ConnectError, Listener, Machine, MemorySize, Share, Toolstack, join,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

struct AdmitAll;

impl Toolstack for AdmitAll {
    type Guest = ();

    fn admit(&self, _: &Applicant) -> Result<Admitted<()>, String> {
        Ok(Admitted { size: MemorySize::default(), share: Share::default(), guest: () })
    }

    fn created(&self, _: DomId, _: &()) -> Result<(), String> {
        Ok(())
    }

    fn destroyed(&self, _: DomId, _: &()) {}
}

#[test]
fn guests_are_refused_without_descriptors_and_served_when_there_are_some() {
    let path = std::env::temp_dir().join(format!("pvnet-descriptors-{}", std::process::id()));
    let (machine, listener) = (Machine::new(), Arc::new(Listener::bind(&path, 0o600).unwrap()));
    let (ours, theirs) = (listener.clone(), machine.clone());
    let serving = std::thread::spawn(move || ours.serve(&theirs, &Arc::new(AdmitAll)));
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
    assert!(refusals > 0, "no guest was told why");
    listener.stop();
    serving.join().unwrap();
}
