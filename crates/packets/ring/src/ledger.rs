//! What a backend has answered, in memory that outlives it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use shm::{OutOfBounds, Region};

use crate::Slots;

/// Says that the memory is a ledger of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pvnledg1");
const MAGIC_AT: usize = 0;
/// The publication begun last: the index it starts from and the one it ends at, as one word.
const PUBLICATION_AT: usize = 8;
const RESPONSES_AT: usize = 64;

/// The responses of one ring, before they go into the ring's slots, and how far they have gone.
///
/// A backend that is killed while it fills slots leaves responses where the next one looks for
/// requests, and an answer's id and status make a fine grant reference. So a publication is
/// noted here before the first slot is touched, and [`BackRing::resume`](crate::BackRing::resume)
/// completes one that was cut short. The memory is the driver domain's own, one ledger a ring:
/// a page of a file that outlives the process, or of none where nothing does.
///
/// What is written before the end of a process is there after it, in the order of its
/// instructions; the compiler is all that has to keep to it.
#[derive(Debug)]
pub struct Ledger<S> {
    region: Region,
    slots: PhantomData<S>,
}

/// Bytes that a ledger of any ring takes: a page.
pub const LEDGER_LEN: usize = 4096;

impl<S: Slots> Ledger<S> {
    const FITS: () = assert!(
        RESPONSES_AT + S::COUNT as usize * size_of::<S::Response>() <= LEDGER_LEN,
        "a response has less room here than in its slot"
    );

    /// The ledger in the first [`LEDGER_LEN`] bytes of `region`, whatever they hold.
    pub fn new(region: Region) -> Result<Self, OutOfBounds> {
        let () = Self::FITS;
        let size = region.len();
        // Checked once here, so that no access below can fail.
        if size < LEDGER_LEN || region.atomic_u64(MAGIC_AT).is_err() {
            return Err(OutOfBounds { offset: 0, len: LEDGER_LEN, size });
        }
        Ok(Self { region, slots: PhantomData })
    }

    /// Forgets what was before.
    pub(crate) fn reset(&self) {
        self.word(PUBLICATION_AT).store(0, Ordering::Release);
        self.word(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    /// Keeps the response to request `index`.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that all responses fit")]
    pub(crate) fn keep(&self, index: u32, response: S::Response) {
        self.region.write(place::<S>(index), response).expect("response inside the ledger");
    }

    /// The response kept for request `index`.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that all responses fit")]
    pub(crate) fn kept(&self, index: u32) -> S::Response {
        self.region.read(place::<S>(index)).expect("response inside the ledger")
    }

    /// Notes that the responses from `old` up to `new` go into their slots from here on.
    #[inline]
    pub(crate) fn begin(&self, old: u32, new: u32) {
        self.word(PUBLICATION_AT).store(zerocopy::transmute!([old, new]), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Where a publication ends that was begun at `rsp_prod` and may not have been completed.
    pub(crate) fn interrupted(&self, rsp_prod: u32) -> Option<u32> {
        let [old, new]: [u32; 2] =
            zerocopy::transmute!(self.word(PUBLICATION_AT).load(Ordering::Acquire));
        let valid = self.word(MAGIC_AT).load(Ordering::Acquire) == MAGIC;
        (valid && old == rsp_prod && new != old).then_some(new)
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that the region is large and aligned")]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.region.atomic_u64(at).expect("word inside the ledger")
    }
}

#[inline]
fn place<S: Slots>(index: u32) -> usize {
    RESPONSES_AT + (index & (S::COUNT - 1)) as usize * size_of::<S::Response>()
}
