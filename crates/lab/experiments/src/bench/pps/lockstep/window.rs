//! The windows: each is a path and a size of frames.

use std::fmt;

use hypervisor::{Counted, Meter};
use offload::{Checksum, Gso, GsoKind};
use wire::ethernet::MacAddr;

use crate::bench::guest::addressed;
use crate::bench::nic::CardProtection;

/// Frames in a turn of the generator.
const BATCH: u64 = 32;

/// A path that frames take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Between guests, with the defaults: the header channel, and pages that stay mapped.
    Header,
    /// Between guests, with grant copies: no header channel, no page stays mapped.
    Copy,
    /// Between guests, each page of the sender mapped per packet.
    Remap,
    /// Between guests, in pages that change hands.
    Flip,
    /// From an uplink, copied by the guest in hypercalls.
    GuestCopy,
    /// From an uplink, copied by the guest out of a pool that it has mapped.
    GuestCopyMapped,
    /// From an uplink, read into buffers that the guest posted.
    Direct,
    /// To an uplink with all offloads.
    UplinkTx,
    /// To an uplink without offloads.
    UplinkTxBasic,
    /// From an uplink with all offloads.
    UplinkRx,
    /// From an uplink without segmentation offload.
    UplinkRxBasic,
    /// From a context of a card to the wire, with this protection.
    Card(CardProtection),
    /// Between virtual machines.
    VhostUser,
}

impl PathKind {
    fn all() -> impl Iterator<Item = Self> {
        let first = [
            Self::Header,
            Self::Copy,
            Self::Remap,
            Self::Flip,
            Self::GuestCopy,
            Self::GuestCopyMapped,
            Self::Direct,
            Self::UplinkTx,
            Self::UplinkTxBasic,
            Self::UplinkRx,
            Self::UplinkRxBasic,
            Self::VhostUser,
        ];
        first.into_iter().chain(CardProtection::ALL.map(Self::Card))
    }

    fn name(self) -> String {
        let name = match self {
            Self::Header => "header",
            Self::Copy => "copy",
            Self::Remap => "remap",
            Self::Flip => "flip",
            Self::GuestCopy => "guest-copy",
            Self::GuestCopyMapped => "guest-copy-mapped",
            Self::Direct => "direct",
            Self::UplinkTx => "uplink-tx",
            Self::UplinkTxBasic => "uplink-tx-basic",
            Self::UplinkRx => "uplink-rx",
            Self::UplinkRxBasic => "uplink-rx-basic",
            Self::VhostUser => "vhost-user",
            Self::Card(protection) => return format!("cdna-{}", protection.name()),
        };
        name.to_owned()
    }
}

/// A size of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The smallest.
    Small,
    /// As long as the MTU.
    Full,
    /// As long as segmentation offload permits.
    Large,
}

impl Size {
    const ALL: [Self; 3] = [Self::Small, Self::Full, Self::Large];

    /// Bytes of a frame.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 64,
            Self::Full => 1514,
            // 45 segments of 1448 bytes.
            Self::Large => 54 + 45 * 1448,
        }
    }

    /// The name of a row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "64",
            Self::Full => "1514",
            Self::Large => "64k",
        }
    }

    /// Whether a frame has many pages.
    pub fn is_large(self) -> bool {
        self == Self::Large
    }

    /// Frames in a turn, so that each ring has room.
    fn batch(self) -> u64 {
        if self.is_large() { 8 } else { BATCH }
    }
}

/// A path and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub path: PathKind,
    pub size: Size,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.path.name(), self.size.name())
    }
}

impl Window {
    /// All windows.
    pub fn all() -> impl Iterator<Item = Self> {
        // The card's wire takes no frames beyond the MTU, and the kernel segments those of `UplinkRxBasic`.
        let takes_large =
            |path: PathKind| !matches!(path, PathKind::Card(_) | PathKind::UplinkRxBasic);
        let exists = move |window: &Self| !window.size.is_large() || takes_large(window.path);
        PathKind::all().flat_map(|path| Size::ALL.map(|size| Self { path, size })).filter(exists)
    }

    /// The windows whose name is in `names`, or all if it is empty. The name of a path stands for all its sizes.
    ///
    /// # Errors
    /// Names the first unknown name.
    pub fn chosen(names: &[String]) -> Result<Vec<Self>, String> {
        let is =
            |window: &Self, name: &str| *name == window.to_string() || *name == window.path.name();
        let unknown = names.iter().find(|name| !Self::all().any(|window| is(&window, name)));
        if let Some(unknown) = unknown {
            let known: Vec<_> = PathKind::all().map(PathKind::name).collect();
            return Err(format!("no window {unknown:?}; the paths are {}", known.join(", ")));
        }
        let chosen = |window: &Self| names.is_empty() || names.iter().any(|name| is(window, name));
        Ok(Self::all().filter(chosen).collect())
    }

