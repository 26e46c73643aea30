//! Against the real tun driver, each test in a separate network namespace. They need root, and are skipped
//! with a message without it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use std::io::{Read, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use wire::checksum::pseudo_v4;
use wire::virtio_net::VirtioNetHdr;

use super::*;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const UDP: u8 = 17;
const ETHERNET_LEN: usize = 14;
const UDP_START: usize = ETHERNET_LEN + 20;
/// The longest complete frame of an interface with the default MTU.
const MTU_FRAME_LEN: usize = ETHERNET_LEN + 1500;

/// A frame as it is read from a tap.
struct Received {
    flags: u8,
    gso_type: u8,
    csum_start: u16,
    csum_offset: u16,
    frame: Vec<u8>,
}

impl Received {
    fn new(bytes: &[u8]) -> Self {
        let (header, frame) = bytes.split_at(VirtioNetHdr::LEN);
        let le16 = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        Self {
            flags: header[0],
            gso_type: header[1],
            csum_start: le16(6),
            csum_offset: le16(8),
            frame: frame.to_vec(),
        }
    }

    fn is_udp_v4(&self) -> bool {
        self.frame[12..14] == [0x08, 0x00] && self.frame[ETHERNET_LEN + 9] == UDP
    }

    /// The ones' complement sum over pseudo-header and datagram: 0xffff when the checksum in it is right.
    fn udp_sum(&self) -> u16 {
        let datagram = &self.frame[UDP_START..];
        let len = u16::try_from(datagram.len()).expect("one datagram");
        let mut sum = pseudo_v4(HERE, THERE, UDP, len);
        sum.add_bytes(datagram);
        sum.fold()
    }
}

/// Runs `test` on a thread in a fresh network namespace, if it can have one.
fn in_own_network<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    let run = || match sys::unshare_network() {
        Ok(()) => Some(test()),
        Err(errno) => {
            lab::needed(Err(format!("no network namespace ({errno}): run this test as root")))
        }
    };
    thread::scope(|scope| scope.spawn(run).join().expect("the test thread panicked"))
}

/// Runs iproute2 in the calling thread's network namespace.
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("iproute2 is installed").success(), "ip {arguments}");
}

/// Gives the tap an address, quietly: no IPv6, so that no other frames come.
fn configure(address: Ipv4Addr) {
    ip("link set pv0 addrgenmode none");
    ip(&format!("address add {address}/24 dev pv0"));
    ip("link set pv0 up");
}

fn open_one(offload: TapOffload) -> TapQueue {
    Tap::open("pv0", 1, offload).expect("a tap").pop().expect("one queue")
}

fn wait_readable(queues: &[impl AsFd], timeout: Duration) -> bool {
    let mut fds: Vec<_> = queues.iter().map(|queue| PollFd::new(queue, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).expect("a short time");
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

fn read_frame(queue: &TapQueue) -> Received {
    assert!(wait_readable(&[queue], Duration::from_secs(5)), "no frame came");
    let mut buffer = vec![0; 70_000];
    let len = rustix::io::read(queue, &mut buffer).expect("a frame");
    Received::new(&buffer[..len])
}

/// The frame that a datagram sent by the stack behind a tap with these offloads becomes.
fn udp_frame(offload: TapOffload) -> Option<Received> {
    in_own_network(|| {
        let queue = open_one(offload);
        configure(HERE);
        ip(&format!("neighbour add {THERE} lladdr 02:00:00:00:00:02 dev pv0"));
        let socket = UdpSocket::bind((HERE, 0)).expect("a socket");
        socket.send_to(b"hello", (THERE, 9)).expect("sent");
        std::iter::repeat_with(|| read_frame(&queue)).find(Received::is_udp_v4).expect("endless")
    })
}

#[test]
fn with_csum_the_checksum_is_left_to_the_reader() {
    let Some(received) = udp_frame(TapOffload { csum: true, ..TapOffload::NONE }) else {
        return;
    };
    assert_eq!(received.flags, 1, "VIRTIO_NET_HDR_F_NEEDS_CSUM");
    assert_eq!((received.csum_start, received.csum_offset), (34, 6));
    assert_eq!(received.gso_type, 0);
    assert_eq!(received.frame[..6], [2, 0, 0, 0, 0, 2]);
    assert_eq!(&received.frame[UDP_START + 8..], b"hello");
    assert_ne!(received.udp_sum(), 0xffff);
}

#[test]
fn without_csum_the_checksum_is_complete() {
    let Some(received) = udp_frame(TapOffload::NONE) else {
        return;
    };
    assert_eq!(received.flags, 0);
    assert_eq!(received.gso_type, 0);
    assert_eq!(received.udp_sum(), 0xffff);
}

/// What crossed between two namespaces while one sent the other a quarter of a megabyte over TCP.
struct Crossing {
    gso_frames: usize,
    longest: usize,
    received: usize,
}

const TCP_BYTES: usize = 256 * 1024;

/// Joins two taps with these offloads frame by frame, as a two-port switch would, and runs TCP over them.
fn tcp_crossing(offload: TapOffload) -> Option<Crossing> {
    let (server_ready, server_queue) = mpsc::channel();
    let (client_ready, client_queue) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || in_own_network(|| serve(offload, &server_ready)));
        let server_queue = server_queue.recv().ok()?;
        let client = scope.spawn(move || in_own_network(|| send(offload, &client_ready)));
        let queues = [server_queue, client_queue.recv().ok()?];
        let mut crossing = Crossing { gso_frames: 0, longest: 0, received: 0 };
        while !(server.is_finished() && client.is_finished()) {
            wait_readable(&queues, Duration::from_millis(20));
            pass(&queues[0], &queues[1], &mut crossing);
            pass(&queues[1], &queues[0], &mut crossing);
        }
        crossing.received = server.join().expect("the server panicked")?;
        Some(crossing)
    })
}

