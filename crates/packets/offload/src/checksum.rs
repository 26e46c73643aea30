//! What is known of a transport checksum, and how to complete one.

use wire::checksum::Sum;
use wire::headers::{ChecksumLocation, Headers};
use wire::ip::Protocol;
use wire::{tcp, udp};

use crate::Error;
use crate::layout::Layout;

/// What is known of a frame's TCP or UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// Nothing: the receiver must verify it.
    #[default]
    Unknown,
    /// It is complete and right (netif `data_validated`, virtio `DATA_VALID`).
    Validated,
    /// The field holds only the pseudo-header's sum (netif `csum_blank`, virtio `NEEDS_CSUM`).
    Partial,
    /// Another field holds such a sum: that of a transport which the parser does not know or does not reach, or of a packet in a tunnel.
    /// Where it lies comes with the frame. No port is asked to complete it: software does ([`complete_checksum_at`]).
    Elsewhere,
}

impl Checksum {
    /// Reads the two flags that every interface has: `blank`, the checksum is not finished (netif
    /// `csum_blank`, virtio `NEEDS_CSUM`), and `validated`, it was found right. A blank checksum
    /// is not right yet, so `blank` takes precedence.
    #[inline]
    #[must_use]
    pub fn from_flags(blank: bool, validated: bool) -> Self {
        match (blank, validated) {
            (true, _) => Self::Partial,
            (false, true) => Self::Validated,
            (false, false) => Self::Unknown,
        }
    }

    /// The flags `(blank, validated)` for a receiver. The bytes of a blank checksum never left the
    /// host's memory, so they count as validated. No flag says [`Elsewhere`](Self::Elsewhere).
    #[inline]
    #[must_use]
    pub fn to_flags(self) -> (bool, bool) {
        (self == Self::Partial, matches!(self, Self::Partial | Self::Validated))
    }

    /// Whether a field is still to be completed.
    #[inline]
    #[must_use]
    pub fn is_incomplete(self) -> bool {
        matches!(self, Self::Partial | Self::Elsewhere)
    }
}

/// Completes a checksum whose field holds the sum of what it covers besides the frame's bytes from `at.start` on, as Linux'
/// `skb_checksum_help` does: it covers all of them to the frame's end, and zero is stored as 0xffff.
///
/// # Errors
/// [`Error::Place`]: the field does not lie in the frame, which is then unchanged.
pub fn complete_checksum_at(frame: &mut [u8], at: ChecksumLocation) -> Result<(), Error> {
    let covered = frame.get_mut(usize::from(at.start)..).ok_or(Error::Place)?;
    let sum = match Sum::of(covered).finish() {
        0 => 0xffff,
        sum => sum,
    };
    let field = covered.get_mut(usize::from(at.offset)..).and_then(<[u8]>::first_chunk_mut);
    *field.ok_or(Error::Place)? = sum.to_be_bytes();
    Ok(())
}

/// Computes the TCP or UDP checksum of a linear frame from scratch. The value in the field is ignored.
///
/// The sum covers what the IP length (for UDP, its own) counts, so Ethernet padding is left out. A UDP checksum that
/// comes to zero is stored as 0xffff, since zero means that there is none.
///
/// # Errors
/// All of [`Error`] but those about GSO. The frame is then unchanged.
pub fn complete_checksum(frame: &mut [u8], headers: &Headers) -> Result<(), Error> {
    let layout = Layout::of(frame, frame.len(), headers)?;
    match layout.protocol {
        Protocol::TCP => complete_tcp(frame, &layout),
        _ => complete_udp(frame, &layout),
    }
}

/// Makes the checksum of a TCP segment a blank one: its field gets the pseudo-header's sum. `header` holds the first bytes of the frame, with all
/// of its headers.
///
/// # Errors
/// All of [`Error`] but those about GSO. The header is then unchanged.
pub fn blank_checksum(header: &mut [u8], frame_len: usize, headers: &Headers) -> Result<(), Error> {
    let layout = Layout::of(header, frame_len, headers)?;
    if layout.protocol != Protocol::TCP {
        return Err(Error::Transport);
    }
    let pseudo = layout.pseudo(header, layout.end - layout.l4)?;
    tcp::Packet::new_unchecked(&mut header[layout.l4..layout.payload]).set_checksum(pseudo.fold());
    Ok(())
}

fn complete_tcp(frame: &mut [u8], layout: &Layout) -> Result<(), Error> {
    let pseudo = layout.pseudo(frame, layout.end - layout.l4)?;
    let segment = &mut frame[layout.l4..layout.end];
    tcp::Packet::new_unchecked(segment).fill_checksum(pseudo);
    Ok(())
}

fn complete_udp(frame: &mut [u8], layout: &Layout) -> Result<(), Error> {
    let datagram = &frame[layout.l4..layout.end];
    let len = udp::Packet::new_checked(datagram).map_err(|_| Error::Length)?.len();
    let pseudo = layout.pseudo(frame, len.into())?;
    let datagram = &mut frame[layout.l4..layout.end];
    udp::Packet::new_unchecked(datagram).fill_checksum(pseudo);
    Ok(())
}
