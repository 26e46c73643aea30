//! Records what happens between the marks.

use std::sync::Arc;

use scope_model::{Flush, FlushSite, LINE, Mapping, Model, Paging, Side, Sweep, TlbSet};
use scope_result::{Checks, Event, EventKind, Function, Owner, Recording};

use crate::accesses::LineUse;
use crate::arguments::Arguments;
use crate::batch::{Batch, Entry, EntryKind};
use crate::blocks::{BlockId, DOMAINS, LAST_DOMAIN, MODES};
use crate::call_graph::CallGraph;
use crate::counts::{Counts, SAMPLES};
use crate::execution::{Execution, Stop};
use crate::layout_plan::LayoutPlan;
use crate::layout_trace::LayoutTrace;
use crate::stage::{Message, SharedWork, Stage};
use crate::trace::TraceEvent;

/// The most events.
const EVENTS: usize = 1 << 20;
const BATCHES: usize = 24;

/// Counting, as work that other threads can help with.
pub type SharedCounts = Arc<SharedWork<Batch, Batch, Counts>>;

/// The recorder: it follows events, runs the models and has misses counted.
pub struct Recorder {
    model: Model,
    /// The execution, whose uses of lines go to the models many at a time.
    execution: Execution,
    /// Misses to be counted.
    batch: Batch,
    counts: Stage<Batch, Batch, Counts>,
    events: Vec<Event>,
    events_lost: u64,
    samples: usize,
    sample_every: u64,
    sample_next: u64,
    /// The number of blocks in the flow, and the instructions before it.
    flow: usize,
    flow_after: u64,
    /// Blocks of the flow that are left, and one more, which ends the last.
    flow_left: usize,
    checks: Checks,
}

impl Recorder {
    /// A recorder with empty models. All physical lines of the guest have numbers below `lines`; the host has `processors`
    /// processors.
    ///
    /// # Errors
    /// In words, if the system gives no thread.
    pub fn new(
        arguments: &Arguments,
        paging: Paging,
        lines: u64,
        processors: usize,
    ) -> Result<Self, String> {
        let mut model = Model::new(arguments.config, paging, lines);
        if arguments.check {
            model.keep_translations();
        }
        let counts = Counts::new(arguments.config, lines, arguments.calls);
        let batches = (1..BATCHES).map(|_| Batch::new()).collect();
        // With two processors a third thread would only displace the others, so threads that wait do the counting.
        let counts = if processors > 2 {
            Stage::thread("pvscope-counts", batches, counts, Counts::count)?
        } else {
            Stage::shared(batches, counts, Counts::count)
        };
        let flow = arguments.flow as usize;
        let layouts = layout_plan(arguments)?;
        let layouts = layouts.map(|plan| LayoutTrace::new(plan, arguments.config, paging, lines));
        let mut execution = Execution::new();
        execution.layouts = layouts.map(Box::new);
        execution.calls = arguments.calls.then(|| Box::new(CallGraph::new(paging.root)));
        Ok(Self {
            model,
            execution,
            batch: Batch::new(),
            counts,
            events: Vec::new(),
            events_lost: 0,
            samples: 0,
            sample_every: 1000,
            sample_next: 0,
            flow,
            flow_after: arguments.flow_after,
            flow_left: if flow > 0 { flow + 1 } else { 0 },
            checks: Checks::default(),
        })
    }

    /// The counting that a thread which waits for this one can help with.
    pub fn shared_counts(&self) -> Option<SharedCounts> {
        self.counts.shared_work()
    }

    /// Processes a message. Returns it, emptied.
    pub fn process(&mut self, mut message: Message) -> Option<Message> {
        let mut flows = message.flows.drain(..);
        for code in message.blocks.drain(..) {
            if let Some(layouts) = &mut self.execution.layouts {
                layouts.add(&code);
            }
            self.execution.blocks.add(code);
            if let (Some(calls), Some(flow)) = (&mut self.execution.calls, flows.next()) {
                let begins = calls.add(flow);
                self.execution.blocks.set_flow(&flow, begins);
            }
        }
        drop(flows);
        for (block, members) in message.members.drain(..) {
            self.execution.add_members(block, &members);
        }
        self.follow(message.words());
        message.clear();
        Some(message)
    }