fn serve(offload: TapOffload, ready: &mpsc::Sender<TapQueue>) -> usize {
    let queue = open_one(offload);
    configure(HERE);
    let listener = TcpListener::bind((HERE, 9)).expect("a listener");
    ready.send(queue).expect("the test waits");
    assert!(wait_readable(&[&listener], Duration::from_secs(5)), "no connection came");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("the whole stream");
    received.len()
}

fn send(offload: TapOffload, ready: &mpsc::Sender<TapQueue>) {
    let queue = open_one(offload);
    configure(THERE);
    ready.send(queue).expect("the test waits");
    let server = SocketAddr::from((HERE, 9));
    let mut stream =
        TcpStream::connect_timeout(&server, Duration::from_secs(5)).expect("connected");
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    stream.write_all(&vec![0xa5; TCP_BYTES]).expect("sent");
}

/// Passes on every frame that waits. What the other tap does not take is lost; TCP sends it again.
fn pass(from: &TapQueue, to: &TapQueue, crossing: &mut Crossing) {
    let mut buffer = vec![0; 70_000];
    while let Ok(len) = rustix::io::read(from, &mut buffer) {
        let received = Received::new(&buffer[..len]);
        crossing.gso_frames += usize::from(received.gso_type != 0);
        crossing.longest = crossing.longest.max(received.frame.len());
        let _ = rustix::io::write(to, &buffer[..len]);
    }
}

#[test]
fn with_tso_unsegmented_frames_come() {
    let Some(crossing) = tcp_crossing(TapOffload::ALL) else {
        return;
    };
    assert_eq!(crossing.received, TCP_BYTES);
    assert!(crossing.gso_frames > 0);
    assert!(crossing.longest > MTU_FRAME_LEN);
}

#[test]
fn without_tso_no_frame_is_unsegmented() {
    let Some(crossing) = tcp_crossing(TapOffload::NONE) else {
        return;
    };
    assert_eq!(crossing.received, TCP_BYTES);
    assert_eq!(crossing.gso_frames, 0);
    assert!(crossing.longest <= MTU_FRAME_LEN);
}

#[test]
fn queues_do_not_block_and_close_on_exec() {
    in_own_network(|| {
        let queues = Tap::open("pv0", 4, TapOffload::ALL).expect("a tap");
        assert_eq!(queues.len(), 4);
        for queue in &queues {
            assert_eq!(queue.name(), "pv0");
            assert_eq!(rustix::io::read(queue, &mut [0; 64]), Err(Errno::AGAIN));
            let flags = rustix::io::fcntl_getfd(queue).expect("an open file");
            assert!(flags.contains(FdFlags::CLOEXEC));
        }
    });
}

#[test]
fn a_name_in_use_and_one_of_another_kind_are_different_errors() {
    in_own_network(|| {
        let _held = open_one(TapOffload::NONE);
        let again = Tap::open("pv0", 1, TapOffload::NONE);
        assert!(matches!(again, Err(TapError::NameTaken { .. })), "{again:?}");
        let multi_queue = Tap::open("pv0", 2, TapOffload::NONE);
        assert!(
            matches!(multi_queue, Err(TapError::OtherKind { queues: 2, .. })),
            "{multi_queue:?}"
        );
        let loopback = Tap::open("lo", 1, TapOffload::NONE);
        assert!(matches!(loopback, Err(TapError::OtherKind { .. })), "{loopback:?}");
    });
}

#[test]
fn the_wanted_offloads_and_no_others() {
    let bits = |csum, tso4, tso6| TapOffload { csum, tso4, tso6, uso: false }.bits();
    assert_eq!(bits(false, false, false), 0);
    assert_eq!(bits(true, false, false), 0x1);
    assert_eq!(bits(true, true, false), 0xb);
    assert_eq!(bits(true, false, true), 0xd);
    assert_eq!(bits(true, true, true), 0xf);
    assert_eq!(TapOffload::ALL.bits(), 0x6f);
}

#[test]
fn impossible_arguments_are_refused_before_the_kernel_sees_them() {
    for name in ["", ".", "..", "a/b", "a b", "tap%d", "sixteen-bytes-ab", "a\0b", "täp"] {
        let error = Tap::open(name, 1, TapOffload::NONE).expect_err(name);
        assert!(matches!(error, TapError::BadName { .. }), "{name:?}: {error}");
    }
    for queues in [0, MAX_QUEUES + 1] {
        let error = Tap::open("pv0", queues, TapOffload::NONE).expect_err("out of range");
        assert!(matches!(error, TapError::BadQueues { .. }), "{error}");
    }
    let error = Tap::open("pv0", 1, TapOffload { tso4: true, ..TapOffload::NONE });
    assert!(matches!(error, Err(TapError::TsoWithoutCsum)), "{error:?}");
    let error = Tap::open("pv0", 1, TapOffload { uso: true, ..TapOffload::NONE });
    assert!(matches!(error, Err(TapError::TsoWithoutCsum)), "{error:?}");
}

#[test]
fn errors_say_what_to_do() {
    let opening = Opening { name: "pv0", raw_name: [0; 16], queues: 1, multi_queue: false };
    let says = |error: TapError, words: &str| {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
    };
    says(opening.open_error(Errno::NOENT), "modprobe tun");
    says(opening.open_error(Errno::ACCESS), "CAP_NET_ADMIN");
    says(opening.error("TUNSETIFF", Errno::PERM), "CAP_NET_ADMIN");
    says(opening.error("TUNSETOFFLOAD", Errno::INVAL), "TUNSETOFFLOAD");
}
