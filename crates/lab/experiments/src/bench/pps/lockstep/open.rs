//! The path of each window.

use super::window::{Path, PathKind, Window};
use super::{cards, netif, uplinks, virtio};

/// Builds the path of a window.
pub fn path(window: &Window) -> Result<Box<dyn Path>, String> {
    Ok(match window.path {
        PathKind::Header | PathKind::Copy | PathKind::Remap | PathKind::Flip => {
            Box::new(netif::Pair::new(window.path, window.size)?)
        }
        PathKind::UplinkTx | PathKind::UplinkTxBasic => {
            Box::new(uplinks::ToUplink::new(window.path, window.size)?)
        }
        PathKind::GuestCopy
        | PathKind::GuestCopyMapped
        | PathKind::Direct
        | PathKind::UplinkRx
        | PathKind::UplinkRxBasic => Box::new(uplinks::FromUplink::new(window.path, window.size)?),
        PathKind::VhostUser => Box::new(virtio::Pair::new(window.size)?),
        PathKind::Card(protection) => Box::new(cards::Card::new(protection, window.size)?),
    })
}
