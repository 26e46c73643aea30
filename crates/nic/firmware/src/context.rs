//! One context that is assigned to a guest.

use cdna::context::Enable;
use cdna::message::{Assignment, Permissions};
use cdna::{
    ContextId, Direction, DropReason, Events, Flags, Mailbox, Reason, RxCompletion, Statistics,
    Status, ring,
};
use offload::{Checksum, Features, GsoKind};

use crate::bus::{Bus, BusFault, ContextPages, Metadata};
use crate::coalesce::Coalescer;
use crate::fetch::{CACHE, Fetcher, Violation};

/// The card's state of a context.
#[derive(Debug)]
pub(crate) struct Context<P> {
    pub(crate) assignment: Assignment,
    pub(crate) pages: P,
    pub(crate) enable: Enable,
    pub(crate) tx: Fetcher,
    pub(crate) rx: Fetcher,
    pub(crate) tx_interrupts: Coalescer,
    pub(crate) rx_interrupts: Coalescer,
    completions: Completions,
    /// The published consumer indices.
    tx_published: u32,
    rx_published: u32,
    pub(crate) statistics: Statistics,
}

/// RX completions that are not in the completion page yet.
#[derive(Debug)]
struct Completions {
    /// The index of the first one.
    first: u32,
    count: usize,
    entries: [RxCompletion; CACHE as usize],
}

impl<P: ContextPages> Context<P> {
    pub(crate) fn new(assignment: Assignment, pages: P) -> Self {
        let start = assignment.start;
        let entries = [RxCompletion::default(); CACHE as usize];
        pages.publish(Direction::Tx, start);
        pages.publish(Direction::Rx, start);
        pages.set_status(Status::Up);
        Self {
            assignment,
            pages,
            enable: Enable::default(),
            tx: Fetcher::new(Direction::Tx, start),
            rx: Fetcher::new(Direction::Rx, start),
            tx_interrupts: Coalescer::new(start),
            rx_interrupts: Coalescer::new(start),
            completions: Completions { first: start, count: 0, entries },
            tx_published: start,
            rx_published: start,
            statistics: Statistics::default(),
        }
    }

    pub(crate) fn id(&self) -> ContextId {
        self.assignment.context
    }

    /// Reads the mailboxes that were written.
    pub(crate) fn handle(
        &mut self,
        events: Events,
        now: u64,
    ) -> Result<(), (Direction, Violation)> {
        self.statistics.events += u64::from(events.word().count_ones());
        for mailbox in Mailbox::ALL.into_iter().filter(|mailbox| events.contains(*mailbox)) {
            let value = self.pages.mailbox(mailbox);
            match mailbox {
                Mailbox::TxProducer => {
                    self.tx.set_producer(value).map_err(|fault| (Direction::Tx, fault))?;
                }
                Mailbox::RxProducer => {
                    self.rx.set_producer(value).map_err(|fault| (Direction::Rx, fault))?;
                }
                Mailbox::Enable => self.set_enable(Enable(value)),
                Mailbox::TxFrames => self.tx_interrupts.set_frames(value),
                Mailbox::TxMicros => self.tx_interrupts.set_micros(value),
                Mailbox::RxFrames => self.rx_interrupts.set_frames(value),
                Mailbox::RxMicros => self.rx_interrupts.set_micros(value),
                Mailbox::TxSeen => self.tx_interrupts.arm(value, self.tx_published, now),
                Mailbox::RxSeen => self.rx_interrupts.arm(value, self.rx_published, now),
            }
        }
        Ok(())
    }

    fn set_enable(&mut self, enable: Enable) {
        self.enable = enable;
        self.tx_interrupts.set_one_shot(enable.contains(Enable::ONE_SHOT));
        self.rx_interrupts.set_one_shot(enable.contains(Enable::ONE_SHOT));
        self.rx_interrupts.set_adaptive(enable.contains(Enable::ADAPTIVE));
    }

    /// Whether the context receives frames for addresses that no context has.
    pub(crate) fn is_promiscuous(&self) -> bool {
        self.enable.contains(Enable::RX | Enable::PROMISCUOUS)
            && self.assignment.permissions.contains(Permissions::PROMISCUOUS)
    }

    /// What the guest takes beyond whole frames with complete checksums.
    pub(crate) fn features(&self) -> Features {
        let csum = self.enable.contains(Enable::BLANK_CHECKSUMS);
        let tso = csum && self.enable.contains(Enable::UNSEGMENTED);
        Features {
            sg: true,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: tso,
            tso_v6: tso,
            tagged: true,
            ..Features::NONE
        }
    }

    pub(crate) fn drop_frame(&mut self, reason: DropReason) {
        self.statistics.drops[reason as usize] += 1;
    }

