//! Guests join, call, misbehave and leave, over the real socket.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hypervisor::Error;
use hypervisor::flip::{GrantTransfer, PageReceiver, PageTransfer, TransferStatus};
use hypervisor::{CopyStatus, Dest, EventChannel, GrantCopy, Guest, Hypervisor, Source};
use hypervisor::{GrantRef, PAGE_SIZE};
use rustix::net::{SendFlags, Shutdown, bind, shutdown};
use shm::Region;
use xenstore::Store;

use super::*;
use crate::admission::Token;
use crate::domain::{DRIVER_DOMAIN, Domain};
use crate::guest::MachineGuest;
use crate::join::{ConnectError, join, join_with};
use crate::memory::MemorySize;
use crate::proto::receive;
use crate::share::Share;
use crate::toolstack::{create_domain, create_vif, device_path};

mod admission;

const MODE: u32 = 0o600;
const SIZE: MemorySize = MemorySize {
    pages: 16,
    grant_pages: 1,
    exchange_pages: 300,
    page_size: shm::PageSize::Small,
    sealed: false,
    secret: false,
};

/// Admits `guest-*`, gives `guest-huge` more memory than there are addresses, and makes no devices
/// for `guest-unlucky`. Records its calls, and what the applicants showed.
struct Recorder {
    machine: Machine,
    reported: Mutex<Vec<String>>,
    applicants: Mutex<Vec<Applicant>>,
}

impl Toolstack for Recorder {
    type Guest = String;

    fn admit(&self, applicant: &Applicant) -> Result<Admitted<String>, String> {
        let Applicant { name, token, process, user } = applicant;
        let (name, token) = (name.clone(), token.clone());
        if !name.starts_with("guest-") {
            return Err(format!("{name}: who is that?"));
        }
        let applicant = Applicant { name: name.clone(), token, process: *process, user: *user };
        self.applicants.lock().unwrap().push(applicant);
        let pages = if name == "guest-huge" { 1 << 38 } else { SIZE.pages };
        let sealed = name == "guest-sealed";
        let secret = name == "guest-secret";
        let has_exchange = !sealed && !secret && name != "guest-huge";
        let exchange_pages = if has_exchange { SIZE.exchange_pages } else { 0 };
        let size = MemorySize { pages, exchange_pages, sealed, secret, ..SIZE };
        let share = Share { channels: 8, ..Share::default() };
        Ok(Admitted { size, share, guest: name })
    }

    fn created(&self, domain: DomId, name: &String) -> Result<(), String> {
        self.reported.lock().unwrap().push(format!("created {domain} {name}"));
        if name == "guest-unlucky" {
            return Err("no luck".into());
        }
        let store = self.machine.store().connect(DRIVER_DOMAIN);
        create_domain(&store, domain, name)
            .and_then(|()| create_vif(&store, domain, 0, "02:00:00:00:00:01"))
            .map_err(|error| error.to_string())
    }

    fn destroyed(&self, domain: DomId, name: &String) {
        self.reported.lock().unwrap().push(format!("destroyed {domain} {name}"));
    }
}

struct Daemon {
    machine: Machine,
    toolstack: Arc<Recorder>,
    listener: Arc<Listener>,
    path: PathBuf,
    serving: Option<JoinHandle<()>>,
}

fn fresh_path() -> PathBuf {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("pvnet-machine-{}-{number}", std::process::id()))
}

impl Daemon {
    fn start() -> Self {
        let (machine, path) = (Machine::new(), fresh_path());
        let (reported, applicants) = (Mutex::default(), Mutex::default());
        let toolstack = Arc::new(Recorder { machine: machine.clone(), reported, applicants });
        let listener = Arc::new(Listener::bind(&path, MODE).unwrap());
        let (ours, theirs, by) = (listener.clone(), machine.clone(), toolstack.clone());
        let serving = Some(std::thread::spawn(move || ours.serve(&theirs, &by)));
        Self { machine, toolstack, listener, path, serving }
    }

    fn join(&self, name: &str) -> (MachineGuest, OwnedFd) {
        join(&self.path, name).unwrap()
    }

    fn refusal(&self, name: &str) -> String {
        match join(&self.path, name) {
            Err(ConnectError::Refused(why)) => why,
            other => panic!("{name} was not refused: {other:?}"),
        }
    }

    fn dial(&self) -> OwnedFd {
        let socket = seqpacket::socket().unwrap();
        connect(&socket, &SocketAddrUnix::new(&*self.path).unwrap()).unwrap();
        socket
    }

