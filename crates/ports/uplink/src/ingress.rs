//! Frames from the tap.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use hypervisor::{Counted, Meter};
use offload::vnet;
use port::{
    Armed, Body, Broken, Budget, Event, FRAME_MAX, Fragment, Frame, HEADER_MAX, Ingress, Outcomes,
    Received, Window,
};
use rustix::io::Errno;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::FromBytes;

use crate::buffers::Buffers;
use crate::egress::{free_ring, has_rings};
use crate::sys::ring::{READS_MAX, Read, Ring};
use crate::tap::TapQueue;

/// Bytes with which a turn ends, where there are rings. The hypervisor then copies frames that are in the caches, where two megabytes (32 reads of 64 KiB)
/// are not.
const BYTES_OF_TURN: u64 = 192 << 10;
/// Time until a tap is read again after an error that may pass.
const AGAIN: Duration = Duration::from_millis(100);

/// The read side of a tap queue.
pub struct TapIngress {
    meter: Arc<Meter>,
    pub(crate) tap: Arc<TapQueue>,
    pub(crate) window: Window,
    /// The bodies of the frames in hand, by slot of the window.
    pub(crate) buffers: Buffers,
    /// When to read again after an error that may pass.
    again: Option<Instant>,
    back_pressure: bool,
    /// What a read costs, in units of a budget.
    cost: u32,
    /// The starts of frames that are read together.
    heads: Box<[Head; READS_MAX]>,
    /// Frames of the last turn that had some, and their bytes: as many may be there again.
    last: (usize, u64),
    /// Whether the device can be read by a ring.
    reads_together: bool,
    /// Whether the last turn found the end of the frames, or leaves it to the tap's event.
    is_drained: bool,
    /// Turns in a row that had a single frame.
    lone: u8,
}

/// After so many turns with a single frame, a turn takes one and leaves it to the tap's event to tell of another: a read that finds nothing is a system
/// call.
pub(crate) const LONE: u8 = 16;
/// So many such turns come before one that reads to the end, which finds out whether frames come in bursts by now.
pub(crate) const UNCHECKED: u8 = 4;

impl TapIngress {
    /// Reads frames from `tap` into `buffers`. A frame that does not fit is dropped.
    pub fn new(meter: Arc<Meter>, tap: Arc<TapQueue>, buffers: Buffers) -> Self {
        let (window, cost) = (Window::new(), tap.read_cost());
        let heads = Box::new(std::array::from_fn(|_| Head::default()));
        Self {
            meter,
            tap,
            window,
            buffers,
            again: None,
            back_pressure: false,
            cost,
            heads,
            last: (1, 0),
            reads_together: cost == Budget::SYSTEM_CALL,
            is_drained: false,
            lone: 0,
        }
    }

    /// For a tap whose frames are all for one receiver: while that has no room, they wait, and the tap's own queue fills.
    #[must_use]
    pub fn with_back_pressure(self) -> Self {
        Self { back_pressure: true, ..self }
    }

    /// Reads one frame into a free slot. Returns whether there was a frame.
    pub(crate) fn receive_one(
        &mut self,
        received: &mut Received,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let Some((slot, frame)) = self.window.push() else { return Ok(false) };
        let zeroed = self.buffers.prepare(slot);
        if zeroed > 0 {
            self.meter.note(Counted::PagesZeroed, zeroed);
        }
        let read = read(&self.tap, &mut self.buffers, slot, frame);
        if let Ok(true) = read {
            budget.charge_frame(self.cost, frame);
            received.fresh += 1;
            return Ok(true);
        }
        budget.charge(self.cost, 0);
        self.window.undo_push();
        let Err(error) = read else {
            received.malformed += 1;
            return Ok(true);
        };
        self.failed(ReadError::of(&error), &error, received)
    }

