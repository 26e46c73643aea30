//! The packets between daemon and card after the join: crate `cdna`'s messages, and those that only a
//! card that is a process needs.
//!
//! An assignment takes two steps here. [`ToCard::Prepare`] brings the files, and the card maps them before the daemon seals
//! them and hands them to the guest; `Assign`, without files, then makes the card serve the context.

use cdna::message::{Malformed, Packet};
use cdna::{Command, ContextId, Report};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// From the daemon to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToCard {
    /// A command. `Start` comes with the vector page and the interrupt's eventfd.
    Command(Command),
    /// The files of a coming assignment come with this, in the order of [`crate::files`].
    Prepare {
        /// Which context.
        context: ContextId,
        /// Which assignment of it.
        generation: u32,
        /// Translations that its cache holds, with an IOMMU.
        cache_entries: u32,
    },
    /// A domain's memory, whose file comes with this, is in the machine from now on.
    AddMemory {
        /// Its first byte's machine address.
        base: u64,
        /// Its bytes.
        len: u64,
    },
    /// A domain's memory leaves the machine. The domain's contexts were revoked before.
    RemoveMemory {
        /// Its first byte's machine address.
        base: u64,
    },
}

/// From the card to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToDaemon {
    /// A report.
    Report(Report),
    /// The files of a coming assignment are mapped.
    Prepared {
        /// Which context.
        context: ContextId,
        /// Which assignment of it.
        generation: u32,
    },
}

mod code {
    pub(super) const PREPARE: u32 = 0x201;
    pub(super) const ADD_MEMORY: u32 = 0x202;
    pub(super) const REMOVE_MEMORY: u32 = 0x203;
    pub(super) const PREPARED: u32 = 0x301;
}

/// A packet of this crate. It has the size of crate `cdna`'s, whose code is in the same place.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Own {
    code: u32,
    context: u32,
    generation: u32,
    reserved: u32,
    base: u64,
    len: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Own>() == size_of::<Packet>());

impl Own {
    fn new(code: u32, context: Option<ContextId>, generation: u32, base: u64, len: u64) -> Self {
        let context = context.map_or(0, |context| context.number().into());
        Self { code, context, generation, reserved: 0, base, len, rest: [0; 12] }
    }

    fn context(&self) -> Result<ContextId, Malformed> {
        u8::try_from(self.context).map(ContextId::new).map_err(|_| Malformed(self.code))
    }

    fn bytes(self) -> Bytes {
        zerocopy::transmute!(self)
    }
}

/// A packet's bytes.
pub(crate) type Bytes = [u8; size_of::<Packet>()];

impl ToCard {
    pub(crate) fn bytes(&self) -> Bytes {
        match *self {
            Self::Command(command) => zerocopy::transmute!(Packet::from(&command)),
            Self::Prepare { context, generation, cache_entries } => {
                let entries = cache_entries.into();
                Own::new(code::PREPARE, Some(context), generation, 0, entries).bytes()
            }
            Self::AddMemory { base, len } => Own::new(code::ADD_MEMORY, None, 0, base, len).bytes(),
            Self::RemoveMemory { base } => Own::new(code::REMOVE_MEMORY, None, 0, base, 0).bytes(),
        }
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<Self, Malformed> {
        let own: Own = zerocopy::transmute!(bytes);
        let &Own { generation, base, len, .. } = &own;
        Ok(match own.code {
            code::PREPARE => {
                let cache_entries = u32::try_from(len).map_err(|_| Malformed(own.code))?;
                Self::Prepare { context: own.context()?, generation, cache_entries }
            }
            code::ADD_MEMORY => Self::AddMemory { base, len },
            code::REMOVE_MEMORY => Self::RemoveMemory { base },
            _ => Self::Command(Command::try_from(&zerocopy::transmute!(bytes))?),
        })
    }
}

impl ToDaemon {
    pub(crate) fn bytes(&self) -> Bytes {
        match *self {
            Self::Report(report) => zerocopy::transmute!(Packet::from(&report)),
            Self::Prepared { context, generation } => {
                Own::new(code::PREPARED, Some(context), generation, 0, 0).bytes()
            }
        }
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<Self, Malformed> {
        let own: Own = zerocopy::transmute!(bytes);
        let generation = own.generation;
        Ok(match own.code {
            code::PREPARED => Self::Prepared { context: own.context()?, generation },
            _ => Self::Report(Report::try_from(&zerocopy::transmute!(bytes))?),
        })
    }
}

/// The settings of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Contexts, the management context among them.
    pub contexts: usize,
    /// The line rate in 10⁶ bits per second; 0 for none.
    pub rate_mbps: u32,
    /// Whether the card segments TCP.
    pub tso: bool,
    /// The wire.
    pub wire: WireSettings,
}

/// A tap device as the card's wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSettings {
    /// The device's name.
    pub tap: String,
    /// The network namespace of the device; the card's if absent.
    pub namespace: Option<String>,
    /// IP addresses for the device.
    pub addresses: Vec<String>,
    /// Whether the stack behind the device finishes checksums; otherwise the card does.
    pub checksum_offload: bool,
}

#[cfg(test)]
mod tests {
    use cdna::Announcement;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_message_survives_its_bytes(number: u8, generation: u32, base: u64, len: u64, cache_entries: u32) {
            let context = ContextId::new(number);
            for message in [
                ToCard::Command(Command::Start),
                ToCard::Command(Command::Revoke { context, generation }),
                ToCard::Prepare { context, generation, cache_entries },
                ToCard::AddMemory { base, len },
                ToCard::RemoveMemory { base },
            ] {
                prop_assert_eq!(ToCard::from_bytes(message.bytes()), Ok(message));
                prop_assert!(ToDaemon::from_bytes(message.bytes()).is_err());
            }
            for message in [
                ToDaemon::Report(Report::Hello(Announcement::new(generation, 7))),
                ToDaemon::Prepared { context, generation },
            ] {
                prop_assert_eq!(ToDaemon::from_bytes(message.bytes()), Ok(message));
                prop_assert!(ToCard::from_bytes(message.bytes()).is_err());
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: [[u8; 32]; 4]) {
            let mut bytes: Bytes = zerocopy::transmute!(bytes);
            for code in (0u32..6).chain(0x101..0x106).chain(0x200..0x205).chain([0x301]) {
                bytes[..4].copy_from_slice(&code.to_ne_bytes());
                let _ = (ToCard::from_bytes(bytes), ToDaemon::from_bytes(bytes));
            }
        }
    }
}
