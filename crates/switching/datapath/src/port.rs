//! A port, as the switch's other ports see it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use port::{
    DropReason, Egress, Event, InFlight, Lender, LentBuffer, LentMemory, Offer, Outcome, Rewrap,
    SteeringCell, Ticket, Wanted, queue_of,
};
use switch::{PortCounters, PortId, StormControl};

use crate::batches::{BatchCounts, Batches};
use crate::egress_queue::{EgressQueue, LockWaits};
use crate::flow_queues::FlowQueues;
use crate::inbox::Inbox;
use crate::probes;

/// An ingress queue that was [added](crate::Datapath::add_ingress) to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressId {
    pub(crate) port: PortId,
    /// No other ingress queue of the datapath has it.
    pub(crate) serial: u64,
}

/// What a thread may find in the memory of a port, and what becomes of the port while a thread sleeps elsewhere.
///
/// There are ports whose memory can make a thread sleep, beside ports whose queues nobody can replace meanwhile.
/// A thread that copies a frame between two guests has the queues of both in its hands. If it sleeps in the memory of the one, the other's queue must
/// be replaced (`sleepers.rs`), or it waits as long. A queue over granted pages cannot be: what the thread still does with it when it wakes up
/// would reach pages that the guest uses for something else by then. So frames between these two kinds of ports go through memory of this
/// process: those from memory that can sleep are copied before the other port's queue is locked (`copies.rs`), and those to such memory are
/// delivered by the turns of its own port (`inbox.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMemory {
    /// When a thread sleeps that touches it.
    pub sleep: MemorySleep,
    /// Other queues take the places of those with which a thread sleeps in another port's memory.
    pub is_replaceable: bool,
    /// Its frames may lie in buffers that another port lends: in memory in which a thread can sleep, for whoever else gets them.
    pub borrows: bool,
}

/// When a thread sleeps that touches memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySleep {
    /// Never: pages that a Xen guest has granted, and buffers of devices. Beside other memory workers are watched.
    Never,
    /// When the system has swapped it out.
    #[default]
    Swapped,
    /// For as long as its owner likes.
    AtWill,
}

impl PortMemory {
    /// Whether its owner can make a thread sleep.
    #[inline]
    pub(crate) fn can_sleep(self) -> bool {
        self.sleep == MemorySleep::AtWill
    }

    /// Whether frames from here to there are copied before the other queue is locked.
    #[inline]
    pub(crate) fn is_left_for(self, to: Self) -> bool {
        self.can_sleep() && !to.is_replaceable
    }

    /// Whether frames from here to there are delivered by the other port's turns.
    #[inline]
    pub(crate) fn avoids(self, to: Self) -> bool {
        to.can_sleep() && !self.is_replaceable
    }
}

/// The other port of a pair, which may come and go.
#[derive(Debug)]
pub(crate) struct Peer(AtomicU64);

/// No peer: no port has this serial number.
const NO_PEER: u64 = u64::MAX;
/// Bits of a port's number. Its serial number is above them.
const ID_BITS: u32 = u16::BITS;

