//! Frames of a guest's queue, read straight into buffers that the guest posted.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use port::{Armed, Body, Broken, Budget, DropReason, Event, Ingress, Outcomes, Received, Window};
use rustix::io::Errno;
use shm::Region;

use crate::buffers::Buffers;
use crate::guest_queue::{Copied, GuestQueue, Holder, REST, Station};
use crate::ingress::{Head, OWN, ReadError, TapIngress, place};
use crate::loans::{BEHIND_HEADER, Loans};

/// The region of a body that is the guest's memory.
const GUEST: u16 = 1;

/// The read side of a tap queue that is kept for one guest at a time.
///
/// The header of each frame is read into private memory and checked there, the rest by the same
/// system call into buffers that the guest lends. A frame is read into the driver domain's buffers instead if
/// the guest lends too few, or while the queue is not proven: it must first bring a frame for the guest
/// that has it, and after a frame for anybody else it is not trusted for a while. A frame that the guest takes only after software
/// has finished it is withdrawn to them, and those behind it are read into them for the rest of the turn.
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
    /// Frames of this turn that were read into the guest's buffers.
    direct: u64,
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

impl DirectIngress {
    /// Reads from `tap` for the guest that has `queue`. `large`: frames may be longer than the MTU.
    #[must_use]
    pub fn new(tap: TapIngress, queue: Arc<GuestQueue>, large: bool) -> Self {
        let loans = Loans::new(large);
        let (seen, holder) = (queue.generation(), queue.holder());
        let mut this = Self {
            tap,
            queue,
            seen,
            holder,
            regions: None,
            trust: Trust::Unproven,
            loans,
            direct: 0,
        };
        this.begin();
        this
    }

    /// Notices who has the queue now. Frames in hand of another guest are done with first: until then
    /// nothing is read into anybody's buffers.
    fn check_holder(&mut self) {
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

    /// Whether a frame waits that is finished in software for `station`.
    fn keeps_unfinished(&self, station: &Station) -> bool {
        let window = &self.tap.window;
        window.order().iter().any(|slot| station.finishes(window.frame(*slot)))
    }

    /// Prepares to read the next frame into buffers of `station`, in the second of `regions`; or says why not.
    fn prepare<'a>(
        &mut self,
        station: Option<&'a Station>,
        regions: Option<&'a [Region]>,
    ) -> Result<(&'a Station, &'a Region), Copied> {
        let station = station.ok_or(Copied::Unassigned)?;
        if self.trust != Trust::Proven {
            return Err(Copied::Unproven);
        }
        let guest = regions.and_then(|regions| regions.get(usize::from(GUEST)));
        let guest = guest.ok_or(Copied::Interface)?;
        self.loans.prepare(station)?;
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
        tap.buffers.prepare(slot);
        let (own, overflow) = (tap.buffers.region(), overflow(&tap.buffers, slot));
        let pages = loans.pages_of_next();
        let places = loans.places(pages).map(|(start, len)| (guest, start, len));
        let rest = (pages < loans.all_pages()).then_some((own, overflow.start, overflow.len()));
        let bytes = match shm::readv(&*tap.tap, &mut head.0, places.chain(rest)) {
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
        let is_parsed = head.parse(frame);
        let is_its = frame.destination() == station.mac;
        if is_its && !(is_parsed && station.finishes(frame)) {
            let all = loans.all_pages();
            let is_gathered = loans.holds(body, pages)
                || gather((own, overflow), guest, loans.places(all), body).is_some();
            let is_placed = is_gathered && place(frame, body, GUEST, loans.places(all));
            let is_sound = is_placed && is_parsed;
            if !loans.holds(body, pages) {
                tap.buffers.fill(slot, body);
            }
            if is_sound {
                loans.take(frame, memory.lender);
                self.direct += 1;
            }
            return Ok(self.received(is_sound, received, budget));
        }
        // It must not stay in this guest's memory, or not in buffers that the guest could use for its segments: it goes on from a
        // buffer of the driver domain.
        let to = tap.buffers.range(slot);
        let is_withdrawn = withdraw(guest, loans.places(pages), (own, to), body);
        tap.buffers.fill(slot, body);
        let is_placed = is_withdrawn && place(frame, body, OWN, tap.buffers.places(slot));
        if is_its {
            loans.pause(station);
            self.queue.counts().add_copied(Copied::Interface);
        } else {
            self.distrust(station);
        }
        Ok(self.received(is_placed && is_parsed, received, budget))
    }

    /// A frame for somebody else than `station` came.
    fn distrust(&mut self, station: &Station) {
        self.trust = Trust::Broken(Instant::now());
        self.queue.counts().add_misdirected();
        tracing::warn!(
            tap = self.tap.tap.name(), guest = %station.mac,
            "a frame of another station came in a guest's queue and was wiped out; the queue's frames are copied. \
             Does another program change the queues of this tap, or redirect frames to it?"
        );
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
        let frame = self.tap.window.frame(slot);
        let destination = frame.destination();
        if let Some(station) = self.holder.station.as_deref().filter(|it| it.finishes(frame)) {
            self.loans.pause(station);
        }
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

/// Where the driver domain's buffers of a slot take what does not fit in the guest's first page: so far behind their start that a
/// body which is withdrawn to the start follows on.
fn overflow(own: &Buffers, slot: usize) -> Range<usize> {
    let all = own.range(slot);
    (all.start + BEHIND_HEADER).min(all.end)..all.end
}

/// Copies the end of a body, which did not fit in the guest's first page, to the pages that follow. None if it does not fit there.
fn gather(
    (own, overflow): (&Region, Range<usize>),
    guest: &Region,
    pages: impl Iterator<Item = (usize, usize)>,
    body: usize,
) -> Option<()> {
    let mut from = overflow.start;
    let end = from.checked_add(body.checked_sub(BEHIND_HEADER)?)?;
    if end > overflow.end {
        return None;
    }
    for (start, room) in pages.skip(1) {
        let len = room.min(end - from);
        Region::copy_between(own, from, guest, start, len).ok()?;
        from += len;
    }
    (from == end).then_some(())
}

/// Moves what was read of a body to the guest's `pages` to the driver domain's memory, and leaves zeroes there. Returns whether
/// all of it was moved.
fn withdraw(
    guest: &Region,
    pages: impl Iterator<Item = (usize, usize)>,
    (own, to): (&Region, Range<usize>),
    body: usize,
) -> bool {
    let (mut at, mut left, mut is_whole) = (to.start, body, true);
    for (start, room) in pages {
        let len = room.min(left);
        let fits = at + len <= to.end;
        is_whole &= fits && Region::copy_between(guest, start, own, at, len).is_ok();
        // In the region, since it was read there.
        let _ = guest.zero(start, len);
        (at, left) = (at + len, left - len);
    }
    is_whole
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
        self.check_holder();
        self.loans.begin();
        let (station, regions) = (self.holder.station.clone(), self.regions.clone());
        if let Some(station) = station.as_deref().filter(|station| self.keeps_unfinished(station)) {
            self.loans.pause(station);
        }
        while !budget.is_spent() && !self.tap.window.is_full() {
            let more = match self.prepare(station.as_deref(), regions.as_deref()) {
                Ok(guest) => self.receive_direct(guest, received, budget)?,
                Err(why) => self.receive_copied(why, received, budget)?,
            };
            if !more {
                break;
            }
        }
        if self.direct > 0 {
            self.queue.counts().add_direct(std::mem::take(&mut self.direct));
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
            loans.give_up(frame);
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
