//! What is recorded between the marks.

use std::collections::HashMap;

use scope_model::{Access, Counters, Flush, Model, Paging, PhysicalMemory, Sweep};
use scope_result::{
    After, Block, Checks, Domain, Event, EventKind, Function, Mode, Owner, Profile, Recording,
    Sample, Step, Work,
};

use crate::arguments::Arguments;

/// Domains that are told apart; the last place is everybody else's.
const DOMAINS: usize = 8;
/// Events that are kept.
const EVENTS: usize = 1 << 20;
/// Samples that are kept; when there are as many every other one goes, and they come half as often.
const SAMPLES: usize = 1 << 14;
/// Kinds of code.
const MODES: [Mode; 3] = [Mode::Hypervisor, Mode::Kernel, Mode::User];
/// No counters yet.
const NONE: u32 = 0;

/// The control registers at the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
}

/// A block that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

/// Code that is executed.
///
/// What is used whenever it is executed comes first, within a line of a real cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Code {
    first_line: u64,
    last_line: u64,
    /// Where its counters are, for each domain.
    sites: [u32; DOMAINS],
    instructions: u16,
    mode: u8,
    home: u8,
    bytes: u16,
    address: u64,
    space: u64,
}

/// The time since an event of a kind, and what came of it.
#[derive(Debug)]
struct Since {
    kind: EventKind,
    at: Option<u64>,
    profile: Profile,
}

impl Since {
    fn new(kind: EventKind) -> Self {
        let zeros = || vec![0; Profile::STEPS];
        let profile = Profile { events: zeros(), tlb: zeros(), l2: zeros() };
        Self { kind, at: None, profile }
    }

    /// Notes an event; the steps that the one before had time for are counted.
    fn happens(&mut self, now: u64) {
        if let Some(at) = self.at.replace(now) {
            let steps = usize::try_from((now - at) / Profile::STEP).unwrap_or(usize::MAX);
            let steps = steps.min(Profile::STEPS);
            self.profile.events[..steps].iter_mut().for_each(|count| *count += 1);
        }
    }

    fn misses(&mut self, now: u64, tlb: u64, l2: u64) {
        let Some(at) = self.at else { return };
        let step = usize::try_from((now - at) / Profile::STEP).unwrap_or(usize::MAX);
        if step < Profile::STEPS {
            self.profile.tlb[step] += tlb;
            self.profile.l2[step] += l2;
        }
    }
}

/// The sizes of accesses, by the numbers that QEMU describes them with: it is asked once for each.
#[derive(Debug)]
pub struct Sizes([(u32, u8); 64]);

impl Sizes {
    /// Bytes of an access that `info` describes; `log2` asks QEMU.
    #[inline]
    pub fn of(&mut self, info: u32, log2: impl Fn(u32) -> u32) -> u64 {
        let place = &mut self.0[(info ^ info >> 6) as usize % 64];
        if place.0 != info || place.1 == 0 {
            *place = (info, 1 << log2(info).min(7));
        }
        place.1.into()
    }
}

/// Everything that is recorded.
pub struct Recorder<M> {
    /// Of QEMU's descriptions.
    pub sizes: Sizes,
    model: Model<M>,
    codes: Vec<Code>,
    by_place: HashMap<(u64, u64, u8), BlockId>,
    counters: Vec<Counters>,
    sweeps: Vec<Sweep>,
    domains: Vec<Domain>,
    /// Who runs now, and the counters of what is executed.
    domain: u8,
    block: BlockId,
    site: u32,
    sweep: usize,
    instructions: u64,
    /// Whether the domain that ran at first is known.
    knows_first: bool,
    vcpu_domain: u64,
    events: Vec<Event>,
    events_lost: u64,
    samples: Vec<Sample>,
    sample_every: u64,
    sample_next: u64,
    /// When there is something to be taken notice of: a sample, or the flow.
    next: u64,
    seen: Sample,
    after_switch: Since,
    after_invalidate: Since,
    flow: Vec<Step>,
    flow_room: usize,
    flow_after: u64,
    /// The counters of the block that is executed, before it was.
    flow_before: Option<(u32, Counters)>,
    check: bool,
    deaf: (bool, bool),
    checks: Checks,
}

