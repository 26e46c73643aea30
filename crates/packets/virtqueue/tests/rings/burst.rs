//! The driver of bursts against the device, over several laps of both rings, and against devices that mean harm.

use std::sync::Arc;

use proptest::prelude::*;
use shm::Region;
use virtqueue::burst::{BadReturn, Buffers, BurstDriver, Returned};
use virtqueue::{
    Chain, GuestMemory, Layout, Options, Queue, Range, RingAddresses, RingSetup, Single,
};

const LEN: usize = 1 << 20;
const SIZE: u16 = 64;
const GUEST: u64 = 1 << 32;
const USER: u64 = 1 << 40;
const AT: RingAddresses = RingAddresses { descriptors: 0, driver: 0x4000, device: 0x6000 };
const BUFFERS: Buffers =
    Buffers { offset: 0x10_000, address: GUEST + 0x10_000, stride: 2368, are_writable: true };

fn ends(layout: Layout) -> (BurstDriver, Queue) {
    ends_with(layout, BUFFERS)
}

fn ends_with(layout: Layout, buffers: Buffers) -> (BurstDriver, Queue) {
    let region = Arc::new(Region::anonymous(LEN).unwrap()).slice(0..LEN).unwrap();
    let driver = BurstDriver::new(&region, AT, SIZE, layout, buffers).in_order(true);
    let range = Range { guest: GUEST, user: USER, len: LEN as u64 };
    let memory = Arc::new(GuestMemory::new(vec![(range, region)]).unwrap());
    let at = RingAddresses {
        descriptors: USER + AT.descriptors,
        driver: USER + AT.driver,
        device: USER + AT.device,
    };
    let options = Options { layout, event_idx: false, indirect: false };
    let position = if layout == Layout::Packed { 0x8000 } else { 0 };
    let setup = RingSetup { at, size: SIZE.into(), position, options };
    (driver, Queue::new(memory, setup).unwrap())
}

#[test]
fn batches_go_there_and_back_in_order() {
    for layout in [Layout::Split, Layout::Packed] {
        let (mut driver, mut queue) = ends(layout);
        queue.disarm();
        let mut chain = Chain::new();
        let (mut number, mut back) = (0u32, 0u32);
        for batch in (1..=u16::from(u8::MAX)).map(|n| n % 33) {
            let first = driver.buffer(0);
            assert!(!driver.offer(batch, 100 + u32::from(batch)), "a notification");
            for n in 0..batch {
                assert!(queue.pop(&mut chain).unwrap(), "{layout:?} {number}");
                let buffer = chain.writable[0];
                assert_eq!(buffer.len, 100 + u32::from(batch));
                assert!(n > 0 || buffer.offset == first as u64);
                queue.complete(chain.index, (number + 1).min(100));
                number += 1;
            }
            assert!(!queue.pop(&mut chain).unwrap());
            // The first publication notifies in any case.
            assert!(!queue.publish() || number <= 33);
            while let Some(returned) = driver.take().unwrap() {
                back += 1;
                assert_eq!(returned.written, back.min(100));
                driver.put_back(returned.id);
            }
            assert_eq!(back, number);
            assert_eq!(driver.free(), SIZE);
        }
    }
}

/// Takes all chains that wait and completes them with these lengths.
fn serve(queue: &mut Queue, is_writable: bool, written: u32) -> usize {
    let mut singles = [Single::default(); 20];
    let mut count = 0;
    loop {
        let taken = queue.pop_singles(is_writable, &mut singles).unwrap();
        if taken == 0 {
            return count;
        }
        for single in &singles[..taken] {
            queue.complete(single.index, written);
        }
        count += taken;
    }
}

#[test]
fn one_entry_stands_for_a_batch_that_was_read() {
    for (are_writable, written) in [(false, 0), (true, 77)] {
        let buffers = Buffers { are_writable, ..BUFFERS };
        let (mut driver, queue) = ends_with(Layout::Packed, buffers);
        let mut queue = queue.in_order(true);
        for batch in (1..=u16::from(u8::MAX)).map(|n| 1 + n % 33) {
            let _ = driver.offer(batch, 100);
            assert_eq!(serve(&mut queue, !are_writable, written), 0);
            assert_eq!(serve(&mut queue, are_writable, written), usize::from(batch));
            let _ = queue.publish();
            let mut back = 0;
            while let Some(returned) = driver.take().unwrap() {
                assert_eq!(returned.written, written);
                driver.put_back(returned.id);
                back += 1;
            }
            assert_eq!((back, driver.free()), (batch, SIZE));
        }
    }
}

