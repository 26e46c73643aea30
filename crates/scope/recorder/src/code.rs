//! Code that is executed, block by block, and how often.

use scope_model::{Counters, LINE, Line, Side};
use scope_result::{Block, Mode};

use crate::accesses::Accesses;

/// Domains that are told apart; the last place is everybody else's.
pub const DOMAINS: usize = LAST_DOMAIN as usize + 1;
/// The last of their places.
pub const LAST_DOMAIN: u8 = 7;
/// How many kinds of code there are.
pub const KINDS: u8 = 3;
/// The kinds of code, in the order of their numbers.
pub const MODES: [Mode; KINDS as usize] = [Mode::Hypervisor, Mode::Kernel, Mode::User];
/// No counters yet.
const NONE: u32 = 0;

/// A block that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Its place among all.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is looked at whenever a block is executed: half a line of a real cache.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Hot {
    /// For the domain that it ran for last, since it ran for another.
    pub executions: u64,
    /// That domain's counters.
    pub site: SiteId,
    /// How many instructions.
    pub instructions: u16,
    /// The first line of its code.
    pub line: Line,
    /// Lines of code: one at least.
    pub lines: u16,
    /// The domain.
    pub domain: u8,
    /// The number of its owner: the domain and the kind of code.
    pub owner: u8,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    address: u64,
    space: u64,
    bytes: u16,
    instructions: u16,
    home: u8,
    /// What its groups access, each time.
    reads: u16,
    writes: u16,
}

impl Code {
    /// So many bytes at an address, so many instructions, what they access, and whose they are: the root of
    /// its page tables and the domain.
    #[must_use]
    pub fn new(
        address: u64,
        bytes: u64,
        (instructions, accesses): (usize, &Accesses),
        (space, home): (u64, u8),
    ) -> Self {
        let members = || accesses.groups.iter().flat_map(|group| &group.members);
        Self {
            address,
            space,
            bytes: half(bytes),
            instructions: half(instructions as u64),
            home,
            reads: half(members().filter(|member| !member.write).count() as u64),
            writes: half(members().filter(|member| member.write).count() as u64),
        }
    }
}

/// A number that is never as large as that.
fn half(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// What one block came to for one domain.
#[derive(Clone, Copy, Debug, Default)]
struct Site {
    /// But for those that its block still has.
    executions: u64,
    /// Of the data that is accessed what does not follow from the code.
    reads: u64,
    writes: u64,
}

/// The counters of a block for a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteId(u32);

impl SiteId {
    /// Its place among all.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All blocks.
#[derive(Debug)]
pub struct Codes {
    hot: Vec<Hot>,
    /// With where the counters are, for each domain.
    cold: Vec<(Code, [u32; DOMAINS])>,
    sites: Vec<Site>,
}

impl Codes {
    /// None.
    pub fn new() -> Self {
        Self { hot: Vec::new(), cold: Vec::new(), sites: vec![Site::default()] }
    }

    /// Adds the next block.
    pub fn add(&mut self, code: Code) {
        let line = code.address / LINE as u64;
        let last_line = (code.address + u64::from(code.bytes).saturating_sub(1)) / LINE as u64;
        self.hot.push(Hot {
            line: Line::of(Side::Code, code.address),
            executions: 0,
            site: SiteId(NONE),
            instructions: code.instructions,
            lines: half(last_line - line + 1),
            // No domain's: its counters are looked for when it is executed.
            domain: u8::MAX,
            owner: 0,
        });
        self.cold.push((code, [NONE; DOMAINS]));
    }

    /// The blocks, by their numbers.
    #[inline]
    pub fn hots(&mut self) -> &mut [Hot] {
        &mut self.hot
    }

    /// Has a block count for another domain than before.
    #[cold]
    pub fn turn(&mut self, block: BlockId, domain: u8) {
        let hot = &mut self.hot[block.index()];
        self.sites[hot.site.index()].executions += std::mem::take(&mut hot.executions);
        let mode = Mode::of(self.cold[block.index()].0.address) as u8;
        let site = &mut self.cold[block.index()].1[usize::from(domain)];
        if *site == NONE {
            *site = u32::try_from(self.sites.len()).unwrap_or(u32::MAX);
            self.sites.push(Site::default());
        }
        (hot.site, hot.domain, hot.owner) = (SiteId(*site), domain, domain * KINDS + mode);
    }

    /// Counts an access of data besides those that follow from the code.
    pub fn access(&mut self, site: SiteId, write: bool) {
        if let Some(site) = self.sites.get_mut(site.index()) {
            *(if write { &mut site.writes } else { &mut site.reads }) += 1;
        }
    }

    /// What was counted, and the misses of each site.
    pub fn finish(mut self, misses: &[Counters]) -> Vec<Block> {
        for hot in &self.hot {
            self.sites[hot.site.index()].executions += hot.executions;
        }
        let blocks = self.hot.iter().zip(&self.cold).map(|(hot, (code, sites))| {
            let sites = (0u8..).zip(sites).filter(|(_, site)| **site != NONE);
            let total = |site: u32| {
                let Site { executions, reads, writes } = self.sites[site as usize];
                let misses = misses.get(site as usize).copied().unwrap_or_default();
                Counters {
                    instructions: executions * u64::from(code.instructions),
                    l1i: executions * u64::from(hot.lines),
                    reads: reads + executions * u64::from(code.reads),
                    writes: writes + executions * u64::from(code.writes),
                    ..misses
                }
            };
            let counters = sites.map(|(domain, site)| (domain, total(*site))).collect();
            let Code { address, bytes, instructions, space, home, .. } = *code;
            Block { address, bytes, instructions, space, home, function: 0, counters }
        });
        blocks.collect()
    }
}
