//! Messages between the hypervisor and the card, over a `SOCK_SEQPACKET` socket: one [`Packet`] each.
//!
//! The card begins with [`Report::Hello`]. Where the card is a process, crate `nic-session` carries these packets and the files. An
//! assignment has the context page, the ring pages, the completion page, the doorbell and, with an IOMMU, its table. The card itself has
//! the page of interrupt vectors, the interrupt's eventfd and the machine's memory.
//!
//! A context can be assigned again at once after [`Report::Revoked`]. The generation tells
//! a late report from one about the new assignment.

use wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::context::Statistics;
use crate::layout::Announcement;
use crate::{ContextId, Direction, Fault, Reason};

/// What a context may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Permissions(pub u32);

impl Permissions {
    /// It may receive frames that are not for it
    /// ([`Enable::PROMISCUOUS`](crate::Enable::PROMISCUOUS)).
    pub const PROMISCUOUS: Self = Self(1);
    /// It may send with any source address. A bridge behind the context needs this.
    pub const ANY_SOURCE: Self = Self(1 << 1);

    /// Whether all of these flags are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// Who writes a context's rings, and what the card's accesses to memory are checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Protection {
    /// The guest writes them. Nothing is checked.
    None = 0,
    /// The hypervisor writes them, after its checks. The card checks nothing more.
    #[default]
    Hypervisor = 1,
    /// The guest writes them. Accesses are checked against the context's table.
    Iommu = 2,
}

/// A context's assignment to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which context.
    pub context: ContextId,
    /// Counts the assignments of this context.
    pub generation: u32,
    /// Its MAC address, which no other context has.
    pub mac: MacAddr,
    /// What it may do.
    pub permissions: Permissions,
    /// How its memory is protected.
    pub protection: Protection,
    /// The index of the first descriptor of either ring.
    pub start: u32,
}

/// From the hypervisor to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve the machine. The page of interrupt vectors and the interrupt come with this.
    Start,
    /// Serve a context. One that is assigned already is revoked first, without a report. Until the guest writes mailboxes, nothing is
    /// enabled, and both producer indices are `start`.
    Assign(Assignment),
    /// Drop everything of a context, and report when its memory is not used any more.
    Revoke {
        /// Which context.
        context: ContextId,
        /// Which assignment of it.
        generation: u32,
    },
    /// Report a context's statistics.
    Statistics {
        /// Which context.
        context: ContextId,
    },
}

/// From the card to the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The card's first message.
    Hello(Announcement),
    /// A revoked context is quiet: the card no longer uses its memory.
    Revoked {
        /// Which context.
        context: ContextId,
        /// Which assignment of it.
        generation: u32,
    },
    /// The card stopped a context.
    Fault {
        /// Which assignment of the context.
        generation: u32,
        /// Why.
        fault: Fault,
    },
    /// Statistics that were asked for; zeros if the context is not assigned.
    Statistics {
        /// Whose.
        context: ContextId,
        /// The counters.
        statistics: Statistics,
    },
}

mod code {
    pub(super) const START: u32 = 1;
    pub(super) const ASSIGN: u32 = 2;
    pub(super) const REVOKE: u32 = 3;
    pub(super) const ASK_STATISTICS: u32 = 4;
    pub(super) const HELLO: u32 = 0x101;
    pub(super) const REVOKED: u32 = 0x102;
    pub(super) const FAULT: u32 = 0x103;
    pub(super) const STATISTICS: u32 = 0x104;
}

/// Bytes of a packet's body.
const BODY_LEN: usize = 112;

/// A message on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Packet {
    code: u32,
    context: u32,
    generation: u32,
    reserved: u32,
    body: [u8; BODY_LEN],
}

/// The body of an assignment.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct AssignBody {
    mac: MacAddr,
    reserved: u16,
    permissions: u32,
    protection: u32,
    start: u32,
}

/// The body of a fault.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FaultBody {
    value: u64,
    reason: u32,
    direction: u32,
    index: u32,
    reserved: u32,
}

/// A packet that is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message (code {0:#x})")]
pub struct Malformed(pub u32);

impl Packet {
    fn new(code: u32, context: ContextId, generation: u32) -> Self {
        let context = context.number().into();
        Self { code, context, generation, reserved: 0, body: [0; BODY_LEN] }
    }

    fn with(mut self, body: &(impl IntoBytes + Immutable)) -> Self {
        let bytes = body.as_bytes();
        self.body[..bytes.len()].copy_from_slice(bytes);
        self
    }

    fn body<T: FromBytes>(&self) -> Result<T, Malformed> {
        T::read_from_prefix(&self.body).map(|(body, _)| body).map_err(|_| Malformed(self.code))
    }

    fn context(&self) -> Result<ContextId, Malformed> {
        u8::try_from(self.context).map(ContextId::new).map_err(|_| Malformed(self.code))
    }
}

impl From<&Command> for Packet {
    fn from(command: &Command) -> Self {
        match *command {
            Command::Start => Self::new(code::START, ContextId::MANAGEMENT, 0),
            Command::Assign(assignment) => {
                let Assignment { context, generation, mac, permissions, protection, start } =
                    assignment;
                let (permissions, protection) = (permissions.0, protection as u32);
                let body = AssignBody { mac, reserved: 0, permissions, protection, start };
                Self::new(code::ASSIGN, context, generation).with(&body)
            }
            Command::Revoke { context, generation } => Self::new(code::REVOKE, context, generation),
            Command::Statistics { context } => Self::new(code::ASK_STATISTICS, context, 0),
        }
    }
}

