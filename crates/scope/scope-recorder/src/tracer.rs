//! The part of recording that runs in QEMU's thread, which executes the guest.
//!
//! ```text
//!  QEMU's thread                        second thread            third thread, or one that waits
//!  Tracer ── walks page tables
//!     └───── events ──────────────────► Recorder ── L1s, TLBs
//!                                          └────── misses ─────► Counts ── L2s, counters
//! ```
//!
//! Only empty buffers come back, so the recording does not depend on which thread is faster. With two processors there are two
//! threads, and QEMU's thread counts misses while it waits for the other.

use std::collections::HashMap;

use iced_x86::Instruction;
use scope_model::{Flush, FlushSite, Paging, PhysicalMemory, Side, Walker};
use scope_result::{Checks, Domain, Mode, Recording};

use crate::access_groups::{AccessSizes, Accesses, Extent};
use crate::accesses::accesses;
use crate::arguments::Arguments;
use crate::block_flow::BlockFlow;
use crate::blocks::{BlockCode, BlockId, DOMAINS};
use crate::cost_events::cost_events;
use crate::decode::decoded;
use crate::frames::{FrameCounter, FrameEntry};
use crate::functions::Functions;
use crate::group_word::GroupWord;
use crate::instrumentation::{Instrumentation, instrument};
use crate::memory::bytes_at;
use crate::recorder::{Recorder, SharedCounts};
use crate::stage::{Message, Stage};
use crate::trace::{TraceEvent, block_word};

/// Blocks of this length always have their own callback: QEMU translates a single instruction again, with callbacks for
/// its accesses only, when it accesses a device.
const SINGLE: usize = 1;
const MESSAGES: usize = 16;
const HIGHEST_PAGE: u64 = u64::MAX >> 12;
/// A number that is neither a page's nor the walker's for no page: it is never current.
const NO_PAGE: u64 = u64::MAX - 1;

/// The control registers when recording begins.
#[derive(Clone, Copy, Debug)]
pub struct ControlRegisters {
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
}

/// Sends the recorder what the guest executes.
pub struct Tracer<M> {
    /// The sizes of accesses.
    pub sizes: AccessSizes,
    walker: Walker<M>,
    known: HashMap<(u64, u64, u8), BlockId>,
    /// The addresses of each block's first and last byte.
    ends: Vec<(u64, u64)>,
    /// The page of each block, or [`NO_PAGE`] if it lies in two.
    pages: Vec<u64>,
    /// The block and the extent of each indexed group.
    indexed: Vec<(BlockId, Extent)>,
    domains: Vec<Domain>,
    domain: u8,
    /// The last domain that was not idle.
    last_busy: Option<u8>,
    /// Whether the first domain is known.
    knows_first: bool,
    /// The address of `context_switch`.
    switch: Option<u64>,
    vcpu_domain: u64,
    unknown_switches: u64,
    frames: FrameCounter,
    check: bool,
    /// The functions that are known, if the call graph is recorded.
    functions: Option<Functions>,
    ignored: (bool, bool),
    message: Message,
    recorder: Stage<Message, Message, Recorder>,
    /// Counting to help with while the recorder is busy.
    shared_counts: Option<SharedCounts>,
}

impl<M: PhysicalMemory> Tracer<M> {
    /// Starts recording, with empty models in another thread.
    ///
    /// # Errors
    /// In words, if the system gives no thread, or if the functions cannot be read.
    pub fn new(memory: M, arguments: &Arguments, start: ControlRegisters) -> Result<Self, String> {
        let mut walker = Walker::new(memory, Paging::default(), &arguments.config);
        walker.flush(Flush::Cr4(start.cr4));
        walker.flush(Flush::Cr3(start.cr3));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let recorder = Recorder::new(arguments, walker.paging(), walker.lines(), processors)?;
        let shared_counts = recorder.shared_counts();
        let messages = (1..MESSAGES).map(|_| Message::new()).collect();
        let recorder = Stage::thread("pvscope-models", messages, recorder, Recorder::process)?;
        let first = if arguments.switch.is_some() { Domain::Unknown } else { Domain::Machine };
        Ok(Self {
            sizes: AccessSizes::default(),
            walker,
            known: HashMap::new(),
            ends: Vec::new(),
            pages: Vec::new(),
            indexed: Vec::new(),
            domains: vec![first],
            domain: 0,
            last_busy: None,
            knows_first: arguments.switch.is_none(),
            switch: arguments.switch,
            vcpu_domain: arguments.vcpu_domain,
            unknown_switches: 0,
            frames: FrameCounter::new(arguments.skb),
            check: arguments.check,
            functions: functions(arguments)?,
            ignored: (arguments.ignore_cr3, arguments.ignore_invlpg),
            message: Message::new(),
            recorder,
            shared_counts,
        })
    }