impl Peer {
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(NO_PEER))
    }

    /// Sets it. The serial number tells it from the port that gets its number after it.
    pub(crate) fn set(&self, PortId(id): PortId, serial: u64) {
        self.0.store(word(id, serial), Ordering::Release);
    }

    /// Leaves it without one, if it is this one.
    pub(crate) fn clear_if(&self, PortId(id): PortId, serial: u64) {
        // Otherwise it is another one by now, which stays.
        let _ = self.0.compare_exchange(
            word(id, serial),
            NO_PEER,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    /// Its number, and its serial number.
    pub(crate) fn get(&self) -> (PortId, u64) {
        let word = self.0.load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the number is in the low bits")]
        let id = PortId(word as u16);
        (id, word >> ID_BITS)
    }
}

fn word(id: u16, serial: u64) -> u64 {
    serial << ID_BITS | u64::from(id)
}

/// Whether a port [is a suspect](Port::suspect), or was one.
const NONE: u8 = 0;
const PRESENT: u8 = 1;
const PAST: u8 = 2;

/// A port.
pub struct Port {
    id: PortId,
    serial: u64,
    name: String,
    counters: PortCounters,
    /// Unsegmented frames from it whose checksum was not blank, and was made so.
    gso_checksum_fixups: AtomicU64,
    /// What each worker has counted of its batches.
    batches: Box<[Batches]>,
    storm_control: StormControl,
    /// The other port of its pair, if it is not in the switch.
    peer: Option<Peer>,
    egress: Box<[EgressQueue]>,
    memory: PortMemory,
    /// See [`suspect`](Self::suspect).
    suspicion: AtomicU8,
    /// By egress queue: the frames of ports that must not wait for its memory. Empty if nobody sleeps there.
    inboxes: Box<[Inbox]>,
    /// The number of the first egress queue, if it lends buffers.
    lender: Option<u64>,
    /// Whether MAC addresses are part of the hash that spreads flows over the queues.
    hashes_macs: bool,
    /// How its guest wants flows spread over its queues, if there are several and it can say so.
    steering: Option<Arc<SteeringCell>>,
    /// The queues that its flows use, if they are steered.
    flow_queues: Option<FlowQueues>,
    failed: AtomicBool,
}

impl Port {
    pub(crate) fn new(
        id: PortId,
        serial: u64,
        name: &str,
        egress: Vec<Box<dyn Egress>>,
        storm_control: StormControl,
    ) -> Self {
        let steering = match &*egress {
            [first, _, ..] => first.steering(),
            _ => None,
        };
        Self {
            id,
            serial,
            name: name.to_owned(),
            counters: PortCounters::new(0),
            gso_checksum_fixups: AtomicU64::new(0),
            batches: Box::default(),
            storm_control,
            peer: None,
            egress: egress.into_iter().map(EgressQueue::new).collect(),
            memory: PortMemory::default(),
            suspicion: AtomicU8::new(NONE),
            inboxes: Box::default(),
            lender: None,
            hashes_macs: false,
            steering,
            flow_queues: None,
            failed: AtomicBool::new(false),
        }
    }

    /// The same for a datapath with `workers` workers, before any of them uses it.
    pub(crate) fn with_workers(self, workers: usize) -> Self {
        let batches = (0..workers).map(|_| Batches::default()).collect();
        Self { batches, counters: PortCounters::new(workers), ..self }
    }

    /// The same with the other port of its pair, if it is not in the switch.
    pub(crate) fn with_peer(self, peer: Option<Peer>) -> Self {
        Self { peer, ..self }
    }

    /// The same with MAC addresses in the hash that spreads flows over its queues, or without.
    pub(crate) fn with_hashed_macs(self, hashes_macs: bool) -> Self {
        Self { hashes_macs, ..self }
    }

    /// The same, where a flow's frames go to the queue from which its own last came, or not.
    pub(crate) fn with_steered_flows(self, are_steered: bool) -> Self {
        let flow_queues = (are_steered && self.egress.len() > 1).then(FlowQueues::new);
        Self { flow_queues, ..self }
    }

    /// The same with such memory. None of its queues may be used before.
    pub(crate) fn with_memory(self, memory: PortMemory) -> Self {
        let inboxes = if memory.can_sleep() { self.egress.len() } else { 0 };
        let inboxes = (0..inboxes).map(|_| Inbox::default()).collect();
        let lender = self.lent_memory(0).map(|memory| memory.lender);
        Self { memory, inboxes, lender, ..self }
    }

    /// What happens in its memory, and to its queues.
    #[inline]
    pub(crate) fn memory(&self) -> PortMemory {
        self.memory
    }

    /// Whether a thread may have slept in its memory, or in that of another port whose frames it had in hand too. If so, no thread touches its
    /// memory together with that of others, which costs each frame a copy: the next [`Sleep`](crate::Sleep) says whose memory it is. Only for a
    /// port whose memory lets threads sleep [at will](MemorySleep::AtWill).
    pub fn suspect(&self, is_suspect: bool) {
        let before = self.suspicion.load(Ordering::Relaxed);
        let state = match is_suspect {
            true => PRESENT,
            false if before == NONE => NONE,
            false => PAST,
        };
        self.suspicion.store(state, Ordering::Relaxed);
    }

    /// Whether its frames are copied before another port's queue is locked.
    #[inline]
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspicion.load(Ordering::Relaxed) == PRESENT
    }

    /// Whether its own turns deliver all frames to a queue: also when it is no suspect any more, until those are delivered that are on their way.
    #[inline]
    pub(crate) fn is_avoided(&self, queue: usize) -> bool {
        match self.suspicion.load(Ordering::Relaxed) {
            NONE => false,
            PRESENT => true,
            _ => self.inbox(queue).is_some_and(Inbox::has_work),
        }
    }

    /// The frames on their way to an egress queue that its own turns deliver, if there can be any.
    #[inline]
    pub(crate) fn inbox(&self, queue: usize) -> Option<&Inbox> {
        self.inboxes.get(queue)
    }

    /// How many of these frames, from the first one on, are delivered in place: all, if each lies in this port's own buffers and the inbox is empty;
    /// otherwise one, if a part of the first was delivered; otherwise none. Only an uplink's queue for this port alone borrows such buffers, and waits
    /// for its memory.
    #[cold]
    pub(crate) fn count_in_place(&self, inbox: &Inbox, offers: &[Offer<'_>]) -> usize {
        let is_its =
            |offer: &Offer<'_>| offer.frame.lent.is_any() && !self.is_from_others(offer.frame);
        match offers.first() {
            Some(_) if !inbox.has_work() && offers.iter().all(is_its) => offers.len(),
            Some(first) if first.sent > 0 => 1,
            _ => 0,
        }
    }

    /// Whether the frame lies in buffers that another port has lent.
    fn is_from_others(&self, frame: &port::Frame) -> bool {
        frame.lent.is_any() && Some(frame.lent.lender) != self.lender
    }

    /// The memory in which frames of a port that [borrows](PortMemory::borrows) buffers lie, for this port.
    pub(crate) fn memory_of(&self, offers: &[Offer<'_>], from: PortMemory) -> PortMemory {
        match offers.iter().any(|offer| self.is_from_others(offer.frame)) {
            true => PortMemory { sleep: MemorySleep::AtWill, ..from },
            false => from,
        }
    }

    /// Its number. Another port may get it after this one is detached.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Its serial number, which no other port of the datapath ever gets.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Its name, for operators.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it carried and dropped.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Its batches of frames, and how long they were in the daemon.
    pub fn batches(&self) -> BatchCounts {
        BatchCounts::of(&self.batches)
    }

    /// Where a worker counts its batches.
    #[inline]
    pub(crate) fn batches_of(&self, worker: usize) -> Option<&Batches> {
        self.batches.get(worker)
    }

    /// Counts dropped frames that came from it, or were for it.
    ///
    /// It is never inlined: a copy that nobody calls would leave a note of its probe, without the code.
    #[inline(never)]
    pub(crate) fn add_drops(&self, reason: DropReason, frames: u64) {
        if frames > 0 {
            self.counters.add_drops(reason, frames);
            probes::dropped(&self.name, reason.name(), frames);
        }
    }

    /// The other port of its pair, if it is not in the switch.
    #[inline]
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// The budget for what it floods.
    pub(crate) fn storm_control(&self) -> &StormControl {
        &self.storm_control
    }

    /// How many queues it has.
    pub fn queues(&self) -> usize {
        self.egress.len()
    }

    /// Whether MAC addresses are part of the hash that spreads flows over the queues.
    pub(crate) fn hashes_macs(&self) -> bool {
        self.hashes_macs
    }

    /// How its guest wants flows spread over its queues.
    #[inline]
    pub(crate) fn steering(&self) -> Option<&SteeringCell> {
        self.steering.as_deref()
    }

    /// The queues that its flows use, if they are steered.
    #[inline]
    pub(crate) fn flow_queues(&self) -> Option<&FlowQueues> {
        self.flow_queues.as_ref()
    }

    /// Whether its guest has chosen how flows are spread over its queues.
    pub fn is_steered_by_guest(&self) -> bool {
        self.steering().is_some_and(|cell| cell.load().steering().is_some())
    }

    /// Whether its guest is stalled: it posts too few buffers, and frames for it are dropped.
    pub fn is_stalled(&self) -> bool {
        self.egress.iter().any(|queue| queue.with(|egress| egress.is_stalled()) == Some(true))
    }

    /// Counts unsegmented frames from it that claimed a complete checksum, and got a blank one.
    #[cold]
    pub(crate) fn add_gso_checksum_fixups(&self, frames: u64) {
        self.gso_checksum_fixups.fetch_add(frames, Ordering::Relaxed);
    }

    /// How many those are.
    pub fn gso_checksum_fixups(&self) -> u64 {
        self.gso_checksum_fixups.load(Ordering::Relaxed)
    }

    /// How workers have waited for each other at its egress queues.
    pub fn lock_waits(&self) -> LockWaits {
        let waits = self.egress.iter().map(EgressQueue::lock_waits);
        waits.fold(LockWaits::default(), |sum, waits| LockWaits {
            count: sum.count + waits.count,
            time: sum.time + waits.time,
        })
    }

    /// Whether a queue of it broke.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Notes that a queue of it broke. Returns whether it is the first one.
    pub(crate) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// What announces room in a queue, and the end of deliveries in flight.
    pub(crate) fn room_event(&self, queue: usize) -> Option<Arc<dyn Event>> {
        self.egress.get(queue)?.with(|egress| egress.room_event())?
    }

    /// The queue that a flow belongs to.
    #[inline]
    pub(crate) fn queue_of(&self, hash: u32) -> usize {
        queue_of(hash, self.egress.len())
    }

    /// An egress queue.
    #[inline]
    pub(crate) fn egress(&self, queue: usize) -> &EgressQueue {
        &self.egress[queue]
    }

    /// The memory in which the buffers of a queue lie that it lends; none if it lends none.
    pub fn lent_memory(&self, queue: usize) -> Option<LentMemory> {
        self.egress.get(queue)?.with(|egress| egress.lent_memory())?
    }

    /// Lends the buffers of a queue, as long as the port is attached.
    pub fn lender(self: &Arc<Self>, queue: usize) -> Arc<dyn Lender> {
        Arc::new(PortLender { port: self.clone(), queue })
    }

    /// Asks how deliveries in flight ended. `worker` then waits for the others.
    pub(crate) fn reap(&self, queue: usize, deliveries: &mut [InFlight], worker: usize) {
        let queue = &self.egress[queue];
        // Before asking: a delivery that ends after it then finds the worker waiting.
        queue.wait(worker);
        // They end when it can be asked.
        let Some(mut locked) = queue.lock_in_turn() else { return };
        match locked.side.as_mut() {
            Some(egress) => egress.reap(deliveries),
            None => deliveries.iter_mut().for_each(|delivery| {
                delivery.outcome = Some(Outcome::Dropped(DropReason::PortGone));
            }),
        }
    }

    /// Cancels deliveries: their sender is gone.
    pub(crate) fn cancel(&self, queue: usize, tickets: &[Ticket]) {
        self.egress[queue].with(|egress| egress.cancel(tickets));
    }

    /// Takes the set of workers that wait for a queue, a bit for each.
    pub(crate) fn take_waiters(&self, queue: usize) -> u64 {
        self.egress.get(queue).map_or(0, EgressQueue::take_waiters)
    }

    /// Wraps the egress queues anew.
    pub(crate) fn rewrap(&self, rewrap: &dyn Rewrap) {
        self.egress.iter().for_each(|queue| queue.rewrap(|egress| rewrap.egress(egress)));
    }

    /// Drops the egress queues, and with them their mappings of the guest's memory. A thread that sleeps in one drops it when it wakes up.
    pub(crate) fn close(&self) {
        self.egress.iter().for_each(EgressQueue::close);
    }

    /// A thread sleeps that may have queues of this port locked.
    pub(crate) fn note_sleeper(&self) {
        self.egress.iter().for_each(EgressQueue::note_sleeper);
    }

    /// Drops the egress queues; frames for them wait.
    pub(crate) fn suspend(&self) {
        self.egress.iter().for_each(EgressQueue::suspend);
    }

    /// Goes on with other egress queues, as many as it has. Returns whether there was a place for each.
    pub(crate) fn resume(&self, egress: Vec<Box<dyn Egress>>) -> bool {
        let mut queues = self.egress.iter().zip(egress);
        queues.all(|(queue, egress)| queue.resume(egress).is_ok())
    }

    /// Replaces the egress sides whose lock holders sleep. Returns how many.
    pub(crate) fn replace_sleeping(
        &self,
        make: impl Fn(usize) -> Option<Box<dyn Egress>>,
    ) -> usize {
        let queues = self.egress.iter().enumerate();
        queues.filter(|(number, queue)| queue.replace_sleeping(|| make(*number))).count()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Lends the buffers of a port's queue.
struct PortLender {
    port: Arc<Port>,
    queue: usize,
}

impl Lender for PortLender {
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>) {
        let Some(queue) = self.port.egress.get(self.queue) else { return };
        // A ring that is broken is noticed, and the port closed, with the next frame for it.
        let _ = queue.with(|egress| egress.lend(wanted, lent));
    }

    fn take_back(&self, tokens: &[u32]) {
        if let Some(queue) = self.port.egress.get(self.queue) {
            queue.with(|egress| egress.take_back(tokens));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use offload::Features;
    use port::{Body, Broken, Frame};

    use super::*;

    /// Lends buffers.
    struct Lending;

    impl Egress for Lending {
        fn deliver(&mut self, _: Body<'_>, _: &mut [Offer<'_>], _: Duration) -> Result<(), Broken> {
            Ok(())
        }

        fn lent_memory(&self) -> Option<LentMemory> {
            let region = shm::Region::anonymous(4096).unwrap();
            Some(LentMemory { lender: 7, region, features: Features::NONE })
        }
    }

    #[test]
    fn frames_in_its_own_buffers_need_no_inbox_and_overtake_none_there() {
        let port = Port::new(PortId(0), 1, "red", vec![Box::new(Lending)], StormControl::new(0));
        let memory = PortMemory { sleep: MemorySleep::AtWill, ..PortMemory::default() };
        let port = port.with_memory(memory);
        let inbox = port.inbox(0).unwrap();
        let [its, others, none] = [Some(7), Some(8), None].map(|lender| {
            let mut frame = Frame::empty();
            if let Some(lender) = lender {
                frame.lent.lender = lender;
                frame.lent.tokens.push(0);
            }
            frame
        });
        let count = |frames: [&Frame; 2]| port.count_in_place(inbox, &frames.map(Offer::new));
        let behind_begun = |frame| {
            let begun = Offer { sent: 1, ..Offer::new(&its) };
            port.count_in_place(inbox, &[begun, Offer::new(frame)])
        };
        assert_eq!([[&its, &its], [&its, &others], [&its, &none]].map(count), [2, 0, 0]);
        assert_eq!([&its, &others, &none].map(behind_begun), [2, 1, 1]);
        inbox.put(Body::Regions(&Arc::default()), &mut [Offer::new(&none)], 0);
        assert_eq!((count([&its, &its]), behind_begun(&its)), (0, 1));
    }
}
