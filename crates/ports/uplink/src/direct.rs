//! Frames of a guest's queue, read straight into buffers that the guest posted.

use std::sync::Arc;
use std::time::Instant;

use hypervisor::PAGE_SIZE;
use offload::Features;
use port::{
    Armed, Body, Broken, Budget, DropReason, Event, Frame, HEADER_MAX, Ingress, LENT_MAX, Lent,
    LentBuffer, Outcomes, Piece, Place, Received, Wanted, Window,
};
use rustix::io::Errno;
use shm::Region;

use crate::buffers::Buffers;
use crate::guest_queue::{Copied, GuestQueue, Holder, REST, Station};
use crate::ingress::{Head, OWN, ReadError, TapIngress, place};

/// The region of a body that is the guest's memory.
const GUEST: u16 = 1;
/// Bytes of a page behind a frame's header.
const BEHIND_HEADER: usize = PAGE_SIZE - HEADER_MAX;

/// The read side of a tap queue that is kept for one guest at a time.
///
/// The header of each frame is read into private memory and checked there, the rest by the same
/// system call into buffers that the guest lends. A frame is read into the driver domain's buffers instead if
/// the guest lends too few, or while the queue is not proven: it must first bring a frame for the guest
/// that has it, and after a frame for anybody else it is not trusted for a while.
pub struct DirectIngress {
    tap: TapIngress,
    queue: Arc<GuestQueue>,
    /// The generation of `holder`.
    seen: u64,
    holder: Holder,
    /// The driver domain's buffers, and the memory of the guest.
    regions: Option<Arc<[Region]>>,
    trust: Trust,
    loans: Loans,
}

/// Whether the queue brings only the frames of the guest that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Not known yet.
    Unproven,
    Proven,
    /// It has brought a frame of another station.
    Broken(Instant),
}

/// Buffers that the guest has lent.
struct Loans {
    /// What frames of this tap may need.
    needed: Features,
    /// Pages that one read fills at most.
    pages: usize,
    /// Buffers that it must have: the pages, and one for an extra.
    least: usize,
    /// Buffers that hold no frame. The last one is used next.
    stock: Vec<LentBuffer>,
    /// The guest had too few in this turn. It is not asked again before the next one.
    is_short: bool,
    /// Loans that end with the turn.
    back: Vec<u32>,
}

impl Loans {
    /// Has the buffers for one read, or says why not. `lot`: how many were borrowed last in this turn.
    fn prepare(&mut self, station: &Station, lot: &mut usize) -> Result<(), Copied> {
        let memory = station.memory.as_ref().ok_or(Copied::Interface)?;
        if !covers(memory.features, self.needed) {
            return Err(Copied::Interface);
        }
        if self.is_short {
            return Err(Copied::NoBuffers);
        }
        if self.stock.len() < self.least {
            // More each time, so that a lone frame borrows little and many frames borrow seldom.
            *lot = (*lot * 2).max(self.least);
            let wanted = Wanted { buffers: *lot, held: true };
            station.lender.lend(wanted, &mut self.stock);
        }
        self.is_short = self.stock.len() < self.least;
        if self.is_short { Err(Copied::NoBuffers) } else { Ok(()) }
    }

    /// Where the body of the next frame goes: behind the place of its header, and into the pages that follow.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        let pages = self.stock.iter().rev().take(self.pages);
        pages.enumerate().map(|(n, buffer)| {
            // An offset in memory that is mapped here.
            let start = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
            if n == 0 { (start + HEADER_MAX, BEHIND_HEADER) } else { (start, PAGE_SIZE) }
        })
    }

    /// Notes in a frame that it lies in the next buffers, and takes them.
    fn take(&mut self, frame: &mut Frame, lender: u64) {
        let pages = (frame.len as usize).div_ceil(PAGE_SIZE);
        let buffers = pages + usize::from(frame.gso.is_some());
        let left = self.stock.len().saturating_sub(buffers);
        let tokens = self.stock.drain(left..).rev().map(|buffer| buffer.token).collect();
        frame.lent = Lent { lender, tokens, has_header: false, offset: 0 };
    }

    /// Ends all loans but those of frames in hand.
    fn end(&mut self, station: &Station) {
        self.back.extend(self.stock.drain(..).map(|buffer| buffer.token));
        if !self.back.is_empty() {
            station.lender.take_back(&self.back);
            self.back.clear();
        }
    }
}

