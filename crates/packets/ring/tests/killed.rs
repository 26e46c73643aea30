//! `kill -9`: backends are processes, each killed in the middle of its work. The frontend
//! sees one backend that makes no mistake.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ring::{BackRing, FrontRing, Index, LEDGER_LEN, Ledger, RegionPage, SharedPage, Slots};
use shm::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

struct Words;

impl Slots for Words {
    type Request = [u32; 3];
    type Response = u32;
}

/// The second word of every request, which no response has.
const REQUEST: u32 = 0xaaaa_0000;
/// A response is its request's number with these bits set.
const RESPONSE: u32 = 0x5000_0000;
/// The descriptors of the ring and the ledger in a backend process.
const DIRECTORY: &str = "RING_TEST_DIRECTORY";
const BACKENDS: u32 = 60;

/// A page with slow writes, as if another core had the cache lines: most kills hit the
/// backend in the middle of a publication.
struct Slow(RegionPage<Arc<Region>>);

impl SharedPage for Slow {
    fn load(&self, index: Index) -> u32 {
        self.0.load(index)
    }
    fn store(&self, index: Index, value: u32) {
        self.0.store(index, value);
    }
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T {
        self.0.read_slot(offset)
    }
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        (0..50).for_each(|_| std::hint::spin_loop());
        self.0.write_slot(offset, value);
    }
    fn full_barrier(&self) {
        self.0.full_barrier();
    }
}

fn open(directory: &Path, name: &str) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false);
    let file = file.open(directory.join(name)).unwrap();
    file.set_len(LEDGER_LEN as u64).unwrap();
    file
}

fn page(directory: &Path) -> RegionPage<Arc<Region>> {
    let region = Region::map(open(directory, "ring"), 0, 4096).unwrap();
    RegionPage::new(Arc::new(region)).unwrap()
}

/// The backend process: takes requests, answers most of them out of order, publishes,
/// and ends only on an error.
#[test]
#[ignore = "a_frontend_does_not_notice_that_its_backend_is_killed runs it"]
fn backend() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let ledger = Region::map(open(&directory, "ledger"), 0, LEDGER_LEN).unwrap();
    let ledger = Ledger::<Words>::new(ledger).unwrap();
    let mut ring = BackRing::resume(Slow(page(&directory)), ledger).unwrap();
    let mut held = Vec::new();
    loop {
        while held.len() < 100 {
            let index = ring.consumed();
            let Some(request) = ring.take().unwrap() else { break };
            assert_eq!(request, [index, REQUEST, !index], "a slot was misread");
            held.push(index);
        }
        if held.is_empty() {
            std::thread::yield_now();
        }
        // Half of them, and not the oldest first.
        held.reverse();
        let rest = held.split_off(held.len().div_ceil(2));
        for index in std::mem::replace(&mut held, rest) {
            ring.answer(index, index | RESPONSE);
        }
        let _ = ring.publish();
    }
}

fn spawn(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "backend", "--ignored"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_frontend_does_not_notice_that_its_backend_is_killed() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("killed");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let mut front = FrontRing::<Words, _>::init(page(&directory));
    let (mut sent, mut received) = (0, 0);
    for number in 1..=BACKENDS {
        let mut child = spawn(&directory);
        let enough = received + 1000;
        while received < enough {
            while let Some((index, response)) = front.take().unwrap() {
                assert_eq!((index, response), (received, received | RESPONSE));
                received += 1;
            }
            // The backend has a full ring of requests when it is killed.
            while front.free() > 0 {
                front.request([sent, REQUEST, !sent]);
                sent += 1;
            }
            let _ = front.publish();
            assert_eq!(child.try_wait().unwrap(), None, "backend {number} has ended");
        }
        // The kills come at varying points of its work.
        (0..number * 20).for_each(|_| std::hint::spin_loop());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
