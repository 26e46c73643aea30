//! Grant copies.

use std::mem::take;
use std::os::fd::BorrowedFd;
use std::slice;

use arrayvec::ArrayVec;
use hypervisor::{COPIES_MAX, Copies, CopyStatus, Dest, Source, Tally};
use shm::Region;

use crate::own_pages::{OwnPages, SCRATCH_BYTES, SCRATCH_PLACES, Scratch};
use crate::peer::Peer;
use crate::shared_pages::KnownGrants;
use crate::sys::gntdev::{End, Segment, grant_copy};

/// `GNTDEV_COPY_BATCH`: the device splits a batch into hypercalls of this size.
pub(crate) const COPIES_PER_HYPERCALL: usize = 16;

/// Copies for one system call. Those without a grant are done at once.
pub struct XenCopies<'a> {
    known: KnownGrants<'a>,
    segments: ArrayVec<Segment<'a>, COPIES_MAX>,
    /// The segments that copy few private bytes, and these.
    short: ArrayVec<(usize, Short<'a>), SCRATCH_PLACES>,
    count: usize,
    /// A bit for each copy that has no segment: it is done, or has failed.
    apart: u128,
    bytes_apart: u64,
    /// The copies that have failed. Empty, it allocates nothing.
    faults: Vec<(usize, CopyStatus)>,
}

const _: () = assert!(COPIES_MAX <= u128::BITS as usize);

/// Private bytes that go through a scratch, if there is one.
enum Short<'a> {
    From(&'a [u8]),
    Into(&'a mut [u8]),
}

impl Default for XenCopies<'_> {
    // Without the hint it is made elsewhere and copied here, all of its room for copies.
    #[inline(always)]
    fn default() -> Self {
        Self {
            known: KnownGrants::default(),
            segments: ArrayVec::new(),
            short: ArrayVec::new(),
            count: 0,
            apart: 0,
            bytes_apart: 0,
            faults: Vec::new(),
        }
    }
}

impl<'a> Copies<'a, Peer> for XenCopies<'a> {
    /// A copy that leaves its page or its memory fails without a system call.
    #[inline(always)]
    fn push(&mut self, source: Source<'a, Peer>, dest: Dest<'a, Peer>, len: u16) {
        let segment = match (&source, &dest) {
            (Source::Grant { .. }, Dest::Private(_)) | (Source::Private(_), Dest::Grant { .. }) => {
                self.private_segment(source, dest, len)
            }
            (Source::Grant { .. }, _) | (_, Dest::Grant { .. }) => {
                Segment::new(source, dest, len, &mut self.known)
            }
            _ => return self.copy_apart(&source, dest, len),
        };
        match segment {
            Ok(segment) => self.segments.push(segment),
            Err(fault) => self.fail(fault),
        }
        self.count += 1;
    }

    #[inline]
    fn len(&self) -> usize {
        self.count
    }

    fn status(&self, n: usize) -> CopyStatus {
        let fault = self.faults.iter().find(|(copy, _)| *copy == n);
        fault.map_or(CopyStatus::Okay, |(_, fault)| *fault)
    }

    fn tally(&self) -> Tally {
        let done = with_segments(self.count, self.apart).zip(&self.segments);
        let done = done.filter(|(n, _)| self.status(*n) == CopyStatus::Okay);
        let bytes: u64 = done.map(|(_, segment)| u64::from(segment.len())).sum();
        Tally { granted: self.segments.len(), bytes: self.bytes_apart + bytes }
    }

    #[inline]
    fn clear(&mut self) {
        self.segments.clear();
        self.short.clear();
        self.faults.clear();
        (self.count, self.apart, self.bytes_apart) = (0, 0, 0);
    }
}

