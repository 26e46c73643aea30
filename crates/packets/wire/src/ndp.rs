//! Neighbour discovery for IPv6 (RFC 4861).

use core::net::Ipv6Addr;

use crate::bytes::{field_types, read, view, write};
use crate::error::{Layer, ParseError, checked_len};
use crate::ethernet::MacAddr;

/// The ICMPv6 type of a neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

field_types! {
    Kind: |[byte]: [u8; 1]| Kind(byte), |kind: Kind| [kind.0];
}

impl Kind {
    /// A host asks for routers.
    pub const ROUTER_SOLICITATION: Self = Self(133);
    /// A router announces itself and the link's prefixes.
    pub const ROUTER_ADVERTISEMENT: Self = Self(134);
    /// A host asks for the owner of an address.
    pub const NEIGHBOUR_SOLICITATION: Self = Self(135);
    /// A host says that it owns an address.
    pub const NEIGHBOUR_ADVERTISEMENT: Self = Self(136);
    /// A router names a better first hop.
    pub const REDIRECT: Self = Self(137);

    /// Is this one of the five kinds of neighbour discovery message?
    #[inline]
    #[must_use]
    pub const fn is_neighbour_discovery(self) -> bool {
        matches!(self.0, 133..=137)
    }

    /// Bytes before the options.
    const fn fixed_len(self) -> usize {
        match self {
            Self::ROUTER_ADVERTISEMENT => 16,
            Self::NEIGHBOUR_SOLICITATION | Self::NEIGHBOUR_ADVERTISEMENT => 24,
            Self::REDIRECT => 40,
            _ => 8,
        }
    }

    const fn has_target(self) -> bool {
        matches!(
            self,
            Self::NEIGHBOUR_SOLICITATION | Self::NEIGHBOUR_ADVERTISEMENT | Self::REDIRECT
        )
    }
}

mod field {
    pub const KIND: usize = 0;
    pub const FLAGS: usize = 4;
    pub const TARGET: usize = 8;
}

/// Option lengths count units of this many bytes.
const OPTION_UNIT: usize = 8;

/// An option of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdOption<'a> {
    /// Its type.
    pub kind: u8,
    /// What follows type and length.
    pub data: &'a [u8],
}

impl NdOption<'_> {
    /// Type of the option that holds the sender's link-layer address.
    pub const SOURCE_LINK_ADDRESS: u8 = 1;
    /// Type of the option that holds the target's link-layer address.
    pub const TARGET_LINK_ADDRESS: u8 = 2;

    /// Does it hold the link-layer address of the source or the target?
    #[inline]
    #[must_use]
    pub const fn is_link_address(&self) -> bool {
        matches!(self.kind, Self::SOURCE_LINK_ADDRESS | Self::TARGET_LINK_ADDRESS)
    }

    /// The Ethernet address it holds. None if it holds none, or is not as long as one.
    #[inline]
    #[must_use]
    pub fn link_address(&self) -> Option<MacAddr> {
        let address = self.data.try_into().ok().map(MacAddr);
        address.filter(|_| self.is_link_address())
    }
}

/// The options of a message, in order.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<NdOption<'a>, ParseError>;

    /// The next option, or an error, which is the last item.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (kind, units) = match *self.rest {
            [] => return None,
            [kind, units, ..] => (kind, usize::from(units)),
            [_] => (0, 0),
        };
        // A length of zero would never end.
        if units == 0 || self.rest.len() < units * OPTION_UNIT {
            self.rest = &[];
            return Some(Err(ParseError::Length(Layer::Ndp)));
        }
        let (option, rest) = self.rest.split_at(units * OPTION_UNIT);
        self.rest = rest;
        Some(Ok(NdOption { kind, data: &option[2..] }))
    }
}

