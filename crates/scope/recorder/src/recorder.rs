//! What is recorded between the marks.

use std::sync::Arc;

use scope_model::{Flush, Mapping, Mask, Model, Paging, Side, Sweep};
use scope_result::{Checks, Event, EventKind, Function, Owner, Recording};

use crate::arguments::Arguments;
use crate::code::{BlockId, DOMAINS, LAST_DOMAIN, MODES};
use crate::counts::{Counts, SAMPLES};
use crate::execution::{Execution, Stop};
use crate::found::{Batch, Kind};
use crate::stage::{Shared, Stage};
use crate::trace::Step;
use crate::tracer::Message;

/// Events that are kept.
const EVENTS: usize = 1 << 20;
/// Batches that there are.
const BATCHES: usize = 64;

/// The counting of what was found.
pub type Work = Arc<Shared<Batch, Batch, Counts>>;

/// Everything that is recorded.
pub struct Recorder {
    model: Model,
    /// Who is executed, and what it uses: the models are asked for many lines at a time.
    execution: Execution,
    /// What was found, for those who count it.
    batch: Batch,
    counts: Stage<Batch, Batch, Counts>,
    events: Vec<Event>,
    events_lost: u64,
    samples: usize,
    sample_every: u64,
    sample_next: u64,
    /// Blocks of the flow that are wanted, and where they begin.
    flow: usize,
    flow_after: u64,
    /// Blocks to come, and one more, which ends the last.
    flow_room: usize,
    checks: Checks,
}

impl Recorder {
    /// A recorder whose models are empty, of a machine with so many lines of memory; on one of so many processors.
    ///
    /// # Errors
    /// In words, if there is no thread to be had.
    pub fn new(
        arguments: &Arguments,
        paging: Paging,
        lines: u64,
        processors: usize,
    ) -> Result<Self, String> {
        let mut model = Model::new(arguments.config, paging, lines);
        if arguments.check {
            model.remember_hits();
        }
        let counts = Counts::new(arguments.config, lines);
        let batches = (1..BATCHES).map(|_| Batch::new()).collect();
        // With two processors a third thread would only take the others' place: who waits counts.
        let counts = if processors > 2 {
            Stage::thread("pvscope-counts", batches, counts, Counts::take)?
        } else {
            Stage::shared(batches, counts, Counts::take)
        };
        let flow = arguments.flow as usize;
        Ok(Self {
            model,
            execution: Execution::new(),
            batch: Batch::new(),
            counts,
            events: Vec::new(),
            events_lost: 0,
            samples: 0,
            sample_every: 1000,
            sample_next: 0,
            flow,
            flow_after: arguments.flow_after,
            flow_room: if flow > 0 { flow + 1 } else { 0 },
            checks: Checks::default(),
        })
    }

    /// For a thread that waits for this one: what it can do meanwhile.
    pub fn work(&self) -> Option<Work> {
        self.counts.work()
    }

    /// Takes notice of a message. Answers it, empty.
    pub fn take(&mut self, mut message: Message) -> Option<Message> {
        for code in message.code.drain(..) {
            self.execution.codes.add(code);
        }
        for (block, members) in message.members.drain(..) {
            self.execution.add_members(block, &members);
        }
        self.steps(message.steps());
        message.clear();
        Some(message)
    }