    fn follow(&mut self, mut words: &[u64]) {
        loop {
            match self.execution.follow(&mut words, &mut self.batch) {
                Stop::Full => self.run_models(),
                Stop::DomainChanged(block) => self.execution.switch_domain(block),
                Stop::Due(block) => self.sample_or_log(block),
                Stop::Other => match TraceEvent::take(&mut words) {
                    Some(event) => self.event(event),
                    None => return,
                },
                Stop::End => return,
            }
        }
    }

    fn event(&mut self, event: TraceEvent) {
        match event {
            // These are of an unknown block.
            TraceEvent::Group(_) | TraceEvent::Block(_) => {}
            TraceEvent::Access { address, bytes, write } => {
                self.execution.data(address, bytes, write, &mut self.batch);
            }
            TraceEvent::Page(side, page, mapping) => self.map(side, page, mapping),
            TraceEvent::Flush(flush, site, ignored) => self.flush(flush, site, ignored),
            TraceEvent::Switch(number, changes) => self.switch(number, changes),
            TraceEvent::Probe(number) => self.record(EventKind::Probe(number)),
            TraceEvent::Compare(address, physical) => self.compare(address, physical),
        }
    }

    /// Runs the models on the lines that were used, and has the misses counted.
    fn run_models(&mut self) {
        let mut missed = self.batch.end();
        self.model.access_all(self.execution.uses(), LineUse::line, |used, outcome| {
            if outcome.tlb_misses != TlbSet::NONE {
                let [lower, others] = Entry::tlb_misses(used, outcome.tlb_misses);
                missed.add(true, lower);
                missed.add(others.tlbs() != TlbSet::NONE, others);
            }
            missed.add(outcome.l1_miss, Entry::l1_miss(used, outcome.line));
        });
        let count = missed.count;
        self.batch.extend_to(count);
        let now = self.execution.instructions();
        if self.batch.is_enough(now) {
            let mut empty = self.counts.buffer().unwrap_or_else(Batch::new);
            empty.begin(now, self.batch.now());
            self.counts.send(std::mem::replace(&mut self.batch, empty));
        }
        self.execution.clear();
    }

    /// Adds an entry that is no miss, after all uses so far.
    fn note(&mut self, kind: EntryKind, value: u64) {
        self.run_models();
        self.batch.note(kind, value, self.execution.instructions());
    }

    /// Maps a page. Identifiers of lines in its slot mean other lines from here on.
    fn map(&mut self, side: Side, page: u64, mapping: Mapping) {
        self.run_models();
        self.execution.forget_last();
        if let Some(calls) = &mut self.execution.calls
            && side == Side::Data
        {
            calls.map(page, mapping.frame * LINE as u64);
        }
        if let Some(layouts) = &mut self.execution.layouts {
            layouts.map(side, page, mapping);
        }
        self.model.map(side, page, mapping);
    }

    /// Samples the counts, or logs a block of the flow: neither is due at every block.
    #[cold]
    fn sample_or_log(&mut self, block: BlockId) {
        let now = self.execution.instructions();
        if now >= self.sample_next {
            self.sample();
        }
        if self.flow_left > 0 && now >= self.flow_after {
            self.flow_left -= 1;
            self.note(EntryKind::Block, block.0.into());
        }
        let flow_next = if self.flow_left > 0 { self.flow_after.max(now + 1) } else { u64::MAX };
        self.execution.next = self.sample_next.min(flow_next);
    }

    #[cold]
    fn sample(&mut self) {
        // `Counts` drops every other sample at the same time.
        if self.samples == SAMPLES {
            self.samples /= 2;
            self.sample_every *= 2;
        }
        self.samples += 1;
        self.sample_next = self.execution.instructions() + self.sample_every;
        self.note(EntryKind::Sample, 0);
    }

    /// Flushes the TLBs, unless the models ignore it.
    fn flush(&mut self, flush: Flush, site: FlushSite, ignored: bool) {
        let kind = match flush {
            Flush::Cr3(_) => EventKind::Cr3,
            Flush::Cr4(_) => EventKind::Cr4,
            Flush::Page(_) | Flush::Pcid(..) => EventKind::Invalidate,
        };
        self.record(kind);
        if let (Some(calls), Flush::Cr3(value)) = (&mut self.execution.calls, flush) {
            calls.set_space(value);
        }
        if ignored {
            return;
        }
        if kind == EventKind::Invalidate {
            self.note(EntryKind::Invalidate, 0);
        } else {
            self.run_models();
        }
        self.execution.forget_last();
        self.checks.new_spaces += u64::from(kind == EventKind::Cr3 && site == FlushSite::NewSpace);
        if let Some(layouts) = &mut self.execution.layouts {
            layouts.flush(flush);
        }
        self.model.flush(flush, site);
    }

