//! Sending.

#![expect(
    clippy::cast_possible_truncation,
    reason = "page numbers and lengths here are bounded by the ring or a page"
)]

use std::sync::Arc;

use hypervisor::{EventChannel, GrantRef, Guest, PAGE_SIZE};
use netdev::{Metadata, SentFrame};
use offload::{Checksum, Gso};
use ring::netif::Tx;
use ring::{FrontRing, RegionPage};
use shm::Region;
use wire::ethernet::MacAddr;
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{TxRequest, header_channel, status, tx_flags};

use crate::Fault;
use crate::free_pages::FreePages;

/// All requests or pages are in use; take responses first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room on the transmit ring")]
pub struct Full;

/// Free pages that a queue keeps in any case: four of the longest frames.
const PAGES_KEPT: usize = 64;

/// Free memory for a part of the next frame.
#[derive(Clone, Copy, Debug)]
pub struct TxBuffer<'a> {
    /// The memory.
    pub region: &'a Region,
    /// The first byte's offset.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// A TX ring and the pages that frames are sent from.
pub struct TxQueue<G: Guest> {
    ring: FrontRing<Tx, RegionPage<G::Pages>>,
    event: Arc<G::Event>,
    /// The header channel, if it is in use.
    headers: Option<G::Pages>,
    pages: Arc<G::Pages>,
    grefs: Arc<[GrantRef]>,
    /// Pages without an outstanding request.
    spare: FreePages,
    errors: u64,
}

impl<G: Guest> TxQueue<G> {
    pub(crate) fn new(
        ring: FrontRing<Tx, RegionPage<G::Pages>>,
        event: Arc<G::Event>,
        headers: Option<G::Pages>,
        (pages, grefs): (G::Pages, Vec<GrantRef>),
    ) -> Self {
        Self {
            ring,
            event,
            headers,
            pages: Arc::new(pages),
            grefs: grefs.into(),
            spare: FreePages::all(),
            errors: 0,
        }
    }

    /// The event channel of this ring.
    pub fn event(&self) -> &Arc<G::Event> {
        &self.event
    }

    /// The references of the pages, in order.
    pub fn grefs(&self) -> &[GrantRef] {
        &self.grefs
    }

    /// The pages, for who frees some that were [set aside](Self::set_aside).
    pub(crate) fn pages(&self) -> (&Arc<G::Pages>, &Arc<[GrantRef]>) {
        (&self.pages, &self.grefs)
    }

    /// Takes at most `count` free pages out of use. Those that frames need most stay.
    pub(crate) fn set_aside(&mut self, count: usize) -> Vec<u16> {
        self.spare.set_aside(count, PAGES_KEPT)
    }

    /// Uses pages again that were set aside.
    pub(crate) fn put_back(&mut self, pages: &[u16]) {
        pages.iter().for_each(|page| self.spare.put_back(*page));
    }

    /// The memory behind the pages.
    pub fn memory(&self) -> &Region {
        &self.pages
    }

    /// The memory behind the [header channel](header_channel), if there is one.
    pub fn headers(&self) -> Option<&Region> {
        self.headers.as_deref()
    }