impl<'a> XenCopies<'a> {
    /// A copy of private bytes, which go through the scratch if they are few. Apart: where pages are copied, it only takes room in the cache.
    #[inline(never)]
    fn private_segment(
        &mut self,
        source: Source<'a, Peer>,
        dest: Dest<'a, Peer>,
        len: u16,
    ) -> Result<Segment<'a>, CopyStatus> {
        use CopyStatus::{BadDest, BadSource};
        let is_short = usize::from(len) <= SCRATCH_BYTES && !self.short.is_full();
        let (source, dest, short) = match (source, dest) {
            (Source::Private(bytes), dest) if is_short => {
                let bytes = bytes.get(..len.into()).ok_or(BadSource)?;
                let dest = End::dest(dest, len, &mut self.known).ok_or(BadDest)?;
                (End::nowhere(len), dest, Short::From(bytes))
            }
            (source, Dest::Private(bytes)) if is_short => {
                let source = End::source(source, len, &mut self.known).ok_or(BadSource)?;
                let bytes = bytes.get_mut(..len.into()).ok_or(BadDest)?;
                (source, End::nowhere(len), Short::Into(bytes))
            }
            (source, dest) => return Segment::new(source, dest, len, &mut self.known),
        };
        let segment = Segment::between(source, dest).ok_or(BadDest)?;
        self.short.push((self.segments.len(), short));
        Ok(segment)
    }

    /// Copies without a grant.
    #[inline(never)]
    fn copy_apart(&mut self, source: &Source<'_, Peer>, dest: Dest<'_, Peer>, len: u16) {
        match copy_own(source, dest, len) {
            CopyStatus::Okay => {
                self.apart |= 1 << self.count;
                self.bytes_apart += u64::from(len);
            }
            fault => self.fail(fault),
        }
        self.count += 1;
    }

    /// Leaves the next copy out.
    #[cold]
    fn fail(&mut self, fault: CopyStatus) {
        self.apart |= 1 << self.count;
        self.faults.push((self.count, fault));
    }

    /// Performs the copies, by one system call. Returns whether all were done.
    #[inline]
    pub(crate) fn perform(&mut self, gntdev: BorrowedFd<'_>, own: Option<&OwnPages>) -> bool {
        if !self.segments.is_empty() {
            let own = own.filter(|_| !self.short.is_empty());
            let scratch = own.and_then(OwnPages::scratch);
            let region = scratch.as_ref().and_then(Scratch::region);
            self.name_short(region);
            let is_valid = grant_copy(gntdev, &mut self.segments).is_ok();
            if !is_valid || !self.segments.iter().all(Segment::is_done) {
                self.judge(gntdev, is_valid);
            }
            if let Some(region) = region {
                self.take_short(region);
            }
        }
        self.faults.is_empty()
    }

    /// Names the ends of copies of few private bytes, which are in the scratch if there is one.
    fn name_short(&mut self, scratch: Option<&Region>) {
        let mut known = KnownGrants::default();
        for (n, (segment, bytes)) in self.short.iter_mut().enumerate() {
            let segment = &mut self.segments[*segment];
            let (place, len) = (Scratch::place(n), segment.len());
            let mut named = |scratch| End::granted(known.of(scratch, place, len)?, len);
            match bytes {
                Short::From(bytes) => {
                    let filled = scratch.filter(|to| to.copy_in(place, bytes).is_ok());
                    let here = || End::source(Source::Private(bytes), len, &mut self.known);
                    if let Some(end) = filled.and_then(&mut named).or_else(here) {
                        segment.set_source(&end);
                    }
                }
                Short::Into(bytes) => {
                    let here = || End::dest(Dest::Private(take(bytes)), len, &mut self.known);
                    if let Some(end) = scratch.and_then(&mut named).or_else(here) {
                        segment.set_dest(&end);
                    }
                }
            }
        }
    }

    /// Takes what was copied into the scratch.
    fn take_short(&mut self, scratch: &Region) {
        let Self { short, count, apart, faults, .. } = self;
        let copy_of = |segment| with_segments(*count, *apart).nth(segment);
        for (n, (segment, bytes)) in short.drain(..).enumerate() {
            let Short::Into(bytes) = bytes else { continue };
            let has_failed = |(copy, _): &(usize, CopyStatus)| copy_of(segment) == Some(*copy);
            if !faults.iter().any(has_failed) && scratch.copy_out(Scratch::place(n), bytes).is_err()
            {
                faults.extend(copy_of(segment).map(|copy| (copy, CopyStatus::BadDest)));
            }
        }
    }

    /// Notes which copies have failed, of which some were not done.
    #[cold]
    fn judge(&mut self, gntdev: BorrowedFd<'_>, is_valid: bool) {
        for (n, segment) in with_segments(self.count, self.apart).zip(&mut self.segments) {
            let status = match is_valid {
                true if segment.is_done() => CopyStatus::Okay,
                true => status_of(gntdev, segment),
                // A copy that the kernel cannot try ends the call, and the others may be done or
                // not. Doing a copy twice is harmless.
                false => repeat(gntdev, segment),
            };
            if status != CopyStatus::Okay {
                self.faults.push((n, status));
            }
        }
    }
}

