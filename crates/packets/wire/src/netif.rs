//! The slots of Xen's network rings, bit for bit as in Xen's public `io/netif.h`.
//!
//! Fields are in the machine's byte order: both ends run on one machine. Names are the frontend's
//! point of view, so "tx" is what a guest sends. A slot's bytes come from a guest: any pattern is a
//! value of these types, and [`Extra::decode`] and [`CtrlRequest::message`] decide which patterns
//! are valid.
//!
//! | ring | slot | request | response |
//! | --- | --- | --- | --- |
//! | tx | 12 B | [`TxRequest`], or [`ExtraInfo`] in the first 8 B | [`TxResponse`], 4 B |
//! | rx | 8 B | [`RxRequest`] | [`RxResponse`] or [`ExtraInfo`] |
//! | ctrl | 16 B | [`CtrlRequest`] | [`CtrlResponse`], 12 B |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub mod ctrl;
pub mod extra;
pub mod guest_copy;
pub mod header_channel;
pub mod keys;

pub use ctrl::{CtrlMessage, CtrlRequest, CtrlResponse, GrefMapping, HashAlgorithm};
pub use extra::{Extra, ExtraError, ExtraInfo, GsoKind, HashKind};

/// `XEN_NETIF_NR_SLOTS_MIN`: tx slots that a backend must accept for one packet.
pub const NR_SLOTS_MIN: usize = 18;

/// Bytes of a tx ring slot.
pub const TX_SLOT_LEN: usize = 12;
/// Bytes of an rx ring slot.
pub const RX_SLOT_LEN: usize = 8;
/// Bytes of a control ring slot.
pub const CTRL_SLOT_LEN: usize = 16;

/// `NETTXF_*`: flags of a [`TxRequest`]. Bits 0 and 1 mean the opposite of [`rx_flags`]' bits 0 and
/// 1.
pub mod tx_flags {
    /// The transport checksum holds the pseudo-header's sum only. The frame's receiver trusts its
    /// data.
    pub const CSUM_BLANK: u16 = 1 << 0;
    /// The transport checksum was verified, or the frame never crossed a wire.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet continues in the next request (after any extras).
    pub const MORE_DATA: u16 = 1 << 2;
    /// An [`ExtraInfo`](super::ExtraInfo) is in the next slot. Only a packet's first request may
    /// have this flag.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// `NETRXF_*`: flags of an [`RxResponse`]. Bits 0 and 1 mean the opposite of [`tx_flags`]' bits 0
/// and 1.
pub mod rx_flags {
    /// The transport checksum was verified, or the frame never crossed a wire.
    pub const DATA_VALIDATED: u16 = 1 << 0;
    /// The transport checksum holds the pseudo-header's sum only.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet continues in the next response (after any extras).
    pub const MORE_DATA: u16 = 1 << 2;
    /// An [`ExtraInfo`](super::ExtraInfo) is in the next slot.
    pub const EXTRA_INFO: u16 = 1 << 3;
    /// Deprecated: segmentation data in a response before the packet's.
    pub const GSO_PREFIX: u16 = 1 << 4;
}

/// `NETIF_RSP_*`: the status of a response. An [`RxResponse`] that succeeded has a byte count
/// instead.
pub mod status {
    /// The packet was dropped.
    pub const DROPPED: i16 = -2;
    /// The request was wrong.
    pub const ERROR: i16 = -1;
    /// The packet was accepted.
    pub const OKAY: i16 = 0;
    /// The request was an extra, which has no status.
    pub const NULL: i16 = 1;
}

/// A fragment of a packet that a guest sends.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TxRequest {
    /// Grant of the page that the fragment lies in.
    pub gref: u32,
    /// The fragment's first byte in that page.
    pub offset: u16,
    /// [`tx_flags`].
    pub flags: u16,
    /// The frontend's identifier for this request.
    pub id: u16,
    /// Bytes of the fragment. In a packet's FIRST request: bytes of the whole packet, so that the
    /// first fragment's size is the packet's size less that of the others.
    pub size: u16,
}

/// The response to a [`TxRequest`], or with [`status::NULL`] to an extra.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TxResponse {
    /// The request's identifier.
    pub id: u16,
    /// [`status`].
    pub status: i16,
}

/// A page that a guest wants to receive into.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxRequest {
    /// The frontend's identifier for this request.
    pub id: u16,
    /// Not used. Must be zero: padding that is not written leaks memory (XSA-216).
    pub pad: u16,
    /// Grant of the page.
    pub gref: u32,
}

/// A fragment of a packet that a guest receives. It must lie in the slot of the request that it
/// answers: Linux's netfront matches the two by ring index.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxResponse {
    /// The request's identifier.
    pub id: u16,
    /// The fragment's first byte in the request's page.
    pub offset: u16,
    /// [`rx_flags`].
    pub flags: u16,
    /// Bytes of this fragment, not of the packet; negative is a [`status`].
    pub status: i16,
}

const _: () = assert!(size_of::<TxRequest>() == TX_SLOT_LEN && size_of::<TxResponse>() == 4);
const _: () = assert!(size_of::<RxRequest>() == RX_SLOT_LEN);
const _: () = assert!(size_of::<RxResponse>() == RX_SLOT_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    // Literal bytes are those of a little-endian machine, the only kind that Xen runs on.

    #[test]
    fn tx_slots_have_the_documented_layout() {
        let request = TxRequest {
            gref: 0x0403_0201,
            offset: 0x0605,
            flags: tx_flags::CSUM_BLANK | tx_flags::MORE_DATA,
            id: 0x0a09,
            size: 1514,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 0x05, 0, 9, 10, 0xea, 0x05];
        assert_eq!(request.as_bytes(), bytes);
        assert_eq!(TxRequest::read_from_bytes(&bytes), Ok(request));

        let response = TxResponse { id: 0x0201, status: status::DROPPED };
        assert_eq!(response.as_bytes(), [1, 2, 0xfe, 0xff]);
    }

    #[test]
    fn rx_slots_have_the_documented_layout() {
        let request = RxRequest { id: 0x0201, pad: 0, gref: 0x0807_0605 };
        assert_eq!(request.as_bytes(), [1, 2, 0, 0, 5, 6, 7, 8]);

        let flags = rx_flags::DATA_VALIDATED | rx_flags::EXTRA_INFO;
        let response = RxResponse { id: 0x0201, offset: 0x0403, flags, status: 1514 };
        let bytes = [1, 2, 3, 4, 0x09, 0, 0xea, 0x05];
        assert_eq!(response.as_bytes(), bytes);
        assert_eq!(RxResponse::read_from_bytes(&bytes), Ok(response));
    }

    #[test]
    fn checksum_flags_are_swapped_between_the_directions() {
        assert_eq!((tx_flags::CSUM_BLANK, tx_flags::DATA_VALIDATED), (1, 2));
        assert_eq!((rx_flags::CSUM_BLANK, rx_flags::DATA_VALIDATED), (2, 1));
        assert_eq!((tx_flags::MORE_DATA, tx_flags::EXTRA_INFO), (4, 8));
        assert_eq!((rx_flags::MORE_DATA, rx_flags::EXTRA_INFO, rx_flags::GSO_PREFIX), (4, 8, 16));
    }
}
