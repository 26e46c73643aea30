//! Frames to the tap.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use arrayvec::ArrayVec;
use hypervisor::{Counted, Meter};
use offload::{Checksum, Features, MAX_HEADER, Need, vnet};
use port::{
    Allocate, Body, Broken, DropReason, Egress, FRAGMENTS_MAX, FRAME_MAX, Finisher, Frame,
    HEADER_ROOM, Linear, Merging, Offer, Outcome, ScatterList, TAIL_MAX,
};
use shm::Iovec;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::IntoBytes;

use crate::sys::ring::{Ring, WRITES_MAX};
use crate::tap::TapQueue;

/// A frame's metadata, its header and all of its runs are written by one call.
const _: () = assert!(2 + FRAGMENTS_MAX + TAIL_MAX <= shm::IOVECS_MAX);

/// System calls of one [`deliver`](Egress::deliver), or frames of one call, in each of which the network stack behind the
/// tap may do a packet's whole work. Others wait for the queue's lock, and for the worker, until it
/// returns. A batch of unsegmented frames and a frame of 64 KiB in segments of the usual MTU need no
/// more.
const CALLS: u16 = 64;
/// Bytes of the metadata before a frame.
const METADATA: usize = size_of::<VirtioNetHdr>();
/// Bytes of the metadata and the longest frame that is all header.
const SHORT: usize = METADATA + HEADER_ROOM;

/// The write side of a tap queue.
pub struct TapEgress {
    tap: Arc<TapQueue>,
    /// Does the offloads that the device lacks.
    finisher: Finisher,
    /// Frames that the device cannot gather, behind their metadata.
    linear: Linear,
    /// Frames without a body that are written together, behind their metadata.
    short: Box<[[u8; SHORT]; WRITES_MAX]>,
    /// Whether a batch of this call could not be copied: trying again with each frame behind it would copy most of them many times.
    copies_singly: bool,
    meter: Arc<Meter>,
}

impl Egress for TapEgress {
    /// Writes frames in order, as many as 64 system calls can, or one call for 64. A tap never makes frames wait for
    /// room.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        let mut calls = 0;
        self.linear.clear();
        self.copies_singly = false;
        let mut ring = if offers.len() > 1 { free_ring() } else { None };
        let mut n = 0;
        while n < offers.len() {
            let offer = &mut offers[n];
            let need = self.finisher.need(offer.frame);
            if let (Need::Nothing, Some(ring)) = (need, &mut ring) {
                let most = usize::from(CALLS).saturating_sub(calls as usize).min(offers.len() - n);
                let written = self.write_together(ring, body, &mut offers[n..], most);
                if written > 0 {
                    calls += u32::try_from(written).unwrap_or(u32::MAX);
                    n += written;
                    continue;
                }
            }
            let offer = &mut offers[n];
            let needed = if need == Need::Segment { segments_left(offer) } else { 1 };
            // A frame that fits in one call is not divided among two: that costs another copy.
            if calls > 0 && calls + needed > CALLS.into() {
                offer.outcome = Outcome::Partial { segments: offer.sent };
                break;
            }
            calls += needed;
            let outcome = self.deliver_first(body, &offers[n..], need);
            let outcome = outcome.unwrap_or_else(|fault| fault);
            offers[n].outcome = outcome;
            if outcome.is_offered_again() {
                break;
            }
            n += 1;
        }
        Ok(())
    }

    fn merging(&self) -> Option<Merging> {
        Some(Merging { features: self.finisher.features(), longest: FRAME_MAX })
    }
}

impl TapEgress {
    /// Writes frames to `tap`. `features` are what its device can do on transmit, as a NIC. Other
    /// offloads are done here, as late as possible. UDP is segmented here unless the tap says that it
    /// [takes it whole](TapQueue::segments_udp).
    ///
    /// With `sg` the device gathers a frame's fragments in place. Without it, each frame is copied to
    /// contiguous memory.
    pub fn new(meter: Arc<Meter>, tap: Arc<TapQueue>, mut features: Features) -> Self {
        features.uso_v4 &= tap.segments_udp();
        features.uso_v6 &= tap.segments_udp();
        let note = meter.clone();
        let finisher = Finisher::new(features, move |what, n| note.note(what, n));
        let short = Box::new([[0; SHORT]; WRITES_MAX]);
        Self { tap, finisher, linear: Linear::default(), short, copies_singly: false, meter }
    }

    /// Frames that the device cannot gather are copied to memory from `allocate`.
    #[must_use]
    pub fn within(self, allocate: Arc<Allocate>) -> Self {
        Self { linear: Linear::within(allocate), ..self }
    }

