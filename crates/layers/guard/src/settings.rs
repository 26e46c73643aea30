//! The keys `guard` and `guard_addresses`, and what operators see of a guard.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wire::ethernet::MacAddr;

use crate::addresses::Allowed;

/// The source addresses that a port may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its IP addresses, besides the link-local one that follows from the MAC address. None leaves
    /// IP sources unchecked.
    pub addresses: Option<Vec<Allowed>>,
}

/// `guard`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuardMode {
    /// Its own MAC address and its own IP addresses.
    Addresses,
    /// Its own MAC address.
    Mac,
    /// Any source.
    Off,
}

/// The sources that a guest's frames may have, apart from its MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// These IP addresses.
    Addresses(Vec<Allowed>),
    /// Any IP address.
    OneMac,
    /// Any MAC address as well.
    Any,
}

impl Sources {
    /// The sources that `mode` allows a guest with these `addresses`. `allowed` replaces `addresses`, unless it is empty. Without a mode, IP
    /// addresses are checked if any are known.
    ///
    /// # Errors
    /// No addresses are known, or one of `addresses` is malformed.
    pub fn new(
        mode: Option<GuardMode>,
        allowed: &[Allowed],
        addresses: &[String],
    ) -> Result<Self, String> {
        let is_known = !(allowed.is_empty() && addresses.is_empty());
        let default = if is_known { GuardMode::Addresses } else { GuardMode::Mac };
        match mode.unwrap_or(default) {
            GuardMode::Off => Ok(Self::Any),
            GuardMode::Mac => Ok(Self::OneMac),
            GuardMode::Addresses if !is_known => {
                Err("guard = \"addresses\" needs the addresses: set guard_addresses".into())
            }
            GuardMode::Addresses if allowed.is_empty() => {
                let hosts = addresses.iter().map(|text| host(text));
                hosts.collect::<Result<_, _>>().map(Self::Addresses)
            }
            GuardMode::Addresses => Ok(Self::Addresses(allowed.to_vec())),
        }
    }

    /// The guard's policy for a guest with this MAC address; none if nothing is checked.
    #[must_use]
    pub fn policy(self, mac: MacAddr) -> Option<Policy> {
        let addresses = match self {
            Self::Addresses(addresses) => Some(addresses),
            Self::OneMac => None,
            Self::Any => return None,
        };
        Some(Policy { mac, addresses })
    }
}

/// The address of an interface, without the prefix length of its network.
fn host(text: &str) -> Result<Allowed, String> {
    let (address, _) = text.split_once('/').unwrap_or((text, ""));
    let error = |reason: String| format!("addresses: {reason}, so guard cannot check it");
    let address: IpAddr =
        address.parse().map_err(|_| error(format!("{text:?} is not an IPv4 or IPv6 address")))?;
    Allowed::host(address).map_err(|reason| error(reason.to_string()))
}

/// Reads a list of strings, each an address or a network.
///
/// # Errors
/// A string is neither.
pub fn deserialize_allowed<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Allowed>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| text.parse().map_err(serde::de::Error::custom);
    texts.iter().map(parse).collect()
}

/// The sources that a guest's frames may have. In JSON: an object with a `mode`, named as in the configuration, and the
/// `addresses`, if they are checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum GuardStatus {
    /// Any.
    Off,
    /// Its own MAC address, and any IP address.
    Mac,
    /// Its own MAC address, these IP addresses, and the link-local one of its MAC address.
    Addresses {
        /// Each an address, or a network such as `10.77.0.0/24`. May be empty.
        addresses: Vec<String>,
    },
}

impl GuardStatus {
    /// What a port with this policy is checked for.
    #[must_use]
    pub fn new(policy: Option<&Policy>) -> Self {
        match policy.map(|policy| &policy.addresses) {
            None => Self::Off,
            Some(None) => Self::Mac,
            Some(Some(addresses)) => {
                Self::Addresses { addresses: addresses.iter().map(ToString::to_string).collect() }
            }
        }
    }
}
