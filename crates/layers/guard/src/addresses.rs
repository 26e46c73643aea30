//! The addresses that a port may send from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// An address, or a network of addresses, that a port may send from.
///
/// As text it is an IPv4 or IPv6 address, with or without a prefix length, as it is written in a
/// guest's `addresses`. With host bits set it is that address alone: `10.77.0.1/24` is 10.77.0.1.
/// Without, it is the network: `10.77.0.0/24` is every address from 10.77.0.0 to 10.77.0.255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allowed {
    /// Its first address.
    network: IpAddr,
    prefix_len: u8,
}

/// Text that is no [`Allowed`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseAllowedError {
    /// No address.
    #[error("`{0}` is not an IPv4 or IPv6 address")]
    Address(String),
    /// What follows the slash is no prefix length.
    #[error("`{text}` has no prefix length from 0 to {max} after the slash")]
    PrefixLen {
        /// The whole text.
        text: String,
        /// The greatest prefix length of its kind of address.
        max: u8,
    },
    /// An unspecified, broadcast or multicast address.
    #[error("`{0}` is not the address of one host")]
    NotUnicast(IpAddr),
}

impl Allowed {
    /// One address.
    ///
    /// # Errors
    /// It is unspecified, broadcast or multicast.
    pub fn host(address: IpAddr) -> Result<Self, ParseAllowedError> {
        let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.is_unspecified() || address.is_multicast() || is_broadcast {
            return Err(ParseAllowedError::NotUnicast(address));
        }
        Ok(Self { network: address, prefix_len: address_bits(address) })
    }

    /// Whether this holds `address`.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                address.to_bits() & mask_v4(self.prefix_len) == network.to_bits()
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                address.to_bits() & mask_v6(self.prefix_len) == network.to_bits()
            }
            _ => false,
        }
    }
}

impl FromStr for Allowed {
    type Err = ParseAllowedError;

    fn from_str(text: &str) -> Result<Self, ParseAllowedError> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let no_address = |_| ParseAllowedError::Address(text.to_owned());
        let address: IpAddr = address.parse().map_err(no_address)?;
        let Some(prefix_len) = prefix_len else { return Self::host(address) };
        let max = address_bits(address);
        // `parse` alone would take "+24".
        let digits = prefix_len.bytes().all(|digit| digit.is_ascii_digit());
        let prefix_len = prefix_len.parse().ok().filter(|len| digits && *len <= max);
        let Some(prefix_len) = prefix_len else {
            return Err(ParseAllowedError::PrefixLen { text: text.to_owned(), max });
        };
        let network = Self { network: address, prefix_len };
        if prefix_len < max && network.contains(address) {
            Ok(network)
        } else {
            Self::host(address)
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.network)?;
        if self.prefix_len < address_bits(self.network) {
            write!(f, "/{}", self.prefix_len)?;
        }
        Ok(())
    }
}

const fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn mask_v4(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}

fn mask_v6(prefix_len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0)
}

/// A set of [`Allowed`], sorted by kind for one lookup per frame.
pub(crate) struct Addresses {
    /// Network and mask.
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Addresses {
    pub(crate) fn new(allowed: &[Allowed]) -> Self {
        let v4 = |allowed: &Allowed| match allowed.network {
            IpAddr::V4(network) => Some((network.to_bits(), mask_v4(allowed.prefix_len))),
            IpAddr::V6(_) => None,
        };
        let v6 = |allowed: &Allowed| match allowed.network {
            IpAddr::V4(_) => None,
            IpAddr::V6(network) => Some((network.to_bits(), mask_v6(allowed.prefix_len))),
        };
        Self {
            v4: allowed.iter().filter_map(v4).collect(),
            v6: allowed.iter().filter_map(v6).collect(),
        }
    }

    #[inline]
    pub(crate) fn has_v4(&self, address: Ipv4Addr) -> bool {
        self.v4.iter().any(|(network, mask)| address.to_bits() & mask == *network)
    }

    #[inline]
    pub(crate) fn has_v6(&self, address: Ipv6Addr) -> bool {
        self.v6.iter().any(|(network, mask)| address.to_bits() & mask == *network)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allowed(text: &str) -> Allowed {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn host_bits_make_it_one_address() {
        for text in ["10.77.0.1", "10.77.0.1/24", "10.77.0.1/32"] {
            assert_eq!(allowed(text), Allowed::host(ip("10.77.0.1")).unwrap());
            assert_eq!(allowed(text).to_string(), "10.77.0.1");
        }
        for text in ["fd00:77::1", "fd00:77::1/64", "fd00:77::1/128"] {
            assert_eq!(allowed(text), Allowed::host(ip("fd00:77::1")).unwrap());
        }
        assert!(!allowed("10.77.0.1/24").contains(ip("10.77.0.2")));
    }

    #[test]
    fn no_host_bits_make_it_the_network() {
        let network = allowed("10.77.0.0/24");
        assert!(network.contains(ip("10.77.0.0")) && network.contains(ip("10.77.0.255")));
        assert!(!network.contains(ip("10.77.1.0")) && !network.contains(ip("::10.77.0.1")));
        assert_eq!(network.to_string(), "10.77.0.0/24");
        let network = allowed("fd00:77::/64");
        assert!(network.contains(ip("fd00:77::ffff:ffff:ffff:ffff")));
        assert!(!network.contains(ip("fd00:77:0:1::")) && !network.contains(ip("10.77.0.1")));
        assert!(allowed("0.0.0.0/0").contains(ip("255.255.255.255")));
        assert!(allowed("::/0").contains(ip("ffff::")));
    }

    #[test]
    fn errors_name_the_text() {
        let error = |text: &str| text.parse::<Allowed>().unwrap_err().to_string();
        for text in ["", "10.77.0", "10.77.0.1.1", "red", "/24", " 10.77.0.1", "fd00::/64/64x"] {
            assert!(error(text).contains(&format!("`{text}`")), "{text}");
        }
        assert_eq!(error("red"), "`red` is not an IPv4 or IPv6 address");
        for text in ["10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            let expected = format!("`{text}` has no prefix length from 0 to 32 after the slash");
            assert_eq!(error(text), expected);
        }
        assert!(error("fd00::/129").contains("from 0 to 128"));
        for text in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "ff02::1/64"] {
            assert!(error(text).contains("is not the address of one host"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_set_agrees_with_its_members(
            network: u128, prefix_len in 0u8..=128, address: u128, kept in 0u32..=128,
        ) {
            // Shares at least `kept` bits with the network.
            let address = address & u128::MAX.checked_shr(kept).unwrap_or(0)
                | network & u128::MAX.checked_shl(128 - kept).unwrap_or(0);
            let text = format!("{}/{prefix_len}", Ipv6Addr::from_bits(network & mask_v6(prefix_len)));
            if let Ok(allowed) = text.parse::<Allowed>() {
                let within = network ^ address;
                let expected = within.leading_zeros() >= prefix_len.into();
                let address = Ipv6Addr::from_bits(address);
                prop_assert_eq!(allowed.contains(address.into()), expected);
                prop_assert_eq!(Addresses::new(&[allowed]).has_v6(address), expected);
                prop_assert_eq!(allowed.to_string().parse(), Ok(allowed));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9a-f.:/+]{0,24}") {
            if let Ok(allowed) = text.parse::<Allowed>() {
                prop_assert_eq!(allowed.to_string().parse(), Ok(allowed));
            }
        }
    }
}
