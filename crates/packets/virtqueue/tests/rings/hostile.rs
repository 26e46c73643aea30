//! The driver may write anything at any time. The device neither loops nor panics, takes no descriptor that is in use,
//! and reaches no memory that is not the guest's.

use crate::common::{DATA, DESCRIPTORS, DEVICE, DRIVER, LEN, TABLES, World, options, setup, world};
use proptest::prelude::*;
use shm::Region;
use virtqueue::driver::{Offered, Table};
use virtqueue::{
    Buffer, CHAIN_MAX, Chain, DESCRIPTORS_MAX, Fault, Layout, Options, Queue, RingBroken,
    RingSetup, SetupError, Single,
};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn region(world: &World) -> &Region {
    &world.memory.regions()[0]
}

/// Writes descriptor `index` of the table at `table`.
fn describe(
    world: &World,
    table: u64,
    index: u16,
    (address, len, flags, next): (u64, u32, u16, u16),
) {
    let at = usize::try_from(table).unwrap() + usize::from(index) * 16;
    region(world).write(at, address).unwrap();
    region(world).write(at + 8, len).unwrap();
    region(world).write(at + 12, [flags, next]).unwrap();
}

/// Makes `head` available in a split ring of 8.
fn available(world: &World, index: u16, head: u16) {
    let at = usize::try_from(DRIVER).unwrap();
    region(world).write(at + 4 + 2 * usize::from((index - 1) & 7), head).unwrap();
    region(world).write(at + 2, index).unwrap();
}

fn split() -> World {
    world(8, options(Layout::Split, false))
}

fn packed() -> World {
    world(8, options(Layout::Packed, false))
}

/// Flags of a packed descriptor that is available in the first lap. They come behind the id, where a split one has the next index.
const FRESH: u16 = 1 << 7;

fn pop(world: &mut World) -> Result<Option<Chain>, RingBroken> {
    let mut chain = Chain::new();
    Ok(world.queue.pop(&mut chain)?.then_some(chain))
}

#[test]
fn an_available_index_that_jumps_ends_the_ring() {
    for index in [9u16, 10, 1000, 32_768, 65_535] {
        let mut world = split();
        region(&world).write(usize::try_from(DRIVER).unwrap() + 2, index).unwrap();
        let error = RingBroken::AvailableOverflow { available: index, used: 0, size: 8 };
        assert_eq!(pop(&mut world).unwrap_err(), error);
    }
}

#[test]
fn an_available_index_that_goes_back_ends_the_ring() {
    let mut world = split();
    describe(&world, DESCRIPTORS, 0, (DATA, 64, 0, 0));
    (1..=3).for_each(|index| available(&world, index, 0));
    for _ in 0..3 {
        assert!(pop(&mut world).unwrap().is_some());
    }
    region(&world).write(usize::try_from(DRIVER).unwrap() + 2, 1u16).unwrap();
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::AvailableBackwards { before: 3, now: 1 });
}

#[test]
fn an_available_index_that_takes_back_what_is_known_ends_the_ring() {
    let mut world = split();
    describe(&world, DESCRIPTORS, 0, (DATA, 64, 0, 0));
    (1..=3).for_each(|index| available(&world, index, 0));
    assert!(pop(&mut world).unwrap().is_some());
    region(&world).write(usize::try_from(DRIVER).unwrap() + 2, 2u16).unwrap();
    let error = RingBroken::AvailableBackwards { before: 3, now: 2 };
    assert_eq!(world.queue.arm(), Err(error));
}

/// The first descriptor is in use when a chain comes round to it.
#[test]
fn a_packed_chain_that_runs_into_what_is_in_use_ends_the_ring() {
    let mut world = packed();
    describe(&world, DESCRIPTORS, 0, (DATA, 64, 0, FRESH));
    assert!(pop(&mut world).unwrap().is_some());
    (1..8).for_each(|n| describe(&world, DESCRIPTORS, n, (DATA, 64, 1, FRESH | NEXT)));
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::LongChain(7));
}

#[test]
fn a_loop_of_descriptors_ends_the_ring() {
    let mut world = split();
    describe(&world, DESCRIPTORS, 3, (DATA, 64, NEXT, 5));
    describe(&world, DESCRIPTORS, 5, (DATA, 64, NEXT, 3));
    available(&world, 1, 3);
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::LongChain(8));
    // In an indirect table as well.
    let mut world = split();
    describe(&world, DESCRIPTORS, 0, (TABLES, 32, INDIRECT, 0));
    describe(&world, TABLES, 0, (DATA, 64, NEXT, 1));
    describe(&world, TABLES, 1, (DATA, 64, NEXT, 0));
    available(&world, 1, 0);
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::LongChain(2));
    // A packed chain that never ends goes round the ring.
    let mut world = packed();
    (0..8).for_each(|n| describe(&world, DESCRIPTORS, n, (DATA, 64, 0, FRESH | NEXT)));
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::LongChain(8));
}

