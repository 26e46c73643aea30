//! The pump between a socket that stands in for the tap and a device that is neither netfront nor a
//! card.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use netdev::Refused;
use offload::Checksum;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shm::Region;

use super::*;

/// Where the device has its second transmit buffer, and a received frame.
const REST: usize = 4096;
const RECEIVED: usize = 128 * 1024;
/// The longest frame that it carries.
const LONGEST: usize = 9000;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
#[error("it lost its head")]
struct Lost;

/// What a device has done, and what it will.
#[derive(Default)]
struct State {
    sent: Vec<(Vec<u8>, Metadata)>,
    /// Frames submitted since the last kick.
    waiting: usize,
    /// Frames of each kick that had any.
    kicks: Vec<usize>,
    /// An empty one comes with an error.
    incoming: VecDeque<Vec<u8>>,
    /// Buffers in use since they were last given back.
    used: usize,
    /// How often buffers were given back.
    given_back: usize,
    lost: bool,
    /// How often it was armed.
    armed: usize,
    /// It sends back what it gets.
    echoes: bool,
    /// Its other end has gone.
    gone: bool,
}

/// A device that keeps what it sends, and receives what the test puts there.
struct Fake {
    region: Region,
    state: Arc<Mutex<State>>,
    event: Arc<OwnedFd>,
    burst: Burst,
}