    /// A guest without the client library: its socket and what came with the welcome.
    fn raw_guest(&self, name: &str) -> (OwnedFd, Packet, Vec<OwnedFd>) {
        let socket = self.dial();
        send(&socket, &Packet::new(call::HELLO, VERSION, name), &[]).unwrap();
        let (welcome, fds) = receive(&socket).unwrap().unwrap();
        assert_eq!(welcome.code, 0, "{}", welcome.text());
        (socket, welcome, fds)
    }

    fn peer(&self, id: DomId) -> Arc<Domain> {
        self.machine.peer(id).unwrap()
    }

    fn reported(&self) -> Vec<String> {
        self.toolstack.reported.lock().unwrap().clone()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.listener.stop();
        self.serving.take().unwrap().join().unwrap();
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn call(socket: &OwnedFd, request: &Packet) -> Result<u32, String> {
    send(socket, request, &[]).unwrap();
    let (reply, _) = receive(socket).unwrap().expect("an answer");
    if reply.code == 0 { Ok(reply.arg) } else { Err(reply.text()) }
}

fn first_byte(machine: &Machine, peer: &Arc<Domain>, gref: GrantRef) -> Option<u8> {
    let mut byte = [0];
    let source = Source::Grant { peer, gref, offset: 0 };
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut byte), 1)];
    machine.copy(&mut batch);
    let okay = batch[0].status == CopyStatus::Okay;
    okay.then_some(byte[0])
}

#[test]
fn a_guest_that_joins_can_use_every_service() {
    let daemon = Daemon::start();
    let (guest, store) = daemon.join("guest-a");
    let id = guest.domid();
    let peer = daemon.peer(id);
    assert_eq!((daemon.machine.list(), peer.size()), (vec![id], SIZE));
    assert_eq!(daemon.reported(), [format!("created {id} guest-a")]);

    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    pages.write(PAGE_SIZE, 42u8).unwrap();
    assert_eq!(first_byte(&daemon.machine, &peer, grefs[1]), Some(42));

    let (theirs, port) = guest.alloc_unbound(DRIVER_DOMAIN).unwrap();
    let ours = daemon.machine.bind_interdomain(&peer, port).unwrap();
    ours.notify().unwrap();
    theirs.notify().unwrap();
    assert!(guest.alloc_unbound(DomId(3)).is_err(), "guests do not talk past the switch");

    let store = xenstore::Client::new(store).unwrap();
    assert_eq!(store.read(None, "name").unwrap(), "guest-a");
}

#[test]
fn pages_are_transferred_over_the_socket() {
    let daemon = Daemon::start();
    let (guest, _store) = daemon.join("guest-a");
    let peer = daemon.peer(guest.domid());
    // More than go into one packet.
    let mut slots = Vec::new();
    for n in 0..300u32 {
        let (slot, gref) = guest.accept_transfer(DRIVER_DOMAIN).unwrap();
        let page = daemon.machine.take_page(&peer).unwrap();
        page.write(8, n).unwrap();
        let mut batch = [GrantTransfer::new(&peer, gref, page)];
        daemon.machine.transfer(&mut batch);
        assert_eq!(batch[0].status, TransferStatus::Okay);
        slots.push(slot);
    }
    assert!(daemon.machine.take_page(&peer).is_err());
    let pages: Vec<_> =
        slots.iter_mut().map(|slot| slot.claim().unwrap().expect("a page")).collect();
    for (n, page) in (0..300u32).zip(&pages) {
        assert_eq!((page.read(0), page.read(8)), (Ok(0u32), Ok(n)));
    }
    drop(pages);
    guest.surrender().unwrap();
    assert_eq!(peer.exchange_count().spare, 300);
}

#[test]
fn a_guest_that_is_not_admitted_gets_only_a_reason() {
    let daemon = Daemon::start();
    assert_eq!(daemon.refusal("burglar"), "burglar: who is that?");
    assert_eq!(daemon.refusal(""), ": who is that?");
    assert!(daemon.reported().is_empty());
    assert_eq!(daemon.refusal("guest-unlucky"), "no luck");
    wait_until("the end of the domain without devices", || daemon.reported().len() == 2);
    assert_eq!(daemon.reported(), ["created 1 guest-unlucky", "destroyed 1 guest-unlucky"]);
    assert!(daemon.machine.list().is_empty());
}

#[test]
fn a_guest_of_another_version_learns_the_daemons_version() {
    let daemon = Daemon::start();
    for hello in [
        Packet::new(call::HELLO, VERSION + 1, "guest-a"),
        Packet::new(call::HELLO, 0, "guest-a"),
        Packet::new(call::ALLOC_UNBOUND, VERSION, "guest-a"),
    ] {
        let why = call(&daemon.dial(), &hello).unwrap_err();
        assert!(why.contains(&format!("version {VERSION}")), "{why}");
    }
    assert!(daemon.reported().is_empty());
}

