//! What an operator says of a port.

use wire::ethernet::MacAddr;

use crate::addresses::Allowed;

/// Who a port may say it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its IP addresses, besides the link-local one that follows from the MAC address. None leaves
    /// IP sources unchecked.
    pub addresses: Option<Vec<Allowed>>,
}