    /// Writes the first of these frames that are sent as they are, `most` at most, by one call, and sets their outcomes. Returns how many: none
    /// where that is not worth it or cannot be done.
    fn write_together(
        &mut self,
        ring: &mut Ring,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        most: usize,
    ) -> usize {
        let first = offers.first().map(|offer| offer.frame);
        if let Some(first) = first.filter(|frame| frame.has_body() && self.linear.is_empty()) {
            if self.copies_singly || self.scatter(body, first).is_some() {
                return 0;
            }
            self.copy_run(body, offers);
            self.copies_singly = self.linear.is_empty();
        }
        let Self { tap, finisher, linear, short, .. } = self;
        let (mut frames, mut bodies) = (0, linear.rest().count());
        // Which of the frames lie in the buffer.
        let mut are_long = 0_u64;
        for offer in offers.iter().take(most.min(WRITES_MAX)) {
            let frame = offer.frame;
            if finisher.need(frame) != Need::Nothing {
                break;
            }
            if frame.has_body() {
                if bodies == 0 {
                    break;
                }
                bodies -= 1;
                are_long |= 1 << frames;
            } else {
                let (metadata, header) = short[frames].split_at_mut(METADATA);
                metadata.copy_from_slice(&metadata_of(frame));
                header[..frame.header().len()].copy_from_slice(frame.header());
            }
            frames += 1;
        }
        if frames < 2 {
            return 0;
        }
        let mut writes = ArrayVec::<Iovec<'_>, WRITES_MAX>::new();
        let mut copied = linear.rest();
        for (n, offer) in offers[..frames].iter().enumerate() {
            writes.push(match are_long & 1 << n {
                0 => Iovec::Private(&short[n][..METADATA + offer.frame.header().len()]),
                _ => copied.next().unwrap_or(Iovec::Private(&[])),
            });
        }
        drop(copied);
        let mut results = [0; WRITES_MAX];
        ring.write(tap.as_fd(), tap.operation(), &writes, &mut results);
        drop(writes);
        for (offer, result) in offers[..frames].iter_mut().zip(results) {
            offer.outcome = match result {
                0.. => Outcome::Delivered,
                error => refusal(&io::Error::from_raw_os_error(-error)),
            };
        }
        linear.skip(are_long.count_ones() as usize);
        frames
    }

    /// Sends the first of these frames.
    fn deliver_first(
        &mut self,
        body: Body<'_>,
        offers: &[Offer<'_>],
        need: Need,
    ) -> Result<Outcome, Outcome> {
        let offer = &offers[0];
        let frame = offer.frame;
        // Comparisons, since of a `match` over all three the compiler makes a table of jumps.
        match (need, frame.gso) {
            (Need::Nothing, _) => self.send(body, offers)?,
            (Need::Segment, Some(_)) => return self.segment(body, offer),
            _ => self.complete(body, frame)?,
        }
        Ok(Outcome::Delivered)
    }

    /// Sends the first of these frames as it is.
    fn send(&mut self, body: Body<'_>, offers: &[Offer<'_>]) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        let metadata = || vnet::encode(&frame.headers, frame.checksum, frame.gso);
        if !frame.has_body() {
            return write(&self.tap, &metadata(), [Iovec::Private(frame.header())]);
        }
        if self.linear.is_empty() {
            if let Some(list) = self.scatter(body, frame) {
                return write(&self.tap, &metadata(), list.all());
            }
            if !self.copies_singly {
                self.copy_run(body, offers);
                self.copies_singly = self.linear.is_empty();
            }
        }
        match self.linear.take() {
            Some(whole) => write_iovecs(&self.tap, [whole]),
            None => {
                let whole = self.finisher.whole(frame, body)?;
                write(&self.tap, &metadata(), [Iovec::Private(whole)])
            }
        }
    }

    /// Copies the frames at the beginning that are sent as they are, in one batch.
    fn copy_run(&mut self, body: Body<'_>, offers: &[Offer<'_>]) {
        let Self { finisher, linear, meter, .. } = self;
        let frames = offers.iter().map(|offer| offer.frame);
        let is_sent_so = |frame: &&Frame| frame.has_body() && finisher.need(frame) == Need::Nothing;
        let copied = linear.fill_behind(frames.take_while(is_sent_so), body, metadata_of);
        meter.note(Counted::DriverBytes, copied);
    }

    /// Sends a frame whose checksum the device does not finish.
    fn complete(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Outcome> {
        let metadata = vnet::encode(&frame.headers, Checksum::Unknown, None);
        let whole = self.finisher.complete(frame, body)?;
        write(&self.tap, &metadata, [Iovec::Private(whole)])
    }

    /// Sends the next [`CALLS`] segments of a frame that the device does not segment. If the device
    /// sums and gathers, the payload is not touched here.
    fn segment(&mut self, body: Body<'_>, offer: &Offer<'_>) -> Result<Outcome, Outcome> {
        let Self { tap, finisher, .. } = self;
        let frame = offer.frame;
        let sent = offer.sent.saturating_add(CALLS);
        let part = usize::from(offer.sent)..usize::from(sent);
        let sums = finisher.sums(frame);
        let checksum = if sums { Checksum::Partial } else { Checksum::Unknown };
        let metadata = vnet::encode(&frame.headers, checksum, None);
        let list = if sums && finisher.features().sg { ScatterList::of(frame, body) } else { None };
        let left = if let Some(list) = list {
            let mut segments = finisher.headers(frame, part)?;
            let mut header = [0; MAX_HEADER];
            while let Some(segment) = segments.next(&mut header) {
                let header = Iovec::Private(&header[..segment.header_len]);
                write(tap, &metadata, std::iter::once(header).chain(list.range(segment.payload)))?;
            }
            segments.behind()
        } else {
            finisher.contiguous_segments(frame, body, part, |segment| {
                write(tap, &metadata, [Iovec::Private(segment)])
            })?
        };
        Ok(if left == 0 { Outcome::Delivered } else { Outcome::Partial { segments: sent } })
    }

    /// Where the device finds the frame, if it can gather it.
    fn scatter<'a>(&self, body: Body<'a>, frame: &'a Frame) -> Option<ScatterList<'a>> {
        if self.finisher.features().sg { ScatterList::of(frame, body) } else { None }
    }
}