#[test]
fn garbage_ends_only_its_senders_session() {
    let daemon = Daemon::start();
    let (bystander, _store) = daemon.join("guest-a");
    let long = [0xff; size_of::<Packet>() + 1];
    let garbage = [&long[..3], &long[..size_of::<Packet>() - 1], &long];
    for bytes in garbage {
        // Before the hello, and after it.
        let socket = daemon.dial();
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(receive(&socket).unwrap().is_none(), "hung up");
        let (socket, ..) = daemon.raw_guest("guest-b");
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(receive(&socket).unwrap().is_none(), "hung up");
    }
    wait_until("the end of all of them", || daemon.machine.list() == [bystander.domid()]);
    bystander.alloc_unbound(DRIVER_DOMAIN).unwrap();
}

#[test]
fn an_unknown_call_is_refused_and_its_descriptors_are_closed() {
    let daemon = Daemon::start();
    let (socket, ..) = daemon.raw_guest("guest-a");
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let fds = [writer.as_fd(); 4];
    for code in [0, call::HELLO, 99, u32::MAX] {
        send(&socket, &Packet::new(code, VERSION, "guest-a"), &fds).unwrap();
        let (reply, _) = receive(&socket).unwrap().unwrap();
        assert_eq!((reply.code, reply.text().as_str()), (1, "no such call"));
    }
    drop(writer);
    let mut none = [0; 1];
    assert_eq!(rustix::io::read(&reader, &mut none), Ok(0), "nobody else holds the other end");
    assert_eq!(call(&socket, &Packet::new(call::ALLOC_UNBOUND, 0, "")), Ok(1));
}

#[test]
fn a_guest_can_give_back_only_its_own_pages() {
    let daemon = Daemon::start();
    let (neighbour, _store) = daemon.join("guest-n");
    let (mut slot, gref) = neighbour.accept_transfer(DRIVER_DOMAIN).unwrap();
    let peer = daemon.peer(neighbour.domid());
    let page = daemon.machine.take_page(&peer).unwrap();
    daemon.machine.transfer(&mut [GrantTransfer::new(&peer, gref, page)]);
    let before = peer.exchange_count();

    let (socket, welcome, _fds) = daemon.raw_guest("guest-a");
    let own = daemon.peer(DomId(u16::try_from(welcome.arg).unwrap()));
    for frames in [&[16u32][..], &[0], &[315], &[316], &[u32::MAX], &[16; 256]] {
        let why = call(&socket, &Packet::about_pages(call::SURRENDER, frames).unwrap());
        assert!(why.unwrap_err().contains("does not own page"), "{frames:?}");
    }
    for count in [257, u32::MAX] {
        let why = call(&socket, &Packet::new(call::SURRENDER, count, ""));
        assert_eq!(why.unwrap_err(), "too many pages in one call");
    }
    assert_eq!(call(&socket, &Packet::new(call::SURRENDER, 0, "")), Ok(0));
    assert_eq!(own.exchange_count().spare, 300);
    assert_eq!(peer.exchange_count(), before);
    assert!(slot.claim().unwrap().is_some());
}

#[test]
fn a_guest_gets_only_its_own_memory() {
    let daemon = Daemon::start();
    let (_a, welcome, fds) = daemon.raw_guest("guest-a");
    assert_eq!(welcome.pages, [16, 1, 300]);
    let [memory, _store] = <[OwnedFd; 2]>::try_from(fds).expect("memory and store, no more");
    let (_b, _, fds) = daemon.raw_guest("guest-b");
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_ne!(inode(&memory), inode(&fds[0]));

    let len = 316 * PAGE_SIZE;
    assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, i64::try_from(len).unwrap());
    for size in [0, len as u64 - 1, len as u64 + 1] {
        assert!(rustix::fs::ftruncate(&memory, size).is_err(), "its length is sealed");
    }
    let all = Region::map(&memory, 0, len).unwrap();
    for at in (0..len).step_by(64) {
        all.write(at, u64::MAX).unwrap();
    }
    let others = Region::map(&fds[0], 0, len).unwrap();
    assert!((0..len).step_by(64).all(|at| others.read(at) == Ok(0u64)));
}

