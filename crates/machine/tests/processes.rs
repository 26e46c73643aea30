//! A guest that is a process of its own, as guests are: this file runs itself again as one.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{DomId, GrantRef, GrantTransfer, Guest, Hypervisor, PAGE_SIZE, TransferStatus};
use machine::{DRIVER_DOMAIN, ExchangeCount, Listener, Machine, MemorySize, Toolstack, join};
use shm::{PageSize, Region};

const AREA: usize = 64;
const SIZE: MemorySize =
    MemorySize { pages: 16, grant_pages: 1, exchange_pages: AREA, page_size: PageSize::Small };
/// Tells a process that it is the guest, and where to join.
const SOCKET: &str = "PVNET_TEST_SOCKET";

struct AdmitAll;

impl Toolstack for AdmitAll {
    fn admit(&self, _: &str) -> Result<MemorySize, String> {
        Ok(SIZE)
    }

    fn created(&self, _: DomId, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn destroyed(&self, _: DomId, _: &str) {}
}

/// A machine whose guests are processes that run the test called `test` again.
struct Host {
    machine: Machine,
    listener: Arc<Listener>,
    path: PathBuf,
}

impl Host {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pvnet-{test}-{}", std::process::id()));
        let (machine, listener) = (Machine::new(), Arc::new(Listener::bind(&path).unwrap()));
        let (ours, theirs) = (listener.clone(), machine.clone());
        std::thread::spawn(move || ours.serve(&theirs, &Arc::new(AdmitAll)));
        Self { machine, listener, path }
    }

    fn guest(&self, test: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take();
        Process { child, says, hears }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.listener.stop();
    }
}

/// The guest's process, and a line each way: numbers, so that the harness's own are told apart.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: Option<ChildStdin>,
}

impl Process {
    fn hear(&mut self) -> Vec<u32> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "the guest has ended");
            // The harness writes the test's name in front of the first.
            if let Some((_, numbers)) = line.split_once('>') {
                return numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
            }
        }
    }

    fn tell(&mut self) {
        writeln!(self.hears.as_mut().unwrap(), "go on").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, by itself or by the test's hand.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the guest's process: says numbers and waits to be told to go on.
fn say(numbers: &[u32]) {
    let words: Vec<_> = numbers.iter().map(u32::to_string).collect();
    println!("> {}", words.join(" "));
    assert_ne!(std::io::stdin().read_line(&mut String::new()).unwrap(), 0, "the host has ended");
}

/// Pages of any domain's exchange area that this process has mapped.
fn mapped() -> u32 {
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let areas = maps
        .lines()
        .filter(|line| line.contains("/memfd:pvnet-domain-"))
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| number(fields[2]) >= SIZE.pages * PAGE_SIZE)
        .map(|fields| fields[0].split_once('-').unwrap());
    let bytes: usize = areas.map(|(start, end)| number(end) - number(start)).sum();
    u32::try_from(bytes / PAGE_SIZE).unwrap()
}

fn filled_with(page: &Region, mark: u32) -> bool {
    (0..PAGE_SIZE).step_by(4).all(|at| page.read(at) == Ok(mark))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The guest: takes as many pages as there are, twice, and then waits to be killed.
fn guest(socket: &Path) {
    let (guest, _store) = join(socket, "guest").unwrap();
    for round in 1..=2 {
        let (mut slots, grefs): (Vec<_>, Vec<_>) =
            (0..AREA).map(|_| guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
        say(&grefs.iter().map(|gref| gref.0).collect::<Vec<_>>());
        assert_eq!(mapped(), 0, "transferred, but not claimed");
        let pages: Vec<_> =
            slots.iter_mut().map(|slot| guest.claim(slot).unwrap().expect("a page")).collect();
        let whole = (0..).zip(&pages).filter(|(n, page)| filled_with(page, n * 1000 + round));
        let whole = u32::try_from(whole.count()).unwrap();
        let before = mapped();
        guest.surrender(pages).unwrap();
        say(&[whole, before, mapped()]);
    }
    // Dies with half of the pages in hand, and the others on offer.
    let (_slots, grefs): (Vec<_>, Vec<_>) =
        (0..AREA).map(|_| guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
    say(&grefs.iter().map(|gref| gref.0).collect::<Vec<_>>());
    say(&[]);
}

#[test]
fn pages_change_hands_between_processes_until_one_is_killed() {
    const TEST: &str = "pages_change_hands_between_processes_until_one_is_killed";
    if let Some(socket) = std::env::var_os(SOCKET) {
        return guest(Path::new(&socket));
    }
    let host = Host::new("pages");
    let machine = &host.machine;
    let mut process = host.guest(TEST);
    let all = u32::try_from(AREA).unwrap();
    let exchange = |spare, held, guest| ExchangeCount { spare, held, guest };
    for round in 1..=2 {
        let grefs = process.hear();
        let peer = machine.peer(machine.list()[0]).unwrap();
        let pages: Vec<_> = grefs.iter().map(|_| machine.take_page(&peer).unwrap()).collect();
        assert_eq!((mapped(), peer.exchange_count()), (all, exchange(0, AREA, 0)));
        assert!(pages.iter().all(|page| filled_with(page, 0)), "pages come zeroed");
        for (n, page) in (0..).zip(&pages) {
            let mark: u32 = n * 1000 + round;
            (0..PAGE_SIZE).step_by(4).for_each(|at| page.write(at, mark).unwrap());
        }
        let mut batch: Vec<_> = grefs
            .iter()
            .zip(pages)
            .map(|(gref, page)| GrantTransfer::new(&peer, GrantRef(*gref), page))
            .collect();
        machine.transfer(&mut batch);
        assert!(batch.iter().all(|op| op.status == TransferStatus::Okay && op.page.is_none()));
        assert_eq!((mapped(), peer.exchange_count()), (0, exchange(0, 0, AREA)));
        process.tell();
        assert_eq!(process.hear(), [all, all, 0], "whole pages, mapped before, mapped after");
        assert_eq!(peer.exchange_count(), exchange(AREA, 0, 0));
        process.tell();
    }

    let grefs = process.hear();
    let peer = machine.peer(machine.list()[0]).unwrap();
    for gref in &grefs[..AREA / 2] {
        let page = machine.take_page(&peer).unwrap();
        machine.transfer(&mut [GrantTransfer::new(&peer, GrantRef(*gref), page)]);
    }
    let held = machine.take_page(&peer).unwrap();
    process.tell();
    assert!(process.hear().is_empty());
    process.child.kill().unwrap();
    wait_until("the end of the guest", || machine.list().is_empty());
    held.write(0, 1u8).unwrap();
    let mut batch = [GrantTransfer::new(&peer, GrantRef(grefs[AREA - 1]), held)];
    machine.transfer(&mut batch);
    assert_eq!(batch[0].status, TransferStatus::BadGrant);
    drop(batch);
    assert_eq!(mapped(), 0);
    let memory = Arc::downgrade(&peer);
    drop(peer);
    wait_until("the end of its memory", || memory.upgrade().is_none());
}
