//! The control ring: requests to the backend other than frames.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hypervisor::{DomId, EventChannel, GrantRef, Guest};
use ring::netif::Ctrl;
use ring::{FrontRing, RegionPage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::netif::ctrl::status;
use wire::netif::{CtrlMessage, CtrlResponse, GrefMapping, HashAlgorithm, HashKind};
use wire::toeplitz::{KEY_LEN, MICROSOFT_KEY};
use zerocopy::{Immutable, IntoBytes};

use crate::Fault;

/// Why a control request failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The backend refused.
    #[error("the backend refuses with status {0}")]
    Refused(u32),
    /// The backend does not answer.
    #[error("no answer on the control ring after {0:?}")]
    Timeout(Duration),
    /// The backend answers, and does not unmap pages.
    #[error("the backend keeps {pages} pages mapped after {timeout:?}")]
    Unconfirmed {
        /// How many.
        pages: usize,
        /// The time limit.
        timeout: Duration,
    },
    /// The backend broke the protocol.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The hypervisor refused.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// Waiting failed.
    #[error("waiting for the backend: {0}")]
    Wait(#[from] rustix::io::Errno),
}

/// How the backend spreads received flows over the queues: by a Toeplitz hash, which it also passes on with each frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashConfig {
    /// The key.
    pub key: [u8; KEY_LEN],
    /// The kinds of hash to calculate.
    pub kinds: Vec<HashKind>,
    /// The queue for each hash, modulo the length; if this is empty, a hash modulo the queues is the queue.
    pub mapping: Vec<u32>,
}

impl HashConfig {
    /// All kinds, with the usual key, over `queues` queues.
    #[must_use]
    pub fn over(queues: usize) -> Self {
        let kinds = vec![HashKind::Ipv4, HashKind::Ipv4Tcp, HashKind::Ipv6, HashKind::Ipv6Tcp];
        let queues = u32::try_from(queues).unwrap_or(1);
        let mapping = (0..queues).cycle().take(if queues > 1 { 128 } else { 0 }).collect();
        Self { key: MICROSOFT_KEY, kinds, mapping }
    }
}

/// The pause before pages are asked for again that a packet was using.
const RETRY: Duration = Duration::from_millis(5);

/// A control ring. One request is outstanding at a time.
pub struct ControlRing<G: Guest> {
    ring: FrontRing<Ctrl, RegionPage<G::Pages>>,
    event: G::Event,
    /// The page for lists of grant references.
    list: G::Pages,
    list_gref: GrantRef,
    next_id: u16,
    timeout: Duration,
    /// The pages that the backend has mapped, by queue and reference.
    mapped: BTreeSet<(u32, u32)>,
}

impl<G: Guest> ControlRing<G> {
    pub(crate) fn new(
        guest: &G,
        backend: DomId,
        ring: FrontRing<Ctrl, RegionPage<G::Pages>>,
        event: G::Event,
        timeout: Duration,
    ) -> Result<Self, hypervisor::Error> {
        let (list, grefs) = guest.share(backend, 1)?;
        let list_gref = *grefs.first().ok_or(hypervisor::Error::Exhausted("pages"))?;
        Ok(Self { ring, event, list, list_gref, next_id: 0, timeout, mapped: BTreeSet::new() })
    }

    /// Asks the backend to hash received flows like this.
    ///
    /// # Errors
    /// It refuses, or has gone. It may hash by a part of this then.
    pub fn set_hash(&mut self, hash: &HashConfig) -> Result<(), ControlError> {
        // Nothing is hashed until all is set.
        self.set_hash_flags(&[])?;
        let (gref, len) = self.write(&hash.key)?;
        self.ask(CtrlMessage::SetHashKey { gref, len })?;
        let (gref, entries) = self.write(&hash.mapping)?;
        self.ask(CtrlMessage::SetHashMappingSize { entries })?;
        self.ask(CtrlMessage::SetHashMapping { gref, entries, offset: 0 })?;
        self.set_hash_flags(&hash.kinds)
    }

    /// Asks for these kinds of hash; none ends it.
    fn set_hash_flags(&mut self, kinds: &[HashKind]) -> Result<(), ControlError> {
        let algorithm = HashAlgorithm::Toeplitz as u32;
        self.ask(CtrlMessage::SetHashAlgorithm { algorithm })?;
        let flags = kinds.iter().fold(0, |flags, kind| flags | kind.mask());
        self.ask(CtrlMessage::SetHashFlags { flags }).map(drop)
    }

    /// How many pages of a queue the backend can keep mapped.
    pub fn size(&mut self, queue: u32) -> Result<usize, ControlError> {
        let response = self.ask(CtrlMessage::GetGrefMappingSize { queue })?;
        Ok(usize::try_from(response.data).unwrap_or(usize::MAX))
    }

