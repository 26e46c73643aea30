//! Grant copies.

use std::cell::OnceCell;
use std::os::fd::BorrowedFd;
use std::slice;

use arrayvec::ArrayVec;
use hypervisor::{CopyStatus, Dest, GrantCopy, Source};
use shm::Region;

use crate::own_pages::{OwnPages, SCRATCH_BYTES, Scratch};
use crate::peer::Peer;
use crate::shared_pages::KnownGrants;
use crate::sys::gntdev::{End, Segment, grant_copy};

/// `GNTDEV_COPY_BATCH`: the device splits a batch into hypercalls of this size.
pub(crate) const COPIES_PER_HYPERCALL: usize = 16;
/// Most copies of one system call: four hypercalls' worth, on the stack.
const SEGMENTS_MAX: usize = 64;

/// The copies of the next system call.
struct Segments<'a, 'o> {
    /// Where short private bytes go through, once there are some.
    scratch: &'a OnceCell<Option<Scratch<'o>>>,
    own: Option<&'o OwnPages>,
    /// Of the scratch, and of other memory.
    known_scratch: KnownGrants<'a>,
    known: KnownGrants<'a>,
    segments: ArrayVec<Segment<'a>, SEGMENTS_MAX>,
    /// Where the status of each goes.
    statuses: ArrayVec<&'a mut CopyStatus, SEGMENTS_MAX>,
    /// Which of them go to the scratch, and the private bytes that are to be copied from there.
    from_scratch: ArrayVec<(usize, &'a mut [u8]), SEGMENTS_MAX>,
}

/// Copies a batch. Copies without a grant are done here; the rest goes into as few system calls as
/// possible.
pub(crate) fn copy(
    gntdev: BorrowedFd<'_>,
    own: Option<&OwnPages>,
    batch: &mut [GrantCopy<'_, Peer>],
) {
    let scratch = OnceCell::new();
    let mut segments = Segments::new(&scratch, own);
    for op in batch {
        if op.is_granted() {
            segments.push(op);
        } else {
            op.status = copy_own(op);
        }
        if segments.segments.is_full() {
            segments.perform(gntdev);
        }
    }
    segments.perform(gntdev);
}

impl<'a, 'o> Segments<'a, 'o> {
    fn new(scratch: &'a OnceCell<Option<Scratch<'o>>>, own: Option<&'o OwnPages>) -> Self {
        Self {
            scratch,
            own,
            known_scratch: KnownGrants::default(),
            known: KnownGrants::default(),
            segments: ArrayVec::new(),
            statuses: ArrayVec::new(),
            from_scratch: ArrayVec::new(),
        }
    }

    /// Adds a copy. The caller checked for space. A copy that leaves its page or its memory fails
    /// without a system call.
    #[inline(always)]
    fn push(&mut self, op: &'a mut GrantCopy<'_, Peer>) {
        let GrantCopy { source, dest, len, status } = op;
        let segment = match (&*source, &*dest) {
            (Source::Private(_), _) | (_, Dest::Private(_)) => {
                self.private_segment(source, dest, *len)
            }
            _ => Segment::new(source, dest, *len, &mut self.known),
        };
        match segment {
            Ok(segment) => {
                *status = CopyStatus::Okay;
                self.segments.push(segment);
                self.statuses.push(status);
            }
            Err(fault) => *status = fault,
        }
    }

    /// A copy of private bytes, which go through the scratch if they are few. Apart: where pages are copied, it only takes room in the cache.
    #[inline(never)]
    fn private_segment(
        &mut self,
        source: &'a Source<'_, Peer>,
        dest: &'a mut Dest<'_, Peer>,
        len: u16,
    ) -> Result<Segment<'a>, CopyStatus> {
        use CopyStatus::{BadDest, BadSource};
        let Some((region, place)) = self.place(len) else {
            return Segment::new(source, dest, len, &mut self.known);
        };
        let own = End::mapped(region, place, len, &mut self.known_scratch);
        if let Source::Private(bytes) = source {
            let bytes = bytes.get(..len.into()).ok_or(BadSource)?;
            region.copy_in(place, bytes).map_err(|_| BadSource)?;
            let ends = own.zip(End::dest(dest, len, &mut self.known));
            let segment = ends.and_then(|(source, dest)| Segment::between(source, dest));
            return segment.ok_or(BadDest);
        }
        let source = End::source(source, len, &mut self.known).ok_or(BadSource)?;
        let Dest::Private(bytes) = dest else { return Err(BadDest) };
        let bytes = bytes.get_mut(..len.into()).ok_or(BadDest)?;
        let segment = own.and_then(|dest| Segment::between(source, dest)).ok_or(BadDest)?;
        self.from_scratch.push((self.segments.len(), bytes));
        Ok(segment)
    }

    /// The scratch's place for the next copy, if its `len` bytes go through it.
    fn place(&self, len: u16) -> Option<(&'a Region, usize)> {
        let own = self.own.filter(|_| usize::from(len) <= SCRATCH_BYTES)?;
        let scratch = self.scratch.get_or_init(|| own.scratch()).as_ref()?;
        Some((scratch.region()?, Scratch::place(self.segments.len())))
    }

    fn perform(&mut self, gntdev: BorrowedFd<'_>) {
        if self.segments.is_empty() {
            return;
        }
        let is_valid = grant_copy(gntdev, &mut self.segments).is_ok();
        if !is_valid || !self.segments.iter().all(Segment::is_done) {
            self.judge(gntdev, is_valid);
        }
        let scratch = || self.scratch.get()?.as_ref()?.region();
        for (n, bytes) in self.from_scratch.drain(..) {
            if *self.statuses[n] == CopyStatus::Okay
                && scratch().is_none_or(|from| from.copy_out(Scratch::place(n), bytes).is_err())
            {
                *self.statuses[n] = CopyStatus::BadDest;
            }
        }
        self.segments.clear();
        self.statuses.clear();
    }

    /// Sets the status of each, of which some were not done.
    #[cold]
    fn judge(&mut self, gntdev: BorrowedFd<'_>, is_valid: bool) {
        for (segment, status) in self.segments.iter_mut().zip(&mut self.statuses) {
            **status = match is_valid {
                true if segment.is_done() => CopyStatus::Okay,
                true => status_of(gntdev, segment),
                // A copy that the kernel cannot try ends the call, and the others may be done or
                // not. Doing a copy twice is harmless.
                false => repeat(gntdev, segment),
            };
        }
    }
}

/// Performs a single copy.
fn repeat(gntdev: BorrowedFd<'_>, segment: &mut Segment<'_>) -> CopyStatus {
    match grant_copy(gntdev, slice::from_mut(segment)) {
        Ok(()) if segment.is_done() => CopyStatus::Okay,
        Ok(()) => status_of(gntdev, segment),
        // EFAULT: the memory at this end cannot be reached.
        Err(_) => match segment.granted() {
            (true, _) => CopyStatus::BadDest,
            (false, _) => CopyStatus::BadSource,
        },
    }
}

/// Finds out which side made Xen refuse a copy.
fn status_of(gntdev: BorrowedFd<'_>, segment: &Segment<'_>) -> CopyStatus {
    match segment.granted() {
        (true, false) => CopyStatus::BadSource,
        (true, true) if !is_readable(gntdev, segment) => CopyStatus::BadSource,
        _ => CopyStatus::BadDest,
    }
}

/// Whether a copy's source can be read. Xen's status does not say which side failed.
fn is_readable(gntdev: BorrowedFd<'_>, segment: &Segment<'_>) -> bool {
    let mut byte = 0;
    let mut probe = segment.probe(&mut byte);
    grant_copy(gntdev, slice::from_mut(&mut probe)).is_ok() && probe.is_done()
}

/// Copies between memory that this process can reach.
#[inline(never)]
fn copy_own(op: &mut GrantCopy<'_, Peer>) -> CopyStatus {
    use CopyStatus::{BadDest, BadSource};
    let len = usize::from(op.len);
    match (&op.source, &mut op.dest) {
        (Source::Private(source), dest) => match source.get(..len) {
            Some(source) => write_own(source, dest),
            None => BadSource,
        },
        (source, Dest::Private(dest)) => match (source.mapped(), dest.get_mut(..len)) {
            (Some((region, offset)), Some(dest)) => {
                okay_or(BadSource, region.copy_out(offset, dest))
            }
            (None, _) => BadSource,
            (_, None) => BadDest,
        },
        (source, dest) => match (source.mapped(), dest.mapped()) {
            (Some((source, from)), Some((dest, to))) => {
                okay_or(BadSource, Region::copy_between(source, from, dest, to, len))
            }
            _ => BadSource,
        },
    }
}

fn write_own(source: &[u8], dest: &mut Dest<'_, Peer>) -> CopyStatus {
    use CopyStatus::{BadDest, Okay};
    if let Dest::Private(dest) = dest {
        let Some(dest) = dest.get_mut(..source.len()) else { return BadDest };
        dest.copy_from_slice(source);
        return Okay;
    }
    dest.mapped()
        .map_or(BadDest, |(region, offset)| okay_or(BadDest, region.copy_in(offset, source)))
}

fn okay_or<E>(fault: CopyStatus, copied: Result<(), E>) -> CopyStatus {
    copied.map_or(fault, |()| CopyStatus::Okay)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use hypervisor::{DomId, GrantRef, MappedGrants, MappedPages};

    use super::*;
    use crate::own_pages::tests::own_pages;
    use crate::shared_pages::tests::granted_memory;

    /// A descriptor that refuses every ioctl: a copy that still succeeds made no system call.
    fn refusing() -> std::os::fd::OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    fn peer() -> Peer {
        Peer::new(DomId(7)).unwrap()
    }

    fn grant(peer: &Peer, offset: u16) -> Source<'_, Peer> {
        Source::Grant { peer, gref: GrantRef(9), offset }
    }