/// Which of the copies have segments, in their order, where those of a bit in `apart` have none.
fn with_segments(count: usize, apart: u128) -> impl Iterator<Item = usize> {
    (0..count).filter(move |n| apart & 1 << n == 0)
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
fn copy_own(source: &Source<'_, Peer>, dest: Dest<'_, Peer>, len: u16) -> CopyStatus {
    use CopyStatus::{BadDest, BadSource};
    let len = usize::from(len);
    match (source, dest) {
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

fn write_own(source: &[u8], dest: Dest<'_, Peer>) -> CopyStatus {
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

    use hypervisor::{DomId, GrantCopy, GrantRef, MappedGrants, MappedPages, copy_all};

    use super::*;
    use crate::own_pages::tests::own_pages;
    use crate::shared_pages::tests::granted_memory;

    /// A descriptor that refuses every ioctl: a copy that still succeeds made no system call.
    fn refusing() -> std::os::fd::OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    fn copy(gntdev: BorrowedFd<'_>, own: Option<&OwnPages>, batch: &mut [GrantCopy<'_, Peer>]) {
        copy_all(batch, |copies: &mut XenCopies<'_>| copies.perform(gntdev, own));
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
        for (source, dest, len, expected) in cases {
            let segment = Segment::new(source, dest, len, &mut KnownGrants::default());
            assert_eq!(segment.err(), Some(expected));
        }
        let mut short = [0; 99];
        let source = grant(&peer, 0);
        for (len, fault) in [(100, Some(BadDest)), (99, None)] {
            let dest = Dest::Private(&mut short);
            let segment = Segment::new(source, dest, len, &mut KnownGrants::default());
            assert_eq!(segment.err(), fault);
        }
    }

    #[test]
    fn a_refused_copy_is_blamed_on_the_granted_side() {
        use CopyStatus::{BadDest, BadSource};
        let (peer, mut byte) = (peer(), [0]);
        let (source, own) = (grant(&peer, 0), Source::Private(b"x"));
        let to = || Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 };
        for (source, dest, expected) in [
            (source, Dest::Private(&mut byte), BadSource),
            (own, to(), BadDest),
            // Its source cannot be read either.
            (source, to(), BadSource),
        ] {
            let segment = Segment::new(source, dest, 1, &mut KnownGrants::default());
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
    fn a_batch_that_is_cleared_knows_nothing_of_what_it_was() {
        let (peer, mut first, mut second, mut third) = (peer(), [0; 4], [0; 4], [0]);
        let mut copies = XenCopies::default();
        copies.push(Source::Private(b"own!"), Dest::Private(&mut first), 4);
        copies.push(Source::Private(b"own!"), Dest::Private(&mut second[..3]), 4);
        copies.push(
            Source::Private(b"far"),
            Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 },
            3,
        );
        assert!(!copies.perform(refusing().as_fd(), None));
        use CopyStatus::{BadDest, BadSource, Okay};
        assert_eq!([0, 1, 2].map(|n| copies.status(n)), [Okay, BadDest, BadSource]);
        assert_eq!(copies.tally(), Tally { granted: 1, bytes: 4 });
        copies.clear();
        copies.push(grant(&peer, 4096), Dest::Private(&mut []), 1);
        copies.push(Source::Private(b"x"), Dest::Private(&mut third), 1);
        assert!(!copies.perform(refusing().as_fd(), None));
        assert_eq!([0, 1].map(|n| copies.status(n)), [BadSource, Okay]);
        assert_eq!(copies.tally(), Tally { granted: 0, bytes: 1 });
    }

    #[test]
    fn own_pages_are_named_by_their_grants() {
        let (peer, region) = (peer(), granted_memory(1, 8192));
        let (mut private, mut one) = ([0; 8], [0; 8]);
        let to = || Dest::Grant { peer: &peer, gref: GrantRef(9), offset: 0 };
        let from = |offset| Source::Mapped { region: &region, offset };
        let segment = |source, dest| Segment::new(source, dest, 8, &mut KnownGrants::default());
        let granted = |source, dest| segment(source, dest).ok().unwrap().granted();
        assert_eq!(granted(from(4088), to()), (true, true));
        // Beyond the granted page, and across its end.
        assert_eq!(granted(from(4096), to()), (false, true));
        assert_eq!(granted(from(4089), to()), (false, true));
        let own = Dest::Mapped { region: &region, offset: 0 };
        assert_eq!(granted(grant(&peer, 0), own), (true, true));
        assert_eq!(granted(grant(&peer, 0), Dest::Private(&mut one)), (true, false));
        // Bounds are checked as without grants.
        let beyond = Dest::Mapped { region: &region, offset: 8185 };
        assert_eq!(segment(grant(&peer, 0), beyond).err(), Some(CopyStatus::BadDest));
        // Nothing of a copy that is refused gets to the program.
        let own = own_pages();
        let mut batch = [GrantCopy::new(grant(&peer, 0), Dest::Private(&mut private), 8)];
        copy(refusing().as_fd(), Some(&own), &mut batch);
        assert_ne!(batch[0].status, CopyStatus::Okay);
        assert_eq!(private, [0; 8]);
    }

    #[test]
    fn short_private_bytes_go_through_granted_pages() {
        let (peer, own) = (peer(), own_pages());
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
        let statuses: Vec<_> = {
            let mut plan = XenCopies::default();
            for op in &mut batch {
                plan.push(op.source, op.dest.reborrow(), op.len);
            }
            let scratch = own.scratch().unwrap();
            let scratch = scratch.region().unwrap();
            plan.name_short(Some(scratch));
            let granted: Vec<_> = plan.segments.iter().map(Segment::granted).collect();
            assert_eq!(granted, [(true, true), (false, true), (true, true)]);
            assert_eq!(scratch.read::<[u8; 256]>(0), Ok(header));
            scratch.copy_in(Scratch::place(1), &[3; 66]).unwrap();
            plan.take_short(scratch);
            (0..plan.len()).map(|n| plan.status(n)).collect()
        };
        assert_eq!(place, [3; 66]);
        use CopyStatus::{BadDest, BadSource};
        assert_eq!(statuses[..3], [CopyStatus::Okay; 3]);
        assert_eq!(statuses[3..], [BadSource, BadDest, BadSource]);
    }
}
