//! What the kernel lets anybody with `CAP_NET_ADMIN` change of an interface by its name (`linux/sockios.h`).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{IFNAMSIZ, InterfaceRequest};

const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCSIFMTU: Opcode = 0x8922;
const SIOCSIFHWADDR: Opcode = 0x8924;
const SIOCETHTOOL: Opcode = 0x8946;

/// `ETHTOOL_GFEATURES`, `ETHTOOL_SFEATURES` and `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const GET_CHANNELS: u32 = 0x3c;
/// Most words of 32 features that are read. Linux 6.18 has 2.
const FEATURE_WORDS: usize = 4;
/// Their number, as the kernel wants it.
const WORDS: u32 = 4;
const _: () = assert!(WORDS as usize == FEATURE_WORDS);

/// `IFF_UP` of `linux/if.h`.
const UP: u16 = 1;
/// `ARPHRD_ETHER` of `linux/if_arp.h`.
const ETHERNET: u16 = 1;

/// `struct ifreq` with an MTU.
#[repr(C)]
struct MtuRequest {
    name: [u8; IFNAMSIZ],
    mtu: c_int,
    rest: [u8; 20],
}

/// `struct ifreq` with a `struct sockaddr` that is a link-layer address.
#[repr(C)]
struct AddressRequest {
    name: [u8; IFNAMSIZ],
    family: u16,
    address: [u8; 6],
    rest: [u8; 16],
}

/// `struct ifreq` with a pointer to what is asked of the driver.
#[repr(C)]
struct DriverRequest {
    name: [u8; IFNAMSIZ],
    data: *mut c_void,
    rest: [u8; 16],
}

/// `struct ethtool_channels`: how many queues of each kind there may be, and there are.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_get_features_block`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct GetBlock {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct GetFeatures {
    command: u32,
    /// Words of features: that there is room for, and then that the kernel has.
    words: u32,
    blocks: [GetBlock; FEATURE_WORDS],
}

/// `struct ethtool_set_features_block`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct SetBlock {
    valid: u32,
    requested: u32,
}

/// `struct ethtool_sfeatures`.
#[repr(C)]
struct SetFeatures {
    command: u32,
    words: u32,
    blocks: [SetBlock; FEATURE_WORDS],
}

const _: () = assert!(size_of::<DriverRequest>() == size_of::<InterfaceRequest>());
const _: () = assert!(
    size_of::<MtuRequest>() == size_of::<InterfaceRequest>()
        && size_of::<AddressRequest>() == size_of::<InterfaceRequest>()
);

/// Any socket: its namespace is that of the calling thread.
fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Whether an interface is up.
pub(crate) fn is_up(name: [u8; IFNAMSIZ]) -> Result<bool> {
    let mut request = InterfaceRequest::new(name, 0);
    // SAFETY: SIOCGIFFLAGS reads and writes back one `struct ifreq`; `InterfaceRequest` has that layout and size, and is
    // borrowed mutably for the call.
    unsafe { ioctl(socket()?, Updater::<SIOCGIFFLAGS, _>::new(&mut request)) }?;
    Ok(request.flags.cast_unsigned() & UP != 0)
}

/// The MTU of an interface of the calling thread's namespace, in bytes.
pub(crate) fn mtu(name: [u8; IFNAMSIZ]) -> Result<u32> {
    mtu_by(socket()?.as_fd(), name)
}

/// The MTU of an interface of a socket's namespace, in bytes.
pub(crate) fn mtu_by(socket: BorrowedFd<'_>, name: [u8; IFNAMSIZ]) -> Result<u32> {
    let mut request = MtuRequest { name, mtu: 0, rest: [0; 20] };
    // SAFETY: SIOCGIFMTU reads and writes back one `struct ifreq`; `MtuRequest` has that layout and size, and is borrowed
    // mutably for the call.
    unsafe { ioctl(socket, Updater::<SIOCGIFMTU, _>::new(&mut request)) }?;
    Ok(request.mtu.cast_unsigned())
}