    #[test]
    fn copies_without_a_grant_need_no_hypervisor() {
        let region = Region::anonymous(8192).unwrap();
        let mut out = [0; 4];
        let region = &region;
        let mut batch = [
            GrantCopy::new(Source::Private(b"abcd"), Dest::Mapped { region, offset: 0 }, 4),
            GrantCopy::new(
                Source::Mapped { region, offset: 0 },
                Dest::Mapped { region, offset: 4096 },
                4,
            ),
            GrantCopy::new(Source::Mapped { region, offset: 4096 }, Dest::Private(&mut out), 4),
        ];
        for op in &mut batch {
            copy(refusing().as_fd(), None, slice::from_mut(op));
        }
        assert!(batch.iter().all(|op| op.status == CopyStatus::Okay));
        assert_eq!(&out, b"abcd");
    }

    #[test]
    fn a_mapped_page_is_copied_in_place_unless_the_other_side_is_only_granted() {
        let (peer, region) = (peer(), Region::anonymous(8192).unwrap());
        let grefs = [None, Some(GrantRef(5))];
        let pages = &MappedGrants {
            peer: &peer,
            pages: MappedPages { region: &region, grefs: &grefs, frames: None },
        };
        region.copy_in(4100, b"abcd").unwrap();
        let (from, mut out) = (|| Source::MappedGrant { pages, place: 1, offset: 4 }, [0; 4]);
        let to = || Dest::MappedGrant { pages, place: 1, offset: 4000 };
        let mut batch = [
            GrantCopy::new(from(), to(), 4),
            GrantCopy::new(from(), Dest::Private(&mut out), 4),
            GrantCopy::new(
                Source::Private(b"efgh"),
                Dest::MappedGrant { pages, place: 1, offset: 0 },
                4,
            ),
        ];
        copy(refusing().as_fd(), None, &mut batch);
        assert!(batch.iter().all(|op| op.status == CopyStatus::Okay));
        assert_eq!(&out, b"abcd");
        let mut moved = [0; 4];
        region.copy_out(8096, &mut moved).unwrap();
        assert_eq!(&moved, b"abcd");
        region.copy_out(4096, &mut moved).unwrap();
        assert_eq!(&moved, b"efgh");
        // Copies that need the hypervisor fail.
        let mut batch = [
            GrantCopy::new(from(), Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 }, 4),
            GrantCopy::new(grant(&peer, 0), to(), 4),
        ];
        copy(refusing().as_fd(), None, &mut batch);
        assert!(batch.iter().all(|op| op.status != CopyStatus::Okay));
    }

    #[test]
    fn local_copies_stay_within_their_memory() {
        use CopyStatus::{BadDest, BadSource};
        let region = Region::anonymous(4096).unwrap();
        let region = &region;
        let (mut short, mut long) = ([0; 3], [0; 64]);
        let mut batch = [
            GrantCopy::new(Source::Private(b"abc"), Dest::Private(&mut long), 4),
            GrantCopy::new(Source::Private(b"abcd"), Dest::Private(&mut short), 4),
            GrantCopy::new(Source::Private(b"abcd"), Dest::Mapped { region, offset: 4093 }, 4),
        ];
        copy(refusing().as_fd(), None, &mut batch);
        assert_eq!(batch.map(|op| op.status), [BadSource, BadDest, BadDest]);
        let source = Source::Mapped { region, offset: 4093 };
        let mut batch = [GrantCopy::new(source, Dest::Private(&mut long), 4)];
        copy(refusing().as_fd(), None, &mut batch);
        assert_eq!(batch[0].status, BadSource);
    }

    #[test]
    fn a_copy_beyond_its_page_or_slice_is_refused() {
        use CopyStatus::{BadDest, BadSource};
        let (peer, mut bytes) = (peer(), [0; 5000]);
        let (short, long) = (vec![1; 99], vec![1; 5000]);
        let region = Region::anonymous(4096).unwrap();
        let to = |offset| Dest::Grant { peer: &peer, gref: GrantRef(9), offset };
        let mapped = Source::Mapped { region: &region, offset: 4000 };
        let grefs = [Some(GrantRef(5)), None];
        let pages = &MappedGrants {
            peer: &peer,
            pages: MappedPages { region: &region, grefs: &grefs, frames: None },
        };
        let at = |place, offset| Source::MappedGrant { pages, place, offset };
        let cases = [
            (at(0, 4000), to(0), 97, BadSource),
            (at(1, 0), to(0), 1, BadSource),
            (at(2, 0), to(0), 1, BadSource),
            (
                Source::Private(&long),
                Dest::MappedGrant { pages, place: 0, offset: 4090 },
                7,
                BadDest,
            ),
            (grant(&peer, 4000), Dest::Private(&mut bytes[..]), 97, BadSource),
            (Source::Private(&long), to(4000), 97, BadDest),
            (Source::Private(&long), to(0), 4097, BadDest),
            (Source::Private(&short), to(0), 100, BadSource),
            (mapped, to(0), 97, BadSource),
            (grant(&peer, u16::MAX), to(0), u16::MAX, BadSource),
            (grant(&peer, 0), to(u16::MAX), 1, BadDest),
        ];
        for (source, mut dest, len, expected) in cases {
            assert_eq!(
                Segment::new(&source, &mut dest, len, &mut KnownGrants::default()).err(),
                Some(expected)
            );
        }
        let mut short = [0; 99];
        let source = grant(&peer, 0);
        let fault =
            Segment::new(&source, &mut Dest::Private(&mut short), 100, &mut KnownGrants::default())
                .err();
        assert_eq!(fault, Some(BadDest));
        let mut dest = Dest::Private(&mut short);
        assert!(Segment::new(&source, &mut dest, 99, &mut KnownGrants::default()).is_ok());
    }

    #[test]
    fn a_refused_copy_is_blamed_on_the_granted_side() {
        use CopyStatus::{BadDest, BadSource};
        let (peer, mut byte) = (peer(), [0]);
        let (source, own) = (grant(&peer, 0), Source::Private(b"x"));
        let to = || Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 };
        let (mut one, mut two) = (to(), to());
        let mut bytes = Dest::Private(&mut byte);
        for (segment, expected) in [
            (Segment::new(&source, &mut bytes, 1, &mut KnownGrants::default()), BadSource),
            (Segment::new(&own, &mut one, 1, &mut KnownGrants::default()), BadDest),
            // Its source cannot be read either.
            (Segment::new(&source, &mut two, 1, &mut KnownGrants::default()), BadSource),
        ] {
            assert_eq!(status_of(refusing().as_fd(), &segment.ok().unwrap()), expected);
        }
    }

    #[test]
    fn only_granted_operations_wait_for_the_call_and_each_is_answered() {
        let peer = peer();
        let mut places = [[0u8; 8]; 200];
        let mut batch: Vec<_> = places
            .iter_mut()
            .enumerate()
            .map(|(n, place)| {
                let source = if n % 2 == 0 { Source::Private(b"ours") } else { grant(&peer, 0) };
                GrantCopy::new(source, Dest::Private(place), 4)
            })
            .collect();
        copy(refusing().as_fd(), None, &mut batch);
        for (n, op) in batch.iter().enumerate() {
            // The granted copies fail, and their memory at this end is to blame.
            let expected = if n % 2 == 0 { CopyStatus::Okay } else { CopyStatus::BadDest };
            assert_eq!(op.status, expected, "operation {n}");
        }
    }

    #[test]
    fn own_pages_are_named_by_their_grants() {
        let (peer, region) = (peer(), granted_memory(1, 8192));
        let (mut private, mut one) = ([0; 8], [0; 8]);
        let to = || Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 };
        let from = |offset| Source::Mapped { region: &region, offset };
        let granted = |source: &Source<'_, Peer>, dest: &mut Dest<'_, Peer>| {
            Segment::new(source, dest, 8, &mut KnownGrants::default()).ok().unwrap().granted()
        };
        assert_eq!(granted(&from(4088), &mut to()), (true, true));
        // Beyond the granted page, and across its end.
        assert_eq!(granted(&from(4096), &mut to()), (false, true));
        assert_eq!(granted(&from(4089), &mut to()), (false, true));
        let mut own = Dest::Mapped { region: &region, offset: 0 };
        assert_eq!(granted(&grant(&peer, 0), &mut own), (true, true));
        assert_eq!(granted(&grant(&peer, 0), &mut Dest::Private(&mut one)), (true, false));
        // Bounds are checked as without grants.
        let mut beyond = Dest::Mapped { region: &region, offset: 8185 };
        let refused =
            Segment::new(&grant(&peer, 0), &mut beyond, 8, &mut KnownGrants::default()).err();
        assert_eq!(refused, Some(CopyStatus::BadDest));
        // Nothing of a copy that is refused gets to the program.
        let own = own_pages();
        let mut batch = [GrantCopy::new(grant(&peer, 0), Dest::Private(&mut private), 8)];
        copy(refusing().as_fd(), Some(&own), &mut batch);
        assert_ne!(batch[0].status, CopyStatus::Okay);
        assert_eq!(private, [0; 8]);
    }

    #[test]
    fn short_private_bytes_go_through_granted_pages() {
        let (peer, own, cell) = (peer(), own_pages(), OnceCell::new());
        let (header, long, mut place, mut short) = ([7; 256], [0; 257], [0; 66], [0; 3]);
        let mut beyond = [0; 8];
        let to = || Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 };
        let mut batch = [
            GrantCopy::new(Source::Private(&header), to(), 256),
            GrantCopy::new(Source::Private(&long), to(), 257),
            GrantCopy::new(grant(&peer, 0), Dest::Private(&mut place), 66),
            GrantCopy::new(Source::Private(&header[..7]), to(), 8),
            GrantCopy::new(grant(&peer, 0), Dest::Private(&mut short), 4),
            GrantCopy::new(grant(&peer, 4090), Dest::Private(&mut beyond), 7),
        ];
        {
            let mut plan = Segments::new(&cell, Some(&own));
            batch.iter_mut().for_each(|op| plan.push(op));
            let granted: Vec<_> = plan.segments.iter().map(Segment::granted).collect();
            assert_eq!(granted, [(true, true), (false, true), (true, true)]);
            let later: Vec<_> =
                plan.from_scratch.iter().map(|(n, bytes)| (*n, bytes.len())).collect();
            assert_eq!((plan.statuses.len(), &*later), (3, &[(2, 66)][..]));
            let scratch = cell.get().unwrap().as_ref().unwrap();
            assert_eq!(scratch.region().unwrap().read::<[u8; 256]>(0), Ok(header));
        }
        use CopyStatus::{BadDest, BadSource};
        assert_eq!(
            batch[3..].iter().map(|op| op.status).collect::<Vec<_>>(),
            [BadSource, BadDest, BadSource]
        );
    }
}
