//! Pages: shared, mapped, copied, taken back.

use std::fs;

use hypervisor::{
    CopyStatus, Dest, Error, GrantCopy, GrantMap, GrantRef, Guest, Hypervisor, MapStatus,
    PAGE_SIZE, Source,
};
use shm::Region;
use xen::Peer;

use crate::{Checks, Here, Outcome, ensure, equal};

/// A reference without a grant.
const NOWHERE: GrantRef = GrantRef(0x00ff_fff0);
/// How many pages gntalloc grants in all.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

pub fn check(here: &Here, checks: &mut Checks) {
    checks.check("shared pages are zeroed", zeroed(here));
    checks.check("mapped pages are the owner's, in the order asked for", mapped(here));
    checks.check("copies of every kind bring the right bytes", copied(here));
    checks.check("a batch of 200 is split and comes whole", batched(here));
    checks.check("a bad copy is blamed on the right side, and on it alone", blamed(here));
    checks.check("memory out of reach costs its own copy only", unreachable(here));
    checks.check("a bad grant among others is named", named(here));
    checks.check("300 refused mappings leave nothing behind", refused(here));
    checks.check("an aperture's pages come and go", aperture(here));
    checks.check("an aperture refuses taken places and bad grants, and goes on", crowded(here));
    checks.check("pages taken back are granted no more", revoked(here));
    checks.check("a mapped page outlives its owner's interest", outlived(here));
    checks.check("gntalloc's limit is reached with advice, and all pages come back", limit(here));
    checks.check("transfers are refused with a reason", transfers(here));
}

fn zeroed(here: &Here) -> Outcome {
    let (pages, grefs) = here.guest.share(here.domid, 3)?;
    equal((pages.len(), grefs.len()), (3 * PAGE_SIZE, 3))?;
    let mut bytes = vec![1; pages.len()];
    pages.copy_out(0, &mut bytes)?;
    ensure(bytes.iter().all(|byte| *byte == 0), "some byte is not zero")
}

fn mapped(here: &Here) -> Outcome {
    let (pages, grefs) = here.guest.share(here.domid, 3)?;
    let mapping = here.xen.map(&here.peer, &[grefs[2], grefs[0]])?;
    pages.write(2 * PAGE_SIZE + 5, 77u8)?;
    equal(mapping.read(5)?, 77u8)?;
    mapping.write(PAGE_SIZE, 78u8)?;
    equal(pages.read(0)?, 78u8)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + 3).to_le_bytes()[0]).collect()
}

fn grant(peer: &Peer, gref: GrantRef, offset: u16) -> Source<'_, Peer> {
    Source::Grant { peer, gref, offset }
}

fn to_grant<'a>(peer: &'a Peer, gref: GrantRef, offset: u16) -> Dest<'a, Peer> {
    Dest::Grant { peer, gref, offset }
}

fn copied(here: &Here) -> Outcome {
    let Here { xen, peer, .. } = here;
    let (pages, grefs) = here.guest.share(here.domid, 5)?;
    let mapping = xen.map(peer, &grefs[3..4])?;
    let own = Region::anonymous(3 * PAGE_SIZE)?;
    let bytes = pattern(3000);
    let mut back = vec![0; 3000];
    // One after the other: private, grant 0, grant 1, our own memory across a page's end, grant 2,
    // the mapped grant 3, grant 4, and back.
    let across = PAGE_SIZE - 100;
    let region = &*mapping;
    let mut steps = [
        GrantCopy::new(Source::Private(&bytes), to_grant(peer, grefs[0], 1096), 3000),
        GrantCopy::new(grant(peer, grefs[0], 1096), to_grant(peer, grefs[1], 7), 3000),
        GrantCopy::new(
            grant(peer, grefs[1], 7),
            Dest::Mapped { region: &own, offset: across },
            3000,
        ),
        GrantCopy::new(
            Source::Mapped { region: &own, offset: across },
            to_grant(peer, grefs[2], 0),
            3000,
        ),
        GrantCopy::new(grant(peer, grefs[2], 0), Dest::Mapped { region, offset: 50 }, 3000),
        GrantCopy::new(Source::Mapped { region, offset: 50 }, to_grant(peer, grefs[4], 9), 3000),
        GrantCopy::new(grant(peer, grefs[4], 9), Dest::Private(&mut back), 3000),
    ];
    for step in &mut steps {
        xen.copy(std::slice::from_mut(step));
    }
    equal(steps.map(|step| step.status), [CopyStatus::Okay; 7])?;
    ensure(back == bytes, "other bytes came back")?;
    let mut beside = [1; 7];
    pages.copy_out(PAGE_SIZE, &mut beside)?;
    equal(beside, [0; 7])
}