/// Whether an interface with these features takes frames that may need others.
fn covers(features: Features, needed: Features) -> bool {
    let all = |Features { sg, csum_v4, csum_v6, tso_v4, tso_v6, uso_v4, uso_v6 }: Features| {
        [sg, csum_v4, csum_v6, tso_v4, tso_v6, uso_v4, uso_v6]
    };
    all(features).into_iter().zip(all(needed)).all(|(has, needs)| has || !needs)
}

impl DirectIngress {
    /// Reads from `tap` for the guest that has `queue`. `large`: frames may be longer than the MTU.
    #[must_use]
    pub fn new(tap: TapIngress, queue: Arc<GuestQueue>, large: bool) -> Self {
        let checksums = Features { csum_v4: true, csum_v6: true, ..Features::NONE };
        let (needed, pages, least) = match large {
            // A tap with queues for guests has no unsegmented UDP.
            true => (Features::NETIF, LENT_MAX - 1, LENT_MAX),
            false => (checksums, 1, 1),
        };
        let (stock, back) = (Vec::new(), Vec::new());
        let loans = Loans { needed, pages, least, stock, is_short: false, back };
        let (seen, holder) = (queue.generation(), queue.holder());
        let mut this =
            Self { tap, queue, seen, holder, regions: None, trust: Trust::Unproven, loans };
        this.begin();
        this
    }

    /// Notices who has the queue now. Frames in hand of another guest are done with first: until then
    /// nothing is read into anybody's buffers.
    fn look(&mut self) {
        if self.queue.generation() == self.seen {
            return;
        }
        if self.tap.window.is_empty() {
            (self.seen, self.holder) = (self.queue.generation(), self.queue.holder());
            self.begin();
        } else {
            self.trust = Trust::Unproven;
        }
    }

    /// The queue has another holder.
    fn begin(&mut self) {
        self.trust = Trust::Unproven;
        let station = self.holder.station.as_deref();
        let guest = station.and_then(|station| station.memory.as_ref()?.region.share());
        let own = self.tap.buffers.region().share();
        self.regions = own.zip(guest).map(|(own, guest)| [own, guest].into());
    }

    /// Prepares to read the next frame into buffers of `station`, in the second of `regions`; or says why not.
    fn prepare<'a>(
        &mut self,
        station: Option<&'a Station>,
        regions: Option<&'a [Region]>,
        lot: &mut usize,
    ) -> Result<(&'a Station, &'a Region), Copied> {
        let station = station.ok_or(Copied::Unassigned)?;
        if self.trust != Trust::Proven {
            return Err(Copied::Unproven);
        }
        let guest = regions.and_then(|regions| regions.get(usize::from(GUEST)));
        let guest = guest.ok_or(Copied::Interface)?;
        self.loans.prepare(station, lot)?;
        Ok((station, guest))
    }

    /// Reads one frame into buffers of the guest. Returns whether there may be another.
    fn receive_direct(
        &mut self,
        (station, guest): (&Station, &Region),
        received: &mut Received,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let Self { tap, loans, .. } = self;
        let Some(memory) = &station.memory else { return Ok(false) };
        let Some((slot, frame)) = tap.window.push() else { return Ok(false) };
        let mut head = Head::default();
        let places = loans.places().map(|(start, len)| (guest, start, len));
        let bytes = match shm::read_pieces(&*tap.tap, &mut head.0, places) {
            Ok(bytes) => bytes,
            Err(error) => {
                tap.window.undo_push();
                budget.charge(Budget::SYSTEM_CALL, 0);
                // A page of the guest is gone: only this frame is lost.
                let meaning = match Errno::from_io_error(&error) {
                    Some(Errno::FAULT) => ReadError::LostFrame,
                    _ => ReadError::of(&error),
                };
                return tap.failed(meaning, &error, received);
            }
        };
        let body = head.set_header(bytes, frame);
        let fits = place(frame, body, GUEST, loans.places());
        if frame.destination() == station.mac {
            let is_sound = fits && head.parse(frame);
            if is_sound {
                loans.take(frame, memory.lender);
                self.queue.counts().add_direct();
            }
            return Ok(self.received(is_sound, received, budget));
        }
        // It must not stay in this guest's memory: it goes on from a buffer of the driver domain.
        let is_sound = withdraw(frame, guest, &mut tap.buffers, slot) && fits && head.parse(frame);
        self.trust = Trust::Broken(Instant::now());
        self.queue.counts().add_misdirected();
        tracing::warn!(
            tap = self.tap.tap.name(), guest = %station.mac,
            "a frame of another station came in a guest's queue and was wiped out; the queue's frames are copied. \
             Does another program change the queues of this tap, or redirect frames to it?"
        );
        Ok(self.received(is_sound, received, budget))
    }

    /// The last frame of the window was read.
    fn received(&mut self, is_sound: bool, received: &mut Received, budget: &mut Budget) -> bool {
        let window = &mut self.tap.window;
        let last = window.order().last().map(|slot| window.frame(*slot));
        if let Some(frame) = last.filter(|_| is_sound) {
            budget.charge_frame(Budget::SYSTEM_CALL, frame);
            received.fresh += 1;
        } else {
            budget.charge(Budget::SYSTEM_CALL, 0);
            window.undo_push();
            received.malformed += 1;
        }
        true
    }

    /// Reads one frame into the driver domain's buffers. Returns whether there may be another.
    fn receive_copied(
        &mut self,
        why: Copied,
        received: &mut Received,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let fresh = received.fresh;
        let more = self.tap.receive_one(received, budget)?;
        if received.fresh == fresh {
            return Ok(more);
        }
        let Some(slot) = self.tap.window.order().last().copied() else { return Ok(more) };
        let destination = self.tap.window.frame(slot).destination();
        match (&self.holder.station, self.holder.before) {
            (Some(station), _) if station.mac == destination => {
                let rests = matches!(self.trust, Trust::Broken(since) if since.elapsed() < REST);
                if !rests && self.queue.generation() == self.seen {
                    self.trust = Trust::Proven;
                }
            }
            // Its guest has gone, and the switch would flood it.
            (station, Some((gone, _))) if gone == destination => {
                if station.is_some() {
                    self.trust = Trust::Broken(Instant::now());
                }
                self.queue.counts().add_late();
                received.refused.push((slot, DropReason::PortGone));
                return Ok(more);
            }
            (Some(_), _) => self.trust = Trust::Broken(Instant::now()),
            (None, _) => {}
        }
        self.queue.counts().add_copied(why);
        Ok(more)
    }
}

