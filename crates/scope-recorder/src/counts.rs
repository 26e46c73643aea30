//! The counts of misses: for each place in the code, for each owner, and over time.

use scope_model::{Config, Counters, Mask, Second, Sweep};
use scope_result::{After, EventKind, Profile, Sample, Step};

use crate::code::{DOMAINS, KINDS, SiteId};
use crate::found::{Batch, Found, Kind};

/// Samples that are kept; when there are as many every other one goes, and they come half as often.
pub const SAMPLES: usize = 1 << 14;

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

/// What misses are counted in, and the L2s, which are asked for the lines that L1s missed.
#[derive(Debug)]
pub struct Counts {
    config: Config,
    second: Second,
    sites: Vec<Counters>,
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
            sites: Vec::new(),
            sweeps: vec![Sweep::default(); DOMAINS * usize::from(KINDS)],
            samples: Vec::new(),
            seen: Sample::default(),
            after_switch: Since::new(EventKind::Switch(0)),
            after_invalidate: Since::new(EventKind::Invalidate),
            flow: Vec::new(),
        }
    }

    /// Takes notice of what was found. Answers the empty batch.
    pub fn take(&mut self, batch: Batch) -> Option<Batch> {
        for (found, at) in batch.found() {
            match found.kind() {
                Kind::Code | Kind::Read | Kind::Write => self.line(found, at),
                Kind::CodePage | Kind::DataPage => self.page(found, at),
                Kind::Switch => self.after_switch.happens(at),
                Kind::Invalidate => self.after_invalidate.happens(at),
                Kind::Sample => self.sample(at),
                Kind::Block => self.block(found),
            }
        }
        Some(batch)
    }

    fn site(&mut self, site: SiteId) -> &mut Counters {
        let place = site.index();
        if place >= self.sites.len() {
            self.sites.resize(place + 1, Counters::default());
        }
        &mut self.sites[place]
    }

    #[inline]
    fn line(&mut self, found: Found, at: u64) {
        let (kind, missed) = (found.kind(), self.second.access(found.number()));
        let is_code = kind == Kind::Code;
        let counted = self.config.counts_line(missed);
        if let Some(sweep) = self.sweeps.get_mut(found.owner()) {
            sweep.add_line(missed, is_code);
        }
        let site = self.site(found.site);
        match kind {
            Kind::Code => site.l1i_misses += 1,
            Kind::Read => site.read_misses += 1,
            _ => site.write_misses += 1,
        }
        *(if is_code { &mut site.l2i_misses } else { &mut site.l2d_misses }) += u64::from(counted);
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

    fn page(&mut self, found: Found, at: u64) {
        let (missed, is_code) = (Mask(found.number()), found.kind() == Kind::CodePage);
        if let Some(sweep) = self.sweeps.get_mut(found.owner()) {
            sweep.add_page(missed, is_code);
        }
        if !missed.meets(self.config.counted()) {
            return;
        }
        let site = self.site(found.site);
        *(if is_code { &mut site.itlb_misses } else { &mut site.dtlb_misses }) += 1;
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
    fn block(&mut self, found: Found) {
        let block = u32::try_from(found.number()).unwrap_or(u32::MAX);
        let domain = u8::try_from(found.owner()).unwrap_or(0) / KINDS;
        self.flow.push(Step { block, domain, l1: 0, l2: 0, itlb: 0, dtlb: 0 });
    }

    /// What was counted; of the flow so many blocks.
    pub fn finish(mut self, flow: usize) -> Counted {
        self.flow.truncate(flow);
        let after = [self.after_switch, self.after_invalidate]
            .map(|since| After { kind: since.kind, profile: since.profile });
        let Self { sites, sweeps, samples, flow, .. } = self;
        Counted { sites, sweeps, samples, after, flow }
    }
}