impl TryFrom<&Packet> for Command {
    type Error = Malformed;

    fn try_from(packet: &Packet) -> Result<Self, Malformed> {
        let (context, generation) = (packet.context()?, packet.generation);
        Ok(match packet.code {
            code::START => Self::Start,
            code::ASSIGN => {
                let AssignBody { mac, permissions, protection, start, .. } = packet.body()?;
                let protection = match protection {
                    0 => Protection::None,
                    1 => Protection::Hypervisor,
                    2 => Protection::Iommu,
                    _ => return Err(Malformed(packet.code)),
                };
                let permissions = Permissions(permissions);
                Self::Assign(Assignment {
                    context,
                    generation,
                    mac,
                    permissions,
                    protection,
                    start,
                })
            }
            code::REVOKE => Self::Revoke { context, generation },
            code::ASK_STATISTICS => Self::Statistics { context },
            unknown => return Err(Malformed(unknown)),
        })
    }
}

impl From<&Report> for Packet {
    fn from(report: &Report) -> Self {
        match *report {
            Report::Hello(announcement) => {
                Self::new(code::HELLO, ContextId::MANAGEMENT, 0).with(&announcement)
            }
            Report::Revoked { context, generation } => {
                Self::new(code::REVOKED, context, generation)
            }
            Report::Fault { generation, fault } => {
                let Fault { context, reason, direction, index, value } = fault;
                let (reason, direction) = (reason as u32, direction as u32);
                let body = FaultBody { value, reason, direction, index, reserved: 0 };
                Self::new(code::FAULT, context, generation).with(&body)
            }
            Report::Statistics { context, statistics } => {
                Self::new(code::STATISTICS, context, 0).with(&statistics)
            }
        }
    }
}

impl TryFrom<&Packet> for Report {
    type Error = Malformed;

    fn try_from(packet: &Packet) -> Result<Self, Malformed> {
        let malformed = Malformed(packet.code);
        let (context, generation) = (packet.context()?, packet.generation);
        Ok(match packet.code {
            code::HELLO => Self::Hello(packet.body()?),
            code::REVOKED => Self::Revoked { context, generation },
            code::FAULT => {
                let FaultBody { value, reason, direction, index, .. } = packet.body()?;
                let reason = Reason::from_number(reason).ok_or(malformed)?;
                let direction = match direction {
                    0 => Direction::Tx,
                    1 => Direction::Rx,
                    _ => return Err(malformed),
                };
                Self::Fault {
                    generation,
                    fault: Fault { context, reason, direction, index, value },
                }
            }
            code::STATISTICS => Self::Statistics { context, statistics: packet.body()? },
            _ => return Err(malformed),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commands() -> impl Strategy<Value = Command> {
        let context = any::<u8>().prop_map(ContextId::new);
        let assignment = (context.clone(), any::<(u32, [u8; 6], u32, u32)>(), 0..3usize);
        let protections = [Protection::None, Protection::Hypervisor, Protection::Iommu];
        prop_oneof![
            Just(Command::Start),
            assignment.prop_map(move |(context, (generation, mac, permissions, start), n)| {
                let (mac, permissions) = (MacAddr(mac), Permissions(permissions));
                let protection = protections[n];
                Command::Assign(Assignment {
                    context,
                    generation,
                    mac,
                    permissions,
                    protection,
                    start,
                })
            }),
            (context.clone(), any::<u32>())
                .prop_map(|(context, generation)| Command::Revoke { context, generation }),
            context.prop_map(|context| Command::Statistics { context }),
        ]
    }

    fn reports() -> impl Strategy<Value = Report> {
        let context = any::<u8>().prop_map(ContextId::new);
        let fault = (context.clone(), any::<(bool, u32, u64, u32)>(), 1u32..=10);
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(a, b)| Report::Hello(Announcement::new(a, b))),
            (context.clone(), any::<u32>())
                .prop_map(|(context, generation)| Report::Revoked { context, generation }),
            fault.prop_map(|(context, (is_tx, index, value, generation), reason)| {
                let reason = Reason::from_number(reason).unwrap();
                let direction = if is_tx { Direction::Tx } else { Direction::Rx };
                let fault = Fault { context, reason, direction, index, value };
                Report::Fault { generation, fault }
            }),
            (context, any::<[u64; 3]>()).prop_map(|(context, [tx_frames, faults, last])| {
                let statistics = Statistics {
                    tx_frames,
                    faults,
                    drops: [0, 0, 0, 0, last],
                    ..Statistics::default()
                };
                Report::Statistics { context, statistics }
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_message_crosses_the_socket(command in commands(), report in reports()) {
            let packet = Packet::from(&command);
            prop_assert_eq!(Command::try_from(&packet), Ok(command));
            prop_assert!(Report::try_from(&packet).is_err());
            let packet = Packet::from(&report);
            prop_assert_eq!(Report::try_from(&packet), Ok(report));
            prop_assert!(Command::try_from(&packet).is_err());
        }

        #[test]
        fn a_packet_is_a_message_or_an_error(bytes: [[u8; 32]; 4]) {
            let mut packet = Packet::read_from_bytes(bytes.as_flattened()).unwrap();
            for code in (0..6).chain(0x100..0x106) {
                packet.code = code;
                packet.context &= 0x1ff;
                let _ = (Command::try_from(&packet), Report::try_from(&packet));
            }
        }
    }
}