/// Segments of a frame that have not been sent, at least one.
fn segments_left(offer: &Offer<'_>) -> u32 {
    offer.frame.packets().saturating_sub(offer.sent.into()).max(1)
}

/// The metadata of a frame that is sent as it is.
fn metadata_of(frame: &Frame) -> [u8; METADATA] {
    zerocopy::transmute!(vnet::encode(&frame.headers, frame.checksum, frame.gso))
}

/// One frame, one system call.
fn write<'a>(
    tap: &TapQueue,
    metadata: &'a VirtioNetHdr,
    frame: impl IntoIterator<Item = Iovec<'a>>,
) -> Result<(), Outcome> {
    let metadata = std::iter::once(Iovec::Private(metadata.as_bytes()));
    write_iovecs(tap, metadata.chain(frame))
}

/// The same, with the metadata in the first iovec.
fn write_iovecs<'a>(
    tap: &TapQueue,
    iovecs: impl IntoIterator<Item = Iovec<'a>>,
) -> Result<(), Outcome> {
    shm::writev(tap, iovecs).map(drop).map_err(|error| refusal(&error))
}

/// What becomes of a frame that the kernel did not take.
fn refusal(error: &io::Error) -> Outcome {
    let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
    Outcome::Dropped(match error.kind() {
        // The stack behind the tap is short of memory or queue space: this frame is lost, as on
        // any wire. It must not disable the port.
        io::ErrorKind::WouldBlock => DropReason::NoRoom,
        _ if is(rustix::io::Errno::NOBUFS) => DropReason::NoRoom,
        // A packet socket takes no frame beyond the interface's MTU.
        _ if is(rustix::io::Errno::MSGSIZE) => DropReason::TooLarge,
        // EINVAL: the kernel found the metadata contradictory. EIO: the interface is down.
        io::ErrorKind::InvalidInput => DropReason::Malformed,
        _ => DropReason::PortGone,
    })
}

/// Rings by which several frames are written by one system call, as far as the kernel has them.
///
/// A system call of a paravirtual dom0 goes through Xen, which changes the page tables twice for it; so on such a host the daemon opens
/// rings, before it gives up the calls that make them. Elsewhere a call costs little more than an entry of a ring.
///
/// Like this process's filter of system calls, they are set once.
static RINGS: OnceLock<Vec<Mutex<Ring>>> = OnceLock::new();

/// Opens as many rings as threads write at the same time, for all [`TapEgress`]es of this process.
///
/// # Errors
/// The kernel has no io_uring, or its operator has switched it off (`kernel.io_uring_disabled`). Each frame is written by a call of its own then.
pub fn open_rings(threads: usize) -> io::Result<()> {
    let rings =
        (0..threads).map(|_| Ring::open().map(Mutex::new)).collect::<io::Result<Vec<_>>>()?;
    // They stay as they were first opened.
    let _ = RINGS.set(rings);
    Ok(())
}

/// Whether this kernel would let a process have rings.
pub fn try_ring() -> io::Result<()> {
    Ring::open().map(drop)
}

/// Whether there are rings.
#[must_use]
pub fn has_rings() -> bool {
    RINGS.get().is_some()
}

/// A ring that nobody uses. There is none if a thread was replaced that sleeps in a call.
pub(crate) fn free_ring() -> Option<MutexGuard<'static, Ring>> {
    RINGS.get()?.iter().find_map(|ring| ring.try_lock().ok().filter(|ring| ring.is_usable()))
}
