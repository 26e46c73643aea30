//! A guest without a kernel stack: a frontend in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::EventChannel as _;
use machine::{MachineGuest, toolstack};
use netfront::{Frontend, FrontendQueue, Received};
use offload::{Checksum, Gso};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use shm::Region;
use wire::ethernet::MacAddr;
use wire::netif::header_channel;
use xenstore::{Client, Store};

/// Small frames start at different offsets in their pages. At one offset, all would fall into the
/// same few sets of a cache.
const OFFSETS: u16 = 32;
/// Bytes between two of these offsets: a cache line.
const OFFSET_STEP: u16 = 64;
/// An EtherType for local experiments, which no stack handles.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
/// The shortest Ethernet frame, without its checksum.
const FRAME_MIN: usize = 60;

/// A guest of a daemon.
pub struct Guest {
    /// Keeps the device open.
    pub frontend: Frontend<MachineGuest>,
    /// Its rings.
    pub queue: FrontendQueue<MachineGuest>,
    /// Its memory.
    pub machine: MachineGuest,
    /// Its address.
    pub mac: MacAddr,
}

impl Guest {
    /// Joins the daemon at `socket` under this name, and connects.
    pub fn join(socket: &Path, name: &str, config: &netfront::Config) -> Result<Self, String> {
        let (machine, store) = machine::join(socket, name).map_err(text)?;
        let store: Arc<dyn Store> = Arc::new(Client::new(store).map_err(text)?);
        let (frontend, queues) =
            Frontend::connect(&machine, store, &toolstack::device_path(0), config).map_err(text)?;
        let mac = frontend.mac();
        let queue = queues.into_iter().next().ok_or("no queue")?;
        Ok(Self { frontend, queue, machine, mac })
    }

    /// A frame of `len` bytes to `to`, which every receiver ignores.
    pub fn frame(&self, to: MacAddr, len: usize) -> Vec<u8> {
        addressed(self.mac, to, len)
    }

    /// Sends a broadcast, so that the switch learns this guest's port.
    pub fn send_hello(&mut self) -> Result<(), String> {
        let hello = self.frame(MacAddr::BROADCAST, FRAME_MIN);
        if !self.send(&hello, Checksum::Unknown, None)? {
            return Err("no room".into());
        }
        self.queue.tx.publish();
        Ok(())
    }

    /// Puts a frame on the ring, to be published later. Returns false if there is no room.
    pub fn send(
        &mut self,
        frame: &[u8],
        checksum: Checksum,
        gso: Option<Gso>,
    ) -> Result<bool, String> {
        let tx = &mut self.queue.tx;
        if !tx.has_room() {
            return Ok(false);
        }
        let mut rest = frame;
        for place in tx.buffers() {
            let (part, after) = rest.split_at(place.len.min(rest.len()));
            place.region.copy_in(place.offset, part).map_err(text)?;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let len = u16::try_from(frame.len()).map_err(text)?;
        Ok(tx.send(len, checksum, gso).is_ok())
    }

    /// Writes a frame of `len` bytes into every page, and its header into every place of the header
    /// channel, for [`send_filled`](Self::send_filled).
    pub fn fill(&mut self, len: u16, to: MacAddr) {
        let mut frame = self.frame(to, len.into());
        let tx = &self.queue.tx;
        let in_page = match tx.headers() {
            Some(_) => frame.split_off(frame.len().min(header_channel::HEADER_LEN.into())),
            None => frame.clone(),
        };
        // The offsets keep each frame within its page.
        for slot in (0..).take(netfront::RING_LEN) {
            if let Some(headers) = tx.headers() {
                let _ = headers.copy_in(header_channel::place(slot), &frame);
            }
            let page = slot as usize * 4096;
            let _ = tx.memory().copy_in(page + usize::from(cache_offset(page, len)), &in_page);
        }
    }

    /// Sends the frame that [`fill`](Self::fill) has written; `change` gets the place of its first byte. Returns
    /// false if there is no room.
    #[inline]
    pub fn send_filled(
        &mut self,
        len: u16,
        change: impl FnOnce(&Region, usize) -> Result<(), String>,
    ) -> Result<bool, String> {
        let tx = &mut self.queue.tx;
        let mut places = tx.buffers();
        let Some(first) = places.next() else { return Ok(false) };
        // With a header channel, a frame's first place is in the channel, and its pages follow.
        let (start, page) = match tx.headers() {
            Some(_) => (first.offset, places.next()),
            None => (first.offset + usize::from(cache_offset(first.offset, len)), Some(first)),
        };
        let Some(page) = page else { return Ok(false) };
        let offset = cache_offset(page.offset, len);
        change(first.region, start)?;
        drop(places);
        Ok(tx.send_at(offset, len, Checksum::Unknown, None).is_ok())
    }

    /// Takes all frames that have arrived, and posts their buffers again. Returns how many.
    pub fn receive_all(&mut self, frame: &mut Received) -> Result<u64, String> {
        let received = self.take_all(frame)?;
        self.queue.rx.publish();
        Ok(received)
    }

    /// Takes all frames that have arrived, and keeps their buffers. Returns how many.
    pub fn take_all(&mut self, frame: &mut Received) -> Result<u64, String> {
        let mut received = 0;
        while self.queue.rx.receive(frame).map_err(text)? {
            received += 1;
        }
        Ok(received)
    }

    /// Sleeps until a frame or a response comes, or for `limit` at most.
    pub fn wait(&mut self, limit: Duration) -> Result<(), String> {
        let FrontendQueue { tx, rx } = &mut self.queue;
        if rx.arm().map_err(text)? || tx.arm().map_err(text)? {
            return Ok(());
        }
        let timeout = Timespec::try_from(limit).map_err(text)?;
        let events = [rx.event(), tx.event()];
        let mut fds = events.map(|event| PollFd::new(event.as_ref(), PollFlags::IN));
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).map_err(text)?;
        events.into_iter().try_for_each(|event| event.take()).map_err(text)
    }
}

/// A frame of `len` bytes between any two addresses, which every receiver ignores.
pub fn addressed(from: MacAddr, to: MacAddr, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &EXPERIMENT].concat();
    frame.resize(len, 0);
    frame
}

/// The offset of a frame of `len` bytes in its page, which lies at `place`.
fn cache_offset(place: usize, len: u16) -> u16 {
    let step = (place / 4096 % usize::from(OFFSETS)).to_le_bytes()[0];
    if len > OFFSETS * OFFSET_STEP { 0 } else { u16::from(step) * OFFSET_STEP }
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
