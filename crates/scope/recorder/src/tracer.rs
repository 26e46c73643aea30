//! The half of the recording that runs where the guest is executed: it says what happens.
//!
//! ```text
//!  QEMU's thread                               a thread               another, or who has time
//!  Tracer ── what the guest's memory says now
//!     └───── steps ──────────────────────────► Recorder ── L1s, TLBs
//!                                                 └────── misses ───► Counts ── L2s, counters
//! ```
//!
//! Nothing comes back but empty buffers: what is recorded does not depend on which thread is the fastest. With two processors
//! there are two threads, and QEMU's counts misses while it waits for the other.

use std::collections::HashMap;

use scope_model::{Flush, Paging, PhysicalMemory, Side, Walker};
use scope_result::{Checks, Domain, Mode, Recording};

use crate::accesses::{Accesses, Member, Reach, accesses};
use crate::arguments::Arguments;
use crate::code::{BlockId, Code, DOMAINS};
use crate::recorder::{Recorder, Work};
use crate::stage::Stage;
use crate::told::{Plan, Told, plan};
use crate::trace::{LONGEST, Step, block_word};

/// Blocks of no more instructions are always told of by themselves: QEMU translates one anew, for its
/// accesses alone, when it is found to be a device's.
const SHORT: usize = 2;
/// Words of a message: so many that handing it over costs nothing.
const WORDS: usize = 1 << 16;
/// Messages that there are.
const MESSAGES: usize = 16;
/// The number of the highest page.
const HIGHEST_PAGE: u64 = u64::MAX >> 12;
/// No page's number, nor what a walker has where it knows none: it never knows this one.
const NO_PAGE: u64 = u64::MAX - 1;

/// The control registers at the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
}

/// What the recorder is told at a time. To wake its thread takes longer than all that is done for a block, so what is new
/// waits until so much has happened.
#[derive(Debug)]
pub struct Message {
    /// Blocks that it will meet: the next one's number is one more.
    pub code: Vec<Code>,
    /// The accesses of groups, of these blocks, likewise.
    pub members: Vec<(BlockId, Box<[Member]>)>,
    /// What happened.
    steps: Box<[u64; WORDS]>,
    /// How many of its words count.
    used: usize,
}

impl Message {
    /// Nothing, with room for it.
    fn new() -> Self {
        // Made where it stays.
        let steps = vec![0; WORDS].into_boxed_slice().try_into();
        let steps = steps.unwrap_or_else(|_| Box::new([0; WORDS]));
        Self { code: Vec::new(), members: Vec::new(), steps, used: 0 }
    }

    /// What happened.
    pub fn steps(&self) -> &[u64] {
        self.steps.get(..self.used).unwrap_or_default()
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.code.clear();
        self.members.clear();
        self.used = 0;
    }

    /// Adds a word, if there is room for it.
    #[inline]
    fn add(&mut self, word: u64) -> bool {
        let Some(room) = self.steps.get_mut(self.used) else { return false };
        *room = word;
        self.used += 1;
        true
    }

    /// Whether there is room for any step.
    fn has_room(&self) -> bool {
        self.used + LONGEST <= WORDS
    }
}

/// The sizes of accesses, by the numbers that QEMU describes them with: it is asked once for each.
#[derive(Debug)]
pub struct Sizes([(u32, u8); 64]);

impl Sizes {
    /// Bytes of an access that `info` describes; `log2` asks QEMU.
    #[inline]
    pub fn of(&mut self, info: u32, log2: impl Fn(u32) -> u32) -> u8 {
        let place = &mut self.0[(info ^ info >> 6) as usize % 64];
        if place.0 != info || place.1 == 0 {
            *place = (info, 1 << log2(info).min(7));
        }
        place.1
    }
}

/// What tells the recorder.
pub struct Tracer<M> {
    /// Of QEMU's descriptions.
    pub sizes: Sizes,
    walker: Walker<M>,
    known: HashMap<(u64, u64, u8), BlockId>,
    /// Of each block: the addresses of its first and its last byte.
    ends: Vec<(u64, u64)>,
    /// Of each block its page, or none's number, if there are two.
    pages: Vec<u64>,
    /// Of each group that is looked up: its block, and what lies between its accesses.
    many: Vec<(BlockId, Reach)>,
    domains: Vec<Domain>,
    domain: u8,
    /// Whether the domain that ran at first is known.
    knows_first: bool,
    vcpu_domain: u64,
    unknown_switches: u64,
    check: bool,
    deaf: (bool, bool),
    message: Message,
    recorder: Stage<Message, Message, Recorder>,
    /// What is to be done while the recorder is waited for.
    work: Option<Work>,
}

