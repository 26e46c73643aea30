//! A process that cannot start another thread refuses guests, says why, and goes on accepting. One
//! test only, because the limit is the process's.

mod harness;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use machine::{ConnectError, MemorySize, join};
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use harness::Host;

/// Bytes of address space that this process uses.
fn address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * page_size() as u64
}

/// Without room for its stack of 2 MiB, no thread starts. A limit on threads does not hold for
/// root.
fn join_without_threads_and_with_some() {
    let size = MemorySize { pages: 16, grant_pages: 1, ..MemorySize::default() };
    let host = Host::new("threads", size);
    let _first = join(&host.path, "first").unwrap();
    let before = getrlimit(Resource::As);
    let current = Some(address_space() + (1 << 20));
    setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
    let refused = [(); 3].map(|()| join(&host.path, "second").map(drop));
    setrlimit(Resource::As, before).unwrap();
    for refused in refused {
        let Err(ConnectError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("cannot start another thread"), "{why}");
    }
    join(&host.path, "third").unwrap();
}

#[test]
fn guests_are_refused_without_threads_and_served_when_there_are_some() {
    let (done, ended) = mpsc::channel::<()>();
    // A guest that nobody accepts waits without end.
    let joining = std::thread::spawn(move || {
        let _done = done;
        join_without_threads_and_with_some();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "nobody accepts guests any more");
    joining.join().unwrap();
}
