//! The least program with pvnet's threads and copies, for comparison.
//!
//! ```text
//!  left ── tap ── thread ══ slots ══ thread ══ slots ══ thread ── tap ── right
//! ```
//!
//! A thread for each end moves frames between its tap and shared slots, and a third one copies them from slot to slot, as a guest's pumps and a worker
//! do. There is nothing else: no protocol of a ring, no check, no grant, no switch. What it cannot reach, no program with three threads and three copies
//! between two taps reaches.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use accounting::Carried;
use lab::{Endpoint, Namespace};
use parking_lot::Mutex;
use poller::{Awake, doze_until, must_wake};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use uplink::tap::{Tap, TapOffload, TapQueue};

use super::Subject;
use crate::error::{Error, Result};

/// The frames that wait between two threads, at most: as many of 64 KiB as a ring of 256 pages has.
const SLOTS: usize = 16;
/// The bytes of a slot: a frame of 64 KiB with its header.
const SLOT: usize = 68 * 1024;
/// The frames of one turn.
const BURST: usize = 8;

/// Two namespaces with taps, and the threads between them.
pub struct SameShape {
    left: Endpoint,
    right: Endpoint,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    taps: [TapQueue; 2],
    /// From and to each end.
    out: [Lane; 2],
    back: [Lane; 2],
    /// Of the ends' threads, and of the one in the middle.
    bells: [Bell; 3],
    is_over: AtomicBool,
    frames: AtomicU64,
    bytes: AtomicU64,
}

const MIDDLE: usize = 2;

/// Frames on the way from one thread to another.
struct Lane {
    slots: Vec<Mutex<Slot>>,
    written: Count,
    read: Count,
}

struct Slot {
    len: usize,
    bytes: Box<[u8]>,
}

/// A count in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

/// What a thread without work waits for.
struct Bell {
    flag: Awake,
    event: OwnedFd,
}