impl<M: PhysicalMemory> Tracer<M> {
    /// Starts to record, in a thread of its own, with empty models.
    ///
    /// # Errors
    /// If there is no thread to be had, in words.
    pub fn new(memory: M, arguments: &Arguments, start: Start) -> Result<Self, String> {
        let mut walker = Walker::new(memory, Paging::default(), arguments.config.single);
        walker.flush(Flush::Cr4(start.cr4));
        walker.flush(Flush::Cr3(start.cr3));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let recorder = Recorder::new(arguments, walker.paging(), walker.lines(), processors)?;
        let work = recorder.work();
        let messages = (1..MESSAGES).map(|_| Message::new()).collect();
        let recorder = Stage::thread("pvscope-models", messages, recorder, Recorder::take)?;
        let first = if arguments.switch.is_some() { Domain::Unknown } else { Domain::Machine };
        Ok(Self {
            sizes: Sizes([(0, 0); 64]),
            walker,
            known: HashMap::new(),
            ends: Vec::new(),
            pages: Vec::new(),
            many: Vec::new(),
            domains: vec![first],
            domain: 0,
            knows_first: arguments.switch.is_none(),
            vcpu_domain: arguments.vcpu_domain,
            unknown_switches: 0,
            check: arguments.check,
            deaf: (arguments.deaf_to_cr3, arguments.deaf_to_invlpg),
            message: Message::new(),
            recorder,
            work,
        })
    }

    /// What is to be told of the execution of these instructions: the bytes of each, the first of them at
    /// `address`. `alone` has the block told of by itself, as when other things are told of it.
    pub fn translate(&mut self, address: u64, code: &[&[u8]], alone: bool) -> Plan {
        let accesses = if self.check {
            // QEMU says only of an access that it tells of where that is.
            Accesses { groups: Vec::new(), others: (0..code.len()).collect() }
        } else {
            accesses(address, code.iter().copied())
        };
        let block = self.block(address, code, &accesses);
        let alone = alone || code.len() <= SHORT;
        plan(block, &accesses, alone, |members| {
            self.many.push((block, Reach::of(&members)));
            self.message.members.push((block, members));
            self.many.len() - 1
        })
    }

