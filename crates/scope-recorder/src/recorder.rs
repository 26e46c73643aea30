//! What is recorded between the marks.

use std::ops::Range;

use scope_model::{Counters, Flush, LINE, Mask, Model, Paging, Sweep, Use};
use scope_result::{
    After, Checks, Event, EventKind, Function, Mode, Owner, Profile, Recording, Sample,
    Step as Flow,
};

use crate::accesses::Member;
use crate::arguments::Arguments;
use crate::code::{BlockId, Codes, DOMAINS, LAST_DOMAIN, SiteId};
use crate::misses::{Kind, Miss, Misses};
use crate::told::Told;
use crate::trace::Step;
use crate::tracer::{CHUNK, Message};

/// Events that are kept.
const EVENTS: usize = 1 << 20;
/// Samples that are kept; when there are as many every other one goes, and they come half as often.
const SAMPLES: usize = 1 << 14;
/// Kinds of code.
const MODES: [Mode; KINDS as usize] = [Mode::Hypervisor, Mode::Kernel, Mode::User];
/// How many there are.
const KINDS: u8 = 3;
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

/// Everything that is recorded.
#[derive(Debug)]
pub struct Recorder {
    model: Model,
    codes: Codes,
    /// Groups that are looked up: each one's block, and where its members are.
    many: Vec<(BlockId, Range<usize>)>,
    members: Vec<Member>,
    misses: Misses,
    sweeps: Vec<Sweep>,
    /// Who runs now, and what.
    domain: u8,
    block: BlockId,
    /// Where that is counted.
    site: SiteId,
    owner: u8,
    instructions: u64,
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
    flow: Vec<Flow>,
    flow_room: usize,
    flow_after: u64,
    /// The counters of the block that is executed, before it was.
    flow_before: Option<Counters>,
    checks: Checks,
}

impl Recorder {
    /// A recorder whose models are empty, of a machine with so many lines of memory.
    pub fn new(arguments: &Arguments, paging: Paging, lines: u64) -> Self {
        let mut model = Model::new(arguments.config, paging, lines);
        if arguments.check {
            model.remember_hits();
        }
        Self {
            model,
            codes: Codes::new(),
            many: Vec::new(),
            members: Vec::new(),
            misses: Misses::new(),
            sweeps: vec![Sweep::default(); DOMAINS * MODES.len()],
            domain: 0,
            block: BlockId(u32::MAX),
            site: SiteId::default(),
            owner: 0,
            instructions: 0,
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
            checks: Checks::default(),
        }
    }

    /// Takes notice of a message. Answers a chunk that can be used again.
    pub fn take(&mut self, message: Message) -> Option<Box<[u64; CHUNK]>> {
        match message {
            Message::Code(code) => self.codes.add(code),
            Message::Members(block, members) => {
                let first = self.members.len();
                self.members.extend(members);
                self.many.push((block, first..self.members.len()));
            }
            Message::Steps(chunk, used) => {
                let mut words = chunk.get(..used).unwrap_or_default();
                while let Some(step) = Step::take(&mut words) {
                    self.step(step);
                }
                return Some(chunk);
            }
        }
        None
    }

    #[inline]
    fn step(&mut self, step: Step) {
        match step {
            Step::Group(told, address) => self.group(told, address),
            Step::Block(block) => self.execute(block),
            Step::Access { address, bytes, write } => self.data(address, bytes, write),
            Step::Page(side, page, mapping) => self.model.map(side, page, mapping),
            Step::Flush(flush, deaf) => self.flush(flush, deaf),
            Step::Switch(place) => self.switch(place),
            Step::Probe(number) => self.event(EventKind::Probe(number)),
            Step::Compare(address, physical) => self.compare(address, physical),
        }
    }

    #[inline]
    fn execute(&mut self, block: BlockId) {
        let Some(executed) = self.codes.execute(block, self.domain) else { return };
        if self.instructions >= self.next {
            self.take_notice(executed.site);
        }
        self.instructions += executed.instructions;
        self.site = executed.site;
        self.owner = self.domain * KINDS + executed.mode;
        // The same again, or a part of the same line: nothing is newer than it.
        let last = executed.line + executed.lines - 1;
        let again = self.model.is_same_code(last) && (executed.lines == 1 || block == self.block);
        self.block = block;
        if !again {
            for line in executed.line..=last {
                let used = self.model.fetch(line);
                self.used(used, Kind::Code);
            }
        }
    }

    #[inline]
    fn group(&mut self, told: Told, address: u64) {
        if told.is_many() {
            return self.members(told, address);
        }
        if told.begins() {
            self.execute(BlockId(told.number()));
        }
        self.lines(told.bytes(address), told.writes());
    }

    fn members(&mut self, told: Told, address: u64) {
        let Some((block, members)) = self.many.get(told.number() as usize).cloned() else { return };
        if told.begins() {
            self.execute(block);
        }
        for member in members {
            let member = self.members[member];
            self.lines(member.bytes_at(address), member.write);
        }
    }

    fn data(&mut self, address: u64, bytes: u8, write: bool) {
        if let Some(site) = self.codes.site(self.site) {
            *(if write { &mut site.writes } else { &mut site.reads }) += 1;
        }
        let last = address.wrapping_add(u64::from(bytes).saturating_sub(1));
        self.lines((address, last), write);
    }

    /// The lines of two bytes, which are the same or neighbours.
    #[inline]
    fn lines(&mut self, (first, last): (u64, u64), write: bool) {
        let (first, last) = (first / LINE as u64, last / LINE as u64);
        self.line(first, write);
        if last != first {
            self.line(last, write);
        }
    }

