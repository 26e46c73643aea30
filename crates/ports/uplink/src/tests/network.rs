//! A network namespace, and a guest in it that is played by the test. These tests need root, and are skipped with a message
//! without it.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hypervisor::PAGE_SIZE;
use offload::Features;
use port::{Budget, Ingress, Lender, LentBuffer, LentMemory, Outcome, Received, WINDOW, Wanted};
use port_testing::whole;
use shm::Region;
use wire::ethernet::MacAddr;

use crate::sys;

pub(super) const LIMIT: Duration = Duration::from_secs(20);
pub(super) const PAGES: usize = 64;

/// Runs `test` on a thread in a fresh network namespace, if it can have one.
pub(super) fn in_own_network(test: impl FnOnce() + Send) {
    let run = || match sys::unshare_network() {
        Ok(()) => test(),
        Err(errno) => {
            let none = format!("no network namespace ({errno}): run this test as root");
            assert!(lab::needed::<(), _>(Err(none)).is_none());
        }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

pub(super) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// A veth pair of `pv0` and `nic0` with `queues` receive queues each.
pub(super) fn veth(queues: u32, mtu: u32) {
    let count = format!("numrxqueues {queues} numtxqueues {queues} mtu {mtu}");
    ip(&format!("link add pv0 {count} type veth peer name nic0 {count}"));
    // The checksums of frames on a wire are finished, and their tags are part of them.
    let arguments = ["-K", "pv0", "tx", "off", "txvlan", "off"];
    let ethtool = Command::new("ethtool").args(arguments).output();
    assert!(ethtool.unwrap().status.success());
    ip("link set nic0 addrgenmode none");
}

pub(super) fn mac(guest: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 9, guest])
}

/// Sets `pv0` up, with a neighbour 10.9.0.N that has each guest's address.
pub(super) fn set_up(guests: u8) {
    ip("link set pv0 addrgenmode none");
    ip("address add 10.9.0.254/24 dev pv0");
    ip("link set pv0 up");
    for guest in 1..=guests {
        ip(&format!("neighbour add 10.9.0.{guest} lladdr {} dev pv0", mac(guest)));
    }
}

pub(super) fn send(guest: u8, payload: &[u8]) {
    let socket = UdpSocket::bind("10.9.0.254:0").unwrap();
    socket.send_to(payload, (format!("10.9.0.{guest}"), 9)).unwrap();
}

/// A guest's memory. All buffers can be lent once.
pub(super) struct Memory {
    region: Arc<Region>,
    pub(super) free: Mutex<Vec<u32>>,
    /// How often it was asked.
    pub(super) asked: AtomicUsize,
}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        let region = Arc::new(Region::anonymous(PAGES * PAGE_SIZE).unwrap());
        let free = Mutex::new((0..PAGES as u32).collect());
        Arc::new(Self { region, free, asked: AtomicUsize::default() })
    }

    pub(super) fn lent(&self) -> LentMemory {
        let region = self.region.slice(0..self.region.len()).unwrap();
        LentMemory { lender: 7, region, features: Features::ALL }
    }

    /// Whether a byte is anywhere in it.
    pub(super) fn has(&self, byte: u8) -> bool {
        let mut bytes = vec![0; self.region.len()];
        self.region.copy_out(0, &mut bytes).unwrap();
        bytes.windows(8).any(|run| run.iter().all(|seen| *seen == byte))
    }
}

impl Lender for Memory {
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap();
        let left = free.len().saturating_sub(wanted.buffers);
        let tokens = free.drain(left..);
        lent.extend(tokens.map(|token| LentBuffer { token, offset: u64::from(token) * 4096 }));
    }

    fn take_back(&self, tokens: &[u32]) {
        self.free.lock().unwrap().extend(tokens);
    }
}

/// Takes frames until there is one. Returns the whole bytes of each, and whether it lies in lent buffers.
pub(super) fn take(ingress: &mut dyn Ingress) -> Vec<(Vec<u8>, bool)> {
    let start = Instant::now();
    loop {
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        let window = ingress.window();
        let frames = window.order().iter().map(|slot| window.frame(*slot));
        let taken: Vec<_> =
            frames.map(|frame| (whole(&*ingress, frame), frame.lent.is_any())).collect();
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        if !taken.is_empty() || start.elapsed() > LIMIT {
            return taken;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
