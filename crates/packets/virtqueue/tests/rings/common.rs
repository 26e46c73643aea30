//! A guest's memory with a ring in it, for tests.

use std::sync::Arc;

use shm::Region;
use virtqueue::driver::Driver;
use virtqueue::{GuestMemory, Layout, Options, Queue, Range, RingAddresses, RingSetup};

/// Where the front-end has the memory.
pub const USER: u64 = 0x7f00_0000_0000;
/// Bytes of the guest's memory. The ring is at its start.
pub const LEN: usize = 1 << 20;
/// Buffers are from here on.
pub const DATA: u64 = 1 << 19;
/// Indirect tables are from here on.
pub const TABLES: u64 = 1 << 18;

pub const DESCRIPTORS: u64 = 0x1000;
pub const DRIVER: u64 = 0x1_1000;
pub const DEVICE: u64 = 0x1_3000;

/// A ring and both of its ends.
pub struct World {
    pub memory: Arc<GuestMemory>,
    pub driver: Driver,
    pub queue: Queue,
}

/// The guest's memory: 1 MiB from address 0 on, and a page behind it that belongs to another region.
pub fn memory() -> Arc<GuestMemory> {
    let part = |guest: u64, user, len: usize| {
        let region = Arc::new(Region::anonymous(len).unwrap()).slice(0..len).unwrap();
        (Range { guest, user, len: len as u64 }, region)
    };
    let parts = vec![part(0, USER, LEN), part(LEN as u64, USER + (1 << 40), 4096)];
    Arc::new(GuestMemory::new(parts).unwrap())
}

pub fn addresses(base: u64) -> RingAddresses {
    RingAddresses { descriptors: base + DESCRIPTORS, driver: base + DRIVER, device: base + DEVICE }
}

/// Where a device starts in a fresh ring.
pub fn start(layout: Layout) -> u32 {
    match layout {
        Layout::Split => 0,
        Layout::Packed => 0x8000,
    }
}

pub fn world(size: u16, options: Options) -> World {
    let memory = memory();
    let driver = Driver::new(&memory.regions()[0], addresses(0), size, options);
    let queue = Queue::new(memory.clone(), setup(size, options)).unwrap();
    World { memory, driver, queue }
}

/// A ring that no device has served.
pub fn setup(size: u16, options: Options) -> RingSetup {
    let position = start(options.layout);
    RingSetup { at: addresses(USER), size: size.into(), position, options }
}

pub fn options(layout: Layout, event_idx: bool) -> Options {
    Options { layout, event_idx, indirect: true }
}
