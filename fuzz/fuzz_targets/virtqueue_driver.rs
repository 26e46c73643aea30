//! Whatever a back-end writes into the rings of an uplink, between any two reads of the driver: the driver neither panics nor
//! loops, takes no buffer that the device does not have, none twice, and none with more bytes than were offered.
//!
//! Input: layout and order (1 byte), then steps of 4 bytes: where a word is written, and the word.
//! Run with `cargo fuzz run --features libfuzzer --sanitizer none virtqueue_driver`.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shm::Region;
use virtqueue::burst::{Buffers, BurstDriver, Returned};
use virtqueue::{Layout, RingAddresses};

/// Entries of the ring.
const SIZE: u16 = 8;
const LEN: usize = 1 << 16;
/// The parts of the ring: descriptors, the driver's, the device's.
const PARTS: [usize; 4] = [0, 0x1000, 0x2000, 0x2000];
const BUFFERS: Buffers =
    Buffers { offset: 0x4000, address: 0x4000, stride: 128, are_writable: true };
/// Bytes offered of each buffer.
const OFFERED: u32 = 100;

fuzz_target!(|input: &[u8]| {
    let [options, steps @ ..] = input else { return };
    let layout = if options & 1 == 0 { Layout::Split } else { Layout::Packed };
    let region = Arc::new(Region::anonymous(LEN).unwrap()).slice(0..LEN).unwrap();
    let [descriptors, driver, device, _] = PARTS.map(|part| part as u64);
    let at = RingAddresses { descriptors, driver, device };
    let buffers = Buffers { are_writable: options & 4 == 0, ..BUFFERS };
    let driver = BurstDriver::new(&region, at, SIZE, layout, buffers);
    let mut driver = driver.in_order(options & 2 != 0);
    let mut is_out = [false; SIZE as usize];
    for step in steps.chunks_exact(4) {
        let at = PARTS[usize::from(step[0] >> 6)] + usize::from(step[0] & 63) * 2;
        region.write(at, u16::from_le_bytes([step[2], step[3]])).unwrap();
        let count = u16::from(step[1] & 7).min(driver.free());
        for n in 0..count {
            let id = (driver.buffer(n) - BUFFERS.offset) / BUFFERS.stride as usize;
            assert!(!std::mem::replace(&mut is_out[id], true));
        }
        let _ = driver.offer(count, OFFERED);
        for _ in 0..step[1] >> 3 & 15 {
            let Ok(taken) = driver.take() else { return };
            let Some(Returned { id, offset, written }) = taken else { break };
            assert!(std::mem::take(&mut is_out[usize::from(id)]));
            assert_eq!(offset, BUFFERS.offset + usize::from(id) * BUFFERS.stride as usize);
            assert!(written <= OFFERED || !buffers.are_writable);
            driver.put_back(id);
        }
        if step[1] & 128 != 0 {
            let _ = driver.arm();
        } else {
            driver.disarm();
        }
    }
});