#[test]
fn a_descriptor_that_does_not_exist_ends_the_ring() {
    let mut world = split();
    available(&world, 1, 8);
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::NoSuchDescriptor { index: 8, size: 8 });
    let mut world = split();
    describe(&world, DESCRIPTORS, 0, (DATA, 64, NEXT, 65_535));
    available(&world, 1, 0);
    assert_eq!(
        pop(&mut world).unwrap_err(),
        RingBroken::NoSuchDescriptor { index: 65_535, size: 8 }
    );
    let mut world = split();
    describe(&world, DESCRIPTORS, 0, (TABLES, 32, INDIRECT, 0));
    describe(&world, TABLES, 0, (DATA, 64, NEXT, 2));
    available(&world, 1, 0);
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::NoSuchDescriptor { index: 2, size: 2 });
    let mut world = packed();
    describe(&world, DESCRIPTORS, 0, (DATA, 64, 8, FRESH));
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::NoSuchId { id: 8, size: 8 });
}

#[test]
fn indirect_tables_that_cannot_be_end_the_ring() {
    let with = |world: World, flags: u16, len: u32| {
        let mut world = world;
        describe(&world, DESCRIPTORS, 0, (TABLES, len, flags, 1));
        describe(&world, DESCRIPTORS, 1, (DATA, 64, 0, 0));
        available(&world, 1, 0);
        pop(&mut world).unwrap_err()
    };
    assert_eq!(with(split(), INDIRECT | NEXT, 32), RingBroken::Indirect);
    for len in [0, 1, 15, 17, 31, 16 * 32_769, u32::MAX] {
        assert_eq!(with(split(), INDIRECT, len), RingBroken::IndirectLength(len));
    }
    let mut nested = split();
    describe(&nested, DESCRIPTORS, 0, (TABLES, 32, INDIRECT, 0));
    describe(&nested, TABLES, 0, (TABLES, 32, INDIRECT, 0));
    available(&nested, 1, 0);
    assert_eq!(pop(&mut nested).unwrap_err(), RingBroken::Indirect);
    let without = Options { indirect: false, ..options(Layout::Split, false) };
    assert_eq!(with(crate::common::world(8, without), INDIRECT, 32), RingBroken::Indirect);
    let mut world = crate::common::world(8, Options { layout: Layout::Packed, ..without });
    describe(&world, DESCRIPTORS, 0, (TABLES, 32, 0, FRESH | INDIRECT));
    assert_eq!(pop(&mut world).unwrap_err(), RingBroken::Indirect);
}

#[test]
fn a_buffer_outside_of_the_memory_is_that_chains_fault() {
    let end = LEN as u64 + 4096;
    for (address, len) in [
        (end, 1),
        (end - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 10, 100),
        (DATA, u32::MAX),
        (1 << 63, 64),
    ] {
        for layout in [Layout::Split, Layout::Packed] {
            let mut world = world(8, options(layout, false));
            for address in [address, DATA] {
                let buffer = Offered {
                    address,
                    len: if address == DATA { 64 } else { len },
                    writable: false,
                };
                world.driver.offer(&[buffer], None).unwrap();
            }
            world.driver.publish();
            let bad = pop(&mut world).unwrap().unwrap();
            let expected = if address == DATA { None } else { Some(Fault::Outside) };
            if address != DATA {
                assert_eq!(bad.fault, expected, "{address:#x} {len}");
            }
            world.queue.complete(bad.index, 0);
            // The next chain is not affected.
            let good = pop(&mut world).unwrap().unwrap();
            assert_eq!((good.fault, good.readable_len), (None, 64));
            world.queue.complete(good.index, 0);
            assert!(world.queue.publish());
            assert!(world.driver.take().is_some() && world.driver.take().is_some());
        }
    }
}

#[test]
fn a_buffer_that_straddles_two_regions_is_two() {
    let mut world = split();
    let buffer = Offered { address: LEN as u64 - 100, len: 300, writable: true };
    world.driver.offer(&[buffer], None).unwrap();
    world.driver.publish();
    let chain = pop(&mut world).unwrap().unwrap();
    let places: Vec<_> = chain.writable.iter().map(|b| (b.region, b.offset, b.len)).collect();
    assert_eq!(places, [(0, LEN as u64 - 100, 100), (1, 0, 200)]);
    assert_eq!(chain.writable_len, 300);
}

