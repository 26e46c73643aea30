//! Buffers of the driver domain that a guest copies: the hypervisor's part.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hypervisor::guest_copy::{
    CopyForm, GRANTED_BUFFERS, GrantedBuffer, GuestCopies, GuestCopyCounts,
};
use hypervisor::{Counted, DomId, Error, Meter, PAGE_SIZE};
use shm::{PageSize, Region, create_sealable_memfd, seal_future_writes};

pub(crate) mod hypercall;

/// The guest copies of a domain's queues, by their numbers. A backend that drops its side ends them.
#[derive(Default)]
pub(crate) struct CopiesOfDomain(Mutex<Numbered>);

#[derive(Default)]
struct Numbered {
    by_id: HashMap<u32, Weak<QueueCopies>>,
    last: u32,
}

impl CopiesOfDomain {
    fn numbered(&self) -> MutexGuard<'_, Numbered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the guest copies of one more queue of `domain`.
    pub(crate) fn make(&self, domain: DomId, form: CopyForm) -> Result<Arc<QueueCopies>, Error> {
        let source = match form {
            CopyForm::Hypercall => {
                Source::Table(Mutex::new((0..GRANTED_BUFFERS).map(|_| None).collect()))
            }
            CopyForm::Mapped => Source::Pool(Pool::new(domain).map_err(Error::os("pool"))?),
            CopyForm::Granted => return Err(Error::Unsupported("granted pools")),
        };
        let mut numbered = self.numbered();
        numbered.by_id.retain(|_, copies| copies.strong_count() > 0);
        numbered.last = numbered.last.wrapping_add(1);
        let id = numbered.last;
        let copies = QueueCopies { id, source, counts: Counts::default(), meter: OnceLock::new() };
        let copies = Arc::new(copies);
        numbered.by_id.insert(id, Arc::downgrade(&copies));
        Ok(copies)
    }

    /// The guest copies with this number, while the backend has them.
    pub(crate) fn find(&self, id: u32) -> Option<Arc<QueueCopies>> {
        self.numbered().by_id.get(&id).and_then(Weak::upgrade)
    }
}

/// The guest copies of one queue.
pub(crate) struct QueueCopies {
    id: u32,
    source: Source,
    counts: Counts,
    meter: OnceLock<Arc<Meter>>,
}

/// What the guest copies out of.
enum Source {
    /// Buffers that it can copy once, by number.
    Table(Mutex<Box<[Option<Granted>]>>),
    Pool(Pool),
}

struct Granted {
    buffer: GrantedBuffer,
    since: Instant,
}

/// Pages of one guest, which the driver domain writes and the guest reads. They never have another
/// user, so they show this guest's own frames only.
struct Pool {
    file: OwnedFd,
    region: Region,
}

impl Pool {
    fn new(domain: DomId) -> std::io::Result<Self> {
        let name = format!("pvnet-pool-{domain}");
        let file = create_sealable_memfd(&name, GRANTED_BUFFERS, PageSize::Small)?;
        let region = Region::map(&file, 0, GRANTED_BUFFERS * PAGE_SIZE)?;
        // Before the guest gets the file: it can then neither write to the pages nor make holes.
        seal_future_writes(&file)?;
        Ok(Self { file, region })
    }
}

#[derive(Default)]
struct Counts {
    expired: AtomicU64,
    hypercalls: AtomicU64,
    copies: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

/// One copy that a guest asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) number: u16,
    pub(crate) offset: u16,
    pub(crate) len: u16,
    /// The page of the guest's memory, and the byte in it.
    pub(crate) page: u32,
    pub(crate) page_offset: u16,
}

impl QueueCopies {
    /// The pool's file, for the guest.
    pub(crate) fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Pool(pool) => Some(pool.file.as_fd()),
            Source::Table(_) => None,
        }
    }

    fn table(&self) -> Option<MutexGuard<'_, Box<[Option<Granted>]>>> {
        match &self.source {
            Source::Table(table) => Some(table.lock().unwrap_or_else(PoisonError::into_inner)),
            Source::Pool(_) => None,
        }
    }

    fn note(&self, asked: usize, done: u64, bytes: u64, spent: Duration) {
        let Counts { hypercalls, copies, bytes: copied, refused, .. } = &self.counts;
        let counts =
            [(hypercalls, 1), (copies, done), (copied, bytes), (refused, asked as u64 - done)];
        for (count, n) in counts {
            count.fetch_add(n, Ordering::Relaxed);
        }
        if let Some(meter) = self.meter.get() {
            let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
            meter.note(Counted::GuestHypercalls, 1);
            meter.note(Counted::GuestCopies, done);
            meter.note(Counted::GuestCopiedBytes, bytes);
            meter.note(Counted::GuestCopyNanoseconds, spent);
        }
    }
}

impl GuestCopies for QueueCopies {
    fn id(&self) -> u32 {
        self.id
    }

    fn form(&self) -> CopyForm {
        match self.source {
            Source::Table(_) => CopyForm::Hypercall,
            Source::Pool(_) => CopyForm::Mapped,
        }
    }

    fn pool(&self) -> Option<&Region> {
        match &self.source {
            Source::Pool(pool) => Some(&pool.region),
            Source::Table(_) => None,
        }
    }

    fn grant(&self, batch: &mut dyn Iterator<Item = (u16, GrantedBuffer)>) {
        let Some(mut table) = self.table() else { return };
        let since = Instant::now();
        let mut count = 0;
        for (number, buffer) in batch {
            if let Some(entry) = table.get_mut(usize::from(number)) {
                *entry = Some(Granted { buffer, since });
                count += 1;
            }
        }
        drop(table);
        if let Some(meter) = self.meter.get() {
            meter.note(Counted::BuffersGranted, count);
        }
    }

    fn expire(&self, limit: Duration) -> usize {
        let Some(mut table) = self.table() else { return 0 };
        let now = Instant::now();
        let mut count = 0;
        for entry in &mut **table {
            let is_old = |granted: &mut Granted| now.duration_since(granted.since) >= limit;
            count += usize::from(entry.take_if(is_old).is_some());
        }
        self.counts.expired.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    fn counts(&self) -> GuestCopyCounts {
        let granted = self.table().map_or(0, |table| table.iter().flatten().count());
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        GuestCopyCounts {
            granted: granted as u64,
            expired: count(&self.counts.expired),
            hypercalls: count(&self.counts.hypercalls),
            copies: count(&self.counts.copies),
            bytes: count(&self.counts.bytes),
            refused: count(&self.counts.refused),
        }
    }

    fn count_by(&self, meter: Arc<Meter>) {
        // Only the first one counts.
        let _ = self.meter.set(meter);
    }
}

#[cfg(test)]
mod tests;
