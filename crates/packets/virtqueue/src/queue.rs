//! A ring of either layout.

use std::sync::Arc;

use shm::Region;

use crate::inflight::InflightLog;
use crate::memory::Area;
use crate::packed::PackedQueue;
use crate::position::Position;
use crate::split::SplitQueue;
use crate::words::PackedWords;
use crate::{
    Chain, GuestMemory, Layout, RingAddresses, RingBroken, RingMemory, RingSetup, SetupError,
    Single,
};

/// The device's end of a ring, which lies in memory of type `M`.
#[derive(Debug)]
pub struct Queue<M = Region> {
    ring: Ring<M>,
    /// Whether the driver is notified in any case: an earlier device may have ended before it notified.
    notifies_once: bool,
}

#[derive(Debug)]
enum Ring<M> {
    Split(SplitQueue<M>),
    Packed(PackedQueue<M>),
}

/// A moment of a [`Queue`], to which it can [return](Queue::put_back).
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    index: u16,
    position: Option<Position>,
}

/// How many entries or descriptors a driver was shown. It may have to be notified of them: [`Queue::must_notify`] tells.
#[derive(Debug)]
#[must_use = "a driver that asked for a notification and gets none sleeps for ever"]
pub struct Shown(u16);

impl Queue {
    /// Attaches to a ring with all its parts in one region each. The driver is asked for no notifications until the first
    /// [`arm`](Self::arm).
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, SetupError> {
        Self::with_log(memory, setup, None)
    }

    /// The same with a log for the next device, if this one is killed. A log that another one left behind has the position.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn with_log(
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        log: Option<InflightLog>,
    ) -> Result<Self, SetupError> {
        let ring = match setup.options.layout {
            Layout::Split => Ring::Split(SplitQueue::new(memory, setup)?),
            Layout::Packed => Ring::Packed(PackedQueue::new(memory, setup, log)?),
        };
        Ok(Self { ring, notifies_once: true })
    }
}

