//! How much of a guest's memory large pages map while it works. This file runs itself again as the guest.
//!
//! `cargo test -p machine --test coverage -- --nocapture` shows the figures.

mod harness;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypervisor::flip::{GrantTransfer, PageReceiver, PageTransfer, TransferStatus};
use hypervisor::{GrantRef, Guest, Hypervisor, PAGE_SIZE};
use machine::{AddressSpace, Coverage, DRIVER_DOMAIN, Domain, Grouping, MemorySize, join};
use shm::{PageSize, Region, create_memfd};

use harness::{Host, Process, SOCKET, say};

const BLOCK: usize = PageSize::Huge.bytes() / PAGE_SIZE;
const BLOCKS: usize = 16;
const PAGES: usize = BLOCKS * BLOCK;
const AREA: usize = 64;
const SIZE: MemorySize = MemorySize {
    pages: PAGES,
    grant_pages: 1,
    exchange_pages: AREA,
    page_size: PageSize::Huge,
    sealed: false,
    secret: false,
};

/// The guest's process, if this is one: where to join.
fn socket() -> Option<PathBuf> {
    std::env::var_os(SOCKET).map(PathBuf::from)
}

/// A guest's memory as this process and the guest's have it mapped.
struct Views {
    host: Coverage,
    guest: Coverage,
}

impl Views {
    fn of(peer: &Arc<Domain>, when: &str) -> Self {
        let process = peer.process().expect("the guest's process is known");
        let host = peer.coverage(&AddressSpace::of_self().unwrap());
        let guest = peer.coverage(&AddressSpace::of_process(process).unwrap());
        for (whose, Coverage { large, total }) in [("host", host), ("guest", guest)] {
            println!("{when}, {whose}: {} of {} kB by large pages", large / 1024, total / 1024);
        }
        Self { host, guest }
    }

    /// Blocks that large pages map, here and in the guest.
    fn blocks(&self) -> [u64; 2] {
        [self.host, self.guest].map(|view| view.large / PageSize::Huge.bytes() as u64)
    }
}

/// Whether the kernel has this many large pages to give to shared memory that is mapped at multiples of 2 MiB.
fn has_large_pages(blocks: usize) -> bool {
    let memory = create_memfd("pvnet-probe", blocks * BLOCK, PageSize::Huge).unwrap();
    let len = blocks * PageSize::Huge.bytes();
    let region = Region::map_aligned(memory, 0, len).unwrap();
    let mut each = (0..len).step_by(PageSize::Huge.bytes());
    each.all(|first| region.populate_huge(first..first + PageSize::Huge.bytes()).is_ok())
}

/// Asks the kernel to make free memory whole, which it may not let this process do.
fn compact_memory() {
    let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
}

/// A guest that runs `test`. None, with a message, if there are too few large pages for its memory. Fails if guests
/// have too few although there were enough.
fn start(test: &str) -> Option<(Host, Process, Arc<Domain>)> {
    let mut seen = Vec::new();
    for _ in 0..5 {
        if !has_large_pages(BLOCKS) {
            compact_memory();
            continue;
        }
        let host = Host::new(test, SIZE);
        let mut process = host.guest(test);
        process.hear();
        let peer = host.machine.peer(host.machine.list()[0]).unwrap();
        let blocks = Views::of(&peer, "at the start").blocks();
        if blocks == [BLOCKS as u64; 2] {
            return Some((host, process, peer));
        }
        // The other tests of this file take large pages at the same time. So this counts only if as many again are left.
        if has_large_pages(BLOCKS) {
            seen.push(blocks);
        }
    }
    assert!(seen.len() < 3, "large pages were there, and the guest has {seen:?}");
    eprintln!("skipped: this kernel has too few 2 MiB pages to give to shared memory");
    None
}

