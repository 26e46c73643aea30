//! The bus of a card that serves contexts of every protection.

#![forbid(unsafe_code)]

use std::sync::Arc;

use cdna::context::CONTEXTS_MAX;
use cdna::{ContextId, Reason, completion};
use firmware::regions::{FlatBus, RegionPages, RegionVectors};
use firmware::{Bus, BusFault};
use iommu::{
    Access, Fault, FaultKind, Geometry, IotlbCount, PAGE_SIZE, RegionInvalidation, RegionTable,
    Translator,
};
use shm::{OutOfBounds, Region};

type ContextTranslator = Translator<RegionTable<Arc<Region>>, RegionInvalidation<Arc<Region>>>;

/// The machine's memory, with a translation for each context that has an IOMMU.
pub struct CardBus {
    memory: FlatBus,
    translators: [Option<Box<ContextTranslator>>; CONTEXTS_MAX],
    /// The contexts with a translation, ascending.
    translated: Vec<ContextId>,
}

impl Default for CardBus {
    fn default() -> Self {
        Self::new()
    }
}

impl CardBus {
    /// A machine without memory.
    #[must_use]
    pub fn new() -> Self {
        let translators = std::array::from_fn(|_| None);
        Self { memory: FlatBus::new(), translators, translated: Vec::new() }
    }

    /// The machine's memory.
    pub fn memory(&mut self) -> &mut FlatBus {
        &mut self.memory
    }

    /// Has the context's accesses translated from now on, by a table and the completion page's words, with a
    /// cache of this geometry.
    ///
    /// # Errors
    /// The table or the completion page is too short.
    pub fn translate(
        &mut self,
        context: ContextId,
        table: Arc<Region>,
        completion: Arc<Region>,
        geometry: Geometry,
    ) -> Result<(), OutOfBounds> {
        let words = RegionInvalidation::new(table.clone(), completion, completion::INVALIDATION)?;
        let table = RegionTable::open(table)?;
        self.release(context);
        let translator = Translator::new(table, words, geometry);
        self.translators[context.index()] = Some(Box::new(translator));
        self.translated.push(context);
        self.translated.sort_unstable();
        Ok(())
    }

    /// Serves the daemon's invalidations: at least once per step of the card.
    pub fn serve(&mut self) {
        for context in &self.translated {
            if let Some(translator) = &mut self.translators[context.index()] {
                translator.serve();
            }
        }
    }

    /// The card waits for doorbells: invalidations need not wait for it.
    pub fn sleep(&mut self) {
        for context in &self.translated {
            if let Some(translator) = &mut self.translators[context.index()] {
                // Every transfer ends within an access.
                translator.sleep();
            }
        }
    }

    /// The card goes on.
    pub fn wake(&mut self) {
        for context in &self.translated {
            if let Some(translator) = &mut self.translators[context.index()] {
                translator.wake();
            }
        }
    }

    /// What the cache of a context has counted; zeros without one.
    #[must_use]
    pub fn cache_count(&self, context: ContextId) -> IotlbCount {
        let translator = self.translators[context.index()].as_ref();
        translator.map(|translator| translator.count()).unwrap_or_default()
    }
}

/// Accesses bytes page by page through a translation. The transfer ends with the access: until then no
/// page of it is given back.
fn translated(
    translator: &mut ContextTranslator,
    access: Access,
    address: u64,
    len: usize,
    mut part: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), BusFault>,
) -> Result<(), BusFault> {
    let transfer = translator.begin();
    let mut done = 0;
    let mut result = Ok(());
    while done < len && result.is_ok() {
        // The table has no page beyond the end of the address space.
        let at = address.wrapping_add(done as u64);
        let to_page_end = usize::try_from(PAGE_SIZE - at % PAGE_SIZE).unwrap_or(1);
        let range = done..len.min(done + to_page_end);
        done = range.end;
        result = match translator.translate(&transfer, at, access) {
            Ok(machine) => part(machine, range),
            Err(Fault { address, kind, .. }) => {
                let reason = match kind {
                    FaultKind::Outside | FaultKind::NotMapped => Reason::Unmapped,
                    FaultKind::NotPermitted => Reason::Forbidden,
                };
                Err(BusFault { reason, address })
            }
        };
    }
    translator.end(transfer);
    result
}

impl Bus for CardBus {
    type Pages = RegionPages;
    type Vectors = RegionVectors;

    #[inline]
    fn read(&mut self, context: ContextId, address: u64, dest: &mut [u8]) -> Result<(), BusFault> {
        let Self { memory, translators, .. } = self;
        match &mut translators[context.index()] {
            None => memory.read(context, address, dest),
            Some(translator) => {
                let len = dest.len();
                translated(translator, Access::Read, address, len, |at, range| {
                    memory.read(context, at, &mut dest[range])
                })
            }
        }
    }

    #[inline]
    fn write(&mut self, context: ContextId, address: u64, source: &[u8]) -> Result<(), BusFault> {
        let Self { memory, translators, .. } = self;
        match &mut translators[context.index()] {
            None => memory.write(context, address, source),
            Some(translator) => {
                let len = source.len();
                translated(translator, Access::Write, address, len, |at, range| {
                    memory.write(context, at, &source[range])
                })
            }
        }
    }

