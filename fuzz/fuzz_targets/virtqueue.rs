//! Whatever a driver writes into its rings, between any two reads of the device: the device neither panics nor loops, has
//! no more chains in hand than the ring has entries, and names no byte outside of the guest's memory.
//!
//! Input: layout and options (1 byte), position (2 bytes), then steps of 4 bytes: where a word is written, and the word.
//! Run with `cargo fuzz run --features libfuzzer --sanitizer none virtqueue`.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shm::Region;
use virtqueue::{
    Chain, GuestMemory, Layout, Options, Queue, Range, RingAddresses, RingSetup, Single,
};

/// Entries of the ring.
const SIZE: u16 = 8;
const LEN: usize = 1 << 16;
/// The parts of the ring, and an indirect table.
const PARTS: [usize; 4] = [0, 0x1000, 0x2000, 0x3000];

fn memory() -> Arc<GuestMemory> {
    let part = |guest: u64, len: usize| {
        let whole = Arc::new(Region::anonymous(len).unwrap());
        (Range { guest, user: guest, len: len as u64 }, whole.slice(0..len).unwrap())
    };
    Arc::new(GuestMemory::new(vec![part(0, LEN), part(LEN as u64, 4096)]).unwrap())
}

fuzz_target!(|input: &[u8]| {
    let [options, low, high, steps @ ..] = input else { return };
    let layout = if options & 1 == 0 { Layout::Split } else { Layout::Packed };
    let memory = memory();
    let [descriptors, driver, device, _] = PARTS.map(|part| part as u64);
    let at = RingAddresses { descriptors, driver, device };
    let position = u16::from_le_bytes([*low, *high]).into();
    let is_in_order = options & 8 != 0;
    let options = Options { layout, event_idx: options & 2 != 0, indirect: options & 4 != 0 };
    let setup = RingSetup { at, size: SIZE.into(), position, options };
    let Ok(queue) = Queue::new(memory.clone(), setup) else { return };
    let mut queue = queue.in_order(is_in_order);
    let (mut chain, mut held) = (Chain::new(), Vec::new());
    for step in steps.chunks_exact(4) {
        let at = PARTS[usize::from(step[0] >> 6)]
            + usize::from(step[0] & 63) * 2
            + usize::from(step[1] & 1) * 128;
        memory.regions()[0].write(at, u16::from_le_bytes([step[2], step[3]])).unwrap();
        let mut singles = [Single::default(); 3];
        let Ok(taken) = queue.pop_singles(step[1] & 4 != 0, &mut singles) else { return };
        for Single { buffer, .. } in &singles[..taken] {
            let region = &memory.regions()[usize::from(buffer.region)];
            assert!(buffer.len > 0);
            assert!(buffer.offset + u64::from(buffer.len) <= region.len() as u64);
        }
        let kept = taken.min(usize::from(step[1] >> 3 & 3));
        queue.put_back_singles(u16::try_from(taken - kept).unwrap());
        held.extend(singles[..kept].iter().map(|single| single.index));
        assert!(held.len() <= usize::from(SIZE));
        let mark = queue.mark();
        let Ok(popped) = queue.pop(&mut chain) else { return };
        if popped && step[1] & 2 != 0 {
            queue.put_back(mark);
            let Ok(_) = queue.arm() else { return };
        } else if popped {
            for buffer in chain.readable.iter().chain(&chain.writable) {
                let region = &memory.regions()[usize::from(buffer.region)];
                assert!(buffer.len > 0);
                assert!(buffer.offset + u64::from(buffer.len) <= region.len() as u64);
            }
            held.push(chain.index);
            assert!(held.len() <= usize::from(SIZE));
        } else {
            for index in held.drain(..) {
                queue.complete(index, u32::from(step[1] >> 7));
            }
            let _ = queue.publish();
            let Ok(_) = queue.arm() else { return };
        }
    }
});