    /// The callbacks that a block needs; `code` has the bytes of each instruction, and the first lies at `address`. The
    /// processor is at the privilege `level`, if that is known. With `own_callback` the block has a callback for its execution,
    /// as it needs when its instructions have callbacks.
    pub fn translate(
        &mut self,
        address: u64,
        code: &[&[u8]],
        level: Option<u8>,
        own_callback: bool,
    ) -> Instrumentation {
        let instructions = decoded(address, code);
        let accesses = if self.check {
            // QEMU gives the physical address only of an access with a callback.
            Accesses { others: (0..code.len()).collect(), ..Accesses::default() }
        } else {
            accesses(code, &instructions)
        };
        let mode = Mode::of(address, level);
        let block = self.block(address, (code, &instructions), mode, &accesses);
        let own_callback = own_callback || code.len() == SINGLE;
        instrument(block, &accesses, (own_callback, self.functions.is_some()), |members| {
            self.indexed.push((block, Extent::of(&members)));
            self.message.members.push((block, members));
            self.indexed.len() - 1
        })
    }

    /// The block of these instructions, which may be new. The same code in another program or another domain is another block.
    fn block(
        &mut self,
        address: u64,
        (code, instructions): (&[&[u8]], &[Instruction]),
        mode: Mode,
        accesses: &Accesses,
    ) -> BlockId {
        let space = if mode == Mode::User { self.walker.paging().root } else { 0 };
        let domain = if mode == Mode::Hypervisor { 0 } else { self.domain };
        let next = BlockId(u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
        // Translations from the same address may differ in length, as at the end of a page.
        let key = (address, space ^ (code.len() as u64) << 48, domain | (mode as u8) << 6);
        let block = *self.known.entry(key).or_insert(next);
        if block == next {
            let bytes = code.concat();
            let last = address + (bytes.len() as u64).saturating_sub(1);
            self.ends.push((address, last));
            self.pages.push(if page(address) == page(last) { page(address) } else { NO_PAGE });
            let events = cost_events(instructions, mode, self.switch);
            if let Some(functions) = &self.functions {
                let function = functions.at(address);
                let slot = slot_offset(block, accesses);
                let flow =
                    BlockFlow { slot, ..BlockFlow::new(address, code, mode, function, events) };
                self.message.flows.push(flow);
            }
            let counted = (code.len(), accesses, events);
            let code = BlockCode::new(address, bytes, counted, (space, domain, mode));
            self.message.blocks.push(code);
        }
        block
    }

    fn send(&mut self, step: TraceEvent) {
        if !self.message.has_space() {
            self.hand_over();
        }
        let (words, count) = step.words();
        for word in words.into_iter().take(count) {
            self.message.add(word);
        }
    }

    /// Hands over the message, and waits for an empty one.
    #[cold]
    fn hand_over(&mut self) {
        let empty = match &self.shared_counts {
            Some(counts) => self.recorder.buffer_after(|| counts.help()),
            None => self.recorder.buffer(),
        };
        let empty = empty.unwrap_or_else(Message::new);
        self.recorder.send(std::mem::replace(&mut self.message, empty));
    }

    /// Sends the mappings of the pages from that of `first` to that of `last` unless they are current: they are used now.
    fn map_pages(&mut self, side: Side, (first, last): (u64, u64)) {
        // The page after the highest one is the lowest.
        let more = page(last).wrapping_sub(page(first)) & HIGHEST_PAGE;
        for page in (0..=more).map(|more| (page(first) + more) & HIGHEST_PAGE) {
            if !self.walker.is_current(side, page) {
                let mapping = self.walker.walk(side, page);
                self.send(TraceEvent::Page(side, page, mapping));
            }
        }
    }

    /// Whether a block's page is current; false if it lies in two pages.
    #[inline]
    fn is_code_current(&self, block: BlockId) -> bool {
        let page = self.pages.get(block.index());
        page.is_some_and(|page| self.walker.is_current(Side::Code, *page))
    }

    /// Whether the page of two bytes is current; false if they lie in two pages.
    #[inline]
    fn is_data_current(&self, first: u64, last: u64) -> bool {
        page(first) == page(last) && self.walker.is_current(Side::Data, page(first))
    }

    fn map_code(&mut self, block: BlockId) {
        if let Some(ends) = self.ends.get(block.index()) {
            self.map_pages(Side::Code, *ends);
        }
    }

    /// A block is about to be executed.
    #[inline]
    pub fn execute(&mut self, block: BlockId) {
        let is_sent = self.is_code_current(block) && self.message.add(block_word(block));
        if !is_sent {
            self.execute_slow(block);
        }
    }

    #[inline(never)]
    fn execute_slow(&mut self, block: BlockId) {
        self.map_code(block);
        self.send(TraceEvent::Block(block));
    }

    /// A group of accesses is made, the first at `address`. The word has the [shape](GroupWord::shape) `(BEGINS, INDEXED)`.
    ///
    /// QEMU's thread does this most of the time, so the usual case calls no other function: such a call alone takes as long as
    /// all work here. Each shape has code of its own, because a branch on the shape would be taken by turns.
    #[inline]
    pub fn group<const BEGINS: bool, const INDEXED: bool>(
        &mut self,
        word: GroupWord,
        address: u64,
    ) {
        let Some((block, (first, last))) = self.extent::<INDEXED>(word, address) else { return };
        let is_sent = (!BEGINS || self.is_code_current(block))
            && self.is_data_current(first, last)
            && self.message.add(word.at(word.lowest(address)).0);
        if !is_sent {
            self.group_slow::<BEGINS, INDEXED>(word, address);
        }
    }

    /// The block of a group, and the addresses of the lowest and the highest byte that it accesses.
    #[inline]
    fn extent<const INDEXED: bool>(
        &self,
        word: GroupWord,
        address: u64,
    ) -> Option<(BlockId, (u64, u64))> {
        if INDEXED {
            let (block, extent) = self.indexed.get(word.number() as usize)?;
            return Some((*block, extent.bytes_at(address)));
        }
        let first = word.lowest(address);
        Some((BlockId(word.number()), (first, first.wrapping_add(word.length()))))
    }

    #[inline(never)]
    fn group_slow<const BEGINS: bool, const INDEXED: bool>(
        &mut self,
        word: GroupWord,
        address: u64,
    ) {
        let Some((block, (first, last))) = self.extent::<INDEXED>(word, address) else { return };
        if BEGINS {
            self.map_code(block);
        }
        self.map_pages(Side::Data, (first, last));
        self.send(TraceEvent::Group(word.at(word.lowest(address))));
    }

    /// An access is made that is in no group.
    pub fn data(&mut self, address: u64, bytes: u8, write: bool) {
        let last = address.wrapping_add(u64::from(bytes) - 1);
        self.map_pages(Side::Data, (address, last));
        self.send(TraceEvent::Access { address, bytes, write });
    }

    /// TLBs are flushed.
    pub fn flush(&mut self, flush: Flush, site: FlushSite) {
        let ignored = match flush {
            Flush::Cr3(_) => self.ignored.0,
            Flush::Cr4(_) => false,
            Flush::Page(_) | Flush::Pcid(..) => self.ignored.1,
        };
        if !ignored {
            self.walker.flush(flush);
        }
        self.send(TraceEvent::Flush(flush, site, ignored));
    }

    /// Xen switches from one virtual processor to another; the arguments are the addresses of their `struct vcpu`.
    pub fn switch(&mut self, before: u64, next: u64) {
        let before = self.domain_of(before);
        if !self.knows_first {
            self.knows_first = true;
            self.domains[0] = before;
            self.last_busy = (before != Domain::Idle).then_some(0);
        }
        let next = self.domain_of(next);
        self.unknown_switches += u64::from(next == Domain::Unknown);
        let number = self.domain_number(next);
        if number != self.domain {
            self.domain = number;
            let changes = next != Domain::Idle && self.last_busy.replace(number) != Some(number);
            self.send(TraceEvent::Switch(number, changes));
        }
    }

    /// The domain of a virtual processor: the first field of its `struct domain` is the domain's number.
    fn domain_of(&self, vcpu: u64) -> Domain {
        /// `DOMID_IDLE`, and the first of the special numbers.
        const IDLE: u16 = 0x7fff;
        const FIRST_SPECIAL: u16 = 0x7ff0;
        let number = self
            .peek(vcpu.wrapping_add(self.vcpu_domain))
            .and_then(|domain| self.peek(domain))
            .map(|number| number & 0xffff);
        match number.and_then(|number| u16::try_from(number).ok()) {
            Some(IDLE) => Domain::Idle,
            Some(number) if number < FIRST_SPECIAL => Domain::Xen(number),
            _ => Domain::Unknown,
        }
    }

    /// A domain's index in [`Recording::domains`], which may be new.
    fn domain_number(&mut self, domain: Domain) -> u8 {
        let known = self.domains.iter().position(|known| *known == domain);
        let number = known.unwrap_or_else(|| {
            if self.domains.len() < DOMAINS {
                self.domains.push(domain);
            } else {
                self.domains[DOMAINS - 1] = Domain::Unknown;
            }
            self.domains.len() - 1
        });
        u8::try_from(number).unwrap_or(0)
    }

    /// Reads bytes of the guest's memory at a virtual address.
    pub fn bytes_at<const COUNT: usize>(&self, address: u64) -> Option<[u8; COUNT]> {
        bytes_at(self.walker.memory(), self.walker.paging(), address)
    }

    /// Reads eight bytes of the guest's memory at a virtual address.
    pub fn peek(&self, address: u64) -> Option<u64> {
        let word = |address: u64| {
            let physical = self.walker.physical(address & !7)?;
            self.walker.memory().read(physical)
        };
        let shift = (address & 7) * 8;
        let low = word(address)? >> shift;
        if shift == 0 { Some(low) } else { Some(low | word(address + 7)? << (64 - shift)) }
    }

    /// The address of a probe is reached.
    pub fn probe(&mut self, number: usize) {
        self.send(TraceEvent::Probe(u8::try_from(number).unwrap_or(u8::MAX)));
    }

    /// A function that gets frames is called, with these first two arguments.
    pub fn frames(&mut self, entry: FrameEntry, arguments: (u64, u64)) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.called(self.domain, entry, arguments, |address| self.peek(address));
        self.frames = frames;
    }