    #[inline]
    fn line(&mut self, line: u64, write: bool) {
        if !self.model.is_same_data(line) {
            let used = self.model.data(line);
            self.used(used, if write { Kind::Write } else { Kind::Read });
        }
    }

    /// Counts what came of the use of a line, or will come: the L2s are asked when there are enough to ask for.
    #[inline]
    fn used(&mut self, used: Use, kind: Kind) {
        if used.pages != Mask::NONE {
            self.count_pages(used.pages, kind);
        }
        let (at, site, owner) = (self.instructions, self.site, self.owner);
        let miss = Miss { line: used.line, at, site, owner, kind };
        if !self.misses.add(used.missed, miss) {
            self.ask_second();
        }
    }

    #[cold]
    fn count_pages(&mut self, missed: Mask, kind: Kind) {
        let is_code = kind == Kind::Code;
        self.sweeps[usize::from(self.owner)].add_page(missed, is_code);
        let Some(site) = self.codes.site(self.site).filter(|_| self.model.counts_page(missed))
        else {
            return;
        };
        let (own, seen) = match kind {
            Kind::Code => (&mut site.itlb_misses, &mut self.seen.itlb),
            Kind::Read | Kind::Write => (&mut site.dtlb_misses, &mut self.seen.dtlb),
        };
        *own += 1;
        *seen += 1;
        for since in [&mut self.after_switch, &mut self.after_invalidate] {
            since.misses(self.instructions, 1, 0);
        }
    }

    /// Asks the L2s for what waits. To be done before anybody looks at what was counted, or another event happens.
    #[cold]
    fn ask_second(&mut self) {
        self.misses.take(|miss| {
            let Some(site) = self.codes.site(miss.site) else { return };
            let missed = self.model.second(miss.line);
            let counted = u64::from(self.model.counts_line(missed));
            match miss.kind {
                Kind::Code => site.l1i_misses += 1,
                Kind::Read => site.read_misses += 1,
                Kind::Write => site.write_misses += 1,
            }
            let is_code = miss.kind == Kind::Code;
            *(if is_code { &mut site.l2i_misses } else { &mut site.l2d_misses }) += counted;
            self.sweeps[usize::from(miss.owner)].add_line(missed, is_code);
            if counted != 0 {
                self.seen.l2 += 1;
                self.after_switch.misses(miss.at, 0, 1);
                self.after_invalidate.misses(miss.at, 0, 1);
            }
        });
    }

    /// What is not done at every block.
    #[cold]
    fn take_notice(&mut self, next: SiteId) {
        self.ask_second();
        if self.instructions >= self.sample_next {
            self.sample();
        }
        let flows = self.flow_room > 0 && self.instructions >= self.flow_after;
        if flows {
            self.flow_step();
            self.flow_before = self.codes.site(next).copied();
        }
        let flow_next = if self.flow_room > 0 { self.flow_after } else { u64::MAX };
        self.next = self.sample_next.min(flow_next);
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
        let before = std::mem::take(&mut self.flow_before);
        let now = self.codes.site(self.site).copied();
        if let (Some(before), Some(now)) = (before, now) {
            let less = |now: u64, before: u64| u16::try_from(now - before).unwrap_or(u16::MAX);
            let l1 = |counters: &Counters| {
                counters.l1i_misses + counters.read_misses + counters.write_misses
            };
            let l2 = |counters: &Counters| counters.l2i_misses + counters.l2d_misses;
            self.flow.push(Flow {
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

    /// The TLBs are emptied, of some or all, or the models do not know it.
    fn flush(&mut self, flush: Flush, deaf: bool) {
        self.ask_second();
        let kind = match flush {
            Flush::Cr3(_) => EventKind::Cr3,
            Flush::Cr4(_) => EventKind::Cr4,
            Flush::Page(_) | Flush::Pcid(..) => EventKind::Invalidate,
        };
        self.event(kind);
        if deaf {
            return;
        }
        if kind == EventKind::Invalidate {
            self.after_invalidate.happens(self.instructions);
        }
        self.model.flush(flush);
    }

    /// Xen goes on with another domain.
    fn switch(&mut self, place: u8) {
        self.ask_second();
        // No domain has a place beyond.
        self.domain = place.min(LAST_DOMAIN);
        self.event(EventKind::Switch(self.domain));
        self.after_switch.happens(self.instructions);
    }

    fn event(&mut self, kind: EventKind) {
        if self.events.len() < EVENTS {
            self.events.push(Event { at: self.instructions, kind });
        } else {
            self.events_lost += 1;
        }
    }

    /// Compares where the model takes the last data to be with where it is.
    fn compare(&mut self, address: u64, physical: u64) {
        self.checks.compared += 1;
        self.checks.stale += u64::from(self.model.claimed(address) != physical);
    }

    /// What was recorded.
    pub fn finish(mut self) -> Recording {
        self.ask_second();
        self.sample_next = 0;
        self.sample();
        let owners = (0u8..)
            .take(DOMAINS)
            .flat_map(|domain| MODES.into_iter().map(move |mode| Owner { domain, mode }));
        let sweeps = owners.zip(self.sweeps).filter(|(_, sweep)| *sweep != Sweep::default());
        let after = [self.after_switch, self.after_invalidate]
            .map(|since| After { kind: since.kind, profile: since.profile });
        Recording {
            config: *self.model.config(),
            instructions: self.instructions,
            blocks: self.codes.finish(),
            sweeps: sweeps.collect(),
            events: self.events,
            events_lost: self.events_lost,
            samples: self.samples,
            after: after.into(),
            flow: self.flow,
            checks: self.checks,
            functions: vec![Function::default()],
            ..Recording::default()
        }
    }
}