    /// Reads frames by one system call, `most` at most. Returns whether there may be more.
    fn receive_together(
        &mut self,
        ring: &mut Ring,
        most: usize,
        received: &mut Received,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let Self { tap, window, buffers, heads, cost, .. } = self;
        let mut slots = ArrayVec::<usize, READS_MAX>::new();
        for _ in 0..most.min(READS_MAX) {
            let Some((slot, _)) = window.push() else { break };
            buffers.prepare(slot);
            slots.push(slot);
        }
        if slots.is_empty() {
            return Ok(false);
        }
        let mut reads = ArrayVec::<Read<'_>, READS_MAX>::new();
        for (slot, head) in slots.iter().zip(heads.iter_mut()) {
            let (offset, len) = buffers.places(*slot).next().unwrap_or_default();
            reads.push(Read { head: &mut head.0, body: (buffers.region(), offset, len) });
        }
        let mut results = [0; READS_MAX];
        ring.read(tap.as_fd(), &mut reads, &mut results);
        drop(reads);
        let (mut unused, mut failure) = (0_u64, None);
        for ((slot, head), result) in slots.iter().zip(&**heads).zip(results) {
            let frame = &mut window.slots_mut()[*slot];
            let is_sound = match usize::try_from(result) {
                Ok(bytes) => head.fill(bytes, buffers, *slot, frame),
                Err(_) => {
                    unused |= 1 << slot;
                    let error = io::Error::from_raw_os_error(-result);
                    match ReadError::of(&error) {
                        ReadError::LostFrame => {
                            budget.charge(*cost, 0);
                            received.malformed += 1;
                        }
                        meaning => failure = failure.or(Some((meaning, error))),
                    }
                    continue;
                }
            };
            if is_sound {
                budget.charge_frame(*cost, frame);
                received.fresh += 1;
            } else {
                budget.charge(*cost, 0);
                unused |= 1 << slot;
                received.malformed += 1;
            }
        }
        window.retain(|slot, _| unused & 1 << slot == 0);
        match failure {
            Some((_, error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.reads_together = false;
                Ok(true)
            }
            Some((meaning, error)) => self.failed(meaning, &error, received),
            None => Ok(true),
        }
    }

    /// How many frames the next call reads, in a turn that has brought `frames` of `bytes` bytes and has the budget `left`: at first one more than the
    /// last turn had, so that the same call finds the end, and where there are more, twice as many each time.
    fn next_read(&self, (frames, bytes): (usize, u64), left: Budget) -> usize {
        let (next, (known, long)) = match frames {
            0 => (self.last.0 + 1, self.last),
            _ => (frames, (frames, bytes)),
        };
        let fit = left.bytes().div_ceil((long / known as u64).max(1));
        let fit = fit.min(left.work().div_ceil(self.cost).into());
        next.min(usize::try_from(fit).unwrap_or(next)).max(1)
    }

    /// A read failed. Returns whether the next one may succeed.
    pub(crate) fn failed(
        &mut self,
        meaning: ReadError,
        error: &io::Error,
        received: &mut Received,
    ) -> Result<bool, Broken> {
        match meaning {
            ReadError::Empty => {
                self.is_drained = true;
                Ok(false)
            }
            ReadError::LostFrame => {
                received.malformed += 1;
                Ok(true)
            }
            ReadError::Passing => {
                self.again = Some(Instant::now() + AGAIN);
                Ok(false)
            }
            ReadError::DeviceGone => Err(Broken(format!("tap {}: {error}", self.tap.name()))),
        }
    }
}

/// What a failed read means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// There is no frame.
    Empty,
    /// This frame is lost, and the next one may be read.
    LostFrame,
    /// The kernel is short of something. Frames may come again.
    Passing,
    /// There will be no more frames.
    DeviceGone,
}

impl ReadError {
    pub(crate) fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => Self::Empty,
            // tun cannot say how the frame is segmented: UDP or SCTP, for example.
            Some(Errno::INVAL) => Self::LostFrame,
            // The interface was deleted, and with it its queues.
            Some(Errno::BADFD | Errno::BADF | Errno::FAULT | Errno::NODEV) => Self::DeviceGone,
            _ => Self::Passing,
        }
    }
}

impl Ingress for TapIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.tap.clone()
    }

    /// Usually not. Nobody behind a wire waits: a full window would hold back what comes for everybody.
    fn has_back_pressure(&self) -> bool {
        self.back_pressure
    }

    fn window(&self) -> &Window {
        &self.window
    }

    /// Reads what is there. Where there are rings, a frame that comes alone is one call, which finds that it was the last, and otherwise two. Where
    /// frames come one by one, it reads one, and the tap's event tells of others.
    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.is_drained = false;
        let takes_one = self.lone >= LONE;
        let before = received.fresh;
        let limit = if has_rings() { BYTES_OF_TURN } else { u64::MAX };
        let may_read_together =
            !takes_one && self.buffers.are_single() && budget.bounds_only_work();
        let bytes = budget.within(limit, u64::MAX, |budget| {
            let most = budget.bytes();
            let mut more = true;
            while more && !budget.is_spent() {
                let taken = (received.fresh - before, most - budget.bytes());
                if takes_one && taken.0 > 0 {
                    self.is_drained = true;
                    break;
                }
                // The first such read finds out whether the kernel can.
                let together = self.reads_together && may_read_together;
                let next = if together { self.next_read(taken, *budget) } else { 1 };
                let ring = if next > 1 { free_ring() } else { None };
                more = match ring {
                    Some(mut ring) => self.receive_together(&mut ring, next, received, budget)?,
                    None => self.receive_one(received, budget)?,
                };
            }
            Ok(most - budget.bytes())
        })?;
        let frames = received.fresh - before;
        if frames > 0 {
            self.last = (frames, bytes);
        }
        self.lone = match frames {
            1 if self.lone < LONE + UNCHECKED => self.lone + u8::from(self.is_drained),
            // The next turn looks.
            1 => LONE - 1,
            0 => self.lone,
            _ => 0,
        };
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(self.buffers.body());
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // The tap's event comes as long as there are frames.
        Ok(self.again.take().map_or(Armed::Asleep, Armed::Until))
    }
}