#[test]
fn a_full_ring_takes_no_more() {
    for layout in [Layout::Split, Layout::Packed] {
        let (mut driver, mut queue) = ends(layout);
        let _ = driver.offer(SIZE, 100);
        assert_eq!(driver.free(), 0);
        let _ = driver.offer(1, 100);
        let mut chain = Chain::new();
        let mut count = 0;
        while queue.pop(&mut chain).unwrap() {
            count += 1;
        }
        assert_eq!(count, SIZE);
        assert_eq!(driver.take(), Ok(None));
    }
}

/// A driver whose device is the test: it writes to the region.
fn alone(layout: Layout, is_in_order: bool) -> (BurstDriver, Region) {
    let region = Arc::new(Region::anonymous(LEN).unwrap()).slice(0..LEN).unwrap();
    let driver = BurstDriver::new(&region, AT, SIZE, layout, BUFFERS).in_order(is_in_order);
    (driver, region)
}

/// Writes the used entry `n` and, of a split ring, the index behind it.
fn give_back(region: &Region, layout: Layout, n: u16, id: u32, written: u32) {
    let slot = usize::from(n % SIZE);
    match layout {
        Layout::Split => {
            region.write(0x6004 + 8 * slot, [id, written]).unwrap();
            region.write(0x6002, n.wrapping_add(1)).unwrap();
        }
        Layout::Packed => {
            let flags = if n & SIZE == 0 { 0x8080 } else { 0 };
            let word = u64::from(written) | u64::from(id) << 32 | flags << 48;
            region.write(16 * slot + 8, word).unwrap();
        }
    }
}

#[test]
fn buffers_come_back_in_any_order_unless_the_device_said_otherwise() {
    for layout in [Layout::Split, Layout::Packed] {
        let (mut driver, region) = alone(layout, false);
        let _ = driver.offer(3, 100);
        for (n, id) in [(0, 2), (1, 0), (2, 1)] {
            give_back(&region, layout, n, id.into(), 7);
            let Returned { id: back, offset, written } = driver.take().unwrap().unwrap();
            assert_eq!((back, written), (id, 7));
            assert_eq!(offset, BUFFERS.offset + usize::from(id) * BUFFERS.stride as usize);
            driver.put_back(id);
        }
        // Those that came back first are offered first, behind those that were never offered.
        assert_eq!(driver.buffer(SIZE - 3), BUFFERS.offset + 2 * BUFFERS.stride as usize);
        let (mut driver, region) = alone(layout, true);
        let _ = driver.offer(2, 100);
        give_back(&region, layout, 0, 1, 7);
        assert_eq!(driver.take(), Err(BadReturn::OutOfOrder { id: 1, expected: 0 }));
    }
}

#[test]
fn what_the_device_did_not_have_does_not_come_back() {
    for layout in [Layout::Split, Layout::Packed] {
        for id in [2, 5, u32::from(SIZE), 0xffff] {
            let (mut driver, region) = alone(layout, false);
            let _ = driver.offer(2, 100);
            give_back(&region, layout, 0, id, 7);
            assert_eq!(driver.take(), Err(BadReturn::NotOffered(id)), "{layout:?}");
        }
        let (mut driver, region) = alone(layout, false);
        let _ = driver.offer(2, 100);
        give_back(&region, layout, 0, 1, 7);
        assert!(driver.take().unwrap().is_some());
        give_back(&region, layout, 1, 1, 7);
        assert_eq!(driver.take(), Err(BadReturn::NotOffered(1)), "{layout:?}: twice");
        let (mut driver, region) = alone(layout, false);
        let _ = driver.offer(2, 100);
        give_back(&region, layout, 0, 0, 101);
        assert_eq!(driver.take(), Err(BadReturn::TooLong { written: 101, len: 100 }));
    }
}

