//! Frames that the guest sends, and the announcement of its address in its place after it has moved here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use port::{
    Armed, Body, Broken, Budget, Event, FRAME_MAX, Fragment, Frame, HEADER_MAX, Ingress, Outcomes,
    Received, WINDOW, Window,
};
use shm::Region;
use virtqueue::{Buffer, Chain, Queue, Single};
use wire::ethernet::MacAddr;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::FromBytes;

use crate::doorbells::{Call, Kick};
use crate::features::Negotiated;
use crate::header::{HEADER_LEN_MAX, accept, accept_from_driver};
use crate::vring::{Continued, Vring};

/// Chains that are taken before the first of them is read, so that their headers are on the way.
const AHEAD: usize = 16;
/// The same for chains of one buffer.
const SINGLES: usize = 32;
/// How often a ring is checked whose guest does not announce chains.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// The ring of frames that the guest sends, as the ingress side of a queue.
pub struct GuestTx {
    ring: Continued,
    /// Kept beside the queue for readers of bodies.
    regions: Arc<[Region]>,
    kick: Arc<Kick>,
    call: Arc<Call>,
    header_len: usize,
    window: Window,
    /// The chain of each frame in hand, by slot of the window.
    chains: [u16; WINDOW],
    /// Chains of one buffer that were taken and not read yet, and those of another kind.
    singles: [Single; SINGLES],
    ahead: Box<[Chain]>,
    /// Whether the guest was asked to announce chains.
    is_armed: bool,
    announcement: Arc<Announcement>,
    /// Slots of the window whose frames the guest did not send, a bit for each.
    announced: u64,
}

impl GuestTx {
    /// Serves the queue of a ring until it is dropped; the ring's position then says where to continue.
    pub(crate) fn new(ring: &Vring, queue: Queue, negotiated: Negotiated) -> Self {
        Self {
            regions: queue.memory().regions().clone(),
            ring: Continued::new(queue, ring.position.clone()),
            kick: ring.kick.clone(),
            call: ring.call.clone(),
            header_len: negotiated.header_len(),
            window: Window::new(),
            chains: [0; WINDOW],
            singles: [Single::default(); SINGLES],
            ahead: vec![Chain::new(); AHEAD].into(),
            is_armed: false,
            announcement: Arc::default(),
            announced: 0,
        }
    }

    /// The same, which also announces the guest in its place.
    pub(crate) fn announcing(self, announcement: Arc<Announcement>) -> Self {
        Self { announcement, ..self }
    }

    /// Puts a frame into the window that announces the guest, if one is due.
    fn announce(&mut self, received: &mut Received) {
        if self.window.is_full() {
            return;
        }
        if let Some(mac) = self.announcement.take()
            && let Some((slot, frame)) = self.window.push()
        {
            if write_announcement(frame, mac) {
                self.announced |= 1 << slot;
                received.fresh += 1;
            } else {
                self.window.undo_push();
            }
        }
    }

    /// Takes up to `most` chains of one buffer, and makes frames of them. Returns whether there was any.
    #[inline]
    fn receive_singles(
        &mut self,
        most: usize,
        budget: &mut Budget,
        received: &mut Received,
    ) -> Result<bool, Broken> {
        let Self { ring, singles, regions, window, header_len, chains, is_armed, .. } = self;
        let most = most.min(SINGLES);
        let taken = ring.queue.pop_singles(false, &mut singles[..most]).map_err(Broken::new)?;
        let singles = &singles[..taken];
        for Single { buffer, .. } in singles {
            prefetch(regions, buffer);
        }
        if taken > 0 && std::mem::take(is_armed) {
            ring.queue.disarm();
        }
        for (n, single) in singles.iter().enumerate() {
            let slot = if budget.is_spent() { None } else { window.push() };
            let Some((slot, frame)) = slot else {
                // At most SINGLES.
                ring.queue.put_back_singles(u16::try_from(taken - n).unwrap_or(0));
                break;
            };
            if read_single(regions, single.buffer, *header_len, frame) {
                budget.charge_frame(1, frame);
                chains[slot] = single.index;
                received.fresh += 1;
            } else {
                window.undo_push();
                budget.charge(1, (single.buffer.len as usize).max(1));
                received.malformed += 1;
                ring.queue.complete(single.index, 0);
            }
        }
        Ok(taken > 0)
    }

