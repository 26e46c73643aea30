//! Which pages the kernel gives a domain's memory.

use shm::PageSize;

use super::*;
use crate::coverage::{AddressSpace, Coverage};

fn coverage(domain: &Domain) -> Coverage {
    domain.coverage(&AddressSpace::of_self().unwrap())
}

#[test]
fn memory_gets_large_pages_if_it_asks_for_them() {
    let size = MemorySize { pages: 2048, page_size: PageSize::Huge, ..MemorySize::default() };
    let domain = Domain::new(DomId(7001), size, Share::default(), 512).unwrap();
    if domain.memory().populate_huge(0..2048 * PAGE_SIZE).is_err() {
        eprintln!("skipped: this kernel has no 2 MiB pages to give");
        return;
    }
    assert_eq!(coverage(&domain), Coverage { large: 8 << 20, total: 8 << 20 });
}

#[test]
fn small_pages_are_allocated_at_first_use() {
    let domain = Domain::new(DomId(7002), MemorySize::default(), Share::default(), 512).unwrap();
    domain.memory().write(0, 1u8).unwrap();
    assert_eq!(coverage(&domain), Coverage { large: 0, total: 64 << 20 });
    assert_eq!(rustix::fs::fstat(domain.fd()).unwrap().st_blocks, 8);
}
