//! The blocks of code that are executed, and how often.

use scope_model::{CostEvent, Counters, EventCounts, LINE, LineId, Side};
use scope_result::{Block, Mode};

use crate::access_groups::Accesses;
use crate::block_flow::{BlockFlow, Ending};
use crate::cost_events::BlockEvents;

/// Domains that are counted separately; the last number is shared by all others.
pub const DOMAINS: usize = LAST_DOMAIN as usize + 1;
/// The last of their numbers.
pub const LAST_DOMAIN: u8 = 7;
/// The number of kinds of code.
pub const KINDS: u8 = 3;
/// The kinds of code, in the order of their numbers.
pub const MODES: [Mode; KINDS as usize] = [Mode::Hypervisor, Mode::Kernel, Mode::User];
/// The number of no site.
const NONE: u32 = 0;

/// The data of a block that each execution uses: half a cache line of the host.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct HotBlock {
    /// Executions since its present domain became its domain.
    pub executions: u64,
    /// The counters of that domain, and the number of the domain and the kind of code.
    pub site: OwnedSite,
    /// The number of instructions.
    pub instructions: u16,
    /// Whether it has events that the call graph counts.
    pub has_events: bool,
    /// The first line of its code.
    pub line: LineId,
    /// Lines of code, at least one.
    pub lines: u16,
    /// The domain that it was last executed for.
    pub domain: u8,
    /// The call graph stays where it is if this is the [`Self::leads_to`] of the block before.
    pub function: u32,
    /// The function whose blocks may follow without a call, or [`NOWHERE`].
    pub leads_to: u32,
}

const _: () = assert!(size_of::<HotBlock>() == 32, "half a cache line");

/// [`HotBlock::leads_to`] of a block that leads to no other of its function.
pub const NOWHERE: u32 = 0;
/// The function of a block that the call graph always has to check.
pub const CHECKED: u32 = u32::MAX;
/// The number of the first known function; the numbers below are of unknown functions, by the kind of code.
const FIRST_KNOWN: u32 = 8;

/// The code of a block, and its data accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCode {
    address: u64,
    space: u64,
    /// The bytes of its instructions.
    code: Vec<u8>,
    instructions: u16,
    mode: Mode,
    domain: u8,
    /// The events per execution that cost more than an instruction.
    events: BlockEvents,
    /// The reads and writes of its groups per execution.
    reads: u16,
    writes: u16,
}

impl BlockCode {
    /// A block of these bytes at `address`; the number of its instructions, their accesses and their events; the root of its
    /// page tables, the domain in which it was first executed, and the kind of code.
    #[must_use]
    pub fn new(
        address: u64,
        code: Vec<u8>,
        (instructions, accesses, events): (usize, &Accesses, BlockEvents),
        (space, domain, mode): (u64, u8, Mode),
    ) -> Self {
        let members = || accesses.groups.iter().flat_map(|group| &group.members);
        Self {
            address,
            space,
            code,
            instructions: clamp(instructions as u64),
            mode,
            domain,
            events,
            reads: clamp(members().filter(|member| !member.write).count() as u64),
            writes: clamp(members().filter(|member| member.write).count() as u64),
        }
    }

    /// The address of its first byte, and the number of its bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.address, self.code.len() as u64)
    }

    /// The kind of code.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The root of its page tables, if it is a program's code.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// How often an event happens in an execution.
    pub fn count_of(&self, event: CostEvent) -> u8 {
        self.events[event as usize]
    }
}

