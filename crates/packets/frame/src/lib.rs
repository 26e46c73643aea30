//! One Ethernet frame on its way through the driver domain.
//!
//! An ingress port copies the first bytes of a frame once into private memory and parses
//! that copy ([`Frame::header`]); the rest of the body stays where the sender put it and is described
//! by [`Piece`]s. Whoever sends it on writes the private header, never the sender's bytes
//! again, so nothing that was checked can change (law 1), and copies the body once.

#![forbid(unsafe_code)]

mod gather;
mod window;

use arrayvec::ArrayVec;
use hypervisor::{GrantRef, MappedGrants, PAGE_SIZE, Source};
use offload::{Checksum, Gso};
use shm::Region;
use wire::ethernet::MacAddr;
use wire::headers::{Headers, Network, Transport};

pub use gather::{Gather, linearise, pieces_of};
pub use window::{WINDOW, Window};

/// Most bytes copied as the header: Linux's `XEN_NETBACK_TX_COPY_LEN`.
pub const HEADER_MAX: usize = 128;
/// Most pieces a body may have: `XEN_NETIF_NR_SLOTS_MIN`.
pub const PIECES_MAX: usize = 18;
/// Largest frame in bytes: the protocol's size field has 16 bits.
pub const FRAME_MAX: usize = 65_535;

/// Bytes of a body, in one page of the sender's (granted) or one range of a mapped region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The page, where the body is granted; unused where it is mapped.
    pub gref: GrantRef,
    /// First byte, within the page or the region.
    pub offset: u32,
    /// How many bytes.
    pub len: u16,
    /// Where the page lies, if it is [mapped](MappedGrants) as well, or [`Piece::NOWHERE`]. A
    /// hint: it is checked when it is used.
    pub place: u16,
}

impl Piece {
    /// The place of a page that is not mapped.
    pub const NOWHERE: u16 = u16::MAX;
}

/// Whose memory a frame's pieces lie in.
#[derive(Debug)]
pub enum Body<'a, P> {
    /// Pages that `P` grants.
    Granted(&'a P),
    /// Pages that `P` grants, some of which are mapped as well.
    MappedGrants(&'a MappedGrants<'a, P>),
    /// Memory mapped in this domain.
    Mapped(&'a Region),
}

/// The bytes of a granted page.
#[inline]
fn granted<P>(peer: &P, piece: Piece, skip: u16) -> Source<'_, P> {
    // Pieces of granted pages are checked to end within their page.
    let offset = u16::try_from(piece.offset).unwrap_or(u16::MAX);
    Source::Grant { peer, gref: piece.gref, offset: offset.saturating_add(skip) }
}

/// The bytes of a granted page: where it is mapped, if it still is.
#[inline]
fn mapped_grant<'a, P>(pages: &'a MappedGrants<'a, P>, piece: Piece, skip: u16) -> Source<'a, P> {
    // The owner may have had the page unmapped, and another one mapped in its place, since it was
    // found there. And nothing may be touched beyond the page.
    let mapped = pages.at(piece.place) == Some(piece.gref);
    if mapped && piece.offset as usize + usize::from(piece.len) <= PAGE_SIZE {
        let offset = u16::try_from(piece.offset).unwrap_or(u16::MAX);
        return Source::MappedGrant { pages, place: piece.place, offset: offset + skip };
    }
    granted(pages.peer, piece, skip)
}

impl<P> Clone for Body<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Body<'_, P> {}

impl<'a, P> Body<'a, P> {
    /// The bytes of `piece` from its byte `skip` on.
    #[inline]
    pub fn source(self, piece: Piece, skip: u16) -> Source<'a, P> {
        match self {
            Self::Granted(peer) => granted(peer, piece, skip),
            Self::MappedGrants(pages) => mapped_grant(pages, piece, skip),
            Self::Mapped(region) => {
                Source::Mapped { region, offset: piece.offset as usize + usize::from(skip) }
            }
        }
    }
}