    /// Whether to [compare](Self::compare) accesses.
    #[inline]
    pub fn checks_hits(&self) -> bool {
        self.check
    }

    /// Compares the physical address of the last data access in the modelled DTLB with the true one.
    pub fn compare(&mut self, address: u64, physical: u64) {
        self.send(TraceEvent::Compare(address, physical));
    }

    /// Ends recording, and returns the recording.
    ///
    /// # Errors
    /// In words, if a thread of the models has panicked.
    pub fn finish(mut self) -> Result<Recording, String> {
        let Self { recorder, message, .. } = &mut self;
        recorder.send(std::mem::replace(message, Message::new()));
        let recording = self.recorder.finish()?.finish()?;
        let (untranslated, unknown_switches) = (self.walker.untranslated(), self.unknown_switches);
        let not_frames = self.frames.not_understood;
        let checks = Checks { untranslated, unknown_switches, not_frames, ..recording.checks };
        Ok(Recording { domains: self.domains, frames: self.frames.finish(), checks, ..recording })
    }
}

/// The functions that are known, if the call graph is recorded.
fn functions(arguments: &Arguments) -> Result<Option<Functions>, String> {
    if !arguments.calls {
        return Ok(None);
    }
    let path = &arguments.functions;
    if path.as_os_str().is_empty() {
        return Ok(Some(Functions::default()));
    }
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Functions::from_bytes(&bytes).map(Some)
}

/// The bytes from the address in its group's word to the slot of a block's return address.
fn slot_offset(block: BlockId, accesses: &Accesses) -> i32 {
    let slot = accesses.return_slot.and_then(|(group, offset)| {
        let group = accesses.groups.get(group)?;
        // The word of an indexed group has the address of its first access.
        let lowest = GroupWord::of(block, group).map(|_| Extent::of(&group.members).first());
        Some(offset - lowest.unwrap_or(0))
    });
    slot.unwrap_or(0)
}

#[inline]
fn page(address: u64) -> u64 {
    address >> 12
}