impl Bell {
    fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { flag: Awake::new(), event })
    }

    fn ring(&self) {
        if must_wake(&self.flag) {
            // A full counter has rung.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until it rings, `tap` has a frame, or `sees`.
    fn wait(&self, tap: Option<&TapQueue>, sees: impl Fn() -> bool) {
        let is_readable = AtomicBool::new(false);
        doze_until(
            &self.flag,
            || sees() || is_readable.load(Ordering::Relaxed),
            || {
                let mut fds = vec![PollFd::new(&self.event, PollFlags::IN)];
                fds.extend(tap.map(|tap| PollFd::new(tap, PollFlags::IN)));
                let _ = poll(&mut fds, None);
                is_readable
                    .store(fds[1..].iter().any(|fd| !fd.revents().is_empty()), Ordering::Relaxed);
            },
        );
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Lane {
    fn new() -> Self {
        let slot = || Slot { len: 0, bytes: vec![0; SLOT].into() };
        let slots = (0..SLOTS).map(|_| Mutex::new(slot())).collect();
        Self { slots, written: Count::default(), read: Count::default() }
    }

    fn has_frames(&self) -> bool {
        self.read.0.load(Ordering::Relaxed) != self.written.0.load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        let read = self.read.0.load(Ordering::Acquire);
        self.written.0.load(Ordering::Relaxed).wrapping_sub(read) < SLOTS
    }

    /// Has `write` fill the next slot. Returns false if there is none, or nothing to write.
    fn push(&self, write: impl FnOnce(&mut Slot) -> bool) -> bool {
        let at = self.written.0.load(Ordering::Relaxed);
        let is_written = self.has_room() && write(&mut self.slots[at % SLOTS].lock());
        self.written.0.store(at.wrapping_add(usize::from(is_written)), Ordering::Release);
        is_written
    }

    /// Has `read` take the next frame. Returns false if there is none, or no room for it.
    fn pop(&self, read: impl FnOnce(&Slot) -> bool) -> bool {
        let at = self.read.0.load(Ordering::Relaxed);
        let is_read = self.has_frames() && read(&self.slots[at % SLOTS].lock());
        self.read.0.store(at.wrapping_add(usize::from(is_read)), Ordering::Release);
        is_read
    }
}

/// Takes a turn's steps. Returns whether there was one.
fn turn(mut step: impl FnMut() -> bool) -> bool {
    (0..BURST).take_while(|_| step()).count() > 0
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// An end's thread.
    fn pump(&self, end: usize) {
        let (tap, out, back) = (&self.taps[end], &self.out[end], &self.back[end]);
        let read = |slot: &mut Slot| {
            let read = rustix::io::readv(tap, &mut [IoSliceMut::new(&mut slot.bytes)]);
            slot.len = read.unwrap_or(0);
            slot.len > 0
        };
        // A frame that the stack refuses is lost.
        let write = |slot: &Slot| {
            let _ = rustix::io::writev(tap, &[IoSlice::new(&slot.bytes[..slot.len])]);
            true
        };
        while !self.is_over() {
            let sent = turn(|| out.push(read));
            let received = turn(|| back.pop(write));
            if sent || received {
                self.bells[MIDDLE].ring();
                continue;
            }
            let tap = out.has_room().then_some(tap);
            let was_full = tap.is_none();
            let sees = || self.is_over() || back.has_frames() || (was_full && out.has_room());
            self.bells[end].wait(tap, sees);
        }
    }

    /// The thread in the middle.
    fn copy(&self) {
        let ways = [(&self.out[0], &self.back[1]), (&self.out[1], &self.back[0])];
        let copy = |from: &Slot, to: &mut Slot| {
            to.bytes[..from.len].copy_from_slice(&from.bytes[..from.len]);
            to.len = from.len;
            self.frames.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(from.len as u64, Ordering::Relaxed);
            true
        };
        while !self.is_over() {
            let step = |(from, to): (&Lane, &Lane)| {
                turn(|| from.pop(|frame| to.push(|slot| copy(frame, slot))))
            };
            let worked = ways.map(step);
            if worked.contains(&true) {
                self.bells[..MIDDLE].iter().for_each(Bell::ring);
                continue;
            }
            let sees = || {
                self.is_over() || ways.iter().any(|(from, to)| from.has_frames() && to.has_room())
            };
            self.bells[MIDDLE].wait(None, sees);
        }
    }
}

impl SameShape {
    /// Makes the namespaces and taps with all offloads, and starts the threads.
    pub fn create(prefix: &str) -> Result<Self> {
        let [(left, first), (right, second)] = [end(prefix, 1)?, end(prefix, 2)?];
        let bell = || Bell::new().map_err(lab::Error::io("cannot make an eventfd"));
        let shared = Arc::new(Shared {
            taps: [first, second],
            out: [Lane::new(), Lane::new()],
            back: [Lane::new(), Lane::new()],
            bells: [bell()?, bell()?, bell()?],
            is_over: AtomicBool::new(false),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let mut shape = Self { left, right, shared, threads: Vec::new() };
        for number in 0..=MIDDLE {
            let shared = shape.shared.clone();
            let work = move || if number == MIDDLE { shared.copy() } else { shared.pump(number) };
            let thread = std::thread::Builder::new().name(format!("same-shape-{number}"));
            let thread = thread.spawn(work).map_err(lab::Error::io("cannot start a thread"))?;
            shape.threads.push(thread);
        }
        Ok(shape)
    }
}

/// A namespace with a tap that has an address.
fn end(prefix: &str, host: u8) -> Result<(Endpoint, TapQueue)> {
    let namespace = Namespace::create(prefix)?;
    let device = "eth0";
    let ipv4 = Ipv4Addr::new(10, 77, 0, host);
    let ipv6 = Ipv6Addr::new(0xfd70, 0x766e, 0x6574, 0, 0, 0, 0, host.into());
    let opened = namespace
        .inside(|| Ok(Tap::open(device, 1, TapOffload { uso: false, ..TapOffload::ALL })))?;
    let mut taps = opened.map_err(|error| Error::Failed(error.to_string()))?;
    let tap = taps.pop().ok_or_else(|| Error::Failed("a tap without a queue".into()))?;
    namespace.ip(&["addr", "add", &format!("{ipv4}/24"), "dev", device])?;
    namespace.ip(&["addr", "add", &format!("{ipv6}/64"), "dev", device, "nodad"])?;
    namespace.ip(&["link", "set", device, "up"])?;
    Ok((Endpoint { namespace, device, ipv4, ipv6 }, tap))
}

impl Subject for SameShape {
    fn name(&self) -> &'static str {
        "same-shape"
    }

    fn ends(&self) -> [&Endpoint; 2] {
        [&self.left, &self.right]
    }

    fn carried(&self) -> Result<Carried> {
        let [frames, bytes] =
            [&self.shared.frames, &self.shared.bytes].map(|count| count.load(Ordering::Relaxed));
        Ok(Carried { frames, bytes, ..Carried::default() })
    }
}

impl Drop for SameShape {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.bells.iter().for_each(Bell::ring);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
