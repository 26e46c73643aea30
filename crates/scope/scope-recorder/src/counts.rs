//! Counts misses: for each block, for each owner, and over time.

use scope_model::{Config, Counters, L2_SIZES, L2Bank, Lookup, Streams, Sweep, TlbSet};
use scope_result::{After, EventKind, Profile, Sample, Step};

use crate::batch::{Batch, Entry, EntryKind};
use crate::blocks::{DOMAINS, KINDS, OwnedSite};

/// The most samples. When there are as many, every other one is dropped, and sampling becomes half as frequent.
pub const SAMPLES: usize = 1 << 14;

/// The number of owners: domains and kinds of code.
const OWNERS: usize = DOMAINS * KINDS as usize;

/// The misses in the time since the last event of a kind.
#[derive(Debug)]
struct SinceEvent {
    kind: EventKind,
    at: Option<u64>,
    profile: Profile,
}

impl SinceEvent {
    fn new(kind: EventKind) -> Self {
        let zeros = || vec![0; Profile::STEPS];
        let profile = Profile { events: zeros(), tlb: zeros(), l2: zeros() };
        Self { kind, at: None, profile }
    }

    /// Notes an event, and counts the steps of the time since the last one.
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

/// The misses of a block in a domain, in one cache line of the host.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Misses {
    /// L1 misses of reads, writes and code, in the order of the [kinds](EntryKind).
    l1: [u64; 3],
    /// L2 misses of code and data: fewer than 2³² in any recording.
    l2: [u32; 2],
    tlb: [u32; 2],
    l1_sequential: u32,
    l2_sequential: u32,
    l3: u32,
    l3_sequential: u32,
    page_walks: u32,
}

impl Misses {
    fn counters(self) -> Counters {
        let Self { l1: [reads, writes, l1i], l2: [l2i, l2d], tlb: [itlb, dtlb], .. } = self;
        Counters {
            l1i_misses: l1i,
            read_misses: reads,
            write_misses: writes,
            l2i_misses: l2i.into(),
            l2d_misses: l2d.into(),
            itlb_misses: itlb.into(),
            dtlb_misses: dtlb.into(),
            l1_sequential: self.l1_sequential.into(),
            l2_sequential: self.l2_sequential.into(),
            l3_misses: self.l3.into(),
            l3_sequential: self.l3_sequential.into(),
            page_walks: self.page_walks.into(),
            ..Counters::default()
        }
    }
}

/// How often which set of L2 sizes missed, for an owner's code and data.
type MissesBySizes = [[u64; 1 << L2_SIZES]; 2];

/// Lines that are looked up in the L2s at a time.
const LINES: usize = 1 << 10;

/// The counters, and the L2s, which see the lines that the L1s missed.
#[derive(Debug)]
pub struct Counts {
    config: Config,
    l2s: L2Bank,
    streams: Streams,
    /// The lines to look up, and the sizes that missed each.
    lookups: Vec<Lookup>,
    missed: Vec<u8>,
    sites: Vec<Misses>,
    /// Misses by node of the call graph, if it is recorded.
    nodes: Option<Vec<Misses>>,
    /// Misses of the L2s by owner.
    sizes: Vec<MissesBySizes>,
    sweeps: Vec<Sweep>,
    samples: Vec<Sample>,
    seen: Sample,
    after_switch: SinceEvent,
    after_invalidate: SinceEvent,
    flow: Vec<Step>,
}

/// What a miss is counted for: a block, a node of the call graph, and the instructions until then.
type Place = (OwnedSite, u32, u64);

/// The final counts.
#[derive(Debug)]
pub struct Counted {
    /// Misses by [`SiteId`]; the last sites may be missing.
    pub sites: Vec<Counters>,
    /// Misses by node of the call graph; the last nodes may be missing.
    pub nodes: Vec<Counters>,
    /// Misses of every size and policy, by owner.
    pub sweeps: Vec<Sweep>,
    /// Samples over time.
    pub samples: Vec<Sample>,
    /// Misses after events.
    pub after: [After; 2],
    /// The blocks of the flow.
    pub flow: Vec<Step>,
}

impl Counts {
    /// Counts of zero, and empty L2s. All lines have numbers below `lines`. With `calls` it also counts by node of the call
    /// graph.
    pub fn new(config: Config, lines: u64, calls: bool) -> Self {
        Self {
            config,
            l2s: L2Bank::new(config, lines),
            streams: Streams::default(),
            lookups: vec![Lookup::default(); LINES],
            missed: vec![0; LINES],
            sites: Vec::new(),
            nodes: calls.then(Vec::new),
            sizes: vec![[[0; 1 << L2_SIZES]; 2]; OWNERS],
            sweeps: vec![Sweep::default(); OWNERS],
            samples: Vec::new(),
            seen: Sample::default(),
            after_switch: SinceEvent::new(EventKind::Switch(0)),
            after_invalidate: SinceEvent::new(EventKind::Invalidate),
            flow: Vec::new(),
        }
    }

    /// Counts the entries of a batch. Returns it to be reused.
    pub fn count(&mut self, batch: Batch) -> Option<Batch> {
        for part in batch.entries().chunks(LINES) {
            self.lookup(part);
            let mut line = 0;
            for entry in part.iter().copied() {
                let (executed, at) = batch.executed_at(entry);
                let node = if self.nodes.is_some() { batch.node_at(entry) } else { 0 };
                let place = (executed.site, node, at);
                if entry.is_line() {
                    self.line(entry, self.missed[line % LINES], place);
                    line += 1;
                } else {
                    self.other(entry, place);
                }
            }
        }
        Some(batch)
    }