    /// Takes up to `most` chains, and starts to fetch what is read of them first.
    #[inline]
    fn take_ahead(&mut self, most: usize) -> Result<usize, Broken> {
        let Self { ring, ahead, regions, .. } = self;
        let mut taken = 0;
        while taken < most.min(AHEAD) && ring.queue.pop(&mut ahead[taken]).map_err(Broken::new)? {
            for buffer in ahead[taken].readable.iter().take(2) {
                prefetch(regions, buffer);
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Makes a frame of chain `n` of those ahead. Returns whether it is well-formed.
    #[inline]
    fn receive_one(&mut self, n: usize, budget: &mut Budget) -> bool {
        let Self { ahead, regions, window, header_len, chains, .. } = self;
        let chain = &ahead[n];
        let work = u32::from(chain.descriptors);
        let Some((slot, frame)) = window.push() else { return false };
        if read(regions, chain, *header_len, frame) {
            budget.charge_frame(work, frame);
            chains[slot] = chain.index;
            return true;
        }
        window.undo_push();
        // Malformed frames cost the same, and count as packets.
        budget
            .charge(work.max(1), usize::try_from(chain.readable_len).unwrap_or(usize::MAX).max(1));
        false
    }
}

/// Starts to fetch the first bytes of a buffer: metadata and headers.
#[inline]
fn prefetch(regions: &[Region], buffer: &Buffer) {
    let region = &regions[usize::from(buffer.region)];
    let offset = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
    region.prefetch(offset);
    region.prefetch(offset.saturating_add(64));
}

/// What [`read`] does, for a frame in one buffer.
#[inline]
fn read_single(regions: &[Region], buffer: Buffer, header_len: usize, frame: &mut Frame) -> bool {
    let Some(len) = (buffer.len as usize).checked_sub(header_len) else { return false };
    let region = &regions[usize::from(buffer.region)];
    let at = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
    // What a longer header has behind these bytes is for frames to the guest.
    let mut metadata = [0; size_of::<VirtioNetHdr>()];
    let private = len.min(HEADER_MAX);
    let start = at.saturating_add(header_len);
    if len > FRAME_MAX
        || region.copy_out(at, &mut metadata).is_err()
        || region.copy_out(start, &mut frame.bytes[..private]).is_err()
    {
        return false;
    }
    frame.header_len = u8::try_from(private).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.fragments.clear();
    // At most FRAME_MAX.
    let rest = u16::try_from(len - private).unwrap_or(u16::MAX);
    if rest > 0 {
        frame.fragments.push(Fragment::in_region(buffer.region, (start + private) as u64, rest));
    }
    let Ok(header) = VirtioNetHdr::read_from_bytes(&metadata) else { return false };
    accept_from_driver(frame, &header)
}

/// Reads a frame: its metadata, its first bytes, and where the rest lies. Returns whether it is well-formed.
#[inline]
fn read(regions: &[Region], chain: &Chain, header_len: usize, frame: &mut Frame) -> bool {
    let Some(len) = chain.readable_len.checked_sub(header_len as u64) else { return false };
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= FRAME_MAX) else { return false };
    if chain.fault.is_some() {
        return false;
    }
    // The guest decides how metadata, header and body are spread over buffers.
    let mut metadata = [0; HEADER_LEN_MAX];
    let private = len.min(HEADER_MAX);
    let mut cursor = Cursor { regions, buffers: chain.readable.iter(), rest: None };
    if !cursor.copy(&mut metadata[..header_len]) || !cursor.copy(&mut frame.bytes[..private]) {
        return false;
    }
    frame.header_len = u8::try_from(private).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.fragments.clear();
    while let Some(Buffer { region, offset, len }) = cursor.next() {
        // No longer than the frame.
        let Ok(len) = u16::try_from(len) else { return false };
        if frame.fragments.try_push(Fragment::in_region(region, offset, len)).is_err() {
            return false;
        }
    }
    let Ok((header, _)) = VirtioNetHdr::read_from_prefix(&metadata) else { return false };
    accept_from_driver(frame, &header)
}

/// The bytes of a chain, in order.
struct Cursor<'a> {
    regions: &'a [Region],
    buffers: std::slice::Iter<'a, Buffer>,
    /// What is left of a buffer.
    rest: Option<Buffer>,
}

impl Cursor<'_> {
    #[inline]
    fn next(&mut self) -> Option<Buffer> {
        self.rest.take().or_else(|| self.buffers.next().copied())
    }

