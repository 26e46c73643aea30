//! The log of pages that the device writes, for the migration of a running guest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::Region;

/// Bytes of a page of the log (`VHOST_LOG_PAGE`), whatever the guest's pages are.
const PAGE: u64 = 4096;
const WORD_PAGES: u64 = 32;

/// A bitmap with a bit for each page of the guest's address space, which the front-end reads and clears at any time.
#[derive(Clone, Debug)]
pub struct DirtyLog(Arc<Region>);

impl DirtyLog {
    /// A log in this memory, of which whole words of 4 bytes are used.
    #[must_use]
    pub fn new(bitmap: Region) -> Self {
        Self(Arc::new(bitmap))
    }

    /// Whether it has a bit for each page below this address.
    #[must_use]
    pub fn covers(&self, end: u64) -> bool {
        end.div_ceil(PAGE) <= (self.0.len() / 4) as u64 * WORD_PAGES
    }

    /// Marks the pages of `len` bytes at a guest address. The caller has written them: a page that is marked first may be
    /// copied without what comes.
    pub(crate) fn mark(&self, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1) else { return };
        for page in address / PAGE..=address.saturating_add(last) / PAGE {
            // Of a little-endian word, as the front-end sees bytes.
            let bit = 1u32 << (page % WORD_PAGES);
            let at = usize::try_from(page / WORD_PAGES * 4).unwrap_or(usize::MAX);
            // One outside has no bit: the session refuses a log that does not cover the memory.
            if let Ok(word) = self.0.atomic_u32(at) {
                word.fetch_or(bit.to_le(), Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_that_is_touched_has_its_bit() {
        let whole = Arc::new(Region::anonymous(4096).unwrap());
        let log = DirtyLog::new(whole.slice(0..16).unwrap());
        let bytes = || {
            let mut bytes = [0; 24];
            whole.copy_out(0, &mut bytes).unwrap();
            bytes.map(u32::from)
        };
        assert!(log.covers(128 * PAGE) && !log.covers(128 * PAGE + 1));
        log.mark(5000, 0);
        assert_eq!(bytes(), [0; 24]);
        log.mark(PAGE - 1, 2);
        log.mark(9 * PAGE, 1);
        log.mark(127 * PAGE + 4095, 1);
        assert_eq!((bytes()[0], bytes()[1], bytes()[15]), (3, 2, 0x80));
        // Nothing is written outside.
        for (address, len) in [(128 * PAGE, 1), (u64::MAX, 1), (u64::MAX - 10, 5000), (1 << 63, 9)]
        {
            log.mark(address, len);
        }
        log.mark(120 * PAGE, 20 * PAGE);
        assert_eq!(bytes()[15..], [0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