impl<M: RingMemory> Queue<M> {
    /// Attaches to a ring whose parts lie at offsets of other memory than the `guest`'s, such as loom's model of one. The
    /// size is one that the layout can have.
    ///
    /// # Errors
    /// The position is not in the ring, or the index of a split ring is impossible.
    pub fn over(memory: &M, guest: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, SetupError>
    where
        M: Clone,
    {
        let RingAddresses { descriptors, driver, device } = setup.at;
        let parts = [descriptors, driver, device];
        let parts = parts.map(|start| Area::over(memory.clone(), start));
        let ring = match setup.options.layout {
            Layout::Split => Ring::Split(SplitQueue::over(parts, guest, setup)?),
            Layout::Packed => {
                Ring::Packed(PackedQueue::over(PackedWords::over(parts), guest, setup, None)?)
            }
        };
        Ok(Self { ring, notifies_once: true })
    }

    /// The same queue for a driver that has accepted `VIRTIO_F_IN_ORDER` or not. If it has, one used descriptor of a packed
    /// ring stands for several chains that the device only read.
    #[must_use]
    pub fn in_order(mut self, is_in_order: bool) -> Self {
        if let Ring::Packed(ring) = &mut self.ring {
            ring.is_in_order = is_in_order;
        }
        self
    }

    /// The memory that its chains lie in.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        match &self.ring {
            Ring::Split(ring) => ring.memory(),
            Ring::Packed(ring) => ring.memory(),
        }
    }

    /// Whether chains wait. Reads shared memory only if none is known.
    ///
    /// # Errors
    /// The ring cannot be used any more.
    #[inline]
    pub fn has_waiting(&mut self) -> Result<bool, RingBroken> {
        match &mut self.ring {
            Ring::Split(ring) => Ok(ring.waiting()? > 0),
            Ring::Packed(ring) => Ok(ring.has_waiting()),
        }
    }

    /// Takes the next chain. Returns whether there was one.
    ///
    /// # Errors
    /// The ring cannot be used any more.
    #[inline]
    pub fn pop(&mut self, chain: &mut Chain) -> Result<bool, RingBroken> {
        match &mut self.ring {
            Ring::Split(ring) => ring.pop(chain),
            Ring::Packed(ring) => ring.pop(chain),
        }
    }

    /// Takes the next chains as long as each is one buffer in one region, which the device may write (`is_writable`) or
    /// read: what [`pop`](Self::pop) does for any chain, cheaper. Returns how many it took; the first ones of `singles`
    /// are theirs. Where it takes none, `pop` may find a chain of another kind.
    ///
    /// # Errors
    /// The ring cannot be used any more.
    #[inline]
    pub fn pop_singles(
        &mut self,
        is_writable: bool,
        singles: &mut [Single],
    ) -> Result<usize, RingBroken> {
        match &mut self.ring {
            Ring::Split(ring) => ring.pop_singles(is_writable, singles),
            Ring::Packed(ring) => Ok(ring.pop_singles(is_writable, singles)),
        }
    }

    /// Puts back the last `count` chains that [`pop_singles`](Self::pop_singles) took. None may be complete.
    #[inline]
    pub fn put_back_singles(&mut self, count: u16) {
        match &mut self.ring {
            Ring::Split(ring) => ring.taken.truncate(ring.taken.next().wrapping_sub(count)),
            Ring::Packed(ring) => ring.put_back_singles(count),
        }
    }

    /// This moment.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> Mark {
        match &self.ring {
            Ring::Split(ring) => Mark { index: ring.taken.next(), position: None },
            Ring::Packed(ring) => Mark { index: ring.taken.next(), position: Some(ring.next) },
        }
    }

    /// Puts back the chains that were taken since `mark`; none may be complete. They are taken again.
    #[inline]
    pub fn put_back(&mut self, mark: Mark) {
        match (&mut self.ring, mark.position) {
            (Ring::Split(ring), _) => ring.taken.truncate(mark.index),
            (Ring::Packed(ring), Some(position)) => ring.truncate(mark.index, position),
            (Ring::Packed(_), None) => debug_assert!(false, "a mark of another ring"),
        }
    }

    /// Notes that the chain with this number is done with, and that the device wrote `written` bytes into it. The
    /// driver sees it after the first [`publish`](Self::publish) at which all earlier chains are complete too.
    #[inline]
    pub fn complete(&mut self, index: u16, written: u32) {
        match &mut self.ring {
            Ring::Split(ring) => ring.taken.set_complete(index, written),
            Ring::Packed(ring) => ring.taken.set_complete(index, written),
        }
    }

    /// Shows the driver the chains that are complete. Returns whether it must be notified.
    #[inline]
    #[must_use = "a driver that asked for a notification and gets none sleeps for ever"]
    pub fn publish(&mut self) -> bool {
        let shown = self.show();
        self.must_notify(shown)
    }

    /// The first half of [`publish`](Self::publish): shows the driver the chains that are complete. The second half is
    /// [`must_notify`](Self::must_notify), before anything else is shown.
    #[inline]
    pub fn show(&mut self) -> Shown {
        Shown(match &mut self.ring {
            Ring::Split(ring) => ring.show(),
            Ring::Packed(ring) => ring.show(),
        })
    }

    /// The second half: whether the driver must be notified of what it was `shown` last. It has a full barrier, which waits until all
    /// stores have left the store buffer.
    #[inline]
    #[must_use = "a driver that asked for a notification and gets none sleeps for ever"]
    pub fn must_notify(&mut self, Shown(count): Shown) -> bool {
        let wanted = count > 0
            && match &self.ring {
                Ring::Split(ring) => ring.must_notify(count),
                Ring::Packed(ring) => ring.must_notify(count),
            };
        wanted | std::mem::take(&mut self.notifies_once)
    }

    /// Whether it is a packed ring.
    #[inline]
    #[must_use]
    pub fn is_packed(&self) -> bool {
        matches!(self.ring, Ring::Packed(_))
    }

    /// Starts to fetch the places of the next `count` used entries, for writing. Those of a split ring are fetched when chains are taken.
    #[inline]
    pub fn prefetch_used(&self, count: usize) {
        match &self.ring {
            Ring::Split(_) => {}
            Ring::Packed(ring) => ring.prefetch_used(count),
        }
    }

    /// Asks for a notification at the next chain, and checks again. Returns whether there is a chain by now that
    /// was not known before, in which case the caller must not sleep.
    ///
    /// # Errors
    /// The ring cannot be used any more.
    pub fn arm(&mut self) -> Result<bool, RingBroken> {
        match &mut self.ring {
            Ring::Split(ring) => ring.arm(),
            Ring::Packed(ring) => Ok(ring.arm()),
        }
    }

    /// Asks for no notifications until the next [`arm`](Self::arm). It is no promise of the driver.
    pub fn disarm(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disarm(),
            Ring::Packed(ring) => ring.disarm(),
        }
    }

    /// Where the next device starts, so that it takes all chains that were not published. Vhost-user's form: of a
    /// split ring the index, of a packed ring the position and lap of the next available and used descriptor.
    #[must_use]
    pub fn position(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring) => ring.taken.first().into(),
            Ring::Packed(ring) => ring.position(),
        }
    }
}
