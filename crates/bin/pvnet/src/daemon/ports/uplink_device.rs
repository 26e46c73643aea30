//! The devices and sockets of uplinks, opened by kind.

use std::io;

use control_socket::DeviceDrops;
use tracing::warn;
use uplink::tap::{Tap, TapOffload, TapQueue};
use uplink::{Macvtap, Steering, Xdp, XdpNic, packet};
use vhost_user::Socket;

use crate::config::{Queues, Uplink, UplinkKind};
use crate::daemon::interfaces::{InterfaceFile, Interfaces, Side};
use crate::daemon::socket_file;
use crate::netns;
use crate::program::text;

/// What an uplink has at its start.
pub(super) enum Opened {
    /// A device, which carries frames at once.
    Device(UplinkDevice),
    /// A socket, at which a back-end may come.
    Socket(Socket),
}

/// An uplink's device.
pub(super) struct UplinkDevice {
    pub(super) shared: Shared,
    pub(super) for_guests: ForGuests,
    /// Deleted when the uplink ends.
    pub(super) macvtap: Option<netns::MacvtapInterface>,
    pub(super) interface: UplinkInterface,
}

/// What carries frames for all guests.
pub(super) enum Shared {
    /// A queue for each worker.
    Taps(Vec<TapQueue>),
    /// A queue for each receive queue of the NIC.
    Nic(XdpNic),
}

/// The interface of an uplink's device, for its statistics.
pub(super) struct UplinkInterface {
    name: String,
    side: Side,
    /// Set if it is in another namespace than the daemon.
    namespace: Option<InterfaceFile>,
}

impl UplinkInterface {
    fn find(uplink: &Uplink, name: &str, side: Side) -> Result<Self, String> {
        let open =
            |namespace| netns::inside(Some(namespace), || InterfaceFile::open().map_err(text));
        let namespace = uplink.namespace.as_deref().map(open).transpose()?;
        Ok(Self { name: name.to_owned(), side, namespace })
    }

    /// What the kernel has dropped there; `own` are the interfaces of the daemon's namespace.
    pub(super) fn drops(&self, own: &Interfaces) -> Option<DeviceDrops> {
        match &self.namespace {
            Some(file) => file.read().ok()?.drops(&self.name, self.side),
            None => own.drops(&self.name, self.side),
        }
    }
}

/// What a device keeps for guests.
pub(super) enum ForGuests {
    Nothing,
    /// Queues to read, behind the shared ones.
    Queues(Vec<TapQueue>, Steering),
    /// Receive queues that the kernel reads.
    Sockets(Xdp, Vec<u32>),
}

/// How many queues are wanted.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// One for each worker.
    pub(super) shared: usize,
    /// Those that are kept for guests.
    pub(super) guests: usize,
}

/// Opens the device of an uplink that is no card's context, and sets it up, or its socket.
pub(super) fn open(uplink: &Uplink, wanted: Wanted) -> Result<Opened, String> {
    let device = match uplink.kind {
        UplinkKind::Macvtap => open_macvtap(uplink, wanted),
        UplinkKind::AfXdp if uplink.queues == Queues::Shared => take_over(uplink),
        UplinkKind::AfPacket | UplinkKind::AfXdp => open_nic(uplink, wanted),
        UplinkKind::Tap | UplinkKind::Cdna => open_tap(uplink, wanted),
        UplinkKind::VirtioUser => {
            let settings = &uplink.settings;
            let path = &settings.socket;
            let socket = socket_file::open(settings.socket_side(), path, settings.socket_file());
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            return socket.map(Opened::Socket).map_err(failed);
        }
    };
    device.map(Opened::Device)
}

fn stations(guests: usize) -> u32 {
    u32::try_from(guests).unwrap_or(u32::MAX)
}

/// Without segmentation the stack behind the device sends MTU-sized frames. A guest with a queue on it has no unsegmented UDP.
fn offload(uplink: &Uplink, guests: usize) -> TapOffload {
    match uplink.large_receive {
        true => TapOffload { uso: uplink.capabilities.uso && guests == 0, ..TapOffload::ALL },
        false => TapOffload { csum: true, ..TapOffload::NONE },
    }
}

fn open_tap(uplink: &Uplink, wanted: Wanted) -> Result<UplinkDevice, String> {
    let Wanted { shared, guests } = wanted;
    let open = || Tap::open(&uplink.tap, shared + guests, offload(uplink, guests)).map_err(text);
    let mut queues = netns::inside(uplink.namespace.as_deref(), open)?;
    if uplink.persistent {
        queues.iter().try_for_each(TapQueue::persist).map_err(text)?;
    }
    let namespace = uplink.namespace.as_deref();
    if let Some(bridge) = &uplink.bridge {
        netns::join_bridge(namespace, &uplink.tap, bridge)?;
    }
    netns::bring_up(namespace, &uplink.tap, &uplink.settings.addresses)?;
    let of_guests = queues.split_off(shared);
    let for_guests = match guests {
        0 => ForGuests::Nothing,
        _ => {
            let steering = Steering::attach(&queues[0], stations(guests)).map_err(text)?;
            ForGuests::Queues(of_guests, steering)
        }
    };
    let interface = UplinkInterface::find(uplink, &uplink.tap, Side::Behind)?;
    let shared = Shared::Taps(queues);
    Ok(UplinkDevice { shared, for_guests, macvtap: None, interface })
}