    /// Asks the backend to map pages of a queue and keep them mapped: all of them, or none.
    pub fn add(&mut self, queue: u32, entries: &[GrefMapping]) -> Result<(), ControlError> {
        let (gref, count) = self.write(entries)?;
        self.ask(CtrlMessage::AddGrefMapping { queue, gref, entries: count })?;
        self.mapped.extend(entries.iter().map(|entry| (queue, entry.gref)));
        Ok(())
    }

    /// The references of a queue that the backend has mapped.
    pub(crate) fn mapped(&self, queue: u32) -> Vec<u32> {
        let all = self.mapped.range((queue, 0)..=(queue, u32::MAX));
        all.map(|(_, gref)| *gref).collect()
    }

    /// Whether the backend has a page of a queue mapped.
    pub(crate) fn has_mapped(&self, queue: u32, gref: u32) -> bool {
        self.mapped.contains(&(queue, gref))
    }

    /// Asks the backend to unmap pages of a queue. Returns for each whether it did: a page that a
    /// pending packet uses stays mapped.
    pub fn remove(
        &mut self,
        queue: u32,
        entries: &[GrefMapping],
    ) -> Result<Vec<bool>, ControlError> {
        // An entry that the backend does not write counts as not removed.
        let unanswered = |entry: &GrefMapping| GrefMapping { status: u16::MAX, ..*entry };
        let asked: Vec<_> = entries.iter().map(unanswered).collect();
        let (gref, count) = self.write(&asked)?;
        self.ask(CtrlMessage::DelGrefMapping { queue, gref, entries: count })?;
        let removed = |(n, asked): (usize, &GrefMapping)| {
            // The reference too, because the answer to an earlier list may have come late.
            self.list.read::<GrefMapping>(n * size_of::<GrefMapping>()).is_ok_and(|entry| {
                entry.gref == asked.gref && u32::from(entry.status) == status::SUCCESS
            })
        };
        let removed: Vec<_> = entries.iter().enumerate().map(removed).collect();
        for (entry, _) in entries.iter().zip(&removed).filter(|(_, removed)| **removed) {
            self.mapped.remove(&(queue, entry.gref));
        }
        Ok(removed)
    }

    /// Asks for mapped pages to be unmapped until all are, or until `timeout` has passed. What was
    /// confirmed is not [mapped](Self::has_mapped) any more.
    pub(crate) fn invalidate(
        &mut self,
        queue: u32,
        mut grefs: Vec<u32>,
        timeout: Duration,
    ) -> Result<(), ControlError> {
        let deadline = Instant::now() + timeout;
        let usual = self.timeout;
        while !grefs.is_empty() {
            for part in grefs.chunks(GrefMapping::PER_PAGE) {
                let entry = |gref: &u32| GrefMapping { gref: *gref, flags: 0, status: 0 };
                let entries: Vec<_> = part.iter().map(entry).collect();
                self.timeout = deadline.saturating_duration_since(Instant::now());
                let removed = self.remove(queue, &entries);
                self.timeout = usual;
                removed?;
            }
            grefs.retain(|gref| self.has_mapped(queue, *gref));
            if grefs.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(ControlError::Unconfirmed { pages: grefs.len(), timeout });
            }
            // Packets in the backend's hands use them.
            std::thread::sleep(RETRY);
        }
        Ok(())
    }

    /// Writes a list for the backend to read.
    fn write<T: Copy + IntoBytes + Immutable>(
        &self,
        entries: &[T],
    ) -> Result<(u32, u32), ControlError> {
        let too_long = || hypervisor::Error::Exhausted("entries of a list");
        for (n, entry) in entries.iter().enumerate() {
            self.list.write(n * size_of::<T>(), *entry).map_err(|_| too_long())?;
        }
        let count = u32::try_from(entries.len()).map_err(|_| too_long())?;
        Ok((self.list_gref.0, count))
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, message: CtrlMessage) -> Result<CtrlResponse, ControlError> {
        if self.ring.free() == 0 {
            // All slots wait for answers that timed out.
            return Err(ControlError::Timeout(self.timeout));
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.ring.request(message.request(id));
        if self.ring.publish() {
            self.event.notify()?;
        }
        let deadline = Instant::now() + self.timeout;
        loop {
            while let Some((_, response)) = self.ring.take().map_err(Fault::from)? {
                // A response with another id answers a request that timed out.
                if response.id == id {
                    return match response.status {
                        status::SUCCESS => Ok(response),
                        refused => Err(ControlError::Refused(refused)),
                    };
                }
            }
            if !self.ring.arm().map_err(Fault::from)? {
                self.sleep(deadline)?;
            }
        }
    }

    fn sleep(&self, deadline: Instant) -> Result<(), ControlError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ControlError::Timeout(self.timeout));
        }
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
        if !fds[0].revents().is_empty() {
            self.event.take()?;
        }
        Ok(())
    }
}
