//! What is recorded between the marks.

use std::ops::Range;

use scope_model::{Flush, LINE, Mask, Model, Paging, Sweep, Use};
use scope_result::{Checks, Event, EventKind, Function, Owner, Recording};

use crate::accesses::Member;
use crate::arguments::Arguments;
use crate::code::{BlockId, Codes, DOMAINS, KINDS, LAST_DOMAIN, MODES, SiteId};
use crate::counts::{Counts, SAMPLES};
use crate::found::{Batch, Kind};
use crate::stage::Stage;
use crate::told::Told;
use crate::trace::Step;
use crate::tracer::{CHUNK, Message};

/// Events that are kept.
const EVENTS: usize = 1 << 20;
/// Batches that there are.
const BATCHES: usize = 8;

/// Everything that is recorded.
pub struct Recorder {
    model: Model,
    codes: Codes,
    /// Groups that are looked up: each one's block, and where its members are.
    many: Vec<(BlockId, Range<usize>)>,
    members: Vec<Member>,
    /// What was found, for those who count it.
    batch: Batch,
    counts: Stage<Batch, Batch, Counts>,
    /// Who runs now, and what.
    domain: u8,
    block: BlockId,
    /// Where that is counted.
    site: SiteId,
    owner: u8,
    instructions: u64,
    events: Vec<Event>,
    events_lost: u64,
    samples: usize,
    sample_every: u64,
    sample_next: u64,
    /// When there is something to be taken notice of: a sample, or the flow.
    next: u64,
    /// Blocks of the flow that are wanted, and where they begin.
    flow: usize,
    flow_after: u64,
    /// Blocks to come, and one more, which ends the last.
    flow_room: usize,
    checks: Checks,
}

impl Recorder {
    /// A recorder whose models are empty, of a machine with so many lines of memory.
    ///
    /// # Errors
    /// In words, if there is no thread to be had.
    pub fn new(arguments: &Arguments, paging: Paging, lines: u64) -> Result<Self, String> {
        let mut model = Model::new(arguments.config, paging, lines);
        if arguments.check {
            model.remember_hits();
        }
        let counts = Counts::new(arguments.config, lines);
        let batches = (1..BATCHES).map(|_| Batch::new()).collect();
        // With two processors a third thread would only take the others' place.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let counts = if processors > 2 {
            Stage::thread("pvscope-counts", batches, counts, Counts::take)?
        } else {
            Stage::here(batches, counts, Counts::take)
        };
        let flow = arguments.flow as usize;
        Ok(Self {
            model,
            codes: Codes::new(),
            many: Vec::new(),
            members: Vec::new(),
            batch: Batch::new(),
            counts,
            domain: 0,
            block: BlockId(u32::MAX),
            site: SiteId::default(),
            owner: 0,
            instructions: 0,
            events: Vec::new(),
            events_lost: 0,
            samples: 0,
            sample_every: 1000,
            sample_next: 0,
            next: 0,
            flow,
            flow_after: arguments.flow_after,
            flow_room: if flow > 0 { flow + 1 } else { 0 },
            checks: Checks::default(),
        })
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
        self.site = executed.site;
        self.owner = self.domain * KINDS + executed.mode;
        if self.instructions >= self.next {
            self.take_notice(block);
        }
        self.instructions += executed.instructions;
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
        self.codes.access(self.site, write);
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

    /// Has what came of the use of a line counted.
    #[inline]
    fn used(&mut self, used: Use, kind: Kind) {
        if used.pages != Mask::NONE {
            let kind = if kind == Kind::Code { Kind::CodePage } else { Kind::DataPage };
            self.find(true, kind, used.pages.0);
        }
        self.find(used.missed, kind, used.line);
    }

    #[inline]
    fn find(&mut self, is_so: bool, kind: Kind, number: u64) {
        self.batch.add(is_so, (kind, number), (self.site, self.owner), self.instructions);
        if !self.batch.has_room(self.instructions) {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        let mut empty = self.counts.buffer().unwrap_or_else(Batch::new);
        empty.begin(self.instructions);
        self.counts.send(std::mem::replace(&mut self.batch, empty));
    }

    /// What is not done at every block.
    #[cold]
    fn take_notice(&mut self, block: BlockId) {
        if self.instructions >= self.sample_next {
            self.sample();
        }
        if self.flow_room > 0 && self.instructions >= self.flow_after {
            self.flow_room -= 1;
            self.find(true, Kind::Block, block.0.into());
        }
        let flow_next = if self.flow_room > 0 { self.flow_after } else { u64::MAX };
        self.next = self.sample_next.min(flow_next);
    }

    #[cold]
    fn sample(&mut self) {
        // As those who count it do.
        if self.samples == SAMPLES {
            self.samples /= 2;
            self.sample_every *= 2;
        }
        self.samples += 1;
        self.sample_next = self.instructions + self.sample_every;
        self.find(true, Kind::Sample, 0);
    }

    /// The TLBs are emptied, of some or all, or the models do not know it.
    fn flush(&mut self, flush: Flush, deaf: bool) {
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
            self.find(true, Kind::Invalidate, 0);
        }
        self.model.flush(flush);
    }

    /// Xen goes on with another domain.
    fn switch(&mut self, place: u8) {
        // No domain has a place beyond.
        self.domain = place.min(LAST_DOMAIN);
        self.event(EventKind::Switch(self.domain));
        self.find(true, Kind::Switch, 0);
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
    ///
    /// # Errors
    /// In words, if the thread that counts has failed.
    pub fn finish(mut self) -> Result<Recording, String> {
        self.sample();
        self.hand_over();
        let counted = self.counts.finish()?.finish(self.flow);
        let owners = (0u8..)
            .take(DOMAINS)
            .flat_map(|domain| MODES.into_iter().map(move |mode| Owner { domain, mode }));
        let sweeps = owners.zip(counted.sweeps).filter(|(_, sweep)| *sweep != Sweep::default());
        Ok(Recording {
            config: *self.model.config(),
            instructions: self.instructions,
            blocks: self.codes.finish(&counted.sites),
            sweeps: sweeps.collect(),
            events: self.events,
            events_lost: self.events_lost,
            samples: counted.samples,
            after: counted.after.into(),
            flow: counted.flow,
            checks: self.checks,
            functions: vec![Function::default()],
            ..Recording::default()
        })
    }
}
