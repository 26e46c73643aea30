//! Follows the execution for layouts: which sections of the program it uses, without interrupts.

use scope_model::{
    Config, CostEvent, FixedPage, Flush, LayoutMisses, Layouts, LineId, Mapping, PAGE_SLOTS,
    Paging, Section, Side,
};
use scope_result::{BlockMisses, LayoutCounts, Mode};

use crate::blocks::{BlockCode, BlockId};
use crate::layout_plan::{LayoutPlan, find};

const PAGE: u64 = 4096;
const LINE: u64 = scope_model::LINE as u64;

/// Where a block or a page lies: in a section that moves, or at the same address in each layout.
#[derive(Clone, Copy, Debug)]
enum Place {
    Fixed,
    /// The number of the section, and the bytes from its start.
    Moved(usize, u64),
}

/// What the execution of a block means for layouts.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    place: Place,
    address: u64,
    bytes: u64,
    crossing: Crossing,
}

/// Whether a block enters the kernel or returns from it, other than for a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    None,
    Interrupt,
    Exception,
    Return,
}

#[derive(Clone, Copy, Debug)]
struct MappedPage {
    page: u64,
    mapping: Mapping,
    place: Place,
}

/// Layouts, and what they have to know of the machine.
///
/// Whether an interrupt falls into a window, and at which instruction, differs between versions of a program. So the layouts do
/// not see interrupts, from the kernel's entry to the return from it.
#[derive(Debug)]
pub struct LayoutTrace {
    plan: LayoutPlan,
    /// The root of the program's page tables.
    root: u64,
    layouts: Layouts,
    blocks: Vec<BlockPlace>,
    misses: Vec<BlockMisses>,
    /// The mapped pages, by side and by the slot of a [`LineId`].
    pages: [Box<[MappedPage]>; 2],
    block: usize,
    /// Interrupts that have not returned, and exceptions within them.
    interrupts: u32,
    /// Whether the block is part of no interrupt, so that the layouts see it.
    is_seen: bool,
}

impl LayoutTrace {
    /// Layouts of the program whose page tables are current.
    pub fn new(plan: LayoutPlan, config: Config, paging: Paging, lines: u64) -> Self {
        let sections = plan.code.iter().chain(&plan.data).map(|placed| placed.section);
        let sections: Vec<Section> = sections.collect();
        let unmapped = MappedPage { page: 0, mapping: Mapping::UNMAPPED, place: Place::Fixed };
        Self {
            layouts: Layouts::new(config, paging, lines, &sections),
            root: paging.root,
            plan,
            blocks: Vec::new(),
            misses: Vec::new(),
            pages: [(); 2].map(|()| vec![unmapped; PAGE_SLOTS].into()),
            block: 0,
            interrupts: 0,
            is_seen: true,
        }
    }

    /// Adds the next block.
    pub fn add(&mut self, code: &BlockCode) {
        let (address, bytes) = code.range();
        let is_own = code.mode() == Mode::User && code.space() == self.root;
        let found = find(&self.plan.code, address).filter(|_| is_own);
        let place = found.map_or(Place::Fixed, |(section, offset)| Place::Moved(section, offset));
        let crossing = if self.plan.interrupts.contains(&address) {
            Crossing::Interrupt
        } else if self.plan.exceptions.contains(&address) {
            Crossing::Exception
        } else if code.count_of(CostEvent::Iret) > 0 {
            Crossing::Return
        } else {
            Crossing::None
        };
        self.blocks.push(BlockPlace { place, address, bytes, crossing });
        self.misses.push(BlockMisses::default());
    }

    /// A page is mapped, which is used from here on.
    pub fn map(&mut self, side: Side, page: u64, mapping: Mapping) {
        let found = find(&self.plan.data, page * PAGE).filter(|_| side == Side::Data);
        let before = self.plan.code.len();
        let place =
            found.map_or(Place::Fixed, |(section, offset)| Place::Moved(before + section, offset));
        self.pages[side as usize][slot(page * PAGE)] = MappedPage { page, mapping, place };
    }

    /// A block is executed.
    #[inline]
    pub fn execute(&mut self, block: BlockId) {
        let Some(&BlockPlace { place, address, bytes, crossing }) = self.blocks.get(block.index())
        else {
            return;
        };
        self.block = block.index();
        let crosses = crossing != Crossing::None && self.crosses(crossing);
        self.is_seen = !crosses && self.interrupts == 0;
        if !self.is_seen {
            return;
        }
        let misses = match place {
            Place::Moved(section, offset) => {
                self.layouts.moved(Side::Code, section, (offset, bytes)).code
            }
            Place::Fixed => {
                let lines = address / LINE..=(address + bytes.max(1) - 1) / LINE;
                lines.map(|line| self.fixed_line(Side::Code, line * LINE)).sum()
            }
        };
        self.misses[self.block].lines += misses;
    }