/// Only what lies in one region is handed out without a chain. For the rest, `pop` decides.
#[test]
fn a_buffer_that_is_not_whole_in_one_region_is_no_single() {
    let end = LEN as u64 + 4096;
    for layout in [Layout::Split, Layout::Packed] {
        let singles = |address: u64, len: u32, writable: bool| {
            let mut world = world(8, options(layout, false));
            world.driver.offer(&[Offered { address, len, writable }], None).unwrap();
            world.driver.publish();
            let mut singles = [Single::default(); 4];
            let taken = world.queue.pop_singles(writable, &mut singles).unwrap();
            singles[..taken].iter().map(|single| single.buffer).collect::<Vec<_>>()
        };
        for writable in [false, true] {
            for (address, len) in [
                (LEN as u64 - 100, 101),
                (LEN as u64 - 100, 300),
                (end - 1, 2),
                (end, 1),
                (u64::MAX, 1),
                (DATA, 0),
                (DATA, u32::MAX),
            ] {
                assert_eq!(singles(address, len, writable), [], "{address:#x} {len}");
            }
            let whole = singles(LEN as u64 - 100, 100, writable);
            assert_eq!(whole, [Buffer { region: 0, offset: LEN as u64 - 100, len: 100 }]);
        }
    }
}

#[test]
fn an_indirect_table_outside_of_the_memory_is_that_chains_fault() {
    for table in [LEN as u64 + 4096, LEN as u64 + 4090, u64::MAX - 8] {
        let mut world = split();
        describe(&world, DESCRIPTORS, 0, (table, 64, INDIRECT, 0));
        available(&world, 1, 0);
        assert_eq!(pop(&mut world).unwrap().unwrap().fault, Some(Fault::Outside));
    }
}

#[test]
fn too_many_buffers_and_buffers_in_the_wrong_order_are_that_chains_fault() {
    let mut world = world(256, options(Layout::Split, false));
    let buffers =
        |count: usize, writable: bool| vec![Offered { address: DATA, len: 1, writable }; count];
    let full = [buffers(CHAIN_MAX, false), buffers(CHAIN_MAX, true)].concat();
    let wrong = [buffers(1, true), buffers(1, false)].concat();
    for (chain, fault) in [
        (full, None),
        (buffers(CHAIN_MAX + 1, false), Some(Fault::TooManyBuffers)),
        (wrong, Some(Fault::Order)),
    ] {
        for table in [None, Some(Table { offset: TABLES, address: TABLES })] {
            world.driver.offer(&chain, table).unwrap();
            world.driver.publish();
            let chain = pop(&mut world).unwrap().unwrap();
            assert_eq!(chain.fault, fault);
            world.queue.complete(chain.index, 0);
            assert!(world.queue.publish());
            world.driver.take().unwrap();
        }
    }
}

#[test]
fn a_chain_of_countless_empty_descriptors_ends_the_ring() {
    let empty = Offered { address: DATA, len: 0, writable: false };
    let most = usize::from(DESCRIPTORS_MAX);
    for layout in [Layout::Split, Layout::Packed] {
        for table in [None, Some(Table { offset: TABLES, address: TABLES })] {
            for count in [most, most + 1] {
                let mut world = world(512, options(layout, false));
                world.driver.offer(&vec![empty; count], table).unwrap();
                world.driver.publish();
                let chain = pop(&mut world);
                match count == most {
                    true => assert_eq!(chain.unwrap().unwrap().fault, None),
                    false => assert_eq!(chain.unwrap_err(), RingBroken::LongChain(DESCRIPTORS_MAX)),
                }
            }
        }
    }
}

#[test]
fn wrap_counters_that_lie_give_no_descriptor_twice() {
    let mut world = packed();
    // All eight descriptors are available, and those of the next lap too, though none was returned.
    (0..8).for_each(|n| describe(&world, DESCRIPTORS, n, (DATA, 64, n, FRESH)));
    let mut taken = Vec::new();
    for n in 0..8 {
        taken.push(pop(&mut world).unwrap().unwrap());
        describe(&world, DESCRIPTORS, n, (DATA, 64, n, 1 << 15));
    }
    assert!(pop(&mut world).unwrap().is_none(), "the ring has eight descriptors");
    assert!(!world.queue.has_waiting().unwrap());
    for chain in taken {
        world.queue.complete(chain.index, 0);
    }
    assert!(world.queue.publish());
    // Returned descriptors are not available, whatever the driver wrote before.
    assert!(pop(&mut world).unwrap().is_none());
}

/// A descriptor whose flags are equal was returned in this lap. A device that is told to start there must not take it again.
#[test]
fn a_descriptor_that_was_returned_is_not_available() {
    for (flags, is_available) in
        [(0, false), (FRESH, true), (1 << 15, false), (FRESH | 1 << 15, false)]
    {
        let mut world = packed();
        describe(&world, DESCRIPTORS, 0, (DATA, 64, 0, flags));
        assert_eq!(world.queue.has_waiting(), Ok(is_available), "{flags:#x}");
        let mut singles = [Single::default(); 2];
        let taken = world.queue.pop_singles(false, &mut singles).unwrap();
        assert_eq!(taken, usize::from(is_available), "{flags:#x}");
        world.queue.put_back_singles(taken.try_into().unwrap());
        assert_eq!(pop(&mut world).unwrap().is_some(), is_available, "{flags:#x}");
    }
}

