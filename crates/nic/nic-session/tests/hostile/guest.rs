//! A guest's side of a context, without a driver: it writes what it likes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cdna::call::{ENTRIES_MAX, MapEntry};
use cdna::{ContextId, Descriptor, Direction, Enable, Flags, Mailbox, Status, completion, context};
use cdna::{address, ring};
use contexts::{Contexts, IommuMode, Protection, Refusal};
use hypervisor::PageOwner;
use machine::{Domain, MachineGuest};
use nic_session::files::Files;
use shm::Region;
use wire::ethernet::MacAddr;

pub const PAGE: usize = 4096;
/// Pages of the longest buffer, and its bytes.
pub const LONG_PAGES: usize = 15;
pub const LONG: u16 = 15 * 4096;
/// A station on the wire.
pub const PEER: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

pub const fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A frame of a protocol for experiments.
pub fn frame(to: MacAddr, from: MacAddr, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &[0x88, 0xb5], payload].concat()
}

/// The files as the guest mapped them.
struct Mapped {
    context: Arc<Region>,
    rings: Region,
    completion: Region,
}

/// A context that was assigned, before anybody maps it.
pub struct Assigned {
    pub files: Files,
    pub generation: u32,
    pub start: u32,
}

pub struct Guest {
    pub context: ContextId,
    pub domain: Arc<Domain>,
    pub inside: MachineGuest,
    /// The daemon's, of which the guest gets descriptors.
    pub files: Files,
    pub generation: u32,
    mapped: Option<Mapped>,
    /// Of both rings.
    pub producers: [u32; 2],
    consumed: u32,
}

impl Guest {
    pub fn new(
        number: u8,
        domain: Arc<Domain>,
        inside: MachineGuest,
        Assigned { files, generation, start }: Assigned,
    ) -> Self {
        Self {
            context: ContextId::new(number),
            domain,
            inside,
            files,
            generation,
            mapped: None,
            producers: [start; 2],
            consumed: start,
        }
    }

    /// It has the context again, with fresh files.
    pub fn replace(&mut self, Assigned { files, generation, start }: Assigned) {
        (self.files, self.generation, self.mapped) = (files, generation, None);
        (self.producers, self.consumed) = ([start; 2], start);
    }

    /// Maps the files as it may, before they are sealed.
    pub fn map(&mut self, protection: Protection) {
        let [context, rings, completion, _] = self.files.for_guest().unwrap();
        let map_rings = match protection {
            Protection::Hypervisor => Region::map_read_only,
            Protection::None | Protection::Iommu(_) => Region::map,
        };
        let mapped = Mapped {
            context: Arc::new(Region::map(context, 0, context::PAGE_LEN).unwrap()),
            rings: map_rings(rings, 0, ring::RINGS_LEN).unwrap(),
            completion: Region::map_read_only(completion, 0, completion::PAGE_LEN).unwrap(),
        };
        self.mapped = Some(mapped);
        self.files.mapped().unwrap();
    }

    fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().unwrap()
    }

    pub fn memory(&self) -> &Region {
        self.inside.region()
    }

    /// The machine address of its page.
    pub fn address(&self, page: usize) -> u64 {
        (self.domain.machine_pages().start + page as u64) * PAGE as u64
    }

    pub fn status(&self) -> Option<Status> {
        Status::from_word(self.mapped().completion.read(completion::STATUS).unwrap())
    }

    pub fn consumer(&self, direction: Direction) -> u32 {
        self.mapped().completion.read(completion::consumer(direction)).unwrap()
    }

    /// A mapping of its context page that outlives its assignment.
    pub fn keep_old_context_page(&self) -> Arc<Region> {
        self.mapped().context.clone()
    }

    /// Writes a mailbox and raises its event.
    pub fn write(&self, mailbox: Mailbox, value: u32) {
        self.mapped().context.write(mailbox.offset(), value).unwrap();
        self.raise(mailbox.event().word());
    }

    pub fn raise(&self, events: u32) {
        let word = self.mapped().context.atomic_u32(context::EVENTS).unwrap();
        word.fetch_or(events, Ordering::SeqCst);
    }

    /// Begins: an interrupt for each step in which frames were handled.
    pub fn enable(&self) {
        self.write(Mailbox::TxProducer, self.producers[0]);
        self.write(Mailbox::RxProducer, self.producers[1]);
        self.write(Mailbox::TxFrames, 1);
        self.write(Mailbox::RxFrames, 1);
        self.write(Mailbox::Enable, (Enable::TX | Enable::RX | Enable::INTERRUPTS).0);
    }

    /// Writes the producer index to its mailbox.
    pub fn publish(&self, direction: Direction) {
        let mailbox = [Mailbox::TxProducer, Mailbox::RxProducer][direction as usize];
        self.write(mailbox, self.producers[direction as usize]);
    }

    /// Puts descriptors on a ring and publishes them, in the way of its protection. Buffers in the guest's own memory are mapped
    /// before, if they must be; others cannot be.
    pub fn post(
        &mut self,
        contexts: &Contexts<Domain>,
        protection: Protection,
        direction: Direction,
        descriptors: &[Descriptor],
    ) -> Result<(), Refusal> {
        if matches!(protection, Protection::Iommu(mode) if mode != IommuMode::Static) {
            descriptors.iter().for_each(|descriptor| self.map_buffer(contexts, descriptor));
        }
        self.put(contexts, protection, direction, descriptors)
    }

    /// The same without mapping anything.
    pub fn put(
        &mut self,
        contexts: &Contexts<Domain>,
        protection: Protection,
        direction: Direction,
        descriptors: &[Descriptor],
    ) -> Result<(), Refusal> {
        let producer = &mut self.producers[direction as usize];
        if protection == Protection::Hypervisor {
            for batch in descriptors.chunks(ENTRIES_MAX) {
                *producer =
                    contexts.caller(self.context, self.domain.id()).enqueue(direction, batch)?;
            }
        } else {
            for descriptor in descriptors {
                let descriptor = Descriptor { seq: ring::sequence(*producer), ..*descriptor };
                let at = ring::offset(direction, *producer);
                self.mapped.as_ref().unwrap().rings.write(at, descriptor).unwrap();
                *producer = producer.wrapping_add(1);
            }
        }
        self.publish(direction);
        Ok(())
    }

    /// Maps those pages of a buffer that are its own, for reading and writing, unless they are mapped.
    pub fn map_buffer(&self, contexts: &Contexts<Domain>, descriptor: &Descriptor) {
        let own = self.domain.machine_pages();
        let pages = address::pages(descriptor.addr, descriptor.len).unwrap_or_default();
        for machine_page in pages.filter(|page| own.contains(page)) {
            let page = u32::try_from(machine_page - own.start).unwrap();
            let permission = MapEntry::MAY_READ | MapEntry::MAY_WRITE;
            let entry = MapEntry { machine_page, page, pages: 1, permission };
            // Refused if it is mapped already, or is not the guest's any more.
            let _ = contexts.caller(self.context, self.domain.id()).map(&[entry], Duration::ZERO);
        }
    }

    pub fn buffer(&self, page: usize, len: u16) -> Descriptor {
        Descriptor::buffer(0, self.address(page), len, Flags::EOP)
    }

    /// The bytes of frames that it received into its pages from `first` on, by order of the ring, a page each.
    pub fn received(&mut self, first: usize) -> Vec<Vec<u8>> {
        let published = self.consumer(Direction::Rx);
        let mut frames = Vec::new();
        while self.consumed != published {
            let at = completion::offset(self.consumed);
            let done: cdna::RxCompletion = self.mapped().completion.read(at).unwrap();
            let mut bytes = vec![0; done.len.into()];
            self.memory().copy_out((first + frames.len()) * PAGE, &mut bytes).unwrap();
            frames.push(bytes);
            self.consumed = self.consumed.wrapping_add(1);
        }
        frames
    }
}