    /// Counts interrupts. Returns whether the block is part of one.
    #[cold]
    fn crosses(&mut self, crossing: Crossing) -> bool {
        let was = self.interrupts;
        match crossing {
            Crossing::Interrupt => self.interrupts += 1,
            Crossing::Exception if was > 0 => self.interrupts += 1,
            Crossing::Return => self.interrupts = was.saturating_sub(1),
            Crossing::None | Crossing::Exception => {}
        }
        was > 0
    }

    /// Accesses the bytes from an address to `length` bytes further on. The bits of a [`LineId`] of the address suffice.
    #[inline]
    pub fn data(&mut self, (address, length): (u64, u64)) {
        if !self.is_seen {
            return;
        }
        let mapped = self.pages[Side::Data as usize][slot(address)];
        let (lines, pages) = match mapped.place {
            Place::Moved(section, offset) => {
                let bytes = (offset + address % PAGE, length + 1);
                let LayoutMisses { data, pages, .. } =
                    self.layouts.moved(Side::Data, section, bytes);
                (data, pages)
            }
            Place::Fixed => self.fixed_data(address, length),
        };
        let misses = self.misses.get_mut(self.block);
        if let Some(misses) = misses {
            misses.lines += lines;
            misses.pages += pages;
        }
    }

    /// Accesses data that does not move. Returns the lines and the pages that all layouts together missed.
    #[inline]
    fn fixed_data(&mut self, address: u64, length: u64) -> (u64, u64) {
        let last = address.wrapping_add(length);
        let mut missed = (self.fixed_line(Side::Data, address), self.fixed_page(address));
        if LineId::of(Side::Data, address) != LineId::of(Side::Data, last) {
            missed.0 += self.fixed_line(Side::Data, last);
            missed.1 += self.fixed_page(last);
        }
        missed
    }

    #[inline]
    fn fixed_line(&mut self, side: Side, address: u64) -> u64 {
        let frame = self.pages[side as usize][slot(address)].mapping.frame;
        self.layouts.fixed(side, frame + address % PAGE / LINE)
    }

    #[inline]
    fn fixed_page(&mut self, address: u64) -> u64 {
        let MappedPage { page, mapping, .. } = self.pages[Side::Data as usize][slot(address)];
        self.layouts.fixed_page(FixedPage { page, mapping })
    }

    /// Applies an instruction that empties TLBs.
    pub fn flush(&mut self, what: Flush) {
        let moved = match what {
            Flush::Page(address) | Flush::Pcid(0, _, address) => {
                find(&self.plan.data, address).is_some()
            }
            _ => false,
        };
        self.layouts.flush(what, moved);
    }

    /// Returns the counts.
    pub fn finish(self) -> LayoutCounts {
        LayoutCounts { layouts: self.layouts.misses().collect(), blocks: self.misses }
    }
}