impl<M: PhysicalMemory> Recorder<M> {
    /// A recorder whose models are empty.
    pub fn new(memory: M, arguments: &Arguments, start: Start) -> Self {
        let mut model = Model::new(memory, arguments.config, Paging::default());
        model.flush(Flush::Cr4(start.cr4));
        model.flush(Flush::Cr3(start.cr3));
        if arguments.check {
            model.remember_hits();
        }
        let first = if arguments.switch.is_some() { Domain::Unknown } else { Domain::Machine };
        Self {
            sizes: Sizes([(0, 0); 64]),
            model,
            codes: Vec::new(),
            by_place: HashMap::new(),
            counters: vec![Counters::default()],
            sweeps: vec![Sweep::default(); DOMAINS * MODES.len()],
            domains: vec![first],
            domain: 0,
            block: BlockId(0),
            site: NONE,
            sweep: 0,
            instructions: 0,
            knows_first: arguments.switch.is_none(),
            vcpu_domain: arguments.vcpu_domain,
            events: Vec::new(),
            events_lost: 0,
            samples: Vec::new(),
            sample_every: 1000,
            sample_next: 0,
            next: 0,
            seen: Sample::default(),
            after_switch: Since::new(EventKind::Switch(0)),
            after_invalidate: Since::new(EventKind::Invalidate),
            flow: Vec::new(),
            flow_room: arguments.flow as usize,
            flow_after: arguments.flow_after,
            flow_before: None,
            check: arguments.check,
            deaf: (arguments.deaf_to_cr3, arguments.deaf_to_invlpg),
            checks: Checks::default(),
        }
    }

    /// The block at an address, known or not. The same code of another program, or of another domain,
    /// is another block.
    pub fn block(&mut self, address: u64, bytes: u64, instructions: usize) -> BlockId {
        let mode = Mode::of(address);
        let space = if mode == Mode::User { self.model.paging().root } else { 0 };
        let home = if mode == Mode::Hypervisor { 0 } else { self.domain };
        let next = BlockId(u32::try_from(self.codes.len()).unwrap_or(u32::MAX));
        // One that was cut short at first, by a page's end, say, is longer now.
        let place = (address, space ^ (instructions as u64) << 48, home);
        let block = *self.by_place.entry(place).or_insert(next);
        if block == next {
            let line = |address: u64| address / scope_model::LINE as u64;
            self.codes.push(Code {
                address,
                bytes: u16::try_from(bytes).unwrap_or(u16::MAX),
                instructions: u16::try_from(instructions).unwrap_or(u16::MAX),
                first_line: line(address),
                last_line: line(address + bytes.saturating_sub(1)),
                space,
                home,
                mode: mode as u8,
                sites: [NONE; DOMAINS],
            });
        }
        block
    }

    /// A block is about to be executed.
    #[inline]
    pub fn execute(&mut self, block: BlockId) {
        if self.instructions >= self.next {
            self.take_notice();
        }
        let Some(code) = self.codes.get_mut(block.0 as usize) else { return };
        let site = &mut code.sites[usize::from(self.domain)];
        if *site == NONE {
            *site = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
            self.counters.push(Counters::default());
        }
        self.block = block;
        self.site = *site;
        self.sweep = usize::from(self.domain) * MODES.len() + usize::from(code.mode);
        let (instructions, lines) =
            (u64::from(code.instructions), code.first_line..=code.last_line);
        self.instructions += instructions;
        if self.flow_room > 0 {
            self.flow_before = Some((self.site, self.counters[self.site as usize]));
        }
        let site = &mut self.counters[self.site as usize];
        site.instructions += instructions;
        if lines.start() == lines.end() && self.model.is_same_code(*lines.start()) {
            site.l1i += 1;
            return;
        }
        let before = (site.itlb_misses, site.l2i_misses);
        let to = &mut Access { site, sweep: &mut self.sweeps[self.sweep] };
        for line in lines {
            self.model.fetch(line, to);
        }
        let site = &self.counters[self.site as usize];
        if (site.itlb_misses, site.l2i_misses) != before {
            let (itlb, l2) = (site.itlb_misses - before.0, site.l2i_misses - before.1);
            self.note_misses(itlb, 0, l2);
        }
    }

    /// Data is read or written.
    #[inline]
    pub fn data(&mut self, address: u64, bytes: u64, write: bool) {
        let site = &mut self.counters[self.site as usize];
        if self.model.reuse(address, bytes, write) {
            *(if write { &mut site.writes } else { &mut site.reads }) += 1;
            return;
        }
        let before = (site.dtlb_misses, site.l2d_misses);
        let to = &mut Access { site, sweep: &mut self.sweeps[self.sweep] };
        self.model.data(address, bytes, write, to);
        let site = &self.counters[self.site as usize];
        if (site.dtlb_misses, site.l2d_misses) != before {
            let (dtlb, l2) = (site.dtlb_misses - before.0, site.l2d_misses - before.1);
            self.note_misses(0, dtlb, l2);
        }
    }

    #[cold]
    fn note_misses(&mut self, itlb: u64, dtlb: u64, l2: u64) {
        self.seen.itlb += itlb;
        self.seen.dtlb += dtlb;
        self.seen.l2 += l2;
        for since in [&mut self.after_switch, &mut self.after_invalidate] {
            since.misses(self.instructions, itlb + dtlb, l2);
        }
    }

    /// What is not done at every block.
    #[cold]
    fn take_notice(&mut self) {
        if self.instructions >= self.sample_next {
            self.sample();
        }
        let flows = self.flow_room > 0;
        if flows && self.instructions >= self.flow_after {
            self.flow_step();
        }
        self.next = if flows { self.sample_next.min(self.flow_after) } else { self.sample_next };
    }