/// How many receive queues an interface of a socket's namespace has, if its driver says so.
pub(crate) fn receive_queues_by(socket: BorrowedFd<'_>, name: [u8; IFNAMSIZ]) -> Result<u32> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    let mut request = DriverRequest { name, data: (&raw mut channels).cast(), rest: [0; 16] };
    // SAFETY: SIOCETHTOOL reads one `struct ifreq`, and reads and writes what its pointer leads to: for this command a
    // `struct ethtool_channels`, whose layout and size `Channels` has. Both live until the call returns, and nobody else uses them.
    unsafe { ioctl(socket, Updater::<SIOCETHTOOL, _>::new(&mut request)) }?;
    Ok(channels.receive.saturating_add(channels.combined))
}

/// Which features of an interface its operator wants, of those that `ethtool -K` can change. It has those that its driver can do
/// besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedFeatures {
    words: u32,
    /// The features that can be changed, and those of them that are wanted, as bits in the kernel's own order.
    changeable: [u32; FEATURE_WORDS],
    wanted: [u32; FEATURE_WORDS],
}

impl WantedFeatures {
    /// Whether a feature is wanted that `other` does not want.
    pub(crate) fn exceeds(&self, other: &Self) -> bool {
        self.wanted.iter().zip(&other.wanted).any(|(own, others)| own & !others != 0)
    }
}

/// Reads which features of an interface are wanted.
pub(crate) fn wanted_features(name: [u8; IFNAMSIZ]) -> Result<WantedFeatures> {
    let blocks = [GetBlock::default(); FEATURE_WORDS];
    let mut features = GetFeatures { command: GET_FEATURES, words: WORDS, blocks };
    let mut request = DriverRequest { name, data: (&raw mut features).cast(), rest: [0; 16] };
    // SAFETY: SIOCETHTOOL reads one `struct ifreq`, and reads and writes what its pointer leads to: for this command a
    // `struct ethtool_gfeatures` with as many blocks as its size says, which `GetFeatures` is. Both live until the call returns, and
    // nobody else uses them.
    unsafe { ioctl(socket()?, Updater::<SIOCETHTOOL, _>::new(&mut request)) }?;
    if features.words > WORDS {
        return Err(Errno::OVERFLOW);
    }
    Ok(WantedFeatures {
        words: features.words,
        changeable: features.blocks.map(|block| block.available & !block.never_changed),
        wanted: features.blocks.map(|block| block.requested),
    })
}

/// Sets which features of an interface are wanted.
pub(crate) fn want_features(name: [u8; IFNAMSIZ], features: &WantedFeatures) -> Result<()> {
    let WantedFeatures { words, changeable, wanted } = features;
    let mut blocks = [SetBlock::default(); FEATURE_WORDS];
    for ((block, valid), requested) in blocks.iter_mut().zip(changeable).zip(wanted) {
        *block = SetBlock { valid: *valid, requested: *requested };
    }
    let mut features = SetFeatures { command: SET_FEATURES, words: *words, blocks };
    let mut request = DriverRequest { name, data: (&raw mut features).cast(), rest: [0; 16] };
    // SAFETY: SIOCETHTOOL reads one `struct ifreq`, and reads what its pointer leads to: for this command a `struct
    // ethtool_sfeatures` with as many blocks as its size says, at most those of `SetFeatures`. Both live until the call returns, and
    // nobody else uses them.
    unsafe { ioctl(socket()?, Updater::<SIOCETHTOOL, _>::new(&mut request)) }
}

/// Sets the MTU of an interface, in bytes.
pub(crate) fn set_mtu(name: [u8; IFNAMSIZ], mtu: u16) -> Result<()> {
    let mut request = MtuRequest { name, mtu: mtu.into(), rest: [0; 20] };
    // SAFETY: SIOCSIFMTU reads one `struct ifreq`; `MtuRequest` has that layout and size, and is borrowed for the call.
    unsafe { ioctl(socket()?, Updater::<SIOCSIFMTU, _>::new(&mut request)) }
}

/// Sets the link-layer address of an Ethernet interface.
pub(crate) fn set_address(name: [u8; IFNAMSIZ], address: [u8; 6]) -> Result<()> {
    let mut request = AddressRequest { name, family: ETHERNET, address, rest: [0; 16] };
    // SAFETY: SIOCSIFHWADDR reads one `struct ifreq`; `AddressRequest` has that layout and size, and is borrowed for the
    // call.
    unsafe { ioctl(socket()?, Updater::<SIOCSIFHWADDR, _>::new(&mut request)) }
}