/// In the guest's process: takes pages three times, as many as there are, and works meanwhile.
fn receive(socket: &Path, grouping: Grouping) {
    let (guest, _store) = join(socket, "guest").unwrap();
    guest.group(grouping);
    let (own, _) = guest.share(DRIVER_DOMAIN, 300).unwrap();
    say(&[]);
    for round in 1..=3u32 {
        let (mut slots, grefs): (Vec<_>, Vec<_>) =
            (0..AREA).map(|_| guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
        say(&grefs.iter().map(|gref| gref.0).collect::<Vec<_>>());
        let pages: Vec<_> =
            slots.iter_mut().map(|slot| slot.claim().unwrap().expect("a page")).collect();
        let whole = (0..).zip(&pages).all(|(n, page)| page.read(0) == Ok(round * 1000 + n));
        (0..300).for_each(|page| own.write(page * PAGE_SIZE, round).unwrap());
        say(&[whole.into()]);
        drop(pages);
        guest.surrender().unwrap();
        say(&[]);
    }
}

/// Sends the guest its pages; returns what was mapped while it had them, and afterwards.
fn send(test: &str) -> Option<Vec<[u64; 2]>> {
    let (host, mut process, peer) = start(test)?;
    process.tell();
    let mut seen = Vec::new();
    for round in 1..=3u32 {
        let grefs = process.hear();
        for (n, gref) in (0..).zip(grefs) {
            let page = host.machine.take_page(&peer).unwrap();
            page.write(0, round * 1000 + n).unwrap();
            let mut batch = [GrantTransfer::new(&peer, GrantRef(gref), page)];
            host.machine.transfer(&mut batch);
            assert_eq!(batch[0].status, TransferStatus::Okay);
        }
        process.tell();
        assert_eq!(process.hear(), [1], "what was sent has come");
        seen.push(Views::of(&peer, &format!("with {AREA} pages mapped")).blocks());
        process.tell();
        process.hear();
        seen.push(Views::of(&peer, "with none mapped").blocks());
        process.tell();
    }
    Some(seen)
}

#[test]
fn grouped_pages_leave_ordinary_memory_in_large_pages() {
    const TEST: &str = "grouped_pages_leave_ordinary_memory_in_large_pages";
    if let Some(socket) = socket() {
        return receive(&socket, Grouping::Grouped);
    }
    let Some(seen) = send(TEST) else { return };
    assert_eq!(seen, [[BLOCKS as u64; 2]; 6]);
}

#[test]
fn scattered_pages_break_blocks() {
    const TEST: &str = "scattered_pages_break_blocks";
    if let Some(socket) = socket() {
        return receive(&socket, Grouping::Scattered);
    }
    let Some(seen) = send(TEST) else { return };
    // There is a place in each block, and a mapping that was split stays so.
    assert_eq!(seen, [[BLOCKS as u64, 0]; 6]);
}

/// In the guest's process: has as many pages as each step says.
fn balloon(socket: &Path, steps: &[usize]) {
    let (guest, _store) = join(socket, "guest").unwrap();
    let _own = guest.share(DRIVER_DOMAIN, 300).unwrap();
    say(&[]);
    for target in steps {
        guest.set_reservation(*target).unwrap();
        say(&[u32::try_from(guest.reservation()).unwrap()]);
    }
}

#[test]
fn a_coarse_balloon_leaves_blocks_whole_and_a_fine_one_breaks_one() {
    const TEST: &str = "a_coarse_balloon_leaves_blocks_whole_and_a_fine_one_breaks_one";
    let (coarse, fine) = (PAGES - 4 * BLOCK, PAGES - 4 * BLOCK - 10);
    let steps = [
        ("4 blocks given up", coarse, BLOCKS - 4),
        ("10 pages more", fine, BLOCKS - 5),
        ("20 pages more", fine - 20, BLOCKS - 5),
        ("one block taken back", fine - 20 + BLOCK, BLOCKS - 4),
        ("all taken back", PAGES, BLOCKS),
    ];
    if let Some(socket) = socket() {
        return balloon(&socket, &steps.map(|(_, target, _)| target));
    }
    let Some((_host, mut process, peer)) = start(TEST) else { return };
    for (when, target, blocks) in steps {
        process.tell();
        assert_eq!(process.hear(), [u32::try_from(target).unwrap()]);
        let views = Views::of(&peer, when);
        assert_eq!(views.blocks(), [blocks as u64; 2], "{when}");
        assert_eq!(views.guest.total, (target * PAGE_SIZE) as u64);
        assert_eq!(peer.pages_out(), PAGES - target);
    }
    process.tell();
}