fn batched(here: &Here) -> Outcome {
    let (pages, grefs) = here.guest.share(here.domid, 4)?;
    let bytes = pattern(4 * PAGE_SIZE);
    pages.copy_in(0, &bytes)?;
    let mut parts = vec![[0u8; 61]; 200];
    let place = |n: usize| (n % 4, n * 17 % 4000);
    let mut batch: Vec<_> = parts
        .iter_mut()
        .enumerate()
        .map(|(n, part)| {
            let (page, offset) = place(n);
            let offset = u16::try_from(offset).unwrap_or(0);
            GrantCopy::new(grant(&here.peer, grefs[page], offset), Dest::Private(part), 61)
        })
        .collect();
    here.xen.copy(&mut batch);
    ensure(batch.iter().all(|op| op.status == CopyStatus::Okay), "some copy failed")?;
    for (n, part) in parts.iter().enumerate() {
        let (page, offset) = place(n);
        let start = page * PAGE_SIZE + offset;
        ensure(part[..] == bytes[start..start + 61], format!("copy {n} differs"))?;
    }
    Ok(())
}

fn blamed(here: &Here) -> Outcome {
    use CopyStatus::{BadDest, BadSource, Okay};
    let Here { xen, peer, .. } = here;
    let (pages, grefs) = here.guest.share(here.domid, 2)?;
    pages.copy_in(0, b"bytes")?;
    let [good, other] = [grefs[0], grefs[1]];
    let [mut a, mut b, mut c, mut d] = [[0; 8]; 4];
    let mut batch = [
        GrantCopy::new(grant(peer, good, 0), Dest::Private(&mut a), 5),
        GrantCopy::new(grant(peer, NOWHERE, 0), Dest::Private(&mut b), 5),
        GrantCopy::new(Source::Private(b"bytes"), to_grant(peer, NOWHERE, 0), 5),
        GrantCopy::new(grant(peer, NOWHERE, 0), to_grant(peer, good, 0), 5),
        GrantCopy::new(grant(peer, good, 0), to_grant(peer, NOWHERE, 0), 5),
        GrantCopy::new(grant(peer, good, 4092), Dest::Private(&mut c), 5),
        GrantCopy::new(Source::Private(b"bytes"), to_grant(peer, good, 4092), 5),
        GrantCopy::new(grant(peer, good, 0), to_grant(peer, other, 0), 5),
        GrantCopy::new(grant(peer, good, 0), Dest::Private(&mut d), 5),
    ];
    xen.copy(&mut batch);
    let expected = [Okay, BadSource, BadDest, BadSource, BadDest, BadSource, BadDest, Okay, Okay];
    equal(batch.map(|op| op.status), expected)?;
    equal((&a[..5], &d[..5]), (b"bytes", b"bytes"))?;
    // A domain that is not there grants nothing.
    let nobody = xen.peer(hypervisor::DomId(0x7000))?;
    let mut batch = [GrantCopy::new(grant(&nobody, good, 0), Dest::Private(&mut a), 5)];
    xen.copy(&mut batch);
    equal(batch[0].status, BadSource)
}

fn unreachable(here: &Here) -> Outcome {
    use CopyStatus::{BadDest, BadSource, Okay};
    let Here { xen, peer, .. } = here;
    let (_pages, grefs) = here.guest.share(here.domid, 1)?;
    let empty = xen.aperture(peer, 1)?;
    let region = &*empty;
    let [mut a, mut b] = [[1; 4]; 2];
    let mut batch = [
        GrantCopy::new(grant(peer, grefs[0], 0), Dest::Private(&mut a), 4),
        GrantCopy::new(grant(peer, grefs[0], 0), Dest::Mapped { region, offset: 0 }, 4),
        GrantCopy::new(Source::Mapped { region, offset: 0 }, to_grant(peer, grefs[0], 0), 4),
        GrantCopy::new(grant(peer, NOWHERE, 0), Dest::Private(&mut b), 4),
    ];
    xen.copy(&mut batch);
    equal(batch.map(|op| op.status), [Okay, BadDest, BadSource, BadSource])?;
    equal(a, [0; 4])
}