impl Fake {
    /// A device, what it has done, and its event.
    fn new(burst: Burst) -> (Self, Arc<Mutex<State>>, Arc<OwnedFd>) {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = Arc::new(eventfd(0, flags).unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let region = Region::anonymous(256 * 1024).unwrap();
        let this = Self { region, state: state.clone(), event: event.clone(), burst };
        (this, state, event)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Queue for Fake {
    /// Its length.
    type Frame = usize;
    type Fault = Lost;

    fn burst(&self) -> Burst {
        self.burst
    }

    fn has_room(&self) -> bool {
        true
    }

    fn buffers(&self) -> impl Iterator<Item = Buffer<'_>> {
        let first = Buffer { region: &self.region, offset: 0, len: HEADER_MAX };
        let rest = Buffer { region: &self.region, offset: REST, len: RECEIVED - REST };
        [first, rest].into_iter()
    }

    fn submit(&mut self, frame: Metadata) -> Result<(), Refused> {
        if frame.len > LONGEST {
            return Err(Refused);
        }
        let mut bytes = vec![0; frame.len];
        let (head, rest) = bytes.split_at_mut(HEADER_MAX.min(frame.len));
        self.region.copy_out(0, head).unwrap();
        self.region.copy_out(REST, rest).unwrap();
        let mut state = self.state();
        if state.echoes {
            state.incoming.push_back(bytes);
        } else {
            state.sent.push((bytes, frame));
        }
        state.waiting += 1;
        drop(state);
        Ok(())
    }

    fn kick(&mut self) {
        let mut state = self.state();
        let frames = std::mem::take(&mut state.waiting);
        state.kicks.extend((frames > 0).then_some(frames));
    }

    fn reclaim(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn receive(&mut self, frame: &mut usize) -> Result<Option<Metadata>, Lost> {
        let mut state = self.state.lock().unwrap();
        if state.lost {
            return Err(Lost);
        }
        let bytes = loop {
            let Some(bytes) = state.incoming.pop_front() else { return Ok(None) };
            state.used += 1;
            if !bytes.is_empty() {
                break bytes;
            }
        };
        drop(state);
        *frame = bytes.len();
        self.region.copy_in(RECEIVED, &bytes).unwrap();
        Ok(Some(Metadata { len: bytes.len(), ..Metadata::default() }))
    }

    fn has_failed_frames(&self) -> bool {
        self.state().used > 0
    }

    fn fragments<'a>(&'a self, frame: &'a usize) -> impl Iterator<Item = Iovec<'a>> {
        std::iter::once(Iovec::Shared { region: &self.region, offset: RECEIVED, len: *frame })
    }

    fn give_back(&mut self) {
        let mut state = self.state();
        let used = std::mem::take(&mut state.used);
        state.given_back += usize::from(used > 0);
    }

    fn arm(&mut self, _: bool) -> Result<bool, Lost> {
        let mut state = self.state();
        state.armed += 1;
        assert_eq!(state.waiting, 0, "it sleeps before a kick");
        Ok(!state.incoming.is_empty())
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.event.as_fd(); 2]
    }

    fn unconfirmed(&mut self) -> Vec<SentFrame> {
        let sent = std::mem::take(&mut self.state().sent);
        sent.into_iter().map(|(bytes, metadata)| SentFrame { metadata, bytes }).collect()
    }

    fn clear(&self, _: [bool; 2]) -> Result<(), Gone> {
        // It may be clear.
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        if self.state().gone { Err(Gone) } else { Ok(()) }
    }
}

/// A running pump, and both of its ends.
struct Running {
    thread: QueueThread,
    state: Arc<Mutex<State>>,
    event: Arc<OwnedFd>,
    stack: UnixDatagram,
    unconfirmed: Unconfirmed,
}

fn start() -> Running {
    start_with(Vec::new())
}

impl Running {
    /// What the thread has written to the stack. With a time limit, the call may be interrupted.
    fn receive(&self, bytes: &mut [u8]) -> usize {
        loop {
            match self.stack.recv(bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => return received.unwrap(),
            }
        }
    }
}

/// The same after a device that has not confirmed these frames.
fn start_with(frames: Vec<SentFrame>) -> Running {
    start_polling(frames, Polling::default())
}

fn start_polling(frames: Vec<SentFrame>, polling: Polling) -> Running {
    let unconfirmed = Unconfirmed::default();
    unconfirmed.set(frames);
    let (fake, state, event) = Fake::new(Burst::SHORT);
    let (stack, tap) = UnixDatagram::pair().unwrap();
    tap.set_nonblocking(true).unwrap();
    stack.set_read_timeout(Some(LIMIT)).unwrap();
    let thread =
        QueueThread::start("pump".to_owned(), fake, tap, unconfirmed.clone(), polling).unwrap();
    Running { thread, state, event, stack, unconfirmed }
}

/// A frame of an EtherType for local experiments.
fn frame(len: usize, fill: u8) -> Vec<u8> {
    let mut frame = vec![fill; len];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn ring(event: &OwnedFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}

fn wait(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn any_device_gets_the_stacks_frames() {
    let running = start();
    let frames = [frame(60, 1), frame(HEADER_MAX, 2), frame(LONGEST, 3), frame(1514, 5)];
    for bytes in &frames {
        running.stack.send(&[&[0; VirtioNetHdr::LEN], &bytes[..]].concat()).unwrap();
    }
    // One that it refuses is lost, and the pump goes on.
    running.stack.send(&[&[0; VirtioNetHdr::LEN], &frame(LONGEST + 1, 4)[..]].concat()).unwrap();
    running.stack.send(&[&[0; VirtioNetHdr::LEN], &frame(60, 6)[..]].concat()).unwrap();
    wait(|| running.state.lock().unwrap().sent.len() == 5);
    let sent = std::mem::take(&mut running.state.lock().unwrap().sent);
    for ((bytes, metadata), expected) in sent.iter().zip(frames.iter().chain([&frame(60, 6)])) {
        assert_eq!(bytes, expected);
        assert_eq!((metadata.len, metadata.gso), (bytes.len(), None));
        assert_eq!(metadata.checksum, Checksum::default());
    }
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

/// TCP behind a label: no device has a word for its checksum, so it is finished here.
#[test]
fn a_checksum_behind_unknown_headers_is_finished() {
    let running = start();
    let mut bytes = frame(300, 7);
    bytes[12..14].copy_from_slice(&[0x88, 0x47]);
    let header = |start: u16, offset: u16| VirtioNetHdr {
        flags: 1,
        csum_start: start.into(),
        csum_offset: offset.into(),
        ..VirtioNetHdr::default()
    };
    // Those beyond the header are lost, and so is one in the addresses.
    for (start, offset) in [(38, 16), (38, 300), (400, 0), (65_535, 65_535), (6, 0)] {
        running.stack.send(&[header(start, offset).as_bytes(), &bytes[..]].concat()).unwrap();
    }
    running.stack.send(&[&[0; VirtioNetHdr::LEN], &frame(60, 6)[..]].concat()).unwrap();
    wait(|| running.state.lock().unwrap().sent.len() == 2);
    let sent = std::mem::take(&mut running.state.lock().unwrap().sent);
    let mut expected = bytes.clone();
    let at = ChecksumLocation { start: 38, offset: 16 };
    offload::complete_checksum_at(&mut expected, at).unwrap();
    assert_ne!(expected, bytes);
    assert_eq!(sent[0].0, expected);
    assert_eq!(sent[0].1, Metadata { len: 300, ..Metadata::default() });
    assert_eq!(sent[1].0, frame(60, 6));
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

/// Frames per kick of a stack that has these many frames, and then no more.
fn kicks(burst: Burst, frames: usize, len: usize) -> Vec<usize> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // It holds more messages than a socket of datagrams.
    let (stack, tap) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    set_socket_send_buffer_size(&stack, 1 << 20).unwrap();
    for n in 0..frames {
        let bytes = frame(len, n.to_le_bytes()[0]);
        rustix::io::write(&stack, &[&[0; VirtioNetHdr::LEN], &bytes[..]].concat()).unwrap();
    }
    let (fake, state, _) = Fake::new(burst);
    let (_orders, taker) = orders::channel().unwrap();
    let (polling, stop) = (Polling::UpTo(Duration::ZERO), Notice::new().unwrap());
    let mut forwarder = Forwarder::new(fake, tap, polling, stop, taker);
    while forwarder.send().unwrap() {}
    assert_eq!(state.lock().unwrap().waiting, 0, "a frame waits for others");
    std::mem::take(&mut state.lock().unwrap().kicks)
}

#[test]
fn a_device_chooses_how_much_it_gets_per_kick() {
    let long = Burst { frames: 64, bytes: 64 * 1536 };
    assert_eq!(kicks(Burst::SHORT, 100, 60), [32, 32, 32, 4]);
    assert_eq!(kicks(long, 100, 60), [64, 36]);
    assert_eq!(kicks(Burst::SHORT, 12, 9000), [2; 6]);
    assert_eq!(kicks(long, 12, 9000), [11, 1]);
}

#[test]
fn a_lone_frame_waits_for_no_other() {
    let long = Burst { frames: usize::MAX, bytes: usize::MAX };
    assert_eq!(kicks(long, 1, 60), [1]);
}

#[test]
fn the_stack_gets_any_devices_frames() {
    let running = start();
    let frames: Vec<_> = (0..5).map(|n| frame(100 + usize::from(n), n)).collect();
    running.state.lock().unwrap().incoming.extend(frames.clone());
    ring(&running.event);
    for expected in &frames {
        let mut bytes = vec![0; 2048];
        let len = running.receive(&mut bytes);
        assert_eq!(&bytes[VirtioNetHdr::LEN..len], expected);
    }
    // Buffers go back once for all.
    wait(|| running.state.lock().unwrap().given_back == 1);
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

#[test]
fn a_fault_of_the_device_ends_its_thread_with_the_reason() {
    let running = start();
    assert!(!running.thread.has_ended());
    running.state.lock().unwrap().lost = true;
    ring(&running.event);
    wait(|| running.thread.has_ended());
    let why = running.thread.join().fault.unwrap();
    assert!(why.contains("broke the protocol: it lost its head"), "{why}");
}

#[test]
fn a_thread_at_rest_does_not_poll_for_frames() {
    let running = start();
    let armed = || running.state.lock().unwrap().armed;
    wait(|| armed() > 0);
    for n in 0..50 {
        let before = armed();
        running.stack.send(&[&[0; VirtioNetHdr::LEN], &frame(60, n)[..]].concat()).unwrap();
        wait(|| armed() > before);
    }
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

/// Round trips with pauses of all lengths around the time for which the thread polls: none is lost between its last poll
/// and its sleep.
#[test]
fn no_frame_is_forgotten_between_polling_and_sleep() {
    let running = start();
    running.state.lock().unwrap().echoes = true;
    let mut pause = 0x9e37_79b9_u32;
    for _ in 0..3000 {
        pause = pause.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let end = Instant::now() + Duration::from_micros((pause >> 25).into());
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        running.stack.send(&[&[0; VirtioNetHdr::LEN], &frame(60, 1)[..]].concat()).unwrap();
        let mut bytes = vec![0; 2048];
        running.receive(&mut bytes);
    }
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

#[test]
fn a_thread_that_always_polls_needs_no_event() {
    let running = start_polling(Vec::new(), Polling::Always);
    // Longer than any other one polls on.
    std::thread::sleep(Duration::from_millis(5));
    running.state.lock().unwrap().incoming.push_back(frame(100, 1));
    let mut bytes = vec![0; 2048];
    let len = running.receive(&mut bytes);
    assert_eq!(bytes[VirtioNetHdr::LEN..len], frame(100, 1));
    assert_eq!(running.state.lock().unwrap().armed, 0);
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

/// A backend whose frames all failed would wait for buffers for ever.
#[test]
fn buffers_of_failed_frames_go_back_without_a_good_frame() {
    let running = start();
    running.state.lock().unwrap().incoming.extend(vec![Vec::new(); 3]);
    ring(&running.event);
    wait(|| running.state.lock().unwrap().given_back == 1);
    assert_eq!(running.state.lock().unwrap().used, 0);
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
}

#[test]
fn what_a_device_has_not_confirmed_is_sent_first_by_the_next_one() {
    let running = start();
    let frames: Vec<_> =
        [60, 5000, 1514].into_iter().zip(1..).map(|(len, n)| frame(len, n)).collect();
    for bytes in &frames[..2] {
        running.stack.send(&[&[0; VirtioNetHdr::LEN], &bytes[..]].concat()).unwrap();
    }
    wait(|| running.state.lock().unwrap().sent.len() == 2);
    running.thread.stop();
    assert_eq!(running.thread.join().fault, None);
    let next = start_with(running.unconfirmed.take());
    next.stack.send(&[&[0; VirtioNetHdr::LEN], &frames[2][..]].concat()).unwrap();
    let sent = || next.state.lock().unwrap().sent.clone();
    wait(|| sent().len() == 3);
    let bytes: Vec<_> = sent().into_iter().map(|(bytes, _)| bytes).collect();
    assert_eq!(bytes, frames);
    next.thread.stop();
    assert_eq!(next.thread.join().fault, None);
}

#[test]
fn what_has_arrived_before_the_end_reaches_the_stack() {
    let running = start();
    let expected = frame(200, 7);
    wait(|| running.state.lock().unwrap().armed > 0);
    {
        let mut state = running.state.lock().unwrap();
        state.incoming.push_back(expected.clone());
        state.gone = true;
    }
    ring(&running.event);
    let mut bytes = vec![0; 2048];
    let len = running.receive(&mut bytes);
    assert_eq!(&bytes[VirtioNetHdr::LEN..len], expected);
    assert_eq!(running.thread.join().fault, None);
}
