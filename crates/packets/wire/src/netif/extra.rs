//! Extra info: data that does not fit a packet's first slot has its own slots after it.

use core::num::NonZeroU16;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{TX_SLOT_LEN, TxRequest};
use crate::ethernet::MacAddr;

mod kind {
    pub const GSO: u8 = 1;
    pub const MCAST_ADD: u8 = 2;
    pub const MCAST_DEL: u8 = 3;
    pub const HASH: u8 = 4;
    /// Not in Xen's header: Linux's addition, negotiated by `feature-xdp-headroom` and
    /// `xdp-headroom`.
    pub const XDP: u8 = 5;
}

/// `XEN_NETIF_MAX_XDP_HEADROOM`: the most [`Extra::Xdp`] may carry.
pub const MAX_XDP_HEADROOM: u16 = 0x7fff;

/// `netif_extra_info`, undecoded: 8 bytes, which fit both kinds of slot.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ExtraInfo {
    /// `XEN_NETIF_EXTRA_TYPE_*`.
    pub kind: u8,
    /// [`ExtraInfo::MORE`] or nothing.
    pub flags: u8,
    /// Depends on the kind.
    pub data: [u8; 6],
}

const _: () = assert!(size_of::<ExtraInfo>() == 8);

impl ExtraInfo {
    /// `XEN_NETIF_EXTRA_FLAG_MORE`: another extra is in the next slot.
    pub const MORE: u8 = 1;

    /// Is another extra in the next slot?
    #[inline]
    #[must_use]
    pub const fn more(&self) -> bool {
        self.flags & Self::MORE != 0
    }

    /// The extra in a tx slot that was read as a request: its first 8 bytes.
    #[inline]
    #[must_use]
    pub fn from_tx_slot(slot: &TxRequest) -> Self {
        let bytes: [u8; TX_SLOT_LEN] = zerocopy::transmute!(*slot);
        let [kind, flags, a, b, c, d, e, f, ..] = bytes;
        Self { kind, flags, data: [a, b, c, d, e, f] }
    }

    /// The extra as a tx slot, with zero padding: padding that is not written leaks memory
    /// (XSA-216).
    #[inline]
    #[must_use]
    pub fn to_tx_slot(&self) -> TxRequest {
        let Self { kind, flags, data: [a, b, c, d, e, f] } = *self;
        zerocopy::transmute!([kind, flags, a, b, c, d, e, f, 0, 0, 0, 0])
    }
}

/// `XEN_NETIF_GSO_TYPE_*`: the protocol of an unsegmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4 = 1,
    /// TCP over IPv6.
    TcpV6 = 2,
}

/// The input of a hash. An extra holds the bit's INDEX where the control ring has
/// masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HashKind {
    /// IPv4 addresses.
    Ipv4 = 0,
    /// IPv4 addresses and TCP ports.
    Ipv4Tcp = 1,
    /// IPv6 addresses.
    Ipv6 = 2,
    /// IPv6 addresses and TCP ports.
    Ipv6Tcp = 3,
}

impl HashKind {
    /// `XEN_NETIF_CTRL_HASH_TYPE_*`: this kind in the control ring's set of kinds.
    #[inline]
    #[must_use]
    pub const fn mask(self) -> u32 {
        1 << self as u8
    }
}

/// An extra, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extra {
    /// The packet is unsegmented.
    Gso {
        /// Payload bytes of each segment but the last: for TCP, the maximum segment size.
        size: NonZeroU16,
        /// Protocol.
        kind: GsoKind,
        /// `XEN_NETIF_GSO_FEAT_*`; none is defined.
        features: u16,
    },
    /// The frontend wants this multicast address. No packet comes with it.
    McastAdd(MacAddr),
    /// The frontend no longer wants this multicast address. No packet comes with it.
    McastDel(MacAddr),
    /// The packet's hash.
    Hash {
        /// The input of the hash.
        kind: HashKind,
        /// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`: see [`super::HashAlgorithm`].
        algorithm: u8,
        /// The hash.
        value: u32,
    },
    /// The frontend's XDP program asks for headroom.
    Xdp {
        /// Bytes, at most [`MAX_XDP_HEADROOM`].
        headroom: u16,
    },
}

