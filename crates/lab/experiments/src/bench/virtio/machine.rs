//! A virtual machine with a pair of rings, on which it may put anything.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use shm::{PageSize, Region};
use vhost::VhostBackend as _;
use vhost::vhost_user::Frontend;
use virtqueue::driver::{Driver, Offered};
use virtqueue::{Layout, Options, RingAddresses};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use wire::ethernet::MacAddr;

use super::session::{Description, GUEST, eventfds};
use crate::bench::guest::text;

/// The features of a Linux guest: checksums and TSO both ways, mergeable buffers, indirect tables, event indices.
const FEATURES: u64 = 1 | 1 << 1 | 1 << 7 | 1 << 11 | 1 << 15 | 1 << 28 | 1 << 29;
/// Bytes of the guest's memory.
pub const LEN: usize = 8 << 20;
/// Entries of a ring.
pub const SIZE: u16 = 256;
pub const PAGE: usize = 4096;
/// Bytes of the metadata before a frame.
pub const HEADER: usize = 12;
/// The numbers of the RX ring and the TX ring.
pub const RX: usize = 0;
pub const TX: usize = 1;
/// The event that [`Machine::wait`] gets at the session's end.
const END: u64 = 1;
/// Offsets in the memory: the rings, buffers to receive into, frames to send.
const RINGS: [usize; 2] = [0, 0x1_0000];
const RING_LEN: usize = 0x1_0000;
const RX_DATA: usize = 1 << 20;
pub const TX_DATA: usize = 4 << 20;

/// A virtual machine with a pair of rings.
pub struct Machine {
    /// The front-end, which keeps the session.
    pub front_end: Frontend,
    pub mac: MacAddr,
    pub memory: Region,
    /// Bytes that its front-end shares.
    memory_len: usize,
    pub rx: Driver,
    pub tx: Driver,
    file: OwnedFd,
    calls: [EventFd; 2],
    kicks: [EventFd; 2],
    /// Watches both rings' notifications, and the session's end.
    epoll: Epoll,
    /// How many buffers [`post_apart`](Self::post_apart) has posted.
    apart: usize,
}

/// The parts of a ring.
pub fn parts(ring: usize) -> RingAddresses {
    let start = RINGS[ring] as u64;
    RingAddresses { descriptors: start, driver: start + 0x4000, device: start + 0x6000 }
}

/// New drivers of both rings.
fn drivers(memory: &Region) -> [Driver; 2] {
    let options = Options { layout: Layout::Split, event_idx: true, indirect: true };
    [RX, TX].map(|ring| Driver::new(memory, parts(ring), SIZE, options))
}

/// A buffer at this offset of the memory.
pub fn buffer(at: usize, len: usize, writable: bool) -> Offered {
    Offered { address: GUEST + at as u64, len: u32::try_from(len).unwrap_or(0), writable }
}

impl Machine {
    /// Describes a machine to the back-end at the other end of `stream`, which serves it some time later.
    pub fn boot(stream: UnixStream, mac: MacAddr) -> Result<Self, String> {
        Self::boot_sparse(stream, mac, LEN)
    }