/// Reads one frame. Returns whether it is well-formed.
fn read(tap: &TapQueue, buffers: &mut Buffers, slot: usize, frame: &mut Frame) -> io::Result<bool> {
    let mut head = Head::default();
    let places = buffers.places(slot).map(|(offset, len)| (buffers.region(), offset, len));
    let bytes = tap.read(&mut head.0, places)?;
    Ok(head.fill(bytes, buffers, slot, frame))
}

/// The region of a body that is the driver domain's buffers.
pub(crate) const OWN: u16 = 0;

/// What comes before a frame's body: its metadata and its header, in private memory.
pub(crate) struct Head(pub(crate) [u8; VirtioNetHdr::LEN + HEADER_MAX]);

impl Default for Head {
    fn default() -> Self {
        Self([0; VirtioNetHdr::LEN + HEADER_MAX])
    }
}

impl Head {
    /// Describes a frame of which `bytes` were read, behind this into a slot's buffers. Returns whether it is well-formed.
    fn fill(&self, bytes: usize, buffers: &mut Buffers, slot: usize, frame: &mut Frame) -> bool {
        let body = self.set_header(bytes, frame);
        buffers.fill(slot, body);
        place(frame, body, OWN, buffers.places(slot)) && self.parse(frame)
    }

    /// Sets the header and the length of a frame, of which `bytes` were read. Returns the bytes of the body.
    pub(crate) fn set_header(&self, bytes: usize, frame: &mut Frame) -> usize {
        let len = bytes.saturating_sub(VirtioNetHdr::LEN);
        let header_len = len.min(HEADER_MAX);
        frame.bytes[..HEADER_MAX].copy_from_slice(&self.0[VirtioNetHdr::LEN..]);
        frame.header_len = u8::try_from(header_len).unwrap_or(u8::MAX);
        frame.len = u32::try_from(len).unwrap_or(u32::MAX);
        len - header_len
    }

    /// Parses the header and the metadata. Returns whether they are well-formed.
    pub(crate) fn parse(&self, frame: &mut Frame) -> bool {
        let Ok((header, _)) = VirtioNetHdr::read_from_prefix(&self.0) else { return false };
        if frame.parse_headers().is_err() {
            return false;
        }
        match vnet::decode(&header, &frame.headers) {
            Ok(metadata) => (frame.checksum, frame.gso) = metadata,
            Err(asked) if frame.set_checksum_elsewhere(asked) => {}
            Err(_) => return false,
        }
        frame.len as usize <= FRAME_MAX
    }
}

/// Sets the fragments of a body of `left` bytes. Returns whether the places have room left: a tap
/// silently truncates a frame that does not fit.
pub(crate) fn place(
    frame: &mut Frame,
    mut left: usize,
    region: u16,
    places: impl Iterator<Item = (usize, usize)>,
) -> bool {
    frame.fragments.clear();
    for (offset, room) in places {
        let taken = left.min(room);
        let (Ok(len), Ok(offset)) = (u16::try_from(taken), u64::try_from(offset)) else {
            return false;
        };
        if len > 0 {
            frame.fragments.push(Fragment::in_region(region, offset, len));
        }
        left -= taken;
        if taken < room {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_is_gone_ends_its_queue() {
        for (errno, meaning) in [
            (Errno::AGAIN, ReadError::Empty),
            (Errno::INVAL, ReadError::LostFrame),
            (Errno::NOMEM, ReadError::Passing),
            (Errno::INTR, ReadError::Passing),
            (Errno::IO, ReadError::Passing),
            (Errno::BADFD, ReadError::DeviceGone),
        ] {
            assert_eq!(ReadError::of(&errno.into()), meaning, "{errno}");
        }
    }
}