    #[inline]
    fn prefetch(&mut self, context: ContextId, address: u64, is_write: bool) {
        // Only the translation knows where a translated address lies.
        if self.translators[context.index()].is_none() {
            self.memory.prefetch(context, address, is_write);
        }
    }

    fn release(&mut self, context: ContextId) {
        self.translators[context.index()] = None;
        self.translated.retain(|other| *other != context);
    }
}

#[cfg(test)]
mod tests {
    use iommu::{Entry, Mapper, Permission, table_len};

    use super::*;

    const PAGE: usize = 4096;
    const BASE: u64 = 1 << 32;
    const PAGES: u32 = 4;

    struct Machine {
        bus: CardBus,
        memory: Arc<Region>,
        mapper: Mapper<RegionTable<Arc<Region>>, RegionInvalidation<Arc<Region>>>,
    }

    const CONTEXT: ContextId = ContextId::new(3);
    const OTHER: ContextId = ContextId::new(4);

    fn machine() -> Machine {
        let region = |len| Arc::new(Region::anonymous(len).unwrap());
        let (memory, table, completion) =
            (region(4 * PAGE), region(table_len(PAGES)), region(PAGE));
        let first = BASE / PAGE_SIZE;
        let entries = RegionTable::create(table.clone(), first, PAGES).unwrap();
        let words =
            RegionInvalidation::new(table.clone(), completion.clone(), completion::INVALIDATION);
        let mapper = Mapper::new(entries, words.unwrap(), iommu::Flush::AtOnce);
        let mut bus = CardBus::new();
        bus.memory().insert(BASE, memory.clone());
        bus.translate(CONTEXT, table, completion, Geometry::default()).unwrap();
        Machine { bus, memory, mapper }
    }

    fn fault(reason: Reason, address: u64) -> Result<(), BusFault> {
        Err(BusFault { reason, address })
    }

    #[test]
    fn a_context_reaches_what_is_mapped_for_it_and_as_it_is_mapped() {
        let Machine { mut bus, memory, mut mapper } = machine();
        let first = BASE / PAGE_SIZE;
        mapper.map(0, Entry::new(first, Permission::Read).unwrap()).unwrap();
        mapper.map(1, Entry::new(first + 3, Permission::ReadWrite).unwrap()).unwrap();
        memory.copy_in(PAGE - 2, b"ab").unwrap();
        memory.copy_in(3 * PAGE, b"cd").unwrap();
        let (mut seen, end) = ([0; 4], BASE + PAGE_SIZE);
        bus.read(CONTEXT, end - 2, &mut seen).unwrap();
        assert_eq!(&seen, b"abcd", "an access may cross into a page that lies elsewhere");
        assert_eq!(bus.write(CONTEXT, end - 2, b"xy"), fault(Reason::Forbidden, end - 2));
        bus.write(CONTEXT, end, b"xy").unwrap();
        assert_eq!(memory.read(3 * PAGE), Ok(*b"xy"));
        for address in [BASE + 2 * PAGE_SIZE, BASE - 1, BASE + 4 * PAGE_SIZE, u64::MAX] {
            assert_eq!(bus.read(CONTEXT, address, &mut seen), fault(Reason::Unmapped, address));
        }
        assert_eq!(bus.read(CONTEXT, u64::MAX, &mut []), Ok(()));
        // A context without an IOMMU has the whole machine.
        bus.write(OTHER, BASE + 2 * PAGE_SIZE, b"zz").unwrap();
        assert_eq!(bus.cache_count(OTHER), IotlbCount::default());
        assert!(bus.cache_count(CONTEXT).misses >= 2);
    }

    #[test]
    fn an_unmapping_holds_good_when_the_card_has_served_it_or_sleeps() {
        let Machine { mut bus, mut mapper, .. } = machine();
        let entry = Entry::new(BASE / PAGE_SIZE, Permission::ReadWrite).unwrap();
        let now = std::time::Duration::ZERO;
        mapper.map(0, entry).unwrap();
        bus.write(CONTEXT, BASE, b"x").unwrap();
        let ticket = mapper.unmap(std::slice::from_ref(&(0..1)), now).unwrap().unwrap();
        assert!(!mapper.is_confirmed(ticket));
        bus.serve();
        assert!(mapper.is_confirmed(ticket));
        assert_eq!(bus.write(CONTEXT, BASE, b"x"), fault(Reason::Unmapped, BASE));
        mapper.give_back(|_, _| ());

        mapper.map(0, entry).unwrap();
        bus.write(CONTEXT, BASE, b"x").unwrap();
        bus.sleep();
        let ticket = mapper.unmap(std::slice::from_ref(&(0..1)), now).unwrap().unwrap();
        assert!(mapper.is_confirmed(ticket));
        bus.wake();
        assert_eq!(bus.write(CONTEXT, BASE, b"x"), fault(Reason::Unmapped, BASE));
    }

    #[test]
    fn a_context_that_was_released_has_no_translation_left() {
        let Machine { mut bus, .. } = machine();
        bus.release(CONTEXT);
        assert!(bus.translated.is_empty());
        bus.serve();
        bus.write(CONTEXT, BASE, b"x").unwrap();
    }
}
