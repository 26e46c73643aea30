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
    /// Put into the guest's pages by the device, if it has a queue for this guest; otherwise copied.
    Direct,
}

impl RxChannel {
    /// Whether the guest posts pages that frames are copied into, as `request-rx-copy` says.
    #[must_use]
    pub fn is_copy(self) -> bool {
        self != Self::Flip
    }

    /// How the guest copies, where it does.
    #[must_use]
    pub fn guest_copy(self) -> Option<CopyForm> {
        match self {
            Self::Copy | Self::Flip | Self::Direct => None,
            Self::GuestCopy => Some(CopyForm::Hypercall),
            Self::GuestCopyMapped => Some(CopyForm::Mapped),
        }
    }

    /// Whether an uplink's queue for one guest can fill this guest's buffers.
    #[must_use]
    pub fn lends(self) -> bool {
        self == Self::Direct
    }
}

/// Who decides which granted pages stay mapped between packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrantReuse {
    /// The frontend, over the control ring: it says what is mapped and unmapped.
    #[default]
    Agreed,
    /// The backend: it maps a page at its first use, for any frontend. Only on a platform with
    /// [unpinned mappings](hypervisor::Hypervisor::UNPINNED_MAPPINGS).
    OnDemand,
}

macro_rules! named {
    ($kind:ty, $($name:literal => $value:path),+) => {
        impl $kind {
            /// The names of all, in the order of their declaration.
            pub const NAMES: &[&str] = &[$($name),+];
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(format!("not one of {}", Self::NAMES.join(", "))),
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
    "guest-copy-mapped" => RxChannel::GuestCopyMapped,
    "direct" => RxChannel::Direct
);
named!(GrantReuse, "agreed" => GrantReuse::Agreed, "on-demand" => GrantReuse::OnDemand);
