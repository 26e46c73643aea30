//! The four-level page tables of x86-64.

/// The guest's physical memory.
pub trait PhysicalMemory {
    /// Eight aligned bytes at a physical address; none where there is no memory.
    fn read(&self, address: u64) -> Option<u64>;

    /// The end of memory: no memory lies at this address or above.
    fn end(&self) -> u64;
}

/// What the control registers say about paging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    /// The address space: CR3 without its flags and its PCID.
    pub root: u64,
    /// CR3's PCID, or 0 without CR4.PCIDE.
    pub pcid: u16,
    /// CR4.PCIDE: TLB entries have PCIDs.
    pub tagged: bool,
    /// CR4.PGE: pages can be global.
    pub global: bool,
}

impl Paging {
    /// Applies a write of a control register. Returns whether it flushes global pages too.
    pub fn apply(&mut self, what: Flush) -> bool {
        let before = *self;
        match what {
            Flush::Cr3(value) => {
                self.root = value & !(1 << 63) & !0xfff;
                self.pcid = if self.tagged { (value & 0xfff) as u16 } else { 0 };
            }
            Flush::Cr4(value) => {
                self.global = value & 1 << 7 != 0;
                self.tagged = value & 1 << 17 != 0;
            }
            Flush::Page(_) | Flush::Pcid(..) => {}
        }
        let switched = (before.global, before.tagged) != (self.global, self.tagged);
        switched || matches!(what, Flush::Pcid(2, ..))
    }
}

/// The size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
}

impl PageSize {
    /// The base-2 logarithm of its bytes.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Large => 21,
            Self::Huge => 30,
        }
    }
}

/// Where a virtual page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical address of the page's first byte.
    pub base: u64,
    /// The page's size.
    pub size: PageSize,
    /// Whether its entry is global and CR4.PGE is set.
    pub global: bool,
    /// Whether its entry permits writes.
    pub writable: bool,
    /// The physical address of the page table that holds the entry.
    pub table: u64,
}

impl Translation {
    /// The physical address of a virtual one within the page.
    #[inline]
    #[must_use]
    pub fn physical(&self, address: u64) -> u64 {
        self.base | (address & ((1 << self.size.bits()) - 1))
    }
}

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
/// The address in an entry: bits 51 to 12.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Walks the page tables as the processor does at a TLB miss. Returns none where nothing is mapped.
pub fn walk(memory: &impl PhysicalMemory, paging: Paging, address: u64) -> Option<Translation> {
    let mut table = paging.root & ADDRESS;
    for (shift, size) in
        [(39, None), (30, Some(PageSize::Huge)), (21, Some(PageSize::Large)), (12, None)]
    {
        let entry = memory.read(table + ((address >> shift) & 0x1ff) * 8)?;
        if entry & PRESENT == 0 {
            return None;
        }
        let leaf = match size {
            Some(size) if entry & LARGE != 0 => Some(size),
            _ if shift == 12 => Some(PageSize::Small),
            _ => None,
        };
        if let Some(size) = leaf {
            let base = entry & ADDRESS & !((1 << size.bits()) - 1);
            let global = paging.global && entry & GLOBAL != 0;
            let writable = entry & WRITABLE != 0;
            return Some(Translation { base, size, global, writable, table });
        }
        table = entry & ADDRESS;
    }
    None
}

/// Whether the 512 pages of a lowest-level table could be one large page: all are present with the same rights. (Whether they
/// are physically contiguous is ignored, since the pages of a paravirtual guest never are.)
pub fn is_uniform(memory: &impl PhysicalMemory, table: u64) -> bool {
    /// Present, writable, user, no-execute.
    const RIGHTS: u64 = PRESENT | WRITABLE | 4 | 1 << 63;
    let rights = |n: u64| memory.read(table + n * 8).map_or(0, |entry| entry & RIGHTS);
    let first = rights(0);
    first & PRESENT != 0 && (1..512).all(|n| rights(n) == first)
}

/// An instruction that empties TLBs, entirely or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// A write of CR3: its new value.
    Cr3(u64),
    /// A write of CR4: its new value.
    Cr4(u64),
    /// INVLPG: the address.
    Page(u64),
    /// INVPCID: its type, the PCID, the address.
    Pcid(u64, u16, u64),
}

/// Where such an instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushSite {
    /// In the hypervisor's function that changes the address space for another process or domain: Xen's `switch_cr3_cr4`.
    NewSpace,
    /// Anywhere else: a change between the page tables of one process, or an explicit flush.
    Elsewhere,
}
