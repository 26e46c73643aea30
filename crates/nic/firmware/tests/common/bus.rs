//! A bus that may protect guests from each other, and lets a guest act in the middle of a step.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cdna::{ContextId, Reason};
use firmware::regions::{FlatBus, RegionPages, RegionVectors};
use firmware::{Bus, BusFault};
use shm::Region;

#[derive(Default)]
pub struct TestBus {
    flat: FlatBus,
    /// The memory of each context's guest.
    owned: HashMap<ContextId, Range<u64>>,
    /// Whether a context reaches its guest's memory only.
    pub protects: bool,
    /// Called before every access.
    pub meanwhile: Option<Box<dyn FnMut()>>,
    /// It must not sleep.
    pub is_busy: bool,
    pub is_asleep: bool,
    /// How often it was served.
    pub served: u32,
}

impl TestBus {
    pub fn insert(&mut self, context: ContextId, base: u64, memory: &Arc<Region>) {
        // The memory of a context's last guest is gone.
        let owned = base..base + memory.len() as u64;
        if let Some(last) = self.owned.insert(context, owned) {
            self.flat.remove(last.start);
        }
        self.flat.insert(base, memory.clone());
    }

    fn check(&mut self, context: ContextId, address: u64, len: usize) -> Result<(), BusFault> {
        assert!(!self.is_asleep, "an access of a card that sleeps");
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile();
        }
        let owned = &self.owned[&context];
        let is_owned = address >= owned.start
            && address.checked_add(len as u64).is_some_and(|end| end <= owned.end);
        let fault = BusFault { reason: Reason::Unmapped, address };
        (is_owned || !self.protects).then_some(()).ok_or(fault)
    }
}

impl Bus for TestBus {
    type Pages = RegionPages;
    type Vectors = RegionVectors;

    fn read(&mut self, context: ContextId, address: u64, dest: &mut [u8]) -> Result<(), BusFault> {
        self.check(context, address, dest.len())?;
        self.flat.read(context, address, dest)
    }

    fn write(&mut self, context: ContextId, address: u64, source: &[u8]) -> Result<(), BusFault> {
        self.check(context, address, source.len())?;
        self.flat.write(context, address, source)
    }

    fn prefetch(&mut self, context: ContextId, address: u64, is_write: bool) {
        self.flat.prefetch(context, address, is_write);
    }

    fn serve(&mut self) {
        assert!(!self.is_asleep);
        self.served += 1;
    }

    fn fall_asleep(&mut self) -> bool {
        self.is_asleep = !self.is_busy;
        self.is_asleep
    }

    fn wake(&mut self) {
        self.is_asleep = false;
    }
}