    /// The memory for the next frame's bytes, in order: its place in the header channel if that is
    /// in use, then pages. No more than one frame may use, and no pages if the ring is full.
    pub fn buffers(&self) -> impl Iterator<Item = TxBuffer<'_>> {
        let offset = header_channel::place(self.ring.next_index());
        let len = header_channel::HEADER_LEN.into();
        let header = self.headers.as_deref().map(|region| TxBuffer { region, offset, len });
        // One slot may go to a GSO extra.
        let room = (self.ring.free() as usize).saturating_sub(1);
        let pages = self.spare.iter().take(room.min(16));
        header.into_iter().chain(pages.map(|page| TxBuffer {
            region: &self.pages,
            offset: page * PAGE_SIZE,
            len: PAGE_SIZE,
        }))
    }

    /// Whether the largest frame fits.
    pub fn has_room(&self) -> bool {
        self.spare.len() >= 16 && self.ring.free() > 16
    }

    /// Packets that the backend answered with an error, since the last call.
    pub fn take_errors(&mut self) -> u64 {
        std::mem::take(&mut self.errors)
    }

    /// Sends the frame of `len` bytes that the caller has put into [`buffers`](Self::buffers), each
    /// full except the last. The next [`publish`](Self::publish) hands it over.
    #[inline]
    pub fn send(&mut self, len: u16, checksum: Checksum, gso: Option<Gso>) -> Result<(), Full> {
        self.send_at(0, len, checksum, gso)
    }

    /// As [`send`](Self::send), for a frame that starts at byte `offset` of its first page. It must
    /// end in that page unless `offset` is 0.
    #[inline]
    pub fn send_at(
        &mut self,
        offset: u16,
        len: u16,
        checksum: Checksum,
        gso: Option<Gso>,
    ) -> Result<(), Full> {
        let supplied = if self.headers.is_some() { header_channel::HEADER_LEN } else { 0 };
        let mut left = usize::from(len.saturating_sub(supplied));
        // What netif cannot say is not sent.
        let gso = gso.map(|gso| gso_slot(gso).ok_or(Full)).transpose()?;
        // A frame that fits the header channel still needs a request.
        let pages = left.div_ceil(PAGE_SIZE).max(1);
        if self.spare.len() < pages || (self.ring.free() as usize) <= pages {
            return Err(Full);
        }
        for n in 0..pages {
            let Some(page) = self.spare.take() else { break };
            let own = left.min(PAGE_SIZE);
            left -= own;
            let extra = gso.filter(|_| n == 0);
            let mut flags = if n == 0 { flags_of(checksum) } else { 0 };
            flags |= if left > 0 { tx_flags::MORE_DATA } else { 0 };
            flags |= if extra.is_some() { tx_flags::EXTRA_INFO } else { 0 };
            self.ring.request(TxRequest {
                gref: self.grefs[page].0,
                offset,
                flags,
                id: page as u16,
                // The first slot's size is the whole frame's.
                size: if n == 0 { len } else { own as u16 },
            });
            if let Some(slot) = extra {
                self.ring.request(slot);
            }
        }
        Ok(())
    }

    /// Has the backend deliver the frames of a multicast group, or no longer. The next [`publish`](Self::publish) hands it over; a
    /// backend with no room for the group answers with an [error](Self::take_errors).
    ///
    /// # Errors
    /// There is no room on the ring.
    pub fn list_group(&mut self, group: MacAddr, is_wanted: bool) -> Result<(), Full> {
        let extra = if is_wanted { Extra::McastAdd(group) } else { Extra::McastDel(group) };
        let slot = extra.encode(false).map_err(|_| Full)?.to_tx_slot();
        if self.spare.len() == 0 || self.ring.free() < 2 {
            return Err(Full);
        }
        // The request brings nothing but its id.
        let Some(page) = self.spare.take() else { return Err(Full) };
        let (gref, id) = (self.grefs[page].0, page as u16);
        let flags = tx_flags::EXTRA_INFO;
        self.ring.request(TxRequest { gref, offset: 0, flags, id, size: 0 });
        self.ring.request(slot);
        Ok(())
    }

    /// Hands the frames sent so far to the backend, and notifies it if it waits.
    #[inline]
    pub fn publish(&mut self) {
        if self.ring.publish() {
            // This fails if the backend is gone, which the store reports.
            let _ = self.event.notify();
        }
    }

    /// Takes responses, and frees their pages. Returns how many.
    #[inline]
    pub fn reclaim(&mut self) -> Result<usize, Fault> {
        let mut taken = 0;
        while let Some((_, response)) = self.ring.take()? {
            taken += 1;
            if response.status == status::NULL {
                continue;
            }
            // The id is not trusted: one that is not outstanding would free a page twice.
            if !self.spare.free(response.id.into()) {
                return Err(Fault::UnknownId(response.id));
            }
            self.errors += u64::from(response.status != status::OKAY);
        }
        Ok(taken)
    }

    /// The frames that the backend has not answered, in order. One is missing if the backend has written a response over a
    /// part of it that cannot be done without.
    pub fn unanswered(&self) -> Vec<SentFrame> {
        let mut slots = self.ring.outstanding();
        let mut frames = Vec::new();
        while let Some((index, first)) = slots.next() {
            let has_extra = first.flags & tx_flags::EXTRA_INFO != 0;
            let extra = if has_extra { slots.next() } else { None };
            let mut parts = vec![first];
            while parts.last().is_some_and(|part| part.flags & tx_flags::MORE_DATA != 0) {
                let Some((_, part)) = slots.next() else { break };
                parts.push(part);
            }
            let gso = extra.map(|(_, slot)| gso_of(&slot));
            if gso != Some(None) {
                frames.extend(self.sent(index, &parts, gso.flatten()));
            }
        }
        frames
    }

    /// The frame of these requests, the first of which has this index.
    fn sent(&self, index: u32, parts: &[TxRequest], gso: Option<Gso>) -> Option<SentFrame> {
        let (first, others) = parts.split_first()?;
        let mut bytes = vec![0; first.size.into()];
        let mut rest = &mut bytes[..];
        if let Some(headers) = &self.headers {
            let (header, after) =
                rest.split_at_mut(rest.len().min(header_channel::HEADER_LEN.into()));
            headers.copy_out(header_channel::place(index), header).ok()?;
            rest = after;
        }
        let others_len: usize = others.iter().map(|part| usize::from(part.size)).sum();
        let first_len = rest.len().checked_sub(others_len)?;
        let lens = std::iter::once(first_len).chain(others.iter().map(|part| part.size.into()));
        for (part, len) in parts.iter().zip(lens) {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(len);
            let start = usize::from(part.id) * PAGE_SIZE + usize::from(part.offset);
            self.pages.copy_out(start, own).ok()?;
            rest = after;
        }
        let is_set = |flag| first.flags & flag != 0;
        let (blank, valid) = (is_set(tx_flags::CSUM_BLANK), is_set(tx_flags::DATA_VALIDATED));
        let checksum = Checksum::from_flags(blank, valid);
        Some(SentFrame { metadata: Metadata { len: bytes.len(), checksum, gso }, bytes })
    }

    /// Asks for an event at the next response. Returns whether some wait already.
    pub fn arm(&mut self) -> Result<bool, Fault> {
        Ok(self.ring.arm()?)
    }
}

#[inline]
fn flags_of(checksum: Checksum) -> u16 {
    let (blank, validated) = checksum.to_flags();
    let bit = |set, flag| if set { flag } else { 0 };
    bit(blank, tx_flags::CSUM_BLANK) | bit(validated, tx_flags::DATA_VALIDATED)
}

fn gso_of(slot: &TxRequest) -> Option<Gso> {
    match Extra::decode(&ExtraInfo::from_tx_slot(slot)) {
        Ok(Extra::Gso { size, kind, .. }) => Some(Gso { size: size.get(), kind: kind.into() }),
        _ => None,
    }
}

fn gso_slot(gso: Gso) -> Option<TxRequest> {
    let extra =
        Extra::Gso { size: gso.size.try_into().ok()?, kind: gso.kind.netif()?, features: 0 };
    Some(extra.encode(false).ok()?.to_tx_slot())
}
