//! A virtual machine with many pairs of rings, whose notifications cost the back-end much.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};
use shm::{PageSize, Region};
use vhost::VhostBackend as _;
use vhost::vhost_user::Frontend;
use virtqueue::driver::Driver;
use virtqueue::{Layout, Options, RingAddresses};
use vmm_sys_util::eventfd::EventFd;

use super::machine::{HEADER, PAGE, RX, TX, buffer};
use super::session::{Description, eventfds};
use crate::bench::guest::text;

/// The most pairs.
pub const PAIRS_MAX: usize = 16;
/// `VIRTIO_NET_F_MQ`, without which there is one pair, and `VIRTIO_NET_F_MRG_RXBUF`.
const FEATURES: u64 = 1 << 22 | 1 << 15;
/// Entries of a ring, and bytes from one to the next.
const SIZE: u16 = 16;
const RING_LEN: usize = 0x1000;
/// The offset of the frames, which follow the rings.
const FRAMES: usize = 2 * PAIRS_MAX * RING_LEN;
const LEN: usize = FRAMES + PAIRS_MAX * PAGE;
/// The most descriptors that wait for an eventfd; `OTHERS` are left for everything else in the process.
const WAITERS_MAX: u64 = 500_000;
const OTHERS: u64 = 1_000;

/// A virtual machine with many pairs of rings. It only sends.
pub struct Crowd {
    front_end: Frontend,
    memory: Region,
    _file: OwnedFd,
    pairs: Vec<Pair>,
}

struct Pair {
    tx: Driver,
    kicks: [EventFd; 2],
    calls: [EventFd; 2],
}

fn parts(ring: usize) -> RingAddresses {
    let start = (ring * RING_LEN) as u64;
    RingAddresses { descriptors: start, driver: start + 0x400, device: start + 0x800 }
}

impl Crowd {
    /// Describes a machine to the back-end at the other end of `stream`, which serves it some time later.
    pub fn boot(stream: UnixStream, pairs: usize) -> Result<Self, String> {
        let file = shm::create_memfd("vm", LEN / PAGE, PageSize::Small).map_err(text)?;
        let memory = Arc::new(Region::map(&file, 0, LEN).map_err(text)?);
        let memory = memory.slice(0..LEN).map_err(text)?;
        let options = Options { layout: Layout::Split, event_idx: false, indirect: false };
        let pair = |n: usize| {
            let tx = Driver::new(&memory, parts(2 * n + TX), SIZE, options);
            Ok(Pair { tx, kicks: eventfds()?, calls: eventfds()? })
        };
        let pairs = (0..pairs).map(pair).collect::<Result<Vec<_>, String>>()?;
        let mut front_end = Frontend::from_stream(stream, 2 * pairs.len() as u64);
        for (n, pair) in pairs.iter().enumerate() {
            let description = Description {
                features: FEATURES,
                memory: &file,
                memory_len: LEN,
                size: SIZE,
                layout: Layout::Split,
                rings: [parts(2 * n + RX), parts(2 * n + TX)],
                kicks: &pair.kicks,
                calls: &pair.calls,
            };
            if n == 0 {
                description.negotiate(&mut front_end)?;
                description.send_memory(&mut front_end, 1)?;
            }
            description.send_pair(&mut front_end, n, [0; 2])?;
        }
        Ok(Self { front_end, memory, _file: file, pairs })
    }

    /// Fills the counters of all eventfds for notifications, and makes writes to them block.
    pub fn fill_calls(&self) -> Result<(), String> {
        // Wait for an answer first: the back-end makes the descriptors non-blocking when it takes them.
        self.front_end.get_features().map_err(text)?;
        for call in self.pairs.iter().flat_map(|pair| &pair.calls) {
            call.write(u64::MAX - 1).map_err(text)?;
            let call = &descriptor(call)?;
            let flags = fcntl_getfl(call).map_err(text)?;
            fcntl_setfl(call, flags - OFlags::NONBLOCK).map_err(text)?;
        }
        Ok(())
    }

    /// Has an epoll instance watch an eventfd through as many descriptors as this process may have: each notification wakes them all, as long as the
    /// result is kept.
    pub fn slow_calls(&self) -> Result<(OwnedFd, Vec<OwnedFd>), String> {
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(u64::MAX).min(WAITERS_MAX);
        let current = limit.current.map(|current| current.max(most));
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).map_err(text)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(text)?;
        let call = descriptor(&self.pairs[0].calls[TX])?;
        let mut waiters = Vec::new();
        while let Ok(waiter) = call.try_clone() {
            if waiters.len() as u64 + OTHERS >= most {
                break;
            }
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &waiter, epoll::EventData::new_u64(0), flags).map_err(text)?;
            waiters.push(waiter);
        }
        Ok((epoll, waiters))
    }

    /// Sends a frame by each pair. The back-end notifies each pair that the frame was taken.
    pub fn send_by_all(&mut self, frame: &[u8]) -> Result<(), String> {
        let bytes = [&[0; HEADER], frame].concat();
        for (n, pair) in self.pairs.iter_mut().enumerate() {
            let at = FRAMES + n * PAGE;
            while pair.tx.take().is_some() {}
            self.memory.copy_in(at, &bytes).map_err(text)?;
            pair.tx.offer(&[buffer(at, bytes.len(), false)], None);
            pair.tx.publish();
            pair.kicks[TX].write(1).map_err(text)?;
        }
        Ok(())
    }

    /// Whether the back-end answers.
    pub fn is_served(&self) -> bool {
        self.front_end.get_features().is_ok()
    }
}

/// Another descriptor of an eventfd. The crate's type gives no access to its flags.
fn descriptor(eventfd: &EventFd) -> Result<OwnedFd, String> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(text)?;
    pidfd_getfd(&own, eventfd.as_raw_fd(), PidfdGetfdFlags::empty()).map_err(text)
}