view! {
    /// A view of a message: from the ICMPv6 header to the last option, where the buffer ends.
    Packet {
        /// Type.
        kind: Kind = field::KIND,
        /// The flags of a neighbour advertisement.
        flags: Flags = field::FLAGS,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic.
    ///
    /// # Errors
    /// It is no neighbour discovery message, or the part before the options does not fit. Options
    /// are checked as they are [read](Self::options).
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let bytes = buffer.as_ref();
        let kind = Kind(*bytes.first().ok_or(ParseError::Truncated(Layer::Ndp))?);
        if !kind.is_neighbour_discovery() {
            return Err(ParseError::Version(Layer::Ndp));
        }
        checked_len(bytes, kind.fixed_len(), Layer::Ndp)?;
        Ok(Self { buffer })
    }

    /// The address that a solicitation asks for or an advertisement claims, or a redirect's first
    /// hop.
    #[inline]
    pub fn target(&self) -> Option<Ipv6Addr> {
        let has_target = self.kind().has_target();
        has_target.then(|| Ipv6Addr::from(read::<16>(self.buffer.as_ref(), field::TARGET)))
    }

    /// The options.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        Options { rest: &self.buffer.as_ref()[self.kind().fixed_len()..] }
    }
}

/// What a neighbour advertisement says of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

field_types! {
    Flags: |[byte]: [u8; 1]| Flags(byte), |flags: Flags| [flags.0];
}

impl Flags {
    /// The sender is a router.
    pub const ROUTER: Self = Self(0x80);
    /// The message answers a solicitation.
    pub const SOLICITED: Self = Self(0x40);
    /// The message replaces the link-layer address that receivers know.
    pub const OVERRIDE: Self = Self(0x20);
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A message that a host sends, with no option but the link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// A host asks for routers.
    RouterSolicitation {
        /// The sender's link-layer address.
        source_link: Option<MacAddr>,
    },
    /// A host asks for the owner of an address.
    NeighbourSolicitation {
        /// The address.
        target: Ipv6Addr,
        /// The sender's link-layer address.
        source_link: Option<MacAddr>,
    },
    /// A host says that it owns an address.
    NeighbourAdvertisement {
        /// What it says of itself.
        flags: Flags,
        /// The address.
        target: Ipv6Addr,
        /// The link-layer address that goes with it.
        target_link: Option<MacAddr>,
    },
}

