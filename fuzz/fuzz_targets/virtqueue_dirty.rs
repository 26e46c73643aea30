//! Wherever the device writes, and however short the log of dirty pages is: nothing outside of the log is written, and each page of the
//! guest that changed has its bit.
//!
//! Input: the log's length in words (1 byte), layout and options (1 byte), then chains of 4 bytes: page, offset, length, and bytes
//! written. Run with `cargo fuzz run --features libfuzzer --sanitizer none virtqueue_dirty`.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shm::Region;
use virtqueue::driver::{Driver, Offered};
use virtqueue::{
    Chain, DirtyLog, GuestMemory, Layout, Options, Queue, Range, RingAddresses, RingSetup,
};

const PAGES: usize = 64;
const LEN: usize = PAGES * 4096;
/// Where the guest has its memory.
const GUEST: u64 = 7 * 4096;
const AT: RingAddresses = RingAddresses { descriptors: 0, driver: 0x1000, device: 0x2ffc };

fuzz_target!(|input: &[u8]| {
    let [words, options, steps @ ..] = input else { return };
    let log_len = 4 + usize::from(words % 8) * 4;
    let bitmap = Arc::new(Region::anonymous(4096).unwrap());
    let whole = Arc::new(Region::anonymous(LEN).unwrap());
    let region = whole.slice(0..LEN).unwrap();
    let range = Range { guest: GUEST, user: 0, len: LEN as u64 };
    let log = DirtyLog::new(bitmap.slice(0..log_len).unwrap());
    let memory = GuestMemory::new(vec![(range, region.share().unwrap())]).unwrap();
    let Ok(memory) = memory.with_log(log) else {
        assert!(log_len * 8 < PAGES + 7, "a log that is long enough");
        return;
    };
    let layout = if options & 1 == 0 { Layout::Split } else { Layout::Packed };
    let options = Options { layout, event_idx: options & 2 != 0, indirect: false };
    let mut driver = Driver::new(&region, AT, 8, options);
    let position = if layout == Layout::Packed { 0x8000 } else { 0 };
    let setup = RingSetup { at: AT, size: 8, position, options };
    let Ok(mut queue) = Queue::new(Arc::new(memory), setup) else { return };
    let mut chain = Chain::new();
    for step in steps.chunks_exact(4) {
        let address = u64::from(step[0]) * 4096 + u64::from(step[1]) * 16;
        let buffer = Offered { address, len: u32::from(step[2]) * 64 + 1, writable: true };
        driver.offer(&[buffer], None);
        driver.publish();
        let mut before = vec![0; LEN];
        region.copy_out(0, &mut before).unwrap();
        while let Ok(true) = queue.pop(&mut chain) {
            for buffer in chain.writable.iter().filter(|_| chain.fault.is_none()) {
                let at = usize::try_from(buffer.offset).unwrap();
                region.copy_in(at, &vec![step[3]; buffer.len as usize]).unwrap();
                queue.memory().mark(buffer.region, buffer.offset, buffer.len.into());
            }
            queue.complete(chain.index, 1);
        }
        let _ = queue.publish();
        let _ = queue.arm();
        queue.disarm();
        let mut after = vec![0; LEN];
        region.copy_out(0, &mut after).unwrap();
        let mut bits = vec![0; 4096];
        bitmap.copy_out(0, &mut bits).unwrap();
        for page in 0..PAGES {
            let bytes = page * 4096..(page + 1) * 4096;
            let number = page + 7;
            let is_marked = bits[number / 8] >> (number % 8) & 1 == 1;
            assert!(is_marked || before[bytes.clone()] == after[bytes], "page {page}");
        }
        assert!(bits[log_len..].iter().all(|byte| *byte == 0), "written behind the log");
        bitmap.zero(0, 4096).unwrap();
        while driver.take().is_some() {}
    }
});