#[test]
fn a_used_index_that_was_tampered_with_is_seen_at_the_start() {
    let memory = crate::common::memory();
    memory.regions()[0].write(usize::try_from(DEVICE).unwrap() + 2, 77u16).unwrap();
    let new = Queue::new(memory, setup(8, options(Layout::Split, true))).map(drop);
    let error = RingBroken::AvailableOverflow { available: 0, used: 77, size: 8 };
    assert_eq!(new, Err(SetupError::Broken(error)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Random bytes as a ring, changed between any two checks.
    #[test]
    fn whatever_the_driver_writes_is_harmless(
        packed in any::<bool>(),
        event_idx in any::<bool>(),
        position in any::<u32>(),
        writes in prop::collection::vec((0usize..0x4000, any::<u16>(), any::<bool>()), 1..400),
    ) {
        let layout = if packed { Layout::Packed } else { Layout::Split };
        let memory = crate::common::memory();
        let ring = usize::try_from(DESCRIPTORS).unwrap();
        let position = if packed { position & 0x8007 } else { position };
        let setup = RingSetup { position, ..setup(8, options(layout, event_idx)) };
        let queue = Queue::new(memory.clone(), setup);
        let Ok(queue) = queue else { return Ok(()) };
        let mut queue = queue.in_order(event_idx);
        let mut chain = Chain::new();
        let mut held = Vec::new();
        for (at, value, small) in writes {
            // Most writes go where they matter: the first few entries of each part.
            let part = [ring, usize::try_from(DRIVER).unwrap(), usize::try_from(DEVICE).unwrap()][at % 3];
            let value = if small { value & 0x8087 } else { value };
            memory.regions()[0].write(part + at / 3 % 128 / 2 * 2, value).unwrap();
            let mut singles = [Single::default(); 3];
            let Ok(taken) = queue.pop_singles(at % 2 == 0, &mut singles) else { return Ok(()) };
            for Single { buffer, .. } in &singles[..taken] {
                let region = &memory.regions()[usize::from(buffer.region)];
                let end = buffer.offset + u64::from(buffer.len);
                prop_assert!(end <= region.len() as u64 && buffer.len > 0);
            }
            // Some of them are put back.
            let kept = taken.min(at % 5);
            queue.put_back_singles(u16::try_from(taken - kept).unwrap());
            held.extend(singles[..kept].iter().map(|single| single.index));
            prop_assert!(held.len() <= 8, "no more chains than the ring has");
            match queue.pop(&mut chain) {
                Ok(true) => {
                    prop_assert!(held.len() < 8, "no more chains than the ring has");
                    for buffer in chain.readable.iter().chain(&chain.writable) {
                        let region = &memory.regions()[usize::from(buffer.region)];
                        let end = buffer.offset + u64::from(buffer.len);
                        prop_assert!(end <= region.len() as u64 && buffer.len > 0);
                    }
                    held.push(chain.index);
                }
                Ok(false) => {
                    for index in held.drain(..) {
                        queue.complete(index, u32::from(value % 2));
                    }
                    let _ = queue.publish();
                    if queue.arm().is_err() {
                        return Ok(());
                    }
                }
                Err(_) => return Ok(()),
            }
        }
    }
}

#[test]
fn the_flags_that_matter_are_written_as_the_specification_says() {
    // Literal values, so that a mistake that both ends share is found.
    let mut world = packed();
    let buffer = Offered { address: DATA, len: 64, writable: true };
    world.driver.offer(&[buffer], None).unwrap();
    world.driver.publish();
    let at = usize::try_from(DESCRIPTORS).unwrap();
    assert_eq!(region(&world).read::<u16>(at + 14), Ok(FRESH | WRITE));
    let chain = pop(&mut world).unwrap().unwrap();
    world.queue.complete(chain.index, 12);
    assert!(world.queue.publish());
    assert_eq!(region(&world).read::<u16>(at + 14), Ok(1 << 15 | 1 << 7 | WRITE));
    assert_eq!(region(&world).read::<u32>(at + 8), Ok(12));
    let mut world = split();
    world.driver.offer(&[buffer], None).unwrap();
    world.driver.publish();
    let chain = pop(&mut world).unwrap().unwrap();
    world.queue.complete(chain.index, 12);
    assert!(world.queue.publish());
    let used = usize::try_from(DEVICE).unwrap();
    // No notifications before the device is armed; one used chain.
    assert_eq!(region(&world).read::<[u16; 2]>(used), Ok([1, 1]));
    assert_eq!(region(&world).read::<[u32; 2]>(used + 4), Ok([0, 12]));
}