#[test]
fn recycled_buffers_are_free_again_up_to_a_bad_one() {
    for layout in [Layout::Split, Layout::Packed] {
        let (mut driver, region) = alone(layout, true);
        let _ = driver.offer(SIZE, 100);
        for (n, written) in [(0, 10), (1, 11), (2, 12), (3, 101)] {
            give_back(&region, layout, n, n.into(), written);
        }
        let mut seen = Vec::new();
        let mut recycle = |most| {
            let count = driver.recycle(most, |returned| seen.push((returned.id, returned.written)));
            (count, driver.free())
        };
        assert_eq!(recycle(2), (Ok(2), 2), "{layout:?}");
        let too_long = BadReturn::TooLong { written: 101, len: 100 };
        assert_eq!(recycle(SIZE), (Err(too_long), 3), "{layout:?}");
        assert_eq!(seen, [(0, 10), (1, 11), (2, 12)]);
    }
}

#[test]
fn a_used_index_that_jumps_or_goes_back_is_noticed() {
    for (offered, index) in [(0, 1), (2, 3), (2, 0xffff), (SIZE, SIZE + 1)] {
        let (mut driver, region) = alone(Layout::Split, false);
        let _ = driver.offer(offered, 100);
        region.write(0x6002, index).unwrap();
        let bad = BadReturn::Index { before: 0, now: index, outstanding: offered };
        assert_eq!(driver.take(), Err(bad));
    }
    // A packed ring has none. What nobody offered is not read.
    let (mut driver, region) = alone(Layout::Packed, false);
    give_back(&region, Layout::Packed, 0, 0, 7);
    assert_eq!(driver.take(), Ok(None));
    assert!(!driver.arm());
}

#[test]
fn a_driver_that_sleeps_is_notified_and_one_that_checks_again_sees() {
    for layout in [Layout::Split, Layout::Packed] {
        let (mut driver, mut queue) = ends(layout);
        let mut chain = Chain::new();
        let _ = queue.publish();
        for is_armed in [false, true, false, true] {
            let _ = driver.offer(1, 100);
            if is_armed {
                assert!(!driver.arm());
            } else {
                driver.disarm();
            }
            assert!(queue.pop(&mut chain).unwrap());
            queue.complete(chain.index, 1);
            assert_eq!(queue.publish(), is_armed, "{layout:?}");
            assert!(driver.arm(), "{layout:?}");
            let returned = driver.take().unwrap().unwrap();
            driver.put_back(returned.id);
            assert!(!driver.arm(), "{layout:?}");
        }
    }
}

proptest! {
    /// Whatever a device writes between any two steps: the driver takes no buffer that the device does not have, and none twice.
    #[test]
    fn no_buffer_is_taken_that_the_device_does_not_have(
        is_packed in any::<bool>(),
        is_in_order in any::<bool>(),
        steps in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 1..200),
    ) {
        let layout = if is_packed { Layout::Packed } else { Layout::Split };
        let (mut driver, region) = alone(layout, is_in_order);
        let mut is_out = [false; SIZE as usize];
        for (at, word, what) in steps {
            let part = [0, 0x4000, 0x6000, 0x6000][usize::from(what & 3)];
            region.write(part + usize::from(at % 512) * 2, word).unwrap();
            if what & 4 != 0 {
                for n in 0..driver.free().min(u16::from(what >> 4)) {
                    let id = (driver.buffer(n) - BUFFERS.offset) / BUFFERS.stride as usize;
                    prop_assert!(!std::mem::replace(&mut is_out[id], true));
                }
                let _ = driver.offer(u16::from(what >> 4), 100);
            }
            for _ in 0..=SIZE {
                let mut taken = None;
                let Ok(count) = driver.recycle(1, |returned| taken = Some(returned)) else {
                    return Ok(());
                };
                prop_assert_eq!(usize::from(count), taken.iter().count());
                let Some(Returned { id, offset, written }) = taken else { break };
                prop_assert!(std::mem::take(&mut is_out[usize::from(id)]));
                prop_assert!(offset + written as usize <= LEN && written <= 100);
            }
            let _ = driver.arm();
        }
    }
}