fn open_macvtap(uplink: &Uplink, wanted: Wanted) -> Result<UplinkDevice, String> {
    let Wanted { shared, guests } = wanted;
    let namespace = uplink.namespace.as_deref();
    let macvtap = netns::MacvtapInterface::make(namespace, uplink.nic_name())?;
    let (mut queues, steering) = netns::inside(namespace, || {
        let queues = Macvtap::open(macvtap.name(), shared + guests, offload(uplink, guests))
            .map_err(text)?;
        // At most as many as a macvtap has.
        let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        let steer = || {
            let lower = packet::interface_index(uplink.nic_name()).map_err(text)?;
            Steering::attach_macvtap(lower, count, stations(guests)).map_err(text)
        };
        let steering = (guests > 0).then(steer).transpose()?;
        Ok((queues, steering))
    })?;
    macvtap.bring_up()?;
    let of_guests = queues.split_off(shared);
    let for_guests = match steering {
        None => ForGuests::Nothing,
        Some(steering) => ForGuests::Queues(of_guests, steering),
    };
    let interface = UplinkInterface::find(uplink, macvtap.name(), Side::InFront)?;
    let shared = Shared::Taps(queues);
    Ok(UplinkDevice { shared, for_guests, macvtap: Some(macvtap), interface })
}

/// Takes a NIC over.
fn take_over(uplink: &Uplink) -> Result<UplinkDevice, String> {
    let (namespace, device) = (uplink.namespace.as_deref(), uplink.nic_name());
    // That says if there is no such device.
    netns::inside(namespace, || packet::interface_index(device).map_err(text))?;
    keep_tags(namespace, device);
    netns::bring_up(namespace, device, &[])?;
    let open = || XdpNic::open(device, uplink.huge_pages).map_err(text);
    let nic = netns::inside(namespace, open)?;
    let interface = UplinkInterface::find(uplink, device, Side::InFront)?;
    let (shared, for_guests) = (Shared::Nic(nic), ForGuests::Nothing);
    Ok(UplinkDevice { shared, for_guests, macvtap: None, interface })
}

/// A NIC that takes VLAN tags out of frames puts them where AF_XDP does not read them, so this is switched off.
fn keep_tags(namespace: Option<&str>, device: &str) {
    let switched = netns::ethtool(namespace, &["-K", device, "rxvlan", "off"]);
    if let Err(error) = switched {
        warn!(
            device,
            error, "if it takes VLAN tags out of frames, those in VLANs lose them: ethtool -k"
        );
    }
}

/// Opens packet sockets and, if guests have receive queues, attaches the program that finds their frames.
fn open_nic(uplink: &Uplink, wanted: Wanted) -> Result<UplinkDevice, String> {
    let Wanted { shared, guests } = wanted;
    let (namespace, device) = (uplink.namespace.as_deref(), uplink.nic_name());
    let (sockets, receive_queues) = netns::inside(namespace, || {
        let sockets = packet::open_with_rings(device, shared).map_err(text)?;
        Ok((sockets, packet::receive_queues(device).map_err(text)?))
    })?;
    netns::bring_up(namespace, device, &[])?;
    let interface = UplinkInterface::find(uplink, device, Side::InFront)?;
    if guests == 0 {
        let for_guests = ForGuests::Nothing;
        return Ok(UplinkDevice {
            shared: Shared::Taps(sockets),
            for_guests,
            macvtap: None,
            interface,
        });
    }
    if uplink.guest_queues.is_some() && guests > receive_queues {
        return Err(format!(
            "{device} has {receive_queues} receive queue(s), and guest_queues is {guests}: give it more (ethtool -L {device} \
             combined {guests}), or lower guest_queues"
        ));
    }
    let count = u32::try_from(receive_queues).unwrap_or(u32::MAX);
    let xdp =
        netns::inside(namespace, || Xdp::attach(device, count, stations(guests)).map_err(text))?;
    // From the last on: the first ones are those in which other frames come if the NIC has enough.
    let queues = (0..count).rev().take(guests).collect();
    let for_guests = ForGuests::Sockets(xdp, queues);
    let shared = Shared::Taps(sockets);
    Ok(UplinkDevice { shared, for_guests, macvtap: None, interface })
}