    /// The block of these instructions, known or not. The same code of another program, or of another
    /// domain, is another block.
    fn block(&mut self, address: u64, code: &[&[u8]], accesses: &Accesses) -> BlockId {
        let mode = Mode::of(address);
        let space = if mode == Mode::User { self.walker.paging().root } else { 0 };
        let home = if mode == Mode::Hypervisor { 0 } else { self.domain };
        let next = BlockId(u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
        // One that was cut short at first, by a page's end, say, is longer now.
        let place = (address, space ^ (code.len() as u64) << 48, home);
        let block = *self.known.entry(place).or_insert(next);
        if block == next {
            let bytes: u64 = code.iter().map(|instruction| instruction.len() as u64).sum();
            let last = address + bytes.saturating_sub(1);
            self.ends.push((address, last));
            self.pages.push(if page(address) == page(last) { page(address) } else { NO_PAGE });
            let code = Code::new(address, bytes, (code.len(), accesses), (space, home));
            self.message.code.push(code);
        }
        block
    }

    fn tell(&mut self, step: Step) {
        if !self.message.has_room() {
            self.hand_over();
        }
        let (words, count) = step.words();
        for word in words.into_iter().take(count) {
            self.message.add(word);
        }
    }

    /// Hands over what was told, and waits until there is room for more.
    #[cold]
    fn hand_over(&mut self) {
        let empty = match &self.work {
            Some(work) => self.recorder.buffer_after(|| work.help()),
            None => self.recorder.buffer(),
        };
        let empty = empty.unwrap_or_else(Message::new);
        self.recorder.send(std::mem::replace(&mut self.message, empty));
    }

    /// Has the recorder know where the pages are that two bytes lie in, and those between them: they are used now.
    fn pages(&mut self, side: Side, (first, last): (u64, u64)) {
        // The highest page and the lowest are neighbours.
        let more = page(last).wrapping_sub(page(first)) & HIGHEST_PAGE;
        for page in (0..=more).map(|more| (page(first) + more) & HIGHEST_PAGE) {
            if !self.walker.knows(side, page) {
                let mapping = self.walker.walk(side, page);
                self.tell(Step::Page(side, page, mapping));
            }
        }
    }

    /// Whether the page of a block is known; of one in two pages it is not said.
    #[inline]
    fn knows_code(&self, block: BlockId) -> bool {
        let page = self.pages.get(block.index());
        page.is_some_and(|page| self.walker.knows(Side::Code, *page))
    }

    /// Whether the page of two bytes is known; of those in two pages it is not said.
    #[inline]
    fn knows_data(&self, first: u64, last: u64) -> bool {
        page(first) == page(last) && self.walker.knows(Side::Data, page(first))
    }

    fn code_pages(&mut self, block: BlockId) {
        if let Some(ends) = self.ends.get(block.index()) {
            self.pages(Side::Code, *ends);
        }
    }

    /// A block is about to be executed.
    #[inline]
    pub fn execute(&mut self, block: BlockId) {
        let is_told = self.knows_code(block) && self.message.add(block_word(block));
        if !is_told {
            self.execute_anywhere(block);
        }
    }

    #[inline(never)]
    fn execute_anywhere(&mut self, block: BlockId) {
        self.code_pages(block);
        self.tell(Step::Block(block));
    }

    /// A group of accesses: the first of it is at `address`.
    ///
    /// This is what QEMU's thread does most of the time, so what is usual is told of without a call of another function:
    /// a call of one that does nothing takes as long as all that is done here.
    #[inline]
    pub fn group(&mut self, told: Told, address: u64) {
        let first = told.first(address);
        let last = first.wrapping_add(told.length());
        let is_told = !told.is_many()
            && (!told.begins() || self.knows_code(BlockId(told.number())))
            && self.knows_data(first, last)
            && self.message.add(told.at(first).0);
        if !is_told {
            self.group_anywhere(told, address);
        }
    }

    #[inline(never)]
    fn group_anywhere(&mut self, told: Told, address: u64) {
        let (block, (first, last)) = if told.is_many() {
            let Some((block, reach)) = self.many.get(told.number() as usize) else { return };
            (*block, reach.bytes_at(address))
        } else {
            let first = told.first(address);
            (BlockId(told.number()), (first, first.wrapping_add(told.length())))
        };
        if told.begins() {
            self.code_pages(block);
        }
        self.pages(Side::Data, (first, last));
        self.tell(Step::Group(told.at(told.first(address))));
    }

    /// Data is read or written, besides what groups say.
    pub fn data(&mut self, address: u64, bytes: u8, write: bool) {
        let last = address.wrapping_add(u64::from(bytes) - 1);
        self.pages(Side::Data, (address, last));
        self.tell(Step::Access { address, bytes, write });
    }

    /// TLBs are emptied, of some or all.
    pub fn flush(&mut self, flush: Flush) {
        let deaf = match flush {
            Flush::Cr3(_) => self.deaf.0,
            Flush::Cr4(_) => false,
            Flush::Page(_) | Flush::Pcid(..) => self.deaf.1,
        };
        if !deaf {
            self.walker.flush(flush);
        }
        self.tell(Step::Flush(flush, deaf));
    }

    /// Xen goes on with another of its processors.
    pub fn switch(&mut self, before: u64, next: u64) {
        let before = self.domain_of(before);
        if !self.knows_first {
            self.knows_first = true;
            self.domains[0] = before;
        }
        let next = self.domain_of(next);
        self.unknown_switches += u64::from(next == Domain::Unknown);
        let place = self.place(next);
        if place != self.domain {
            self.domain = place;
            self.tell(Step::Switch(place));
        }
    }

    /// The domain of a virtual processor: the first number of what it points to.
    fn domain_of(&self, vcpu: u64) -> Domain {
        /// `DOMID_IDLE`, and where the special numbers begin.
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

    fn place(&mut self, domain: Domain) -> u8 {
        let known = self.domains.iter().position(|known| *known == domain);
        let place = known.unwrap_or_else(|| {
            if self.domains.len() < DOMAINS {
                self.domains.push(domain);
            } else {
                self.domains[DOMAINS - 1] = Domain::Unknown;
            }
            self.domains.len() - 1
        });
        u8::try_from(place).unwrap_or(0)
    }

    /// Eight bytes of the guest's, at a virtual address.
    pub fn peek(&self, address: u64) -> Option<u64> {
        let word = |address: u64| {
            let physical = self.walker.physical(address & !7)?;
            self.walker.memory().read(physical)
        };
        let shift = (address & 7) * 8;
        let low = word(address)? >> shift;
        if shift == 0 { Some(low) } else { Some(low | word(address + 7)? << (64 - shift)) }
    }

    /// A probe's place is reached.
    pub fn probe(&mut self, number: usize) {
        self.tell(Step::Probe(u8::try_from(number).unwrap_or(u8::MAX)));
    }

    /// Whether accesses are to be [compared](Self::compare).
    #[inline]
    pub fn checks_hits(&self) -> bool {
        self.check
    }

    /// Has it compared where the models take the last data to be with where it is.
    pub fn compare(&mut self, address: u64, physical: u64) {
        self.tell(Step::Compare(address, physical));
    }

    /// What was recorded.
    ///
    /// # Errors
    /// In words, if a thread of the models has failed.
    pub fn finish(mut self) -> Result<Recording, String> {
        let Self { recorder, message, .. } = &mut self;
        recorder.send(std::mem::replace(message, Message::new()));
        let recording = self.recorder.finish()?.finish()?;
        let (untranslated, unknown_switches) = (self.walker.untranslated(), self.unknown_switches);
        let checks = Checks { untranslated, unknown_switches, ..recording.checks };
        Ok(Recording { domains: self.domains, checks, ..recording })
    }
}

#[inline]
fn page(address: u64) -> u64 {
    address >> 12
}