/// Moves the body of a frame from the guest's memory to the driver domain's, and leaves zeroes there. Returns
/// whether it fits.
fn withdraw(frame: &mut Frame, guest: &Region, own: &mut Buffers, slot: usize) -> bool {
    own.prepare(slot);
    let body: usize = frame.pieces.iter().map(|piece| usize::from(piece.len)).sum();
    let Some((start, _)) = own.places(slot).next() else { return false };
    let room: usize = own.places(slot).map(|(_, len)| len).sum();
    let mut at = start;
    for Piece { place, len } in &frame.pieces {
        let (Place::Region { offset, .. }, len) = (place, usize::from(*len)) else { continue };
        let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
        // A slot's buffers are adjacent.
        let fits = at + len <= start + room;
        if fits && Region::copy_between(guest, offset, own.region(), at, len).is_err() {
            return false;
        }
        at += len;
        // In the region, since it was read there.
        let _ = guest.zero(offset, len);
    }
    own.fill(slot, body.min(room));
    place(frame, body, OWN, own.places(slot))
}

impl Ingress for DirectIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.tap.event()
    }

    fn has_back_pressure(&self) -> bool {
        self.tap.has_back_pressure()
    }

    fn window(&self) -> &Window {
        self.tap.window()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.look();
        self.loans.is_short = false;
        let mut lot = 0;
        let (station, regions) = (self.holder.station.clone(), self.regions.clone());
        while !budget.is_spent() && !self.tap.window.is_full() {
            let more = match self.prepare(station.as_deref(), regions.as_deref(), &mut lot) {
                Ok(guest) => self.receive_direct(guest, received, budget)?,
                Err(why) => self.receive_copied(why, received, budget)?,
            };
            if !more {
                break;
            }
        }
        // Without frames there is no `finish`.
        if let (0, Some(station)) = (received.fresh, &station) {
            self.loans.end(station);
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        match &self.regions {
            Some(regions) => work(Body::Regions(regions)),
            None => self.tap.with_body(work),
        }
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { tap, loans, holder, .. } = self;
        let done =
            tap.window.order().iter().filter(|slot| outcomes[usize::from(**slot)].is_final());
        let done = done.fold(0, |done, slot| done | 1 << slot);
        for (_, frame) in tap.window.in_slots(done) {
            // Those of frames that were handed over have ended already.
            loans.back.extend(frame.lent.tokens.drain(..));
        }
        if let Some(station) = &holder.station {
            loans.end(station);
        }
        tap.finish(outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.tap.arm()
    }
}