/// Why 8 bytes are not a valid extra. Only a broken or hostile frontend sends such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExtraError {
    /// No such `XEN_NETIF_EXTRA_TYPE_*`.
    #[error("unknown extra info type {0}")]
    Kind(u8),
    /// No such `XEN_NETIF_GSO_TYPE_*`.
    #[error("unknown GSO type {0}")]
    GsoKind(u8),
    /// A segment size of zero: segmentation would never end.
    #[error("GSO size is zero")]
    GsoSize,
    /// No such `_XEN_NETIF_CTRL_HASH_TYPE_*`.
    #[error("unknown hash type {0}")]
    HashKind(u8),
    /// Beyond [`MAX_XDP_HEADROOM`].
    #[error("an XDP headroom of {0} bytes is too much")]
    XdpHeadroom(u16),
}

impl Extra {
    /// Decodes `info`. Ignores its flags: see [`ExtraInfo::more`].
    #[inline]
    pub fn decode(info: &ExtraInfo) -> Result<Self, ExtraError> {
        let [a, b, c, d, e, f] = info.data;
        match info.kind {
            kind::GSO => Ok(Self::Gso {
                size: NonZeroU16::new(u16::from_ne_bytes([a, b])).ok_or(ExtraError::GsoSize)?,
                kind: GsoKind::decode(c)?,
                features: u16::from_ne_bytes([e, f]),
            }),
            kind::MCAST_ADD => Ok(Self::McastAdd(MacAddr(info.data))),
            kind::MCAST_DEL => Ok(Self::McastDel(MacAddr(info.data))),
            kind::HASH => Ok(Self::Hash {
                kind: HashKind::decode(a)?,
                algorithm: b,
                value: u32::from_le_bytes([c, d, e, f]),
            }),
            kind::XDP => match u16::from_ne_bytes([a, b]) {
                headroom @ ..=MAX_XDP_HEADROOM => Ok(Self::Xdp { headroom }),
                headroom => Err(ExtraError::XdpHeadroom(headroom)),
            },
            unknown => Err(ExtraError::Kind(unknown)),
        }
    }

    /// Encodes the extra; `more` announces another one after it.
    ///
    /// # Errors
    /// [`ExtraError::XdpHeadroom`]; the other kinds cannot be invalid.
    #[inline]
    pub fn encode(&self, more: bool) -> Result<ExtraInfo, ExtraError> {
        let (kind, data) = match *self {
            Self::Gso { size, kind, features } => {
                let ([a, b], [e, f]) = (size.get().to_ne_bytes(), features.to_ne_bytes());
                (kind::GSO, [a, b, kind as u8, 0, e, f])
            }
            Self::McastAdd(address) => (kind::MCAST_ADD, address.0),
            Self::McastDel(address) => (kind::MCAST_DEL, address.0),
            Self::Hash { kind, algorithm, value } => {
                let [c, d, e, f] = value.to_le_bytes();
                (kind::HASH, [kind as u8, algorithm, c, d, e, f])
            }
            Self::Xdp { headroom: headroom @ ..=MAX_XDP_HEADROOM } => {
                let [a, b] = headroom.to_ne_bytes();
                (kind::XDP, [a, b, 0, 0, 0, 0])
            }
            Self::Xdp { headroom } => return Err(ExtraError::XdpHeadroom(headroom)),
        };
        Ok(ExtraInfo { kind, flags: if more { ExtraInfo::MORE } else { 0 }, data })
    }
}

impl GsoKind {
    #[inline]
    const fn decode(byte: u8) -> Result<Self, ExtraError> {
        match byte {
            1 => Ok(Self::TcpV4),
            2 => Ok(Self::TcpV6),
            unknown => Err(ExtraError::GsoKind(unknown)),
        }
    }
}