/// A frame. Its bytes are `header`, then the pieces in order; `len` in all.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The private copy of the first bytes; the first `header_len` count.
    pub bytes: [u8; HEADER_MAX],
    /// How many bytes of the frame are in `bytes`: `min(HEADER_MAX, len)`.
    pub header_len: u8,
    /// The frame's length in bytes.
    pub len: u32,
    /// Where the protocol headers lie.
    pub headers: Headers,
    /// What is known of the transport checksum.
    pub checksum: Checksum,
    /// Set where the frame is to be cut into segments before it meets a wire.
    pub gso: Option<Gso>,
    /// The rest of the frame, in the sender's memory.
    pub pieces: ArrayVec<Piece, PIECES_MAX>,
}

impl Frame {
    /// A frame of nothing, to be filled.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            bytes: [0; HEADER_MAX],
            header_len: 0,
            len: 0,
            headers: Headers {
                network: Network::Other,
                transport: Transport::None,
                vlan: None,
                l3_offset: 0,
                l4_offset: 0,
                payload_offset: 0,
            },
            checksum: Checksum::Unknown,
            gso: None,
            pieces: ArrayVec::new_const(),
        }
    }

    /// The private copy of the first bytes.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.bytes[..usize::from(self.header_len)]
    }

    /// Takes the header's bytes off the pieces, which until now covered the whole frame. Answers
    /// those that are no more: they were all header.
    #[inline]
    pub fn skip_header(&mut self) -> arrayvec::Drain<'_, Piece, PIECES_MAX> {
        if u32::from(self.header_len) == self.len {
            return self.pieces.drain(..);
        }
        let mut left = u16::from(self.header_len);
        let mut whole = 0;
        for piece in &mut self.pieces {
            let taken = left.min(piece.len);
            piece.offset += u32::from(taken);
            piece.len -= taken;
            left -= taken;
            if piece.len > 0 {
                break;
            }
            whole += 1;
        }
        self.pieces.drain(..whole)
    }

    /// Where the frame goes. Zero for a frame too short to say.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> MacAddr {
        mac(&self.bytes, 0)
    }

    /// Where the frame says it comes from.
    #[inline]
    #[must_use]
    pub fn source(&self) -> MacAddr {
        mac(&self.bytes, 6)
    }
}

#[inline]
fn mac(bytes: &[u8; HEADER_MAX], at: usize) -> MacAddr {
    let mut octets = [0; 6];
    octets.copy_from_slice(&bytes[at..at + 6]);
    MacAddr(octets)
}

/// Why a frame that came in on a port, or was meant for it, went nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It must not be forwarded: its destination is where it came from, or is the link's own.
    NotForwarded,
    /// Its headers are truncated, or contradict themselves or the offload asked for.
    Malformed,
    /// It could not be read from, or written to, a guest's memory.
    MemoryFault,
    /// The egress port had no room at once, and the frame was one that does not wait.
    NoRoom,
    /// The egress port took nothing for so long that nothing waits for it any more.
    Stalled,
    /// It is longer than the egress port can take.
    TooLarge,
    /// The egress port is gone or disabled.
    PortGone,
}

impl DropReason {
    /// Every reason, in the order they are counted.
    pub const ALL: [Self; 7] = [
        Self::NotForwarded,
        Self::Malformed,
        Self::MemoryFault,
        Self::NoRoom,
        Self::Stalled,
        Self::TooLarge,
        Self::PortGone,
    ];

    /// The reason's name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotForwarded => "not_forwarded",
            Self::Malformed => "malformed",
            Self::MemoryFault => "memory_fault",
            Self::NoRoom => "no_room",
            Self::Stalled => "stalled",
            Self::TooLarge => "too_large",
            Self::PortGone => "port_gone",
        }
    }
}

/// A frame offered to an egress port, and what the port made of it.
#[derive(Debug)]
pub struct Offer<'a> {
    /// The frame.
    pub frame: &'a Frame,
    /// [`Outcome::Waiting`] until the port says otherwise.
    pub outcome: Outcome,
}

/// What became of a frame that was offered to an egress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet: the port has no room at present.
    Waiting,
    /// It is on its way; the sender's pages are no longer needed.
    Delivered,
    /// It went nowhere.
    Dropped(DropReason),
    /// The sender's pages could not be read.
    SourceFault,
}
