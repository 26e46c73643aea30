//! The control ring: hash configuration (netif.h) and persistent grants
//! (netif-staging-grants).

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `XEN_NETIF_CTRL_TYPE_*`.
mod kind {
    pub const GET_HASH_FLAGS: u16 = 1;
    pub const SET_HASH_FLAGS: u16 = 2;
    pub const SET_HASH_KEY: u16 = 3;
    pub const GET_HASH_MAPPING_SIZE: u16 = 4;
    pub const SET_HASH_MAPPING_SIZE: u16 = 5;
    pub const SET_HASH_MAPPING: u16 = 6;
    pub const SET_HASH_ALGORITHM: u16 = 7;
    pub const GET_GREF_MAPPING_SIZE: u16 = 8;
    pub const ADD_GREF_MAPPING: u16 = 9;
    pub const DEL_GREF_MAPPING: u16 = 10;
}

/// `XEN_NETIF_CTRL_STATUS_*`: the status of a [`CtrlResponse`]; a [`GrefMapping`] has it in 16
/// bits.
pub mod status {
    /// Success.
    pub const SUCCESS: u32 = 0;
    /// The backend does not support this.
    pub const NOT_SUPPORTED: u32 = 1;
    /// The request is wrong.
    pub const INVALID_PARAMETER: u32 = 2;
    /// The key or table is larger than the backend can hold.
    pub const BUFFER_OVERFLOW: u32 = 3;
}

/// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HashAlgorithm {
    /// No hash: the backend chooses the queue.
    None = 0,
    /// [`crate::toeplitz`].
    Toeplitz = 1,
}

impl HashAlgorithm {
    /// The algorithm that a request or an extra names, if this version of the protocol has it.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::None),
            1 => Some(Self::Toeplitz),
            _ => None,
        }
    }
}

/// A request, undecoded.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CtrlRequest {
    /// The frontend's identifier for this request.
    pub id: u16,
    /// `XEN_NETIF_CTRL_TYPE_*`.
    pub kind: u16,
    /// Depends on the kind.
    pub data: [u32; 3],
}

/// The response to a [`CtrlRequest`]: the first 12 bytes of a 16-byte slot. Responses may come in
/// any order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CtrlResponse {
    /// As in the request.
    pub id: u16,
    /// As in the request.
    pub kind: u16,
    /// [`status`].
    pub status: u32,
    /// Depends on kind and status.
    pub data: u32,
}

/// `xen_netif_gref`: an entry of the list that [`CtrlMessage::AddGrefMapping`] and its opposite
/// point to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GrefMapping {
    /// The grant.
    pub gref: u32,
    /// [`GrefMapping::READ_ONLY`] or nothing.
    pub flags: u16,
    /// [`status`], which the backend writes for a removal only: an addition succeeds or fails as a
    /// whole.
    pub status: u16,
}

impl GrefMapping {
    /// `XEN_NETIF_CTRLF_GREF_readonly`: map without write access.
    pub const READ_ONLY: u16 = 1;
    /// Entries that fit a 4 KiB page.
    pub const PER_PAGE: usize = 512;
}

const _: () = assert!(size_of::<CtrlRequest>() == super::CTRL_SLOT_LEN);
const _: () = assert!(size_of::<GrefMapping>() * GrefMapping::PER_PAGE == 4096);

/// A request, decoded. Values are as the frontend wrote them: the backend must check their
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtrlMessage {
    /// Which hash kinds does the backend support?
    GetHashFlags,
    /// Calculate these kinds of hash; 0 turns hashing off. An algorithm must have been chosen
    /// before.
    SetHashFlags {
        /// [`HashKind::mask`](super::HashKind::mask)s.
        flags: u32,
    },
    /// Use this key.
    SetHashKey {
        /// Grant of the page that starts with the key.
        gref: u32,
        /// Bytes of the key; the rest is zeros.
        len: u32,
    },
    /// How many entries may the mapping table have?
    GetHashMappingSize,
    /// Use a mapping table of this size, zeroed; 0 means hash modulo queues.
    SetHashMappingSize {
        /// Entries.
        entries: u32,
    },
    /// Write part of the mapping table. `offset + entries` can wrap, or pass the table's end
    /// (XSA-270).
    SetHashMapping {
        /// Grant of the page that starts with the entries, queue numbers as `u32`.
        gref: u32,
        /// Entries to write.
        entries: u32,
        /// The first entry to write.
        offset: u32,
    },
    /// Use this algorithm: see [`HashAlgorithm::from_raw`].
    SetHashAlgorithm {
        /// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
        algorithm: u32,
    },
    /// How many grants can be kept mapped?
    GetGrefMappingSize {
        /// Queue index.
        queue: u32,
    },
    /// Map these grants, all or none.
    AddGrefMapping {
        /// Queue index.
        queue: u32,
        /// Grant of the page that starts with [`GrefMapping`]s.
        gref: u32,
        /// Entries in that page.
        entries: u32,
    },
    /// Unmap these grants, as many as possible.
    DelGrefMapping {
        /// Queue index.
        queue: u32,
        /// Grant of the page that starts with [`GrefMapping`]s, which the backend writes their
        /// status into.
        gref: u32,
        /// Entries in that page.
        entries: u32,
    },
}

/// No such `XEN_NETIF_CTRL_TYPE_*`. The response is [`status::NOT_SUPPORTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown control request type {0}")]
pub struct UnknownCtrlKind(pub u16);