    /// Switches to another domain. `changes` is false for the idle domain, and for the domain that ran last before it.
    fn switch(&mut self, number: u8, changes: bool) {
        // All further domains share the last number.
        let domain = number.min(LAST_DOMAIN);
        self.execution.domain = domain;
        self.record(EventKind::Switch(domain));
        self.note(EntryKind::Switch, 0);
        if changes {
            self.execution.forget_last();
            self.model.switch_domain();
        }
    }

    fn record(&mut self, kind: EventKind) {
        if self.events.len() < EVENTS {
            self.events.push(Event { at: self.execution.instructions(), kind });
        } else {
            self.events_lost += 1;
        }
    }

    /// Compares the physical address of the last data access in the model's DTLB with the true one.
    fn compare(&mut self, address: u64, physical: u64) {
        self.run_models();
        self.checks.compared += 1;
        self.checks.stale += u64::from(self.model.cached_address(address) != physical);
    }

    /// Returns the recording.
    ///
    /// # Errors
    /// In words, if counting has panicked.
    pub fn finish(mut self) -> Result<Recording, String> {
        self.sample();
        self.run_models();
        self.counts.send(self.batch);
        let counted = self.counts.finish()?.finish(self.flow);
        let owners = (0u8..)
            .take(DOMAINS)
            .flat_map(|domain| MODES.into_iter().map(move |mode| Owner { domain, mode }));
        let sweeps = owners.zip(counted.sweeps).filter(|(_, sweep)| *sweep != Sweep::default());
        let instructions = self.execution.instructions();
        let calls = self.execution.calls.take();
        let layouts = self.execution.layouts.take().map(|layouts| layouts.finish());
        Ok(Recording {
            config: *self.model.config(),
            instructions,
            calls: calls.map_or(Vec::new(), |calls| calls.finish(instructions, &counted.nodes)),
            blocks: self.execution.blocks.finish(&counted.sites),
            layouts,
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

/// The plan of layouts, if they are wanted.
fn layout_plan(arguments: &Arguments) -> Result<Option<LayoutPlan>, String> {
    let path = &arguments.layouts;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    LayoutPlan::parse(&text).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access_groups::{Accesses, Member};
    use crate::blocks::BlockCode;
    use crate::cost_events::BlockEvents;
    use scope_result::Mode;

    const PAGING: Paging = Paging { root: 0x1000, pcid: 0, tagged: false, global: true };

    /// A recorder with eight blocks, and an indexed group of the last one.
    fn recorder(check: bool, processors: usize) -> Recorder {
        let arguments = Arguments { check, flow: 100, ..Arguments::default() };
        let mut recorder = Recorder::new(&arguments, PAGING, 1 << 26, processors).unwrap();
        for number in 0..8 {
            let code = BlockCode::new(
                number as u64 * 0xfc0,
                vec![0x90; 60 + number * 60],
                (9, &Accesses::default(), BlockEvents::default()),
                (0, 0, Mode::User),
            );
            recorder.execution.blocks.add(code);
        }
        let member = |offset| Member { offset, bytes: 8, write: offset % 3 == 0 };
        let members: Vec<Member> = (-100..100).map(|at| member(at * 20)).collect();
        recorder.execution.add_members(BlockId(7), &members);
        recorder
    }

    /// Arbitrary words, most of them of known blocks.
    fn words() -> impl Strategy<Value = Vec<u64>> {
        let known = (any::<u64>(), 0u64..9).prop_map(|(word, number)| word >> 32 << 32 | number);
        prop::collection::vec(prop_oneof![9 => known, 1 => any::<u64>()], 0..3000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn arbitrary_words_are_followed_to_their_end(words in words(), check: bool) {
            let results = [2, 3].map(|processors| {
                let mut recorder = recorder(check, processors);
                words.chunks(1000).for_each(|words| recorder.follow(words));
                recorder.finish().unwrap()
            });
            // The result does not depend on the thread that counts.
            prop_assert_eq!(&results[0], &results[1]);
        }
    }
}
