//! A backend's responses, in memory that outlives it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use shm::{OutOfBounds, Region};

use crate::Slots;

/// Marks memory as a ledger of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pvnledg1");
const MAGIC_AT: usize = 0;
/// The last publication that began: its first index and its end index, as one word.
const PUBLICATION_AT: usize = 8;
const RESPONSES_AT: usize = 64;

/// A journal of one ring: its responses, and the publication in progress.
///
/// A backend that is killed while it fills slots leaves responses where the next one expects
/// requests, and a response's id and status would be read as a grant reference. So the backend
/// notes a publication here before it writes the first slot, and
/// [`BackRing::resume`](crate::BackRing::resume) completes an interrupted one. The memory belongs
/// to the driver domain, one ledger per ring: a page of a file that outlives the process, or
/// private memory where no backend follows.
///
/// Stores before the end of a process are visible after it, in program order. So only the compiler
/// must not reorder them.
#[derive(Debug)]
pub struct Ledger<S> {
    region: Region,
    slots: PhantomData<S>,
}

/// Bytes of a ledger, the same for any ring: a page.
pub const LEDGER_LEN: usize = 4096;

impl<S: Slots> Ledger<S> {
    const FITS: () = assert!(
        RESPONSES_AT + S::COUNT as usize * size_of::<S::Response>() <= LEDGER_LEN,
        "the responses do not fit the ledger"
    );

    /// The ledger in the first [`LEDGER_LEN`] bytes of `region`, with their present content.
    pub fn new(region: Region) -> Result<Self, OutOfBounds> {
        let () = Self::FITS;
        let size = region.len();
        // Checked once here, so that no access below can fail.
        if size < LEDGER_LEN || region.atomic_u64(MAGIC_AT).is_err() {
            return Err(OutOfBounds { offset: 0, len: LEDGER_LEN, size });
        }
        Ok(Self { region, slots: PhantomData })
    }

    /// Empties the ledger.
    pub(crate) fn reset(&self) {
        self.word(PUBLICATION_AT).store(0, Ordering::Release);
        self.word(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    /// Stores the response to request `index`.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that all responses fit")]
    pub(crate) fn keep(&self, index: u32, response: S::Response) {
        self.region.write(place::<S>(index), response).expect("response inside the ledger");
    }

    /// The stored response to request `index`.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that all responses fit")]
    pub(crate) fn kept(&self, index: u32) -> S::Response {
        self.region.read(place::<S>(index)).expect("response inside the ledger")
    }

    /// Notes that the responses from `old` up to `new` are being written to their slots.
    #[inline]
    pub(crate) fn begin(&self, old: u32, new: u32) {
        self.word(PUBLICATION_AT).store(zerocopy::transmute!([old, new]), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// The end of a publication that began at `rsp_prod` and may be incomplete.
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