impl CtrlRequest {
    /// Decodes this request.
    ///
    /// # Errors
    /// The kind is unknown.
    pub fn message(&self) -> Result<CtrlMessage, UnknownCtrlKind> {
        let [a, b, c] = self.data;
        Ok(match self.kind {
            kind::GET_HASH_FLAGS => CtrlMessage::GetHashFlags,
            kind::SET_HASH_FLAGS => CtrlMessage::SetHashFlags { flags: a },
            kind::SET_HASH_KEY => CtrlMessage::SetHashKey { gref: a, len: b },
            kind::GET_HASH_MAPPING_SIZE => CtrlMessage::GetHashMappingSize,
            kind::SET_HASH_MAPPING_SIZE => CtrlMessage::SetHashMappingSize { entries: a },
            kind::SET_HASH_MAPPING => {
                CtrlMessage::SetHashMapping { gref: a, entries: b, offset: c }
            }
            kind::SET_HASH_ALGORITHM => CtrlMessage::SetHashAlgorithm { algorithm: a },
            kind::GET_GREF_MAPPING_SIZE => CtrlMessage::GetGrefMappingSize { queue: a },
            kind::ADD_GREF_MAPPING => CtrlMessage::AddGrefMapping { queue: a, gref: b, entries: c },
            kind::DEL_GREF_MAPPING => CtrlMessage::DelGrefMapping { queue: a, gref: b, entries: c },
            unknown => return Err(UnknownCtrlKind(unknown)),
        })
    }

    /// The response to this request.
    #[must_use]
    pub const fn respond(&self, status: u32, data: u32) -> CtrlResponse {
        CtrlResponse { id: self.id, kind: self.kind, status, data }
    }
}

impl CtrlMessage {
    /// Encodes this request.
    #[must_use]
    pub const fn request(&self, id: u16) -> CtrlRequest {
        let (kind, data) = match *self {
            Self::GetHashFlags => (kind::GET_HASH_FLAGS, [0; 3]),
            Self::SetHashFlags { flags } => (kind::SET_HASH_FLAGS, [flags, 0, 0]),
            Self::SetHashKey { gref, len } => (kind::SET_HASH_KEY, [gref, len, 0]),
            Self::GetHashMappingSize => (kind::GET_HASH_MAPPING_SIZE, [0; 3]),
            Self::SetHashMappingSize { entries } => (kind::SET_HASH_MAPPING_SIZE, [entries, 0, 0]),
            Self::SetHashMapping { gref, entries, offset } => {
                (kind::SET_HASH_MAPPING, [gref, entries, offset])
            }
            Self::SetHashAlgorithm { algorithm } => (kind::SET_HASH_ALGORITHM, [algorithm, 0, 0]),
            Self::GetGrefMappingSize { queue } => (kind::GET_GREF_MAPPING_SIZE, [queue, 0, 0]),
            Self::AddGrefMapping { queue, gref, entries } => {
                (kind::ADD_GREF_MAPPING, [queue, gref, entries])
            }
            Self::DelGrefMapping { queue, gref, entries } => {
                (kind::DEL_GREF_MAPPING, [queue, gref, entries])
            }
        };
        CtrlRequest { id, kind, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_documented_layout() {
        let request =
            CtrlMessage::SetHashMapping { gref: 8, entries: 128, offset: 256 }.request(0x0201);
        let bytes = [1, 2, 6, 0, 8, 0, 0, 0, 128, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(request.as_bytes(), bytes);
        assert_eq!(CtrlRequest::read_from_bytes(&bytes), Ok(request));

        let response = request.respond(status::BUFFER_OVERFLOW, 0x0403_0201);
        assert_eq!(response.as_bytes(), [1, 2, 6, 0, 3, 0, 0, 0, 1, 2, 3, 4]);

        let entry = GrefMapping { gref: 0x0403_0201, flags: GrefMapping::READ_ONLY, status: 2 };
        assert_eq!(entry.as_bytes(), [1, 2, 3, 4, 1, 0, 2, 0]);
    }

    #[test]
    fn messages_are_numbered_from_1_and_keep_their_data() {
        let messages = [
            (CtrlMessage::GetHashFlags, [0; 3]),
            (CtrlMessage::SetHashFlags { flags: 7 }, [7, 0, 0]),
            (CtrlMessage::SetHashKey { gref: 7, len: 40 }, [7, 40, 0]),
            (CtrlMessage::GetHashMappingSize, [0; 3]),
            (CtrlMessage::SetHashMappingSize { entries: 7 }, [7, 0, 0]),
            (CtrlMessage::SetHashMapping { gref: 7, entries: 8, offset: 9 }, [7, 8, 9]),
            (CtrlMessage::SetHashAlgorithm { algorithm: 1 }, [1, 0, 0]),
            (CtrlMessage::GetGrefMappingSize { queue: 7 }, [7, 0, 0]),
            (CtrlMessage::AddGrefMapping { queue: 7, gref: 8, entries: 9 }, [7, 8, 9]),
            (CtrlMessage::DelGrefMapping { queue: 7, gref: 8, entries: 9 }, [7, 8, 9]),
        ];
        for (kind, (message, data)) in (1..).zip(messages) {
            let request = message.request(5);
            assert_eq!(request, CtrlRequest { id: 5, kind, data });
            assert_eq!(request.message(), Ok(message));
        }
    }

    #[test]
    fn other_kinds_are_unknown() {
        for kind in [0, 11, u16::MAX] {
            let request = CtrlRequest { kind, ..CtrlRequest::default() };
            assert_eq!(request.message(), Err(UnknownCtrlKind(kind)));
        }
    }

    #[test]
    fn hash_algorithms_have_their_numbers() {
        assert_eq!(HashAlgorithm::from_raw(0), Some(HashAlgorithm::None));
        assert_eq!(HashAlgorithm::from_raw(1), Some(HashAlgorithm::Toeplitz));
        assert_eq!(HashAlgorithm::from_raw(2), None);
        assert_eq!(HashAlgorithm::from_raw(257), None);
    }
}
