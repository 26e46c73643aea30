//! Guest copies: frames that the guest copies out of the driver domain's memory.
//!
//! Only frames in the driver domain's own buffers, which came from an uplink. Those of other guests
//! are copied here: a guest must not be made to read what another guest grants (XSA-226).

#![expect(clippy::cast_possible_truncation, reason = "lengths here are bounded by a page")]

use std::time::Duration;

use arrayvec::ArrayVec;
use hypervisor::guest_copy::{GRANTED_BUFFERS, GrantedBuffer, GuestCopies};
use hypervisor::{Hypervisor, PAGE_SIZE};
use offload::Need;
use port::{Body, DropReason, KeptFrame, Memory, Offer, Outcome, ReceiveBuffers};
use ring::Slots as _;
use ring::netif::Rx;
use wire::netif::guest_copy::GUEST_COPY;
use wire::netif::{RxResponse, rx_flags};

use super::Delivery;
use super::plan::PacketShape;
use super::slots::Slots;
use crate::request::Fault;

/// Most buffers granted in one batch.
const BATCH: usize = 64;

// Each slot of the ring has a number.
const _: () = assert!(Rx::COUNT as usize == GRANTED_BUFFERS);

type Grants = ArrayVec<(u16, GrantedBuffer), BATCH>;

/// What became of a batch of frames.
enum Granted {
    /// How many have an outcome; the next one waits, or is for another batch.
    Done(usize),
    /// The first one must be copied: its port cannot spare the buffer.
    NotKept,
}

impl<H: Hypervisor> Slots<H> {
    /// Delivers frames that need no software to a guest that copies some itself. Returns how many
    /// have an outcome.
    pub(super) fn deliver_to_copier(
        &mut self,
        &Delivery { body, buffers, now }: &Delivery<'_, H>,
        memory: &Memory<'_, H::Peer>,
        offers: &mut [Offer<'_>],
    ) -> Result<usize, Fault> {
        let copies = self.mode.guest_copies().cloned();
        let copies = copies.as_deref();
        let pool = copies.and_then(|copies| copies.pool());
        match (body, copies, pool) {
            (Body::Regions(_) | Body::Buffers(_), _, Some(pool)) => {
                let to = self.to.clone();
                self.deliver_copied(memory, &to.buffers(None, None).in_pool(pool), offers, now)
            }
            (Body::Buffers(bodies), Some(copies), None) => {
                match self.deliver_granted(copies, bodies, offers, now)? {
                    Granted::Done(done) => Ok(done),
                    Granted::NotKept => {
                        let all_header = |offer: &&Offer<'_>| !offer.frame.has_body();
                        let run = offers.iter().take_while(all_header).count().max(1);
                        self.deliver_copied(memory, buffers, &mut offers[..run], now)
                    }
                }
            }
            _ => self.deliver_copied(memory, buffers, offers, now),
        }
    }

    /// Grants frames to the guest, up to the first that cannot be granted or that does not fit the
    /// batch.
    fn deliver_granted(
        &mut self,
        copies: &dyn GuestCopies,
        bodies: &dyn ReceiveBuffers,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<Granted, Fault> {
        let mut grants = Grants::new();
        let mut done = 0;
        let mut kept = true;
        for offer in offers.iter_mut() {
            let frame = offer.frame;
            if frame.need(self.features) != Need::Nothing {
                break;
            }
            let packet = self.shape_of(frame);
            let slots = packet.slots();
            if packet.is_scattered() && !self.features.sg {
                offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            } else if grants.remaining_capacity() < slots as usize {
                break;
            } else if !self.has_room(slots)? {
                offer.outcome = self.without_room(now);
                if offer.outcome == Outcome::Waiting {
                    break;
                }
            } else if let Some(frame) = bodies.keep(frame) {
                self.answer_granted(packet, &frame, &mut grants);
                offer.outcome = Outcome::Delivered;
            } else {
                kept = false;
                break;
            }
            done += 1;
        }
        // Before the responses are published.
        copies.grant(&mut grants.drain(..));
        Ok(if done == 0 && !kept { Granted::NotKept } else { Granted::Done(done) })
    }

    /// Writes the responses of one packet. The caller has checked that there are slots for it.
    fn answer_granted(&mut self, packet: PacketShape, kept: &KeptFrame, grants: &mut Grants) {
        let PacketShape { len, flags, .. } = packet;
        let mut extras = packet.extras(0);
        for start in (0..len).step_by(PAGE_SIZE) {
            // At most a page.
            let size = (len - start).min(PAGE_SIZE as u32) as u16;
            // Below GRANTED_BUFFERS. What this number named before was copied, because the guest
            // has posted the slot again.
            let number = (self.ring.consumed() % Rx::COUNT) as u16;
            self.ring.consume();
            let more = if start + u32::from(size) < len { rx_flags::MORE_DATA } else { 0 };
            let announced = if extras.is_empty() { 0 } else { rx_flags::EXTRA_INFO };
            let first = if start == 0 { flags } else { 0 };
            self.ring.respond(RxResponse {
                id: number,
                offset: 0,
                flags: first | more | announced | GUEST_COPY,
                // A page's length fits.
                status: size.cast_signed(),
            });
            let memory = kept.memory.clone();
            let offset = kept.offset + start as usize;
            grants.push((number, GrantedBuffer { memory, offset, len: size }));
            for info in std::mem::take(&mut extras) {
                self.ring.consume();
                self.ring.respond(zerocopy::transmute!(info));
            }
        }
    }
}
