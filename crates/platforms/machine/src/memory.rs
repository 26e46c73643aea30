//! How much memory a domain has, and the large pages behind it.

use std::ops::Range;
use std::os::fd::OwnedFd;

use hypervisor::{DomId, PAGE_SIZE};
use shm::{PageSize, Region, create_secret_file};
use tracing::warn;

/// Pages of 4 KiB in a large page.
pub(crate) const BLOCK_PAGES: usize = PageSize::Huge.bytes() / PAGE_SIZE;

/// How much memory a domain gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySize {
    /// Pages of 4 KiB, the grant table's included. They cost nothing until they are touched.
    pub pages: usize,
    /// How many of them, at the start, hold the grant table.
    pub grant_pages: usize,
    /// Pages behind the ordinary ones that the driver domain and the guest transfer to each other, in
    /// all. Each may take a mapping on either side, and a process has 65530 of them (`vm.max_map_count`).
    pub exchange_pages: usize,
    /// The size of the pages behind the memory.
    pub page_size: PageSize,
    /// Whether the memory stays as it is: nobody can make holes in it, and the guest can give up none
    /// of it. Not with exchange pages, which are mapped later. See
    /// docs/decisions/0014-holes-in-shared-memory.md.
    pub sealed: bool,
    /// Whether the memory is a secret file, if the kernel has secret files: nobody can make holes in it
    /// either, and it can be mapped later. Not with 2 MiB pages, and not with exchange pages. See
    /// docs/decisions/0021-memory-that-cards-map-later.md.
    pub secret: bool,
}

impl Default for MemorySize {
    /// 64 MiB, of which 16 pages are grants (8192 references): enough for 8 queues. No
    /// transfers, and not sealed.
    fn default() -> Self {
        let page_size = PageSize::Small;
        let (sealed, secret) = (false, false);
        Self { pages: 16_384, grant_pages: 16, exchange_pages: 0, page_size, sealed, secret }
    }
}

/// Secret memory for a domain, mapped. None if the kernel has none, or if this process may not lock so much.
pub(crate) fn secret_memory(id: DomId, size: MemorySize) -> Option<(OwnedFd, Region)> {
    let create = || {
        let fd = create_secret_file(size.pages)?;
        let memory = Region::map_aligned(&fd, 0, size.pages * PAGE_SIZE)?;
        Ok((fd, memory))
    };
    let created: std::io::Result<_> = create();
    let warn = |error: &std::io::Error| {
        warn!(domain = id.0, %error, "no secret memory: the guest can make holes in its memory, which make its card wait; \
             secretmem.enable must be on, and the limit of locked memory above memory_mib");
    };
    created.inspect_err(warn).ok()
}

/// Populates a new domain's memory with 2 MiB pages, if it asks for them, and warns if there are
/// none.
pub(crate) fn populate(id: DomId, size: MemorySize, memory: &Region) {
    // Block by block, because other threads of this process cannot map or unmap meanwhile.
    let mut blocks = (0..size.pages).step_by(BLOCK_PAGES);
    let populated = blocks.try_for_each(|first| {
        populate_huge(size, memory, first..size.pages.min(first + BLOCK_PAGES))
    });
    if let Err(error) = populated {
        warn!(domain = id.0, %error, "no 2 MiB pages: going on with 4 KiB; \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled must not be deny, and memory \
             must be free in blocks of 2 MiB");
    }
}

/// Populates a block that is whole again, if there is a 2 MiB page for it. A guest can cause this
/// at any rate, so nothing is logged.
pub(crate) fn repopulate(size: MemorySize, memory: &Region, block: Range<usize>) {
    let _ = populate_huge(size, memory, block);
}

fn populate_huge(size: MemorySize, memory: &Region, pages: Range<usize>) -> std::io::Result<()> {
    match size.page_size {
        PageSize::Huge => memory.populate_huge(pages.start * PAGE_SIZE..pages.end * PAGE_SIZE),
        PageSize::Small => Ok(()),
    }
}