    /// Copies the next bytes. Returns whether there are enough.
    #[inline]
    fn copy(&mut self, mut dest: &mut [u8]) -> bool {
        while !dest.is_empty() {
            let Some(Buffer { region, offset, len }) = self.next() else { return false };
            let taken = usize::try_from(len).unwrap_or(usize::MAX).min(dest.len());
            let (place, after) = dest.split_at_mut(taken);
            dest = after;
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            if self.regions[usize::from(region)].copy_out(at, place).is_err() {
                return false;
            }
            // At most `len`.
            let taken = u32::try_from(taken).unwrap_or(u32::MAX);
            if taken < len {
                let offset = offset + u64::from(taken);
                self.rest = Some(Buffer { region, offset, len: len - taken });
            }
        }
        true
    }
}

impl Ingress for GuestTx {
    fn event(&self) -> Arc<dyn Event> {
        self.kick.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn has_work(&mut self) -> bool {
        let Self { ring, window, announcement, .. } = self;
        // That its memory is lost, a turn finds out.
        !window.is_empty()
            || !matches!(ring.queue.has_waiting(), Ok(false))
            || announcement.is_due()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        if self.ring.queue.memory().is_lost() {
            return Err(Broken::new(virtqueue::RingBroken::MemoryLost));
        }
        self.announce(received);
        while !budget.is_spent() && self.ring.queue.has_waiting().map_err(Broken::new)? {
            let room = WINDOW - self.window.len();
            if self.receive_singles(room, budget, received)? {
                continue;
            }
            let taken = self.take_ahead(room)?;
            if taken == 0 {
                break;
            }
            if std::mem::take(&mut self.is_armed) {
                self.ring.queue.disarm();
            }
            for n in 0..taken {
                if self.receive_one(n, budget) {
                    received.fresh += 1;
                } else {
                    received.malformed += 1;
                    self.ring.queue.complete(self.ahead[n].index, 0);
                }
            }
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { ring, chains, window, announced, .. } = self;
        window.retain(|slot, _| {
            let is_final = outcomes[usize::from(slot)].is_final();
            if is_final && *announced & 1 << slot != 0 {
                *announced &= !(1 << slot);
            } else if is_final {
                ring.queue.complete(chains[usize::from(slot)], 0);
            }
            !is_final
        });
        let must_notify = ring.queue.publish();
        ring.note_position();
        if must_notify {
            self.call.notify();
        }
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // A packed ring that has just been lost looks empty.
        if self.ring.queue.memory().is_lost() {
            return Err(Broken::new(virtqueue::RingBroken::MemoryLost));
        }
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        let queue = &mut self.ring.queue;
        self.is_armed = true;
        if queue.has_waiting().map_err(Broken::new)? || queue.arm().map_err(Broken::new)? {
            return Ok(Armed::Ready);
        }
        Ok(match self.kick.is_set() {
            true => Armed::Asleep,
            false => Armed::Until(Instant::now() + CHECK_INTERVAL),
        })
    }
}

/// Set where there is an address.
const PRESENT: u64 = 1 << 63;
/// Bytes of the frame: the shortest one, without its checksum.
const LEN: u8 = 60;
/// What stands between the Ethernet addresses and the sender's in a request of RARP (RFC 903) for IPv4 over Ethernet.
const REQUEST: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];

/// An address that the next batch of the guest's frames begins with.
#[derive(Debug, Default)]
pub(crate) struct Announcement(AtomicU64);

impl Announcement {
    pub(crate) fn set(&self, MacAddr([a, b, c, d, e, f]): MacAddr) {
        let address = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.0.store(address | PRESENT, Ordering::Release);
    }

    /// Whether there is one.
    #[inline]
    fn is_due(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Takes the address.
    #[inline]
    fn take(&self) -> Option<MacAddr> {
        if !self.is_due() {
            return None;
        }
        let [_, _, mac @ ..] = self.0.swap(0, Ordering::Acquire).to_be_bytes();
        Some(MacAddr(mac))
    }
}

/// Makes a frame that asks, as RARP, for the IP address of the guest. All switches learn from it, and nobody answers.
fn write_announcement(frame: &mut Frame, MacAddr(mac): MacAddr) -> bool {
    let bytes = &mut frame.bytes[..LEN.into()];
    bytes.fill(0);
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&mac);
    bytes[12..22].copy_from_slice(&REQUEST);
    bytes[22..28].copy_from_slice(&mac);
    bytes[32..38].copy_from_slice(&mac);
    frame.header_len = LEN;
    frame.len = LEN.into();
    frame.fragments.clear();
    accept(frame, &VirtioNetHdr::default())
}