impl HashKind {
    #[inline]
    const fn decode(byte: u8) -> Result<Self, ExtraError> {
        match byte {
            0 => Ok(Self::Ipv4),
            1 => Ok(Self::Ipv4Tcp),
            2 => Ok(Self::Ipv6),
            3 => Ok(Self::Ipv6Tcp),
            unknown => Err(ExtraError::HashKind(unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 0xfb]);

    fn mss(size: u16) -> NonZeroU16 {
        NonZeroU16::new(size).unwrap()
    }

    #[test]
    fn extras_have_the_documented_layout() {
        let gso = |kind| Extra::Gso { size: mss(1448), kind, features: 0x0201 };
        let hash = Extra::Hash { kind: HashKind::Ipv6Tcp, algorithm: 1, value: 0x0403_0201 };
        for (extra, more, bytes) in [
            (gso(GsoKind::TcpV4), false, [1, 0, 0xa8, 0x05, 1, 0, 1, 2]),
            (gso(GsoKind::TcpV6), true, [1, 1, 0xa8, 0x05, 2, 0, 1, 2]),
            (Extra::McastAdd(MAC), false, [2, 0, 0x33, 0x33, 0, 0, 0, 0xfb]),
            (Extra::McastDel(MAC), true, [3, 1, 0x33, 0x33, 0, 0, 0, 0xfb]),
            (hash, false, [4, 0, 3, 1, 1, 2, 3, 4]),
            (Extra::Xdp { headroom: 256 }, false, [5, 0, 0, 1, 0, 0, 0, 0]),
        ] {
            let info = extra.encode(more).unwrap();
            assert_eq!(info.as_bytes(), bytes);
            assert_eq!(info.more(), more);
            assert_eq!(Extra::decode(&info), Ok(extra));
        }
    }

    #[test]
    fn malformed_extras_are_refused() {
        for (bytes, error) in [
            ([0, 0, 0xa8, 0x05, 1, 0, 0, 0], ExtraError::Kind(0)),
            ([6, 0, 0xa8, 0x05, 1, 0, 0, 0], ExtraError::Kind(6)),
            ([1, 0, 0, 0, 1, 0, 0, 0], ExtraError::GsoSize),
            ([1, 0, 0xa8, 0x05, 0, 0, 0, 0], ExtraError::GsoKind(0)),
            ([1, 0, 0xa8, 0x05, 3, 0, 0, 0], ExtraError::GsoKind(3)),
            ([4, 0, 4, 1, 0, 0, 0, 0], ExtraError::HashKind(4)),
            ([5, 0, 0, 0x80, 0, 0, 0, 0], ExtraError::XdpHeadroom(0x8000)),
        ] {
            let info = ExtraInfo::read_from_bytes(&bytes).unwrap();
            assert_eq!(Extra::decode(&info), Err(error), "{bytes:?}");
        }
        let headroom = MAX_XDP_HEADROOM + 1;
        assert_eq!(Extra::Xdp { headroom }.encode(false), Err(ExtraError::XdpHeadroom(headroom)));
    }

    #[test]
    fn a_tx_slot_holds_an_extra_in_its_first_8_bytes() {
        let info = Extra::McastAdd(MAC).encode(true).unwrap();
        let slot = info.to_tx_slot();
        assert_eq!(slot.as_bytes(), [2, 1, 0x33, 0x33, 0, 0, 0, 0xfb, 0, 0, 0, 0]);
        assert_eq!(ExtraInfo::from_tx_slot(&TxRequest { id: 7, size: 9, ..slot }), info);
    }

    #[test]
    fn hash_kinds_are_indices_of_their_masks() {
        let kinds = [HashKind::Ipv4, HashKind::Ipv4Tcp, HashKind::Ipv6, HashKind::Ipv6Tcp];
        assert_eq!(kinds.map(HashKind::mask), [1, 2, 4, 8]);
    }
}
