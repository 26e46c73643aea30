//! Two domains: Xen treats another domain's pages differently.

use std::process::Command;
use std::time::{Duration, Instant};

use hypervisor::{
    CopyStatus, Dest, DomId, Error, EventChannel, EvtchnPort, GrantCopy, GrantMap, GrantRef, Guest,
    Hypervisor, MapStatus, MappedGrants, MappedPages, PAGE_SIZE, Source,
};
use shm::{Iovec, Region};
use xen::{Mapping, Peer, XenEvent};

use crate::checks::{Checks, Loopback, Outcome, TIMEOUT, ensure, equal, readable};

/// The key with the guest's grants, below its own directory in the store.
const KEY: &str = "data/pvnet-loopback";
const PAGES: usize = 4;
const DOM0: DomId = DomId(0);

fn pattern(page: usize) -> Vec<u8> {
    (0..PAGE_SIZE).map(|n| (n * 7 + page).to_le_bytes()[0]).collect()
}

/// The guest: grants pages to dom0, and answers its events until the domain ends.
pub fn serve(here: &Loopback) -> Outcome {
    let (pages, grefs) = here.guest.share(DOM0, PAGES)?;
    for page in 0..PAGES {
        pages.copy_in(page * PAGE_SIZE, &pattern(page))?;
    }
    let (event, port) = here.guest.alloc_unbound(DOM0)?;
    let grefs: Vec<_> = grefs.iter().map(GrantRef::to_string).collect();
    here.store.write(None, KEY, &format!("{port} {}", grefs.join(" ")))?;
    println!("LOOPBACK-GUEST");
    loop {
        if readable(&event, TIMEOUT) {
            event.take()?;
            event.notify()?;
        }
    }
}

/// The other domain, as dom0 sees it.
struct Other {
    peer: Peer,
    grefs: Vec<GrantRef>,
    event: XenEvent,
    port: EvtchnPort,
    mapping: Mapping,
}