    /// Looks up the lines of these entries in the L2s.
    fn lookup(&mut self, part: &[Entry]) {
        let mut count = 0;
        for entry in part {
            self.lookups[count % LINES] = Lookup::new(entry.value(), count);
            count += usize::from(entry.is_line());
        }
        let lines = self.lookups.get_mut(..count).unwrap_or_default();
        self.l2s.access_all(lines, &mut self.missed);
    }

    fn other(&mut self, entry: Entry, place: Place) {
        let at = place.2;
        match entry.kind() {
            EntryKind::CodePage | EntryKind::CodePageMore => {
                self.page(entry.tlbs(), true, place);
            }
            EntryKind::DataPage | EntryKind::DataPageMore => {
                self.page(entry.tlbs(), false, place);
            }
            EntryKind::Switch => self.after_switch.happens(at),
            EntryKind::Invalidate => self.after_invalidate.happens(at),
            EntryKind::Sample => self.sample(at),
            EntryKind::Block => self.block(entry, place),
            EntryKind::Code | EntryKind::Read | EntryKind::Write => {}
        }
    }

    /// Counts a line that an L1 and the L2s of `missed` missed.
    #[inline]
    fn line(&mut self, entry: Entry, missed: u8, (site, node, at): Place) {
        let (kind, counted) = (entry.kind() as usize, self.config.counts_line(missed));
        let from_memory = self.config.is_from_memory(missed);
        let follows = self.streams.follows(entry.value());
        let is_data = usize::from(kind != EntryKind::Code as usize);
        if let Some(sizes) = self.sizes.get_mut(usize::from(site.owner())) {
            sizes[is_data][usize::from(missed) % (1 << L2_SIZES)] += 1;
        }
        let add = |misses: &mut Misses| {
            misses.l1[kind % 3] += 1;
            misses.l2[is_data] += u32::from(counted);
            misses.l1_sequential += u32::from(follows);
            misses.l2_sequential += u32::from(counted && follows);
            misses.l3 += u32::from(from_memory);
            misses.l3_sequential += u32::from(from_memory && follows);
        };
        add(place(&mut self.sites, site.site().index()));
        if let Some(nodes) = &mut self.nodes {
            add(place(nodes, node as usize));
        }
        if let Some(step) = self.flow.last_mut() {
            step.l1 = step.l1.saturating_add(1);
            step.l2 = step.l2.saturating_add(u16::from(counted));
            step.l1_sequential = step.l1_sequential.saturating_add(u16::from(follows));
            step.l2_sequential = step.l2_sequential.saturating_add(u16::from(counted && follows));
            step.l3 = step.l3.saturating_add(u16::from(from_memory));
            step.l3_sequential =
                step.l3_sequential.saturating_add(u16::from(from_memory && follows));
        }
        if counted {
            self.seen.l2 += 1;
            self.after_switch.misses(at, 0, 1);
            self.after_invalidate.misses(at, 0, 1);
        }
    }

    fn page(&mut self, missed: TlbSet, is_code: bool, (site, node, at): Place) {
        if let Some(sweep) = self.sweeps.get_mut(usize::from(site.owner())) {
            sweep.add_page(missed, is_code);
        }
        if !missed.intersects(self.config.counted()) {
            return;
        }
        let walks = missed.intersects(self.config.walking());
        let add = |misses: &mut Misses| {
            misses.tlb[usize::from(!is_code)] += 1;
            misses.page_walks += u32::from(walks);
        };
        add(place(&mut self.sites, site.site().index()));
        if let Some(nodes) = &mut self.nodes {
            add(place(nodes, node as usize));
        }
        *(if is_code { &mut self.seen.itlb } else { &mut self.seen.dtlb }) += 1;
        if let Some(step) = self.flow.last_mut() {
            let count = if is_code { &mut step.itlb } else { &mut step.dtlb };
            *count = count.saturating_add(1);
            step.page_walks = step.page_walks.saturating_add(u16::from(walks));
        }
        self.after_switch.misses(at, 1, 0);
        self.after_invalidate.misses(at, 1, 0);
    }

    fn sample(&mut self, at: u64) {
        if self.samples.len() == SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.samples.push(Sample { at, ..self.seen });
    }

    /// Begins a block of the flow, which owns the misses from here on.
    fn block(&mut self, entry: Entry, (site, node, _): Place) {
        let block = u32::try_from(entry.value()).unwrap_or(u32::MAX);
        let domain = site.owner() / KINDS;
        self.flow.push(Step { block, domain, node, ..Step::default() });
    }

    /// Returns the counts, with the first `flow` blocks of the flow.
    pub fn finish(mut self, flow: usize) -> Counted {
        self.flow.truncate(flow);
        let after = [self.after_switch, self.after_invalidate]
            .map(|since| After { kind: since.kind, profile: since.profile });
        for (sweep, sizes) in self.sweeps.iter_mut().zip(&self.sizes) {
            for (is_code, sizes) in [true, false].into_iter().zip(sizes) {
                let by_missed = (0u8..).zip(sizes);
                by_missed.for_each(|(missed, times)| sweep.add_lines(missed, is_code, *times));
            }
        }
        let Self { sites, sweeps, samples, flow, .. } = self;
        let counters = |misses: Vec<Misses>| misses.into_iter().map(Misses::counters).collect();
        let (sites, nodes) = (counters(sites), counters(self.nodes.unwrap_or_default()));
        Counted { sites, nodes, sweeps, samples, after, flow }
    }
}

/// The misses at a place, which may be new.
#[inline]
fn place(all: &mut Vec<Misses>, place: usize) -> &mut Misses {
    if place >= all.len() {
        all.resize(place + 1, Misses::default());
    }
    &mut all[place]
}
