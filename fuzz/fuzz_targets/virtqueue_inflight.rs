//! Whatever a front-end left in the log of inflight descriptors, and a guest in its packed ring: the device starts or refuses to, and
//! writes nothing but the ring.
//!
//! Input: the log (96 bytes), then the ring's descriptors. Run with `cargo fuzz run --features libfuzzer --sanitizer none virtqueue_inflight`.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shm::Region;
use virtqueue::{
    Chain, GuestMemory, InflightLog, Layout, Options, Queue, Range, RingAddresses, RingSetup,
};

/// Entries of the ring.
const SIZE: u16 = 8;
const RING_LEN: usize = 16 * SIZE as usize;
const LOG_LEN: usize = 128;
const LEN: usize = 0x3000;
/// What may be written: the descriptors, and the device's event suppression.
const AT: RingAddresses = RingAddresses { descriptors: 0, driver: 0x1000, device: 0x2000 };

fuzz_target!(|input: &[u8]| {
    let whole = Arc::new(Region::anonymous(LEN).unwrap());
    let logs = Arc::new(Region::anonymous(4096).unwrap());
    let (log, ring) = input.split_at(input.len().min(LOG_LEN));
    logs.copy_in(0, log).unwrap();
    // A log that is another version's is not read, so most inputs are of this one, and of a device that ran.
    if !input.len().is_multiple_of(4) {
        logs.write(8, [0x5056u16, SIZE, 1]).unwrap();
    }
    whole.copy_in(0, &ring[..ring.len().min(RING_LEN)]).unwrap();
    let range = Range { guest: 0, user: 0, len: LEN as u64 };
    let memory = GuestMemory::new(vec![(range, whole.slice(0..LEN).unwrap())]).unwrap();
    let options = Options { layout: Layout::Packed, event_idx: false, indirect: true };
    let log = || InflightLog::new(logs.slice(0..LOG_LEN).unwrap(), SIZE);
    let memory = Arc::new(memory);
    let setup = RingSetup { at: AT, size: SIZE.into(), position: 0x8000, options };
    for _ in 0..2 {
        let queue = Queue::with_log(memory.clone(), setup, log());
        let Ok(mut queue) = queue else { break };
        let (mut chain, mut held) = (Chain::new(), Vec::new());
        while let Ok(true) = queue.pop(&mut chain) {
            held.push(chain.index);
            assert!(held.len() <= usize::from(SIZE));
        }
        held.into_iter().rev().for_each(|index| queue.complete(index, 3));
        let _ = queue.publish();
        // The next device has nothing to do again.
        let position = queue.position();
        drop(queue);
        let next = Queue::with_log(memory.clone(), setup, log());
        assert_eq!(next.unwrap().position(), position);
    }
    let mut bytes = vec![0; LEN];
    whole.copy_out(0, &mut bytes).unwrap();
    assert!(bytes[RING_LEN..0x2000].iter().all(|byte| *byte == 0), "written behind the ring");
    assert!(bytes[0x2004..].iter().all(|byte| *byte == 0), "written behind the event suppression");
});
