//! The Ethernet header and its VLAN tags.

use crate::bytes::{array, be16};
use crate::error::{Layer, ParseError};
use crate::ethernet::{EtherType, HEADER_LEN, VLAN_TAG_LEN};

/// How many VLAN tags a parse skips. Behind them, IPv4 and TCP with options of every length still fit the 128 bytes that a backend copies.
const MAX_VLAN_TAGS: usize = 8;

/// The Ethernet header with its tags.
pub(super) struct LinkHeader {
    pub(super) ethertype: EtherType,
    pub(super) vlan: Option<u16>,
    pub(super) len: usize,
}

impl LinkHeader {
    #[inline]
    pub(super) fn parse(header: &[u8]) -> Result<Self, ParseError> {
        let ethernet: &[u8; HEADER_LEN] =
            array(header, 0).ok_or(ParseError::Truncated(Layer::Ethernet))?;
        let ethertype = EtherType(be16(ethernet, 12));
        let mut link = Self { ethertype, vlan: None, len: HEADER_LEN };
        for _ in 0..MAX_VLAN_TAGS {
            if !link.ethertype.is_vlan() {
                break;
            }
            let tag: &[u8; VLAN_TAG_LEN] =
                array(header, link.len).ok_or(ParseError::Truncated(Layer::Vlan))?;
            link.vlan.get_or_insert(be16(tag, 0));
            link.ethertype = EtherType(be16(tag, 2));
            link.len += VLAN_TAG_LEN;
        }
        Ok(link)
    }
}
