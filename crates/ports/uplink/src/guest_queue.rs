//! A queue of a tap that carries frames for one guest at a time.
//!
//! The tap chooses the queue by destination ([`Steering`](crate::Steering)). The daemon assigns queues of a fixed pool;
//! it never closes one, because tun gives the number of a closed queue to the last one, and with it the frames of
//! another guest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offload::Need;
use port::{Frame, Lender, LentMemory};
use wire::ethernet::MacAddr;

/// How long a queue rests after its guest has gone. Frames that were steered to it before are read and dropped
/// meanwhile. Within the kernel they wait for milliseconds at most.
pub const REST: Duration = Duration::from_secs(1);

named::named! {
    /// Why a frame of a guest's queue was read into the driver domain's buffers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum Copied {
        /// The guest has posted too few buffers.
        NoBuffers => "no_buffers",
        /// The queue has not yet shown that it gets this guest's frames, or has shown that it gets others'.
        Unproven => "unproven",
        /// The guest's interface lacks an offload that frames of this tap may need, or that this frame or one before it that still waits
        /// needs; or it takes responses in order only.
        Interface => "interface",
        /// Nobody has the queue.
        Unassigned => "unassigned",
    }
}

impl Copied {
    const COUNT: usize = Self::ALL.len();
}

/// What came through a queue, since the daemon started.
#[derive(Debug, Default)]
pub struct QueueCounts {
    direct: AtomicU64,
    copied: [AtomicU64; Copied::COUNT],
    misdirected: AtomicU64,
    late: AtomicU64,
}

impl QueueCounts {
    /// Frames that were read straight into the guest's buffers.
    pub fn direct(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    /// Frames that were read into the driver domain's buffers, for a reason.
    pub fn copied(&self, why: Copied) -> u64 {
        self.copied[why as usize].load(Ordering::Relaxed)
    }

    /// Frames for another station that were read into the guest's buffers and wiped out there.
    pub fn misdirected(&self) -> u64 {
        self.misdirected.load(Ordering::Relaxed)
    }

    /// Frames for a guest that had gone.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    pub(crate) fn add_direct(&self, frames: u64) {
        self.direct.fetch_add(frames, Ordering::Relaxed);
    }

    pub(crate) fn add_copied(&self, why: Copied) {
        self.copied[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_misdirected(&self) {
        self.misdirected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }
}

/// The guest that has a queue.
pub(crate) struct Station {
    pub(crate) mac: MacAddr,
    pub(crate) lender: Arc<dyn Lender>,
    /// None if its frames are copied.
    pub(crate) memory: Option<LentMemory>,
}

impl Station {
    /// Whether a frame is finished in software for the guest, and so copied into other buffers than those that it lies in.
    pub(crate) fn finishes(&self, frame: &Frame) -> bool {
        self.memory.as_ref().is_some_and(|memory| frame.need(memory.features) != Need::Nothing)
    }
}

/// Who has a queue.
#[derive(Clone, Default)]
pub(crate) struct Holder {
    pub(crate) station: Option<Arc<Station>>,
    /// Who had it before, and until when.
    pub(crate) before: Option<(MacAddr, Instant)>,
}

/// A queue as the daemon sees it. The worker that reads it checks this once per turn.
#[derive(Default)]
pub struct GuestQueue {
    holder: Mutex<Holder>,
    /// Counts changes of the holder.
    generation: AtomicU64,
    counts: QueueCounts,
}

impl GuestQueue {
    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn holder(&self) -> Holder {
        self.lock().clone()
    }

    /// Whether nobody has it, and nobody had it a moment ago.
    pub fn is_free(&self) -> bool {
        let holder = self.lock();
        holder.station.is_none() && holder.before.is_none_or(|(_, left)| left.elapsed() >= REST)
    }

    /// Gives it to a guest, whose egress queue lends buffers in `memory`. Without memory its frames are copied.
    pub fn assign(&self, mac: MacAddr, lender: Arc<dyn Lender>, memory: Option<LentMemory>) {
        self.lock().station = Some(Arc::new(Station { mac, lender, memory }));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Takes it away. When every turn that had begun before has ended, no buffer of the guest is in use here.
    pub fn release(&self) {
        let mut holder = self.lock();
        let Some(station) = holder.station.take() else { return };
        holder.before = Some((station.mac, Instant::now()));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// What came through it.
    pub fn counts(&self) -> &QueueCounts {
        &self.counts
    }
}

impl std::fmt::Debug for GuestQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestQueue").field("counts", &self.counts).finish_non_exhaustive()
    }
}