fn named(here: &Here) -> Outcome {
    let (_pages, grefs) = here.guest.share(here.domid, 2)?;
    for batch in [vec![NOWHERE], vec![grefs[0], NOWHERE, grefs[1]]] {
        match here.xen.map(&here.peer, &batch) {
            Err(Error::BadGrant { gref: NOWHERE, .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err("it was mapped".into()),
        }
    }
    here.xen.map(&here.peer, &grefs).map(drop).map_err(Into::into)
}

fn refused(here: &Here) -> Outcome {
    let (_pages, grefs) = here.guest.share(here.domid, 1)?;
    for _ in 0..300 {
        ensure(here.xen.map(&here.peer, &[grefs[0], NOWHERE]).is_err(), "it was mapped")?;
    }
    let maps = fs::read_to_string("/proc/self/maps")?;
    ensure(!maps.contains("gntdev"), "something of gntdev is still mapped")
}

fn aperture(here: &Here) -> Outcome {
    let Here { xen, peer, .. } = here;
    let (pages, grefs) = here.guest.share(here.domid, 3)?;
    let mut aperture = xen.aperture(peer, 8)?;
    for round in 0..20u8 {
        let mut batch = [GrantMap::new(5, grefs[2]), GrantMap::new(4, grefs[0])];
        xen.map_at(&mut aperture, &mut batch);
        equal(batch.map(|op| op.status), [MapStatus::Okay; 2])?;
        pages.write(2 * PAGE_SIZE + 9, round)?;
        equal(aperture.read(5 * PAGE_SIZE + 9)?, round)?;
        xen.unmap(&mut aperture, 4..6);
    }
    xen.map_at(&mut aperture, &mut [GrantMap::new(0, grefs[1])]);
    drop(aperture);
    let maps = fs::read_to_string("/proc/self/maps")?;
    ensure(!maps.contains("gntdev"), "something of gntdev is still mapped")
}

fn crowded(here: &Here) -> Outcome {
    use MapStatus::{BadGrant, Okay};
    let Here { xen, peer, .. } = here;
    let (pages, grefs) = here.guest.share(here.domid, 2)?;
    pages.write(PAGE_SIZE, 5u8)?;
    let mut aperture = xen.aperture(peer, 2)?;
    let mut batch = [
        GrantMap::new(0, grefs[0]),
        GrantMap::new(0, grefs[1]),
        GrantMap::new(2, grefs[1]),
        GrantMap::new(1, NOWHERE),
    ];
    xen.map_at(&mut aperture, &mut batch);
    equal(batch.map(|op| op.status), [Okay, BadGrant, BadGrant, BadGrant])?;
    let mut again = [GrantMap::new(1, grefs[1])];
    xen.map_at(&mut aperture, &mut again);
    equal(again[0].status, Okay)?;
    equal(aperture.read(PAGE_SIZE)?, 5u8)
}

fn revoked(here: &Here) -> Outcome {
    let (pages, grefs) = here.guest.share(here.domid, 1)?;
    drop(pages);
    let mut byte = [0];
    let mut batch = [GrantCopy::new(grant(&here.peer, grefs[0], 0), Dest::Private(&mut byte), 1)];
    here.xen.copy(&mut batch);
    equal(batch[0].status, CopyStatus::BadSource)?;
    ensure(here.xen.map(&here.peer, &grefs).is_err(), "it can still be mapped")
}

fn outlived(here: &Here) -> Outcome {
    let (pages, grefs) = here.guest.share(here.domid, 1)?;
    pages.write(0, 9u8)?;
    let mapping = here.xen.map(&here.peer, &grefs)?;
    drop(pages);
    equal(mapping.read(0)?, 9u8)?;
    // It must not be reused in the meantime.
    let (others, _) = here.guest.share(here.domid, 16)?;
    for page in 0..16 {
        others.write(page * PAGE_SIZE, 1u8)?;
    }
    equal(mapping.read(0)?, 9u8)
}

fn limit(here: &Here) -> Outcome {
    let limit: usize = fs::read_to_string(LIMIT)?.trim().parse()?;
    // Several times the limit.
    for _ in 0..(4 * limit).div_ceil(256) {
        here.guest.share(here.domid, 256)?;
    }
    let mut held = Vec::new();
    let error = loop {
        match here.guest.share(here.domid, 200) {
            Ok(pages) => held.push(pages),
            Err(error) => break error,
        }
    };
    ensure(held.len() == limit / 200, format!("{} times 200 pages", held.len()))?;
    let advice = format!("> {LIMIT}");
    ensure(error.to_string().contains(&advice), format!("no advice in: {error}"))
}

fn transfers(here: &Here) -> Outcome {
    let offered = here.xen.page_transfer().is_some() || here.guest.page_receiver().is_some();
    ensure(!offered, "pages are flipped".to_owned())
}