#[test]
fn a_guest_that_hangs_up_leaves_nothing_behind() {
    let daemon = Daemon::start();
    let (guest, store) = daemon.join("guest-a");
    let id = guest.domid();
    let peer = daemon.peer(id);
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 1).unwrap();
    let (theirs, _port) = guest.alloc_unbound(DRIVER_DOMAIN).unwrap();
    let (slot, transfer) = guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    let page = daemon.machine.take_page(&peer).unwrap();
    let nodes = daemon.machine.store().connect(DRIVER_DOMAIN);
    let own = format!("/local/domain/{id}/{}", device_path(0));
    assert!(nodes.read(None, &own).is_ok());
    // The socket closes when the last of them is dropped.
    drop((pages, slot, guest));
    wait_until("the end of the domain", || daemon.reported().len() == 2);
    assert_eq!(daemon.reported()[1], format!("destroyed {id} guest-a"));

    assert!(daemon.machine.list().is_empty());
    assert!(daemon.machine.peer(id).is_err());
    assert_eq!(first_byte(&daemon.machine, &peer, grefs[0]), None);
    let mut batch = [GrantTransfer::new(&peer, transfer, page)];
    daemon.machine.transfer(&mut batch);
    assert_eq!(batch[0].status, TransferStatus::BadGrant);
    assert!(matches!(theirs.take(), Err(Error::Gone)), "its unbound event channel is closed");
    wait_until("the end of what it had in the store", || nodes.read(None, &own).is_err());
    wait_until("the end of its store connection", || {
        let mut none = [0; 1];
        rustix::net::recv(&store, &mut none, rustix::net::RecvFlags::DONTWAIT)
            .is_ok_and(|(len, _)| len == 0)
    });
    // Its memory is freed with its last user.
    let memory: Weak<Domain> = Arc::downgrade(&peer);
    drop(batch);
    drop(peer);
    wait_until("the end of its memory", || memory.upgrade().is_none());
}

#[test]
fn a_guest_that_stops_speaking_ends() {
    let daemon = Daemon::start();
    let (socket, ..) = daemon.raw_guest("guest-a");
    shutdown(&socket, Shutdown::Write).unwrap();
    wait_until("the end of the domain", || daemon.machine.list().is_empty());
    assert!(receive(&socket).unwrap().is_none());
}

#[test]
fn a_call_after_the_domain_is_destroyed_fails() {
    let daemon = Daemon::start();
    let (guest, _store) = daemon.join("guest-a");
    daemon.machine.destroy(guest.domid());
    assert!(guest.alloc_unbound(DRIVER_DOMAIN).is_err());
    assert!(guest.surrender().is_ok(), "nothing to give, nothing to ask");
}

#[test]
fn only_one_daemon_can_listen_at_a_path() {
    let path = fresh_path();
    assert!(matches!(join(&path, "guest-a"), Err(ConnectError::NoDaemon { .. })));
    let first = Listener::bind(&path, MODE).unwrap();
    let second = Listener::bind(&path, MODE).err().expect("the first one still listens");
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(first);
    assert!(!path.exists());
    // The file of a daemon that was killed.
    let dead = seqpacket::socket().unwrap();
    bind(&dead, &SocketAddrUnix::new(&*path).unwrap()).unwrap();
    drop(dead);
    assert!(path.exists());
    drop(Listener::bind(&path, MODE).unwrap());
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let path = fresh_path();
    std::fs::write(&path, "precious").unwrap();
    assert!(Listener::bind(&path, MODE).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_guest_gives_up_memory_over_the_socket() {
    let daemon = Daemon::start();
    let (guest, _store) = daemon.join("guest-a");
    let peer = daemon.peer(guest.domid());
    assert_eq!(peer.process(), Some(std::process::id()));
    guest.set_reservation(10).unwrap();
    assert_eq!((guest.reservation(), peer.pages_out()), (10, 6));
    assert!(guest.share(DRIVER_DOMAIN, 10).is_err());
    guest.set_reservation(16).unwrap();
    assert_eq!((guest.reservation(), peer.pages_out()), (16, 0));
    assert!(guest.share(DRIVER_DOMAIN, 15).is_ok());
}

#[test]
fn a_run_of_pages_outside_is_refused() {
    let daemon = Daemon::start();
    let (socket, welcome, _fds) = daemon.raw_guest("guest-a");
    let id = DomId(u16::try_from(welcome.arg).unwrap());
    for code in [call::DECREASE_RESERVATION, call::INCREASE_RESERVATION] {
        for (first, count) in [(0, 1), (15, 2), (16, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            let mut request = Packet::new(code, first, "");
            request.pages[0] = count;
            let why = call(&socket, &request).unwrap_err();
            assert!(why.contains("does not own page"), "{why}");
        }
    }
    assert_eq!(daemon.peer(id).pages_out(), 0);
}