impl Repr {
    /// Bytes of the message.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let (kind, _, option) = self.parts();
        kind.fixed_len() + option.map_or(0, |_| OPTION_UNIT)
    }

    /// Writes this, with checksum 0, into `packet`, which is [`buffer_len`](Self::buffer_len) bytes long.
    /// [`icmp::Packet::fill_checksum`](crate::icmp::Packet::fill_checksum) completes it.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        let (kind, target, option) = self.parts();
        let bytes = packet.buffer.as_mut();
        let fixed = kind.fixed_len();
        bytes[..fixed].fill(0);
        bytes[field::KIND] = kind.0;
        if let Self::NeighbourAdvertisement { flags, .. } = self {
            bytes[field::FLAGS] = flags.0;
        }
        if let Some(target) = target {
            write(bytes, field::TARGET, target.octets());
        }
        if let Some((option, address)) = option {
            write(bytes, fixed, [option, 1]);
            write(bytes, fixed + 2, address.0);
        }
    }

    /// Type, target, and type and content of the option.
    fn parts(&self) -> (Kind, Option<Ipv6Addr>, Option<(u8, MacAddr)>) {
        let source = |link: Option<_>| link.map(|mac| (NdOption::SOURCE_LINK_ADDRESS, mac));
        match *self {
            Self::RouterSolicitation { source_link } => {
                (Kind::ROUTER_SOLICITATION, None, source(source_link))
            }
            Self::NeighbourSolicitation { target, source_link } => {
                (Kind::NEIGHBOUR_SOLICITATION, Some(target), source(source_link))
            }
            Self::NeighbourAdvertisement { target, target_link, .. } => {
                let option = target_link.map(|mac| (NdOption::TARGET_LINK_ADDRESS, mac));
                (Kind::NEIGHBOUR_ADVERTISEMENT, Some(target), option)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const MAC: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);

    const SOLICITATION: [u8; 32] = [
        135, 0, 0, 0, 0, 0, 0, 0, // type, code, checksum, reserved
        0xfd, 0x00, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // target
        1, 1, 0x00, 0x16, 0x3e, 0, 0, 1, // source link-layer address
    ];

    const ADVERTISEMENT: [u8; 32] = [
        136, 0, 0, 0, 0x60, 0, 0, 0, // type, code, checksum, solicited and override
        0xfd, 0x00, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // target
        2, 1, 0x00, 0x16, 0x3e, 0, 0, 1, // target link-layer address
    ];

    fn both_ways(bytes: &[u8], repr: Repr) {
        let packet = Packet::new_checked(bytes).unwrap();
        let link = packet.options().next().map(|option| option.unwrap().link_address().unwrap());
        let (kind, target, option) = repr.parts();
        assert_eq!((packet.kind(), packet.target()), (kind, target));
        assert_eq!(link, option.map(|(_, address)| address));
        assert_eq!(repr.buffer_len(), bytes.len());
        let mut emitted = Packet::new_unchecked(std::vec![0xee; bytes.len()]);
        repr.emit(&mut emitted);
        assert_eq!(emitted.into_inner(), bytes);
    }

    #[test]
    fn a_message_is_parsed_and_emitted() {
        let source_link = Some(MAC);
        both_ways(&SOLICITATION, Repr::NeighbourSolicitation { target: TARGET, source_link });
        let detection = Repr::NeighbourSolicitation { target: TARGET, source_link: None };
        both_ways(&SOLICITATION[..24], detection);
        let flags = Flags::SOLICITED | Flags::OVERRIDE;
        both_ways(
            &ADVERTISEMENT,
            Repr::NeighbourAdvertisement { flags, target: TARGET, target_link: Some(MAC) },
        );
        let solicitation = [133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0x00, 0x16, 0x3e, 0, 0, 1];
        both_ways(&solicitation, Repr::RouterSolicitation { source_link });
        both_ways(&solicitation[..8], Repr::RouterSolicitation { source_link: None });
    }

    #[test]
    fn router_messages_are_parsed() {
        for (kind, len) in [(Kind::ROUTER_ADVERTISEMENT, 16), (Kind::REDIRECT, 40)] {
            let mut bytes = [0; 40];
            bytes[0] = kind.0;
            let packet = Packet::new_checked(&bytes[..len]).unwrap();
            assert_eq!(packet.target().is_some(), kind == Kind::REDIRECT);
            let truncated = Packet::new_checked(&bytes[..len - 1]);
            assert_eq!(truncated, Err(ParseError::Truncated(Layer::Ndp)));
        }
    }

    #[test]
    fn options_are_walked_in_order() {
        let mut bytes = [0; 8 + 8 + 16];
        bytes[0] = 133;
        bytes[8..10].copy_from_slice(&[14, 1]); // a nonce
        bytes[16..18].copy_from_slice(&[1, 2]); // a link-layer address longer than Ethernet's
        let packet = Packet::new_checked(bytes).unwrap();
        let options: Result<Vec<_>, _> = packet.options().collect();
        let options = options.unwrap();
        assert_eq!(options[0], NdOption { kind: 14, data: &[0; 6] });
        assert_eq!(options[1], NdOption { kind: 1, data: &[0; 14] });
        assert!(!options[0].is_link_address() && options[0].link_address().is_none());
        assert!(options[1].is_link_address() && options[1].link_address().is_none());
        assert_eq!(options.len(), 2);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let truncated = Err(ParseError::Truncated(Layer::Ndp));
        assert_eq!(Packet::new_checked(&SOLICITATION[..0]), truncated);
        assert_eq!(Packet::new_checked(&SOLICITATION[..23]), truncated);
        assert_eq!(Packet::new_checked(&[128; 32]), Err(ParseError::Version(Layer::Ndp)));
        // A length of zero, one beyond the end, and half an option.
        for (units, len) in [(0, 32), (2, 32), (1, 31), (1, 25)] {
            let mut bytes = SOLICITATION;
            bytes[25] = units;
            let packet = Packet::new_checked(&bytes[..len]).unwrap();
            let options: Vec<_> = packet.options().collect();
            assert_eq!(options, [Err(ParseError::Length(Layer::Ndp))], "the last item");
        }
    }
}
