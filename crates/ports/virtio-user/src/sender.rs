//! Frames for the back-end.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::Meter;
use offload::{Checksum, Gso, Need};
use port::{
    ALL_SEGMENTS, Body, Broken, BufferSupply, Doorbell, DropReason, Egress, Event, FRAME_MAX,
    Finisher, Frame, Merging, Offer, Outcome, SEGMENTS_MAX,
};
use shm::Region;
use vhost_user::Call;
use vhost_user::shared::{FrameHeader, describe, write};
use virtqueue::Buffer;
use virtqueue::burst::BurstDriver;
use wire::virtio_net::VirtioNetHdrMrgRxbuf;

use crate::messages::Notifier;
use crate::options::Agreed;
use crate::shared_memory::WHOLE;

/// The ring of frames to the back-end, as the egress side of a queue. Each frame is copied into a buffer of this crate.
pub struct Sender {
    ring: Buffers,
    kick: Arc<Call>,
    /// Announces buffers that came back.
    room: Arc<Doorbell>,
    finisher: Finisher,
    supply: BufferSupply,
    /// Buffers that came back since the beginning.
    taken: u64,
    /// Whether the back-end was asked to announce buffers that it returns.
    is_armed: bool,
}

/// The ring, and the memory of its buffers.
struct Buffers {
    driver: BurstDriver,
    regions: Arc<[Region]>,
    header_len: usize,
}

/// Why a frame was not sent.
enum Refused {
    /// What becomes of it.
    Outcome(Outcome),
    /// The back-end has too many of the buffers.
    NoRoom,
    Broken(Broken),
}

impl From<Outcome> for Refused {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

impl From<Broken> for Refused {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// The metadata of a frame. A driver vouches for no checksum, only devices do: it must not set `DATA_VALID` (VIRTIO 1.2 §5.1.6.2.1).
#[inline]
fn describe_to_device(frame: &Frame, checksum: Checksum, gso: Option<Gso>) -> VirtioNetHdrMrgRxbuf {
    let checksum = if checksum == Checksum::Validated { Checksum::Unknown } else { checksum };
    describe(&frame.headers, checksum, gso, 0)
}

impl Buffers {
    /// Copies a frame and its metadata into the next buffer. None if the sender's platform has no addresses for devices.
    #[inline]
    fn copy(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
        metadata: VirtioNetHdrMrgRxbuf,
    ) -> Result<Option<Outcome>, Broken> {
        let needed = self.len(frame.len as usize);
        if needed > WHOLE {
            return Ok(Some(Outcome::Dropped(DropReason::TooLarge)));
        }
        let Self { driver, regions, header_len } = self;
        let buffer = Buffer { region: 0, offset: driver.buffer(0) as u64, len: WHOLE };
        let header = FrameHeader { metadata, len: *header_len };
        let outcome = write(regions, &buffer, header, frame, body)?;
        if outcome == Some(Outcome::Delivered) {
            self.driver.push(needed);
        }
        Ok(outcome)
    }

    /// Copies the private bytes of a frame, and its metadata, into the next buffer.
    fn copy_private(
        &mut self,
        bytes: &[u8],
        metadata: VirtioNetHdrMrgRxbuf,
    ) -> Result<(), Outcome> {
        const TOO_LARGE: Outcome = Outcome::Dropped(DropReason::TooLarge);
        let needed = self.len(bytes.len());
        if needed > WHOLE {
            return Err(TOO_LARGE);
        }
        let at = self.driver.buffer(0);
        let metadata = &metadata.to_bytes()[..self.header_len];
        // The buffer has room for both.
        self.regions[0].copy_in(at, metadata).map_err(|_| TOO_LARGE)?;
        self.regions[0].copy_in(at + self.header_len, bytes).map_err(|_| TOO_LARGE)?;
        self.driver.push(needed);
        Ok(())
    }