/// The slot of a page in the tables here, as in a [`LineId`].
#[inline]
fn slot(address: u64) -> usize {
    usize::try_from(address / PAGE % PAGE_SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use scope_model::{LAYOUTS, PageSize, Preset, TlbSet};

    use super::*;
    use crate::access_groups::Accesses;
    use crate::cost_events::BlockEvents;
    use crate::layout_plan::PlacedSection;

    const PAGING: Paging = Paging { root: 0x1000, pcid: 0, tagged: false, global: true };
    const PROGRAM: u64 = 0x40_0000;
    const STACK: u64 = 0x7fff_0000;
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    /// A function of the program, another program's block at the same address, and the kernel: its entries for an interrupt and
    /// for an exception, its work, and its return from either.
    const OWN: BlockId = BlockId(0);
    const FOREIGN: BlockId = BlockId(1);
    const INTERRUPT: BlockId = BlockId(2);
    const EXCEPTION: BlockId = BlockId(3);
    const WORK: BlockId = BlockId(4);
    const RETURN: BlockId = BlockId(5);

    fn trace() -> LayoutTrace {
        let placed = |start, bytes, align| PlacedSection {
            start,
            section: Section { seed: start, bytes, align },
        };
        let plan = LayoutPlan {
            code: vec![placed(PROGRAM, 0x400, 16)],
            data: vec![placed(STACK, 0x2000, 16)],
            interrupts: vec![KERNEL],
            exceptions: vec![KERNEL + 0x100],
        };
        let mut trace = LayoutTrace::new(plan, Preset::Server.config(), PAGING, 1 << 24);
        let iret = {
            let mut events = BlockEvents::default();
            events[CostEvent::Iret as usize] = 1;
            events
        };
        let none = BlockEvents::default();
        for (address, events, space, mode) in [
            (PROGRAM, none, PAGING.root, Mode::User),
            (PROGRAM, none, 0x9000, Mode::User),
            (KERNEL, none, 0, Mode::Kernel),
            (KERNEL + 0x100, none, 0, Mode::Kernel),
            (KERNEL + 0x200, none, 0, Mode::Kernel),
            (KERNEL + 0x300, iret, 0, Mode::Kernel),
        ] {
            let counted = (4, &Accesses::default(), events);
            let code = vec![0x90; 60];
            trace.add(&BlockCode::new(address, code, counted, (space, 0, mode)));
        }
        let frames = [
            (Side::Code, PROGRAM),
            (Side::Code, KERNEL),
            (Side::Data, STACK),
            (Side::Data, STACK + PAGE),
        ];
        for (number, (side, address)) in (0..).zip(frames) {
            let size = Some(PageSize::Small);
            let mapping = Mapping { frame: number * 64, size, global: false, large: TlbSet::NONE };
            trace.map(side, address / PAGE, mapping);
        }
        trace
    }

    /// The counts of blocks that are executed one after the other, each with an access to the stack.
    fn counts(blocks: &[BlockId]) -> LayoutCounts {
        let mut trace = trace();
        for block in blocks {
            trace.execute(*block);
            trace.data((STACK + 64 * u64::from(block.0), 7));
        }
        trace.finish()
    }

    #[test]
    fn interrupts_are_not_seen() {
        let quiet = counts(&[OWN, WORK, OWN]);
        assert_eq!(counts(&[OWN, INTERRUPT, WORK, RETURN, WORK, OWN]), quiet);
        // An exception within an interrupt returns to it.
        let nested = [OWN, INTERRUPT, EXCEPTION, WORK, RETURN, WORK, RETURN, WORK, OWN];
        assert_eq!(counts(&nested), quiet);
        // An exception outside of interrupts is the program's.
        let fault = counts(&[OWN, EXCEPTION, WORK, RETURN, OWN]);
        assert!(fault.blocks[3].lines > 0 && fault.blocks[5].lines > 0, "{fault:?}");
    }

    #[test]
    fn a_block_is_counted_for_what_it_misses_under_all_layouts() {
        let counts = counts(&[OWN, FOREIGN, WORK, OWN]);
        let sum = |of: fn(&LayoutMisses) -> u64| counts.layouts.iter().map(of).sum::<u64>();
        let lines: u64 = counts.blocks.iter().map(|misses| misses.lines).sum();
        let pages: u64 = counts.blocks.iter().map(|misses| misses.pages).sum();
        assert_eq!((lines, pages), (sum(|of| of.code + of.data), sum(|of| of.pages)));
        // 60 bytes lie in one line, or in two if they do not begin with it.
        let layouts = LAYOUTS as u64;
        assert_eq!(sum(|of| of.code), layouts * 3 + layouts * 3 / 4);
        assert!(pages >= layouts, "{pages}");
    }

    /// The counts of a program of these functions, linked in this order, that calls one after the other. Each function is `more`
    /// bytes longer than in the other version of the program.
    fn linked(order: &[u64], calls: &[u64], more: u64) -> Vec<LayoutMisses> {
        let bytes = |function: u64| 0x90 + function * 0x70 + more;
        let mut at = PROGRAM;
        let place = |function: &u64| {
            let section = Section { seed: *function, bytes: bytes(*function), align: 16 };
            let start = at;
            at += (section.bytes + 15) & !15;
            PlacedSection { start, section }
        };
        let mut code: Vec<PlacedSection> = order.iter().map(place).collect();
        code.sort_by_key(|placed| placed.start);
        let start = |function: u64| {
            code.iter()
                .find(|placed| placed.section.seed == function)
                .map_or(0, |placed| placed.start)
        };
        let mut blocks: Vec<BlockCode> = Vec::new();
        for function in 0..order.len() as u64 {
            let nothing = Accesses::default();
            let counted = (9, &nothing, BlockEvents::default());
            blocks.push(BlockCode::new(
                start(function),
                vec![0x90; usize::try_from(bytes(function)).unwrap()],
                counted,
                (PAGING.root, 0, Mode::User),
            ));
        }
        let plan = LayoutPlan { code, ..LayoutPlan::default() };
        let mut trace = LayoutTrace::new(plan, Preset::Server.config(), PAGING, 1 << 24);
        blocks.iter().for_each(|block| trace.add(block));
        for function in calls {
            trace.execute(BlockId(u32::try_from(*function).unwrap()));
        }
        trace.finish().layouts
    }

    #[test]
    fn another_order_of_functions_changes_nothing_and_a_longer_function_does() {
        let order: Vec<u64> = (0..30).collect();
        let calls: Vec<u64> = (0..3000).map(|number| number * number % 30).collect();
        let other: Vec<u64> = (0..30).map(|number| number * 7 % 30).collect();
        let counts = linked(&order, &calls, 0);
        assert_eq!(linked(&other, &calls, 0), counts);
        assert_eq!(linked(&order.iter().rev().copied().collect::<Vec<_>>(), &calls, 0), counts);
        let code = |counts: &[LayoutMisses]| counts.iter().map(|misses| misses.code).sum::<u64>();
        assert!(code(&linked(&order, &calls, 64)) > code(&counts));
    }
}