    /// The same with more memory. Only the first [`LEN`] bytes are used here.
    pub fn boot_sparse(
        stream: UnixStream,
        mac: MacAddr,
        memory_len: usize,
    ) -> Result<Self, String> {
        let file = shm::create_memfd("vm", memory_len / PAGE, PageSize::Small).map_err(text)?;
        let whole = Arc::new(Region::map(&file, 0, LEN).map_err(text)?);
        let memory = whole.slice(0..LEN).map_err(text)?;
        let [rx, tx] = drivers(&memory);
        let (calls, kicks) = (eventfds()?, eventfds()?);
        let epoll = Epoll::new().map_err(text)?;
        let watch = |fd, events, what| {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, what)).map_err(text)
        };
        watch(stream.as_raw_fd(), EventSet::READ_HANG_UP, END)?;
        calls.iter().try_for_each(|call| watch(call.as_raw_fd(), EventSet::IN, 0))?;
        let front_end = Frontend::from_stream(stream, 2);
        let apart = 0;
        let machine =
            Self { front_end, mac, memory, memory_len, rx, tx, file, calls, kicks, epoll, apart };
        machine.description().send(&mut machine.front_end.clone())?;
        Ok(machine)
    }

    /// Stops both rings, empties them, and has them served anew, as a guest's driver does at a restart.
    pub fn restart(&mut self) -> Result<(), String> {
        for ring in [RX, TX] {
            self.front_end.get_vring_base(ring).map_err(text)?;
        }
        let zeros = vec![0; RINGS[TX] + RING_LEN];
        self.memory.copy_in(RINGS[RX], &zeros).map_err(text)?;
        [self.rx, self.tx] = drivers(&self.memory);
        self.description().send_rings(&mut self.front_end.clone(), [0; 2])
    }

    /// The description that its front-end sends.
    pub fn description(&self) -> Description<'_> {
        Description {
            features: FEATURES,
            memory: &self.file,
            memory_len: self.memory_len,
            size: SIZE,
            layout: Layout::Split,
            rings: [parts(RX), parts(TX)],
            kicks: &self.kicks,
            calls: &self.calls,
        }
    }

    /// Posts up to `most` buffers of a page each, as far as there is room.
    pub fn post(&mut self, most: usize) -> Result<(), String> {
        for place in 0..most {
            let buffer = buffer(RX_DATA + place * PAGE, PAGE, true);
            if self.rx.offer(&[buffer], None).is_none() {
                break;
            }
        }
        self.kick(RX)
    }

    /// Bytes that its front-end shares.
    pub fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// How many buffers [`post_apart`](Self::post_apart) has posted.
    pub fn posted_apart(&self) -> usize {
        self.apart
    }

    /// Posts buffers of a page, each `apart` bytes behind the last one, as far as the ring has room. Returns how many.
    pub fn post_apart(&mut self, range: Range<usize>, apart: usize) -> Result<u64, String> {
        let (mut posted, places) = (0, range.len() / apart);
        while self
            .rx
            .offer(&[buffer(range.start + self.apart % places * apart, PAGE, true)], None)
            .is_some()
        {
            self.apart += 1;
            posted += 1;
        }
        self.kick(RX)?;
        Ok(posted)
    }

    /// Its memory's file.
    pub fn file(&self) -> Result<OwnedFd, String> {
        self.file.try_clone().map_err(text)
    }

    /// Allocates the pages of a part of such a file.
    pub fn fill(file: &OwnedFd, range: Range<usize>) -> Result<(), String> {
        let (start, len) = (range.start as u64, range.len() as u64);
        fallocate(file, FallocateFlags::empty(), start, len).map_err(text)
    }

    /// Frees the pages of a part of such a file.
    pub fn hole(file: &OwnedFd, range: Range<usize>) -> Result<(), String> {
        let (start, len) = (range.start as u64, range.len() as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, start, len).map_err(text)
    }

    /// Takes back all chains that were sent.
    pub fn reclaim(&mut self) {
        while self.tx.take().is_some() {}
    }

    /// Takes all received frames. Returns their bytes, with metadata.
    pub fn take_all(&mut self) -> u64 {
        let mut bytes = 0;
        while let Some(used) = self.rx.take() {
            bytes += u64::from(used.written);
        }
        bytes
    }

    /// Publishes the offered buffers, and notifies the device if it wants that.
    pub fn kick(&mut self, ring: usize) -> Result<(), String> {
        let driver = if ring == RX { &mut self.rx } else { &mut self.tx };
        if driver.publish() {
            self.notify(ring)?;
        }
        Ok(())
    }

    /// Notifies the device.
    pub fn notify(&self, ring: usize) -> Result<(), String> {
        self.kicks[ring].write(1).map_err(text)
    }

    /// Notifications since the last call.
    pub fn notifications(&self) -> u64 {
        // A read fails if there were none: the eventfds do not block.
        self.calls.iter().map(|call| call.read().unwrap_or(0)).sum()
    }

    /// Sleeps until the device returns something, or for `limit` at most, in whole milliseconds.
    ///
    /// # Errors
    /// The session has ended.
    pub fn wait(&mut self, limit: Duration) -> Result<(), String> {
        let is_quiet = !self.rx.arm() & !self.tx.arm();
        let timeout = if is_quiet { limit } else { Duration::ZERO };
        let mut events = [EpollEvent::default(); 3];
        let timeout = i32::try_from(timeout.as_millis()).map_err(text)?;
        let count = match self.epoll.wait(timeout, &mut events) {
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            count => count.map_err(text)?,
        };
        if events[..count].iter().any(|event| event.data() == END) {
            return Err("the back-end ended the session".into());
        }
        self.notifications();
        Ok(())
    }
}