    /// Bytes of a buffer for a frame of `len`.
    #[inline]
    fn len(&self, len: usize) -> u32 {
        u32::try_from(len + self.header_len).unwrap_or(u32::MAX)
    }
}

impl Sender {
    /// Sends by a new ring to a back-end with which this is agreed.
    pub(crate) fn new(
        driver: BurstDriver,
        region: Region,
        Notifier { kick, call }: Notifier,
        agreed: Agreed,
        meter: &Arc<Meter>,
    ) -> Self {
        let meter = meter.clone();
        let header_len = agreed.header_len();
        Self {
            ring: Buffers { driver, regions: [region].into(), header_len },
            kick,
            room: call,
            finisher: Finisher::new(agreed.sends(), move |what, n| meter.note(what, n)),
            supply: BufferSupply::default(),
            taken: 0,
            is_armed: false,
        }
    }

    /// Takes the buffers that came back.
    #[inline]
    fn reclaim(&mut self, now: Duration) -> Result<(), Broken> {
        let driver = &mut self.ring.driver;
        while let Some(returned) = driver.take().map_err(Broken::new)? {
            driver.put_back(returned.id);
            self.taken += 1;
        }
        self.supply.delivered(self.taken, now);
        Ok(())
    }

    #[inline]
    fn send(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Refused> {
        let need = self.finisher.need(frame);
        let buffers = if need == Need::Segment { frame.packets() } else { 1 };
        if u32::from(self.ring.driver.free()) < buffers && buffers as usize <= SEGMENTS_MAX {
            return Err(Refused::NoRoom);
        }
        match need {
            Need::Nothing => {
                let metadata = describe_to_device(frame, frame.checksum, frame.gso);
                match self.ring.copy(frame, body, metadata)? {
                    Some(Outcome::Delivered) => Ok(()),
                    Some(outcome) => Err(outcome.into()),
                    None => {
                        let whole = self.finisher.whole(frame, body)?;
                        Ok(self.ring.copy_private(whole, metadata)?)
                    }
                }
            }
            Need::Segment => self.send_segments(body, frame),
            Need::Checksum => {
                let whole = self.finisher.complete(frame, body)?;
                let metadata = describe_to_device(frame, Checksum::Unknown, None);
                Ok(self.ring.copy_private(whole, metadata)?)
            }
        }
    }

    /// Sends all segments of a frame. The ring has room for them.
    fn send_segments(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Refused> {
        let Self { ring, finisher, .. } = self;
        let checksum = if finisher.sums(frame) { Checksum::Partial } else { Checksum::Unknown };
        let metadata = describe_to_device(frame, checksum, None);
        let send = |bytes: &[u8]| ring.copy_private(bytes, metadata);
        finisher.contiguous_segments(frame, body, ALL_SEGMENTS, send)?;
        Ok(())
    }

    #[inline]
    fn offer(&mut self, body: Body<'_>, frame: &Frame, now: Duration) -> Result<Outcome, Broken> {
        for attempt in 0..3 {
            match self.send(body, frame) {
                Ok(()) => return Ok(Outcome::Delivered),
                Err(Refused::Outcome(outcome)) => return Ok(outcome),
                Err(Refused::Broken(broken)) => return Err(broken),
                Err(Refused::NoRoom) if attempt == 0 => self.reclaim(now)?,
                Err(Refused::NoRoom) => {
                    self.is_armed = true;
                    if !self.ring.driver.arm() {
                        break;
                    }
                    self.reclaim(now)?;
                }
            }
        }
        Ok(self.supply.without_room(self.taken, now))
    }
}

impl Egress for Sender {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        // Not each time: the back-end's lines of the ring would have to come here for a few buffers.
        if self.ring.driver.free() < self.ring.driver.outstanding() {
            self.reclaim(now)?;
        }
        let mut waits = false;
        for offer in offers {
            offer.outcome = self.offer(body, offer.frame, now)?;
            waits = offer.outcome == Outcome::Waiting;
            if waits {
                break;
            }
        }
        if self.ring.driver.publish() {
            self.kick.notify();
        }
        if !waits && std::mem::take(&mut self.is_armed) {
            self.ring.driver.disarm();
        }
        Ok(())
    }

    fn merging(&self) -> Option<Merging> {
        Some(Merging { features: self.finisher.features(), longest: FRAME_MAX })
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.room.clone())
    }

    fn is_stalled(&self) -> bool {
        self.supply.is_stalled()
    }
}