    fn steps(&mut self, mut words: &[u64]) {
        loop {
            match self.execution.follow(&mut words, &mut self.batch) {
                Stop::Full => self.ask(),
                Stop::Turn(block) => self.execution.turn(block),
                Stop::Notice(block) => self.take_notice(block),
                Stop::Other => match Step::take(&mut words) {
                    Some(step) => self.step(step),
                    None => return,
                },
                Stop::End => return,
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            // Of a block that nobody has told of.
            Step::Group(_) | Step::Block(_) => {}
            Step::Access { address, bytes, write } => {
                self.execution.data(address, bytes, write, &mut self.batch);
            }
            Step::Page(side, page, mapping) => self.map(side, page, mapping),
            Step::Flush(flush, deaf) => self.flush(flush, deaf),
            Step::Switch(place) => self.switch(place),
            Step::Probe(number) => self.event(EventKind::Probe(number)),
            Step::Compare(address, physical) => self.compare(address, physical),
        }
    }

    /// Asks the models for the lines that were used, and has what came of that counted.
    fn ask(&mut self) {
        for used in self.execution.uses() {
            let came = self.model.access(used.line());
            if came.pages != Mask::NONE {
                self.batch.add(true, used.page(came.pages));
            }
            self.batch.add(came.missed, used.missed(came.line));
        }
        let now = self.execution.instructions();
        if self.batch.is_enough(now) {
            let mut empty = self.counts.buffer().unwrap_or_else(Batch::new);
            empty.begin(now, self.batch.now());
            self.counts.send(std::mem::replace(&mut self.batch, empty));
        }
        self.execution.clear();
    }

    /// Has something else counted, after all that was used.
    fn note(&mut self, kind: Kind, number: u64) {
        self.ask();
        self.batch.note(kind, number, self.execution.instructions());
    }

    /// A page is told of. Lines of the one that was in its place are others from here on.
    fn map(&mut self, side: Side, page: u64, mapping: Mapping) {
        self.ask();
        self.execution.forget_last();
        self.model.map(side, page, mapping);
    }

    /// What is not done at every block.
    #[cold]
    fn take_notice(&mut self, block: BlockId) {
        let now = self.execution.instructions();
        if now >= self.sample_next {
            self.sample();
        }
        if self.flow_room > 0 && now >= self.flow_after {
            self.flow_room -= 1;
            self.note(Kind::Block, block.0.into());
        }
        let flow_next = if self.flow_room > 0 { self.flow_after.max(now + 1) } else { u64::MAX };
        self.execution.next = self.sample_next.min(flow_next);
    }

    #[cold]
    fn sample(&mut self) {
        // As those who count it do.
        if self.samples == SAMPLES {
            self.samples /= 2;
            self.sample_every *= 2;
        }
        self.samples += 1;
        self.sample_next = self.execution.instructions() + self.sample_every;
        self.note(Kind::Sample, 0);
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
            self.note(Kind::Invalidate, 0);
        } else {
            self.ask();
        }
        self.execution.forget_last();
        self.model.flush(flush);
    }

    /// Xen goes on with another domain.
    fn switch(&mut self, place: u8) {
        // No domain has a place beyond.
        let domain = place.min(LAST_DOMAIN);
        self.execution.domain = domain;
        self.event(EventKind::Switch(domain));
        self.note(Kind::Switch, 0);
    }

    fn event(&mut self, kind: EventKind) {
        if self.events.len() < EVENTS {
            self.events.push(Event { at: self.execution.instructions(), kind });
        } else {
            self.events_lost += 1;
        }
    }

    /// Compares where the model takes the last data to be with where it is.
    fn compare(&mut self, address: u64, physical: u64) {
        self.ask();
        self.checks.compared += 1;
        self.checks.stale += u64::from(self.model.claimed(address) != physical);
    }

    /// What was recorded.
    ///
    /// # Errors
    /// In words, if the thread that counts has failed.
    pub fn finish(mut self) -> Result<Recording, String> {
        self.sample();
        self.ask();
        self.counts.send(self.batch);
        let counted = self.counts.finish()?.finish(self.flow);
        let owners = (0u8..)
            .take(DOMAINS)
            .flat_map(|domain| MODES.into_iter().map(move |mode| Owner { domain, mode }));
        let sweeps = owners.zip(counted.sweeps).filter(|(_, sweep)| *sweep != Sweep::default());
        Ok(Recording {
            config: *self.model.config(),
            instructions: self.execution.instructions(),
            blocks: self.execution.codes.finish(&counted.sites),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::accesses::{Accesses, Member};
    use crate::code::Code;

    const PAGING: Paging = Paging { root: 0x1000, pcid: 0, tagged: false, global: true };

    /// A recorder that knows some blocks, and a group of many members of the last.
    fn recorder(check: bool, processors: usize) -> Recorder {
        let arguments = Arguments { check, flow: 100, ..Arguments::default() };
        let mut recorder = Recorder::new(&arguments, PAGING, 1 << 26, processors).unwrap();
        for number in 0..8 {
            let code =
                Code::new(number * 0xfc0, 60 + number * 60, (9, &Accesses::default()), (0, 0));
            recorder.execution.codes.add(code);
        }
        let member = |offset| Member { offset, bytes: 8, write: offset % 3 == 0 };
        let members: Vec<Member> = (-100..100).map(|at| member(at * 20)).collect();
        recorder.execution.add_members(BlockId(7), &members);
        recorder
    }

    /// Any words, most of them of blocks that there are.
    fn words() -> impl Strategy<Value = Vec<u64>> {
        let known = (any::<u64>(), 0u64..9).prop_map(|(word, number)| word >> 32 << 32 | number);
        prop::collection::vec(prop_oneof![9 => known, 1 => any::<u64>()], 0..3000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_words_are_followed_to_their_end(words in words(), check: bool) {
            let results = [2, 3].map(|processors| {
                let mut recorder = recorder(check, processors);
                words.chunks(1000).for_each(|words| recorder.steps(words));
                recorder.finish().unwrap()
            });
            // Whoever counts comes to the same.
            prop_assert_eq!(&results[0], &results[1]);
        }
    }
}
