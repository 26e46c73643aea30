//! The I/O channel: how a packet's bytes cross between the guest and the driver domain.
//!
//! Menon, Cox and Zwaenepoel (2006, §4.1) start from a netback that maps every page of every
//! packet ([`TxChannel::Remap`]: two changes of the address space per page) and arrive at one that
//! reads the header beside the ring and never maps the body ([`TxChannel::Header`]).

use std::fmt;
use std::str::FromStr;

use hypervisor::CopyForm;

/// How a packet's bytes come from a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChannel {
    /// Its first bytes are copied, from header pages if the frontend has some and otherwise from
    /// its grants; the rest stays in the guest's pages until the egress port fetches it.
    #[default]
    Header,
    /// All its pages are mapped, and unmapped when it has been sent.
    Remap,
}

/// How a packet's bytes go to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChannel {
    /// Copied into pages that the guest shares once.
    #[default]
    Copy,
    /// Copied into zeroed pages of the driver domain, which are transferred to the guest.
    Flip,
    /// Copied by the guest, in hypercalls, if they come from an uplink; otherwise as `Copy` (Santos
    /// et al. 2008, §4.1).
    GuestCopy,
    /// Copied by the guest itself, out of a pool that it has mapped, if they come from an uplink;
    /// otherwise as `Copy`.
    GuestCopyMapped,
}

impl RxChannel {
    /// Whether a guest can, or must, receive into pages that it grants.
    #[must_use]
    pub fn is_copy(self) -> bool {
        self != Self::Flip
    }

    /// How the guest copies, where it does.
    #[must_use]
    pub fn guest_copy(self) -> Option<CopyForm> {
        match self {
            Self::Copy | Self::Flip => None,
            Self::GuestCopy => Some(CopyForm::Hypercall),
            Self::GuestCopyMapped => Some(CopyForm::Mapped),
        }
    }
}

macro_rules! named {
    ($kind:ty, $($name:literal => $value:path),+) => {
        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(format!("not one of {}", [$($name),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($value => $name,)+
                })
            }
        }
    };
}

named!(TxChannel, "header" => TxChannel::Header, "remap" => TxChannel::Remap);
named!(
    RxChannel,
    "copy" => RxChannel::Copy,
    "flip" => RxChannel::Flip,
    "guest-copy" => RxChannel::GuestCopy,
    "guest-copy-mapped" => RxChannel::GuestCopyMapped
);