    /// Whether it needs a tap, and so root.
    pub fn needs_network(&self) -> bool {
        use PathKind as Kind;
        match self.path {
            Kind::Header
            | Kind::Copy
            | Kind::Remap
            | Kind::Flip
            | Kind::VhostUser
            | Kind::Card(_) => false,
            Kind::GuestCopy | Kind::GuestCopyMapped | Kind::Direct => true,
            Kind::UplinkTx | Kind::UplinkTxBasic | Kind::UplinkRx | Kind::UplinkRxBasic => true,
        }
    }
}

/// The operations that frames took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hypercalls of the driver domain and of guests.
    pub hypercalls: u64,
    /// Events sent to guests.
    pub notifications: u64,
    /// Copies by the hypervisor.
    pub copies: u64,
    /// Pages mapped.
    pub maps: u64,
    /// Pages that changed hands.
    pub transfers: u64,
}

impl Counts {
    /// The counts with their names.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let Self { hypercalls, notifications, copies, maps, transfers } = *self;
        [
            ("hypercalls", hypercalls),
            ("notifications", notifications),
            ("copies", copies),
            ("maps", maps),
            ("transfers", transfers),
        ]
    }

    /// The increase of the meter's counts during `work`.
    pub fn of(meter: &Meter, work: impl FnOnce() -> Result<(), String>) -> Result<Self, String> {
        let read = || {
            let count = |what| meter.count(what);
            [
                count(Counted::Hypercalls) + count(Counted::GuestHypercalls),
                count(Counted::Notifications),
                count(Counted::Copies) + count(Counted::GuestCopies),
                count(Counted::Maps),
                count(Counted::Transfers),
            ]
        };
        meter.switch(true);
        let before = read();
        let done = work();
        let after = read();
        meter.switch(false);
        done?;
        let [hypercalls, notifications, copies, maps, transfers] =
            std::array::from_fn(|n| after[n] - before[n]);
        Ok(Self { hypercalls, notifications, copies, maps, transfers })
    }
}

/// A path under test.
pub trait Path {
    /// Sends `frames` frames, has the worker carry them, and receives them. Returns how many arrived.
    fn turn(&mut self, frames: u64) -> Result<u64, String>;

    /// Frames in a turn.
    fn batch(&self) -> u64;

    /// Carries frames and counts what they take.
    fn count(&mut self, frames: u64) -> Result<Counts, String>;
}

/// The frames of a turn of this size.
pub fn batch(size: Size) -> u64 {
    size.batch()
}

/// Carries exactly `frames` frames.
pub fn carry(path: &mut dyn Path, frames: u64) -> Result<(), String> {
    let mut left = frames;
    while left > 0 {
        let now = left.min(path.batch());
        let arrived = path.turn(now)?;
        if arrived != now {
            return Err(format!("{arrived} of {now} frames arrived"));
        }
        left -= now;
    }
    Ok(())
}

/// Payload of a segment.
const SEGMENT: u16 = 1448;
/// Bytes of the headers: Ethernet, IPv4, TCP without options.
const HEADERS: u16 = 14 + 20 + 20;

/// A frame, and its checksum and segmentation.
pub struct Sample {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

impl Sample {
    /// A frame of this size. A large one is TCP to be segmented; receivers ignore the others.
    pub fn new(from: MacAddr, to: MacAddr, size: Size) -> Self {
        if size.is_large() {
            let gso = Some(Gso { kind: GsoKind::TcpV4, size: SEGMENT });
            Self { bytes: tcp(from, to, size.bytes()), checksum: Checksum::Partial, gso }
        } else {
            let bytes = addressed(from, to, size.bytes());
            Self { bytes, checksum: Checksum::Unknown, gso: None }
        }
    }

    /// The `virtio_net_hdr` without the number of buffers, as taps and packet sockets take it.
    pub fn vnet_header(&self) -> [u8; 10] {
        let mut header = [0; 10];
        if let Some(gso) = self.gso {
            /// NEEDS_CSUM, TCPV4.
            const KINDS: [u8; 2] = [1, 1];
            header[..2].copy_from_slice(&KINDS);
            let fields = [HEADERS, gso.size, 34, 16];
            for (place, value) in header[2..].chunks_exact_mut(2).zip(fields) {
                place.copy_from_slice(&value.to_le_bytes());
            }
        }
        header
    }
}

/// A TCP segment over IPv4 of `len` bytes in all, without a checksum of its payload.
fn tcp(from: MacAddr, to: MacAddr, len: usize) -> Vec<u8> {
    let total = u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes();
    let mut frame = [&to.0[..], &from.0, &[8, 0, 0x45, 0], &total].concat();
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum =
        frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = |sum: u32| (sum & 0xffff) + (sum >> 16);
    // Folded twice, the sum has 16 bits.
    let [_, _, sum @ ..] = (!folded(folded(sum))).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.resize(len, 0x55);
    frame
}