    /// Puts a frame into the next RX buffers. A frame for which there are too few is dropped.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        bus: &mut impl Bus,
        mut frame: Parts<'_>,
        metadata: Metadata,
        now: u64,
    ) -> Result<(), Violation> {
        let len = frame.head.len() + frame.body.len();
        let Some(buffers) = self.buffers_for(len)? else {
            self.drop_frame(DropReason::NoDescriptors);
            return Ok(());
        };
        if let Some(address) = self.rx.upcoming() {
            bus.prefetch(self.assignment.context, address, true);
        }
        let flags = flags_of(metadata);
        let gso_size = metadata.gso.map_or(0, |gso| gso.size);
        if buffers == 1 && frame.body.is_empty() {
            let address = self.rx.peek(0).addr;
            let written = bus.write(self.assignment.context, address, frame.head);
            written.map_err(|fault| self.bus_violation(0, fault))?;
            let flags = (flags | Flags::EOP).0;
            self.complete(RxCompletion { len: short(len), flags, gso_size, reserved: 0 });
        } else {
            for ahead in 0..buffers {
                let written = self.fill(bus, ahead, &mut frame)?;
                let is_first = ahead == 0;
                let end = if ahead + 1 == buffers { Flags::EOP } else { Flags::NONE };
                let flags = if is_first { flags | end } else { end }.0;
                let gso_size = if is_first { gso_size } else { 0 };
                self.complete(RxCompletion { len: short(written), flags, gso_size, reserved: 0 });
            }
        }
        self.rx.consume(buffers);
        self.rx_interrupts.note(1, self.rx.next(), now);
        self.statistics.rx_frames += 1;
        self.statistics.rx_bytes += len as u64;
        Ok(())
    }

    /// How many of the next buffers a frame fills; none if there are too few.
    #[inline]
    fn buffers_for(&mut self, len: usize) -> Result<Option<u32>, Violation> {
        let (mut room, mut buffers) = (0, 0);
        while room < len {
            if buffers == CACHE || self.rx.available(buffers + 1, &self.pages)? <= buffers {
                return Ok(None);
            }
            let buffer = self.rx.peek(buffers).len;
            if buffer == 0 {
                let index = self.rx.next().wrapping_add(buffers);
                return Err(Violation { reason: Reason::Length, index, value: 0 });
            }
            room += usize::from(buffer);
            buffers += 1;
        }
        Ok(Some(buffers))
    }

    /// Fills the buffer `ahead` places after the next one. Returns how many bytes are in it.
    fn fill(
        &mut self,
        bus: &mut impl Bus,
        ahead: u32,
        parts: &mut Parts<'_>,
    ) -> Result<usize, Violation> {
        let descriptor = *self.rx.peek(ahead);
        let mut written = 0;
        while let Some(part) = parts.take(usize::from(descriptor.len) - written) {
            // The bus refuses an address that wraps: the bytes before it are in the machine's memory.
            let address = descriptor.addr.wrapping_add(written as u64);
            let result = bus.write(self.assignment.context, address, part);
            result.map_err(|fault| self.bus_violation(ahead, fault))?;
            written += part.len();
        }
        Ok(written)
    }

    #[cold]
    fn bus_violation(&self, ahead: u32, fault: BusFault) -> Violation {
        let index = self.rx.next().wrapping_add(ahead);
        Violation { reason: fault.reason, index, value: fault.address }
    }

    #[inline]
    fn complete(&mut self, completion: RxCompletion) {
        if self.completions.count == CACHE as usize {
            self.completions.write(&self.pages);
        }
        self.completions.entries[self.completions.count] = completion;
        self.completions.count += 1;
    }

    /// Makes everything that was done visible to the guest and the hypervisor.
    pub(crate) fn publish(&mut self) {
        // A write of the same value would take the cache line from the guest.
        if self.rx_published != self.rx.next() {
            self.completions.write(&self.pages);
            self.rx_published = self.rx.next();
            self.pages.publish(Direction::Rx, self.rx_published);
        }
        if self.tx_published != self.tx.next() {
            self.tx_published = self.tx.next();
            self.pages.publish(Direction::Tx, self.tx_published);
        }
    }
}

impl Completions {
    fn write(&mut self, pages: &impl ContextPages) {
        let mut rest = &self.entries[..self.count];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(slots_before_end(self.first)));
            pages.complete(self.first, part);
            self.first = self.first.wrapping_add(u32::from(short(part.len())));
            rest = after;
        }
        self.count = 0;
    }
}

/// Slots from an index's on to the ring's last one.
fn slots_before_end(index: u32) -> usize {
    ring::contiguous(index, ring::SLOTS) as usize
}

/// A frame, `head` and then `body`, that is taken part by part.
pub(crate) struct Parts<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The next bytes that lie together, at most `len`; none if there are none, or `len` is 0.
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        if self.head.is_empty() {
            (self.head, self.body) = (self.body, &[]);
        }
        let (part, rest) = self.head.split_at(self.head.len().min(len));
        self.head = rest;
        (!part.is_empty()).then_some(part)
    }
}

/// What a completion says of a frame.
#[inline]
fn flags_of(metadata: Metadata) -> Flags {
    let mut flags = match metadata.checksum {
        Checksum::Unknown | Checksum::Elsewhere => Flags::NONE,
        Checksum::Partial => Flags::CSUM_BLANK | Flags::CSUM_VALIDATED,
        Checksum::Validated => Flags::CSUM_VALIDATED,
    };
    if let Some(gso) = metadata.gso {
        flags = flags | Flags::GSO;
        if gso.kind == GsoKind::TcpV6 {
            flags = flags | Flags::GSO_V6;
        }
    }
    flags
}

/// A length of a frame or of a part of it, which 16 bits hold.
#[inline]
fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