/// A number that is always small.
fn clamp(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// The counts of a block in one domain.
#[derive(Clone, Copy, Debug, Default)]
struct Site {
    /// Executions, without those that the `HotBlock` still has.
    executions: u64,
    /// Reads and writes that are in no group.
    reads: u64,
    writes: u64,
}

/// The counters of a block for a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteId(u32);

impl SiteId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A site, and the number of its domain and kind of code: together in 32 bits, because each executed block is noted with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedSite(u32);

impl OwnedSite {
    /// The bits of the site: enough numbers for any recording.
    const SITE_BITS: u32 = 27;

    /// A site with its owner.
    pub fn new(site: u32, owner: u8) -> Self {
        Self(u32::from(owner) << Self::SITE_BITS | site & ((1 << Self::SITE_BITS) - 1))
    }

    /// The site.
    #[inline]
    pub fn site(self) -> SiteId {
        SiteId(self.0 & ((1 << Self::SITE_BITS) - 1))
    }

    /// The number of the domain and the kind of code.
    #[inline]
    pub fn owner(self) -> u8 {
        (self.0 >> Self::SITE_BITS) as u8
    }
}

const _: () = assert!(DOMAINS * KINDS as usize <= 1 << (u32::BITS - OwnedSite::SITE_BITS));

/// All blocks that were translated.
#[derive(Debug)]
pub struct Blocks {
    hot: Vec<HotBlock>,
    /// The code of each block, and its site in each domain.
    cold: Vec<(BlockCode, [u32; DOMAINS])>,
    sites: Vec<Site>,
}

impl Blocks {
    /// No block.
    pub fn new() -> Self {
        Self { hot: Vec::new(), cold: Vec::new(), sites: vec![Site::default()] }
    }

    /// Adds the next block.
    pub fn add(&mut self, code: BlockCode) {
        let (address, bytes) = code.range();
        let line = address / LINE as u64;
        let last_line = (address + bytes.saturating_sub(1)) / LINE as u64;
        self.hot.push(HotBlock {
            line: LineId::of(Side::Code, code.address),
            executions: 0,
            site: OwnedSite::default(),
            instructions: code.instructions,
            lines: clamp(last_line - line + 1),
            // No domain's: its first execution finds the site.
            domain: u8::MAX,
            function: CHECKED,
            leads_to: NOWHERE,
            has_events: code.events != BlockEvents::default(),
        });
        self.cold.push((code, [NONE; DOMAINS]));
    }

    /// Sets what the call graph has to know of the last block. `begins` if its function is unknown, but known to begin with it.
    pub fn set_flow(&mut self, flow: &BlockFlow, begins: bool) {
        let Some(hot) = self.hot.last_mut() else { return };
        let unknown = flow.mode.map_or(1, |mode| 1 + mode as u32);
        let function = flow.function.map_or(unknown, |function| FIRST_KNOWN + function.number);
        hot.function = if begins { CHECKED } else { function };
        let stays = matches!(flow.ending, Ending::Next | Ending::Jump | Ending::IndirectJump);
        hot.leads_to = if stays { function } else { NOWHERE };
    }

    /// The blocks by their numbers.
    #[inline]
    pub fn hot_blocks(&mut self) -> &mut [HotBlock] {
        &mut self.hot
    }

    /// Makes a block count for another domain than before.
    #[cold]
    pub fn switch_domain(&mut self, block: BlockId, domain: u8) {
        let hot = &mut self.hot[block.index()];
        self.sites[hot.site.site().index()].executions += std::mem::take(&mut hot.executions);
        let mode = self.cold[block.index()].0.mode as u8;
        let site = &mut self.cold[block.index()].1[usize::from(domain)];
        if *site == NONE {
            *site = u32::try_from(self.sites.len()).unwrap_or(u32::MAX);
            self.sites.push(Site::default());
        }
        (hot.site, hot.domain) = (OwnedSite::new(*site, domain * KINDS + mode), domain);
    }

    /// Counts an access that is in no group.
    pub fn access(&mut self, site: SiteId, write: bool) {
        if let Some(site) = self.sites.get_mut(site.index()) {
            *(if write { &mut site.writes } else { &mut site.reads }) += 1;
        }
    }

    /// The blocks with their counts; `misses` are those of each site.
    pub fn finish(self, misses: &[Counters]) -> Vec<Block> {
        let Self { hot, cold, sites: mut all } = self;
        for hot in &hot {
            all[hot.site.site().index()].executions += hot.executions;
        }
        let blocks = hot.iter().zip(cold).map(|(hot, (code, sites))| {
            let sites = (0u8..).zip(sites).filter(|(_, site)| *site != NONE);
            let total = |site: u32| {
                let Site { executions, reads, writes } = all[site as usize];
                let misses = misses.get(site as usize).copied().unwrap_or_default();
                let events: EventCounts = code.events.map(|count| executions * u64::from(count));
                Counters {
                    executions,
                    events,
                    instructions: executions * u64::from(code.instructions),
                    l1i: executions * u64::from(hot.lines),
                    reads: reads + executions * u64::from(code.reads),
                    writes: writes + executions * u64::from(code.writes),
                    ..misses
                }
            };
            let counters = sites.map(|(domain, site)| (domain, total(site))).collect();
            let BlockCode { address, code, instructions, mode, space, domain, .. } = code;
            Block { address, code, instructions, mode, space, domain, function: 0, counters }
        });
        blocks.collect()
    }
}

/// The number of a block, in the order in which blocks were translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The number as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