    #[cold]
    fn sample(&mut self) {
        if self.samples.len() == SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.sample_every *= 2;
        }
        self.samples.push(Sample { at: self.instructions, ..self.seen });
        self.sample_next = self.instructions + self.sample_every;
    }

    /// Notes what the block before this one came to, as it is over now.
    fn flow_step(&mut self) {
        let now = self.counters[self.site as usize];
        let before = std::mem::take(&mut self.flow_before);
        if let Some((site, before)) = before
            && site == self.site
        {
            let less = |now: u64, before: u64| u16::try_from(now - before).unwrap_or(u16::MAX);
            let l1 = |counters: &Counters| {
                counters.l1i_misses + counters.read_misses + counters.write_misses
            };
            let l2 = |counters: &Counters| counters.l2i_misses + counters.l2d_misses;
            self.flow.push(Step {
                block: self.block.0,
                domain: self.domain,
                l1: less(l1(&now), l1(&before)),
                l2: less(l2(&now), l2(&before)),
                itlb: less(now.itlb_misses, before.itlb_misses),
                dtlb: less(now.dtlb_misses, before.dtlb_misses),
            });
            self.flow_room -= 1;
        }
    }

    /// The TLBs are emptied, of some or all.
    pub fn flush(&mut self, flush: Flush) {
        let kind = match flush {
            Flush::Cr3(_) => EventKind::Cr3,
            Flush::Cr4(_) => EventKind::Cr4,
            Flush::Page(_) | Flush::Pcid(..) => EventKind::Invalidate,
        };
        self.event(kind);
        let deaf = match kind {
            EventKind::Cr3 => self.deaf.0,
            EventKind::Invalidate => self.deaf.1,
            _ => false,
        };
        if deaf {
            return;
        }
        if kind == EventKind::Invalidate {
            self.after_invalidate.happens(self.instructions);
        }
        self.model.flush(flush);
    }

    /// Xen goes on with another of its processors.
    pub fn switch(&mut self, before: u64, next: u64) {
        let before = self.domain_of(before);
        if !self.knows_first {
            self.knows_first = true;
            self.domains[0] = before;
        }
        let next = self.domain_of(next);
        self.checks.unknown_switches += u64::from(next == Domain::Unknown);
        let place = self.place(next);
        if place != self.domain {
            self.domain = place;
            self.event(EventKind::Switch(place));
            self.after_switch.happens(self.instructions);
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
            let physical = self.model.physical(address & !7)?;
            self.model.memory().read(physical)
        };
        let shift = (address & 7) * 8;
        let low = word(address)? >> shift;
        if shift == 0 { Some(low) } else { Some(low | word(address + 7)? << (64 - shift)) }
    }

    /// A probe's place is reached.
    pub fn probe(&mut self, number: usize) {
        self.event(EventKind::Probe(u8::try_from(number).unwrap_or(u8::MAX)));
    }

    fn event(&mut self, kind: EventKind) {
        if self.events.len() < EVENTS {
            self.events.push(Event { at: self.instructions, kind });
        } else {
            self.events_lost += 1;
        }
    }

    /// Whether hits are to be [compared](Self::compare).
    #[inline]
    pub fn checks_hits(&self) -> bool {
        self.check
    }

    /// Compares where the model takes the last data to be with where it is.
    pub fn compare(&mut self, address: u64, physical: u64) {
        self.checks.compared += 1;
        self.checks.stale += u64::from(self.model.claimed(address) != physical);
    }

    /// What was recorded.
    pub fn finish(mut self) -> Recording {
        self.sample_next = 0;
        self.sample();
        let (codes, counters) = (&self.codes, &self.counters);
        let blocks = codes.iter().map(|code| {
            let sites = (0u8..).zip(code.sites).filter(|(_, site)| *site != NONE);
            let counters = sites.map(|(domain, site)| (domain, counters[site as usize])).collect();
            let Code { address, bytes, instructions, space, home, .. } = *code;
            Block { address, bytes, instructions, space, home, function: 0, counters }
        });
        let owners = (0u8..)
            .take(DOMAINS)
            .flat_map(|domain| MODES.into_iter().map(move |mode| Owner { domain, mode }));
        let sweeps = owners.zip(self.sweeps).filter(|(_, sweep)| *sweep != Sweep::default());
        let after = [self.after_switch, self.after_invalidate]
            .map(|since| After { kind: since.kind, profile: since.profile });
        Recording {
            config: *self.model.config(),
            instructions: self.instructions,
            domains: self.domains,
            blocks: blocks.collect(),
            sweeps: sweeps.collect(),
            events: self.events,
            events_lost: self.events_lost,
            samples: self.samples,
            after: after.into(),
            flow: self.flow,
            checks: Checks { untranslated: self.model.untranslated(), ..self.checks },
            functions: vec![Function::default()],
            work: Work::default(),
        }
    }
}