fn meet(here: &Loopback, domid: &str) -> Result<Other, Box<dyn std::error::Error>> {
    let peer = here.xen.peer(DomId(domid.parse()?))?;
    let key = format!("/local/domain/{domid}/{KEY}");
    let deadline = Instant::now() + Duration::from_secs(60);
    let text = loop {
        match here.store.read(None, &key) {
            Ok(text) => break text,
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let numbers: Vec<u32> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let (port, grefs) = numbers.split_first().ok_or("no port")?;
    let grefs: Vec<_> = grefs.iter().copied().map(GrantRef).collect();
    let port = EvtchnPort(*port);
    let event = here.xen.bind_interdomain(&peer, port)?;
    let mapping = here.xen.map(&peer, &grefs[..2])?;
    here.xen.notify_on_unmap(&mapping, &event);
    Ok(Other { peer, grefs, event, port, mapping })
}

pub fn check(here: &Loopback, domid: &str) -> Checks {
    let mut checks = Checks::default();
    let other = match meet(here, domid) {
        Ok(other) => other,
        Err(error) => {
            checks.check("the other domain grants and is bound", Err(error));
            return checks;
        }
    };
    checks.check("its pages are mapped", is_pattern(&other.mapping, 1));
    checks.check("its pages are copied from and to", copied(here, &other));
    checks.check("one of its mapped pages is copied to its own grant", forwarded(here, &other));
    checks.check("an aperture's page is copied, and gathered by a device", aperture(here, &other));
    checks.check("1,000 events are answered", events(&other));
    checks
        .check("everything ends with the domain, and nothing else does", ended(here, other, domid));
    checks
}

/// Whether the pages of a region up to `last` are the guest's.
fn is_pattern(region: &Region, last: usize) -> Outcome {
    for page in 0..=last {
        let mut bytes = vec![0; PAGE_SIZE];
        region.copy_out(page * PAGE_SIZE, &mut bytes)?;
        ensure(bytes == pattern(page), format!("page {page} differs"))?;
    }
    Ok(())
}

/// A page of the other domain, by a copy.
fn fetch(
    here: &Loopback,
    other: &Other,
    page: usize,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut bytes = vec![0; PAGE_SIZE];
    let source = Source::Grant { peer: &other.peer, gref: other.grefs[page], offset: 0 };
    perform(here, GrantCopy::new(source, Dest::Private(&mut bytes), 4096))?;
    Ok(bytes)
}

fn perform(here: &Loopback, mut op: GrantCopy<'_, Peer>) -> Outcome {
    here.xen.copy(std::slice::from_mut(&mut op));
    equal(op.status, CopyStatus::Okay)
}

fn copied(here: &Loopback, other: &Other) -> Outcome {
    ensure(fetch(here, other, 1)? == pattern(1), "page 1 differs")?;
    let dest = Dest::Grant { peer: &other.peer, gref: other.grefs[2], offset: 5 };
    perform(here, GrantCopy::new(Source::Private(b"written"), dest, 7))?;
    let seen = fetch(here, other, 2)?;
    equal((&seen[5..12], seen[12]), (&b"written"[..], pattern(2)[12]))?;
    let source = Source::Grant { peer: &other.peer, gref: other.grefs[1], offset: 0 };
    let dest = Dest::Grant { peer: &other.peer, gref: other.grefs[3], offset: 0 };
    perform(here, GrantCopy::new(source, dest, 4096))?;
    ensure(fetch(here, other, 3)? == pattern(1), "page 3 differs")
}

/// Copies between mapped pages and granted pages, and between two mapped pages. Xen refuses copies
/// by the address of a mapped page, since it belongs to another domain.
fn forwarded(here: &Loopback, other: &Other) -> Outcome {
    let grefs: Vec<_> = other.grefs.iter().copied().map(Some).collect();
    let pages = &MappedGrants {
        peer: &other.peer,
        pages: MappedPages { region: &other.mapping, grefs: &grefs, frames: None },
    };
    let third = Dest::Grant { peer: &other.peer, gref: other.grefs[2], offset: 9 };
    let first = Source::MappedGrant { pages, place: 1, offset: 1000 };
    perform(here, GrantCopy::new(first, third, 3000))?;
    ensure(fetch(here, other, 2)?[9..3009] == pattern(1)[1000..4000], "other bytes came")?;
    let third = Source::Grant { peer: &other.peer, gref: other.grefs[2], offset: 9 };
    let last = Dest::MappedGrant { pages, place: 0, offset: 50 };
    perform(here, GrantCopy::new(third, last, 3000))?;
    ensure(fetch(here, other, 0)?[50..3050] == pattern(1)[1000..4000], "other bytes came back")?;
    let first = Source::MappedGrant { pages, place: 1, offset: 7 };
    let last = Dest::MappedGrant { pages, place: 0, offset: 0 };
    perform(here, GrantCopy::new(first, last, 4000))?;
    ensure(fetch(here, other, 0)?[..4000] == pattern(1)[7..4007], "other bytes came across")?;
    let as_before = pattern(0);
    let last = Dest::MappedGrant { pages, place: 0, offset: 0 };
    perform(here, GrantCopy::new(Source::Private(&as_before), last, 4096))
}

fn aperture(here: &Loopback, other: &Other) -> Outcome {
    let (pages, own) = here.guest.share(here.domid, 1)?;
    let mut aperture = here.xen.aperture(&other.peer, 4)?;
    let grefs = [None, None, None, Some(other.grefs[1])];
    let mut batch = [GrantMap::new(3, other.grefs[1])];
    here.xen.map_at(&mut aperture, &mut batch);
    equal(batch[0].status, MapStatus::Okay)?;
    let offset = 3 * PAGE_SIZE + 10;
    let region = &*aperture;
    let dest = Dest::Grant { peer: &here.peer, gref: own[0], offset: 0 };
    let mapped = &MappedGrants {
        peer: &other.peer,
        pages: MappedPages { region, grefs: &grefs, frames: None },
    };
    let source = Source::MappedGrant { pages: mapped, place: 3, offset: 10 };
    perform(here, GrantCopy::new(source, dest, 100))?;
    let mut bytes = [0; 100];
    pages.copy_out(0, &mut bytes)?;
    equal(&bytes[..], &pattern(1)[10..110])?;
    let (reader, writer) = rustix::pipe::pipe()?;
    shm::writev(&writer, [Iovec::Shared { region, offset, len: 100 }])?;
    let mut bytes = [0; 100];
    rustix::io::read(&reader, &mut bytes)?;
    equal(&bytes[..], &pattern(1)[10..110])
}

fn events(other: &Other) -> Outcome {
    other.event.take()?;
    for _ in 0..1000 {
        other.event.notify()?;
        ensure(readable(&other.event, TIMEOUT), "no answer")?;
        other.event.take()?;
    }
    Ok(())
}

fn ended(here: &Loopback, other: Other, domid: &str) -> Outcome {
    let Other { peer, grefs, event, port, mapping } = other;
    ensure(Command::new("xl").args(["destroy", domid]).status()?.success(), "xl destroy")?;
    let mut byte = [0];
    let source = Source::Grant { peer: &peer, gref: grefs[0], offset: 0 };
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut byte), 1)];
    here.xen.copy(&mut batch);
    equal(batch[0].status, CopyStatus::BadSource)?;
    // Page 3 is not mapped. A mapped page would be kept by Xen and mapped again.
    let mapped = here.xen.map(&peer, &grefs[3..]);
    ensure(matches!(mapped, Err(Error::BadGrant { .. })), format!("{mapped:?}"))?;
    let bound = here.xen.bind_interdomain(&peer, port);
    let refused = matches!(bound, Err(Error::NoDomain(_) | Error::BadPort { .. }));
    ensure(refused, format!("{bound:?}"))?;
    // Mapped pages stay as long as the mapping.
    is_pattern(&mapping, 1)?;
    event.notify()?;
    event.take()?;
    drop((mapping, event));
    Ok(())
}
