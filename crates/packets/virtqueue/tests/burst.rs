//! The fast driver against the device, over several laps of both rings.

use std::sync::Arc;

use shm::Region;
use virtqueue::burst::{Buffers, BurstDriver, OutOfOrder};
use virtqueue::{Chain, GuestMemory, Layout, Options, Queue, Range, RingAddresses, Single};

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
    let driver = BurstDriver::new(&region, AT, SIZE, layout, buffers);
    let range = Range { guest: GUEST, user: USER, len: LEN as u64 };
    let memory = Arc::new(GuestMemory::new(vec![(range, region)]).unwrap());
    let at = RingAddresses {
        descriptors: USER + AT.descriptors,
        driver: USER + AT.driver,
        device: USER + AT.device,
    };
    let options = Options { layout, event_idx: false, indirect: false };
    let position = if layout == Layout::Packed { 0x8000 } else { 0 };
    (driver, Queue::new(memory, at, SIZE.into(), position, options).unwrap())
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
                queue.complete(chain.index, number + 1);
                number += 1;
            }
            assert!(!queue.pop(&mut chain).unwrap());
            // The first publication notifies in any case.
            assert!(!queue.publish() || number <= 33);
            while let Some(returned) = driver.take().unwrap() {
                back += 1;
                assert_eq!(returned.written, back);
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
            driver.offer(batch, 100);
            assert_eq!(serve(&mut queue, !are_writable, written), 0);
            assert_eq!(serve(&mut queue, are_writable, written), usize::from(batch));
            let _ = queue.publish();
            let mut back = 0;
            while let Some(returned) = driver.take().unwrap() {
                assert_eq!(returned.written, written);
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
        driver.offer(SIZE, 100);
        assert_eq!(driver.free(), 0);
        driver.offer(1, 100);
        let mut chain = Chain::new();
        let mut count = 0;
        while queue.pop(&mut chain).unwrap() {
            count += 1;
        }
        assert_eq!(count, SIZE);
        assert_eq!(driver.take(), Ok(None));
    }
}

#[test]
fn a_buffer_out_of_order_is_noticed() {
    let region = Arc::new(Region::anonymous(LEN).unwrap()).slice(0..LEN).unwrap();
    let mut driver = BurstDriver::new(&region, AT, SIZE, Layout::Split, BUFFERS);
    driver.offer(2, 100);
    region.write(0x6004, [1u32, 7]).unwrap();
    region.write(0x6002, 1u16).unwrap();
    assert_eq!(driver.take(), Err(OutOfOrder { id: 1, expected: 0 }));
    let mut driver = BurstDriver::new(&region, AT, SIZE, Layout::Packed, BUFFERS);
    region.zero(0, LEN).unwrap();
    driver.offer(2, 100);
    // Buffer 5, which was not offered, used in the first lap.
    region.write(8, 5u64 << 32 | 0x8080 << 48).unwrap();
    assert_eq!(driver.take(), Err(OutOfOrder { id: 5, expected: 0 }));
}
