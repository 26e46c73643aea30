//! The counts of misses: for each place in the code, for each owner, and over time.

use scope_model::{Asked, Config, Counters, L2_SIZES, Mask, Second, Sweep};
use scope_result::{After, EventKind, Profile, Sample, Step};

use crate::code::{DOMAINS, KINDS, SiteId};
use crate::found::{Batch, Executed, Found, Kind};

/// Samples that are kept; when there are as many every other one goes, and they come half as often.
pub const SAMPLES: usize = 1 << 14;

/// Owners of code.
const OWNERS: usize = DOMAINS * KINDS as usize;

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

/// Misses of a place in the code, in one line of a real cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Misses {
    /// By reads, writes and code, in the order of their [kinds](Kind).
    l1: [u64; 3],
    /// By code and data.
    l2: [u64; 2],
    tlb: [u64; 2],
}

impl Misses {
    fn counters(self) -> Counters {
        let Self { l1: [reads, writes, l1i], l2: [l2i, l2d], tlb: [itlb, dtlb] } = self;
        Counters {
            l1i_misses: l1i,
            read_misses: reads,
            write_misses: writes,
            l2i_misses: l2i,
            l2d_misses: l2d,
            itlb_misses: itlb,
            dtlb_misses: dtlb,
            ..Counters::default()
        }
    }
}

/// Of an owner's code and data: how often which sizes of L2 missed.
type Sizes = [[u64; 1 << L2_SIZES]; 2];

/// Lines that L2s are asked for at a time.
const LINES: usize = 1 << 10;

/// What misses are counted in, and the L2s, which are asked for the lines that L1s missed.
#[derive(Debug)]
pub struct Counts {
    config: Config,
    second: Second,
    /// The lines that they are asked for, and which sizes missed each.
    lines: Vec<Asked>,
    missed: Vec<u8>,
    sites: Vec<Misses>,
    /// Of each owner.
    sizes: Vec<Sizes>,
    sweeps: Vec<Sweep>,
    samples: Vec<Sample>,
    seen: Sample,
    after_switch: Since,
    after_invalidate: Since,
    flow: Vec<Step>,
}

/// What was counted.
#[derive(Debug)]
pub struct Counted {
    /// Misses of each place, by [`SiteId`]; there may be places without.
    pub sites: Vec<Counters>,
    /// Of each owner.
    pub sweeps: Vec<Sweep>,
    /// Over time.
    pub samples: Vec<Sample>,
    /// After events.
    pub after: [After; 2],
    /// Of each block of the flow.
    pub flow: Vec<Step>,
}

impl Counts {
    /// Nothing. Lines have numbers below `lines`.
    pub fn new(config: Config, lines: u64) -> Self {
        Self {
            config,
            second: Second::new(config, lines),
            lines: vec![Asked::default(); LINES],
            missed: vec![0; LINES],
            sites: Vec::new(),
            sizes: vec![[[0; 1 << L2_SIZES]; 2]; OWNERS],
            sweeps: vec![Sweep::default(); OWNERS],
            samples: Vec::new(),
            seen: Sample::default(),
            after_switch: Since::new(EventKind::Switch(0)),
            after_invalidate: Since::new(EventKind::Invalidate),
            flow: Vec::new(),
        }
    }

    /// Takes notice of what was found. Answers the empty batch.
    pub fn take(&mut self, batch: Batch) -> Option<Batch> {
        for part in batch.found().chunks(LINES) {
            self.ask(part);
            let mut line = 0;
            for found in part.iter().copied() {
                let (executed, at) = batch.executed_at(found);
                if found.is_line() {
                    self.line(found.kind(), self.missed[line % LINES], executed, at);
                    line += 1;
                } else {
                    self.other(found, executed, at);
                }
            }
        }
        Some(batch)
    }

    /// Asks the L2s for the lines of these.
    fn ask(&mut self, part: &[Found]) {
        let mut count = 0;
        for found in part {
            self.lines[count % LINES] = Asked::new(found.number(), count);
            count += usize::from(found.is_line());
        }
        let lines = self.lines.get_mut(..count).unwrap_or_default();
        self.second.access_all(lines, &mut self.missed);
    }

    fn other(&mut self, found: Found, executed: Executed, at: u64) {
        match found.kind() {
            Kind::CodePage | Kind::DataPage => self.page(found, executed, at),
            Kind::Switch => self.after_switch.happens(at),
            Kind::Invalidate => self.after_invalidate.happens(at),
            Kind::Sample => self.sample(at),
            Kind::Block => self.block(found, executed),
            Kind::Code | Kind::Read | Kind::Write => {}
        }
    }

    #[inline]
    fn site(&mut self, site: SiteId) -> &mut Misses {
        let place = site.index();
        if place >= self.sites.len() {
            self.sites.resize(place + 1, Misses::default());
        }
        &mut self.sites[place]
    }

    /// Counts a line that an L1 missed, and these sizes of L2.
    #[inline]
    fn line(&mut self, kind: Kind, missed: u8, executed: Executed, at: u64) {
        let (kind, counted) = (kind as usize, self.config.counts_line(missed));
        let is_data = usize::from(kind != Kind::Code as usize);
        if let Some(sizes) = self.sizes.get_mut(usize::from(executed.owner)) {
            sizes[is_data][usize::from(missed) % (1 << L2_SIZES)] += 1;
        }
        let site = self.site(executed.site);
        site.l1[kind % 3] += 1;
        site.l2[is_data] += u64::from(counted);
        if let Some(step) = self.flow.last_mut() {
            step.l1 = step.l1.saturating_add(1);
            step.l2 = step.l2.saturating_add(u16::from(counted));
        }
        if counted {
            self.seen.l2 += 1;
            self.after_switch.misses(at, 0, 1);
            self.after_invalidate.misses(at, 0, 1);
        }
    }

    fn page(&mut self, found: Found, executed: Executed, at: u64) {
        let (missed, is_code) = (Mask(found.number()), found.kind() == Kind::CodePage);
        if let Some(sweep) = self.sweeps.get_mut(usize::from(executed.owner)) {
            sweep.add_page(missed, is_code);
        }
        if !missed.meets(self.config.counted()) {
            return;
        }
        let site = self.site(executed.site);
        site.tlb[usize::from(!is_code)] += 1;
        *(if is_code { &mut self.seen.itlb } else { &mut self.seen.dtlb }) += 1;
        if let Some(step) = self.flow.last_mut() {
            let count = if is_code { &mut step.itlb } else { &mut step.dtlb };
            *count = count.saturating_add(1);
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

    /// A block of the flow begins: what is counted from here on is its.
    fn block(&mut self, found: Found, executed: Executed) {
        let block = u32::try_from(found.number()).unwrap_or(u32::MAX);
        let domain = executed.owner / KINDS;
        self.flow.push(Step { block, domain, l1: 0, l2: 0, itlb: 0, dtlb: 0 });
    }

    /// What was counted; of the flow so many blocks.
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
        let sites = sites.into_iter().map(Misses::counters).collect();
        Counted { sites, sweeps, samples, after, flow }
    }
}
