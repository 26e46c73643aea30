//! A virtual machine's network device: QEMU's command line for it.

use std::path::{Path, PathBuf};

use xenlab::{Emulator, MachineConfig, Result};

/// Who makes the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// pvnet, and QEMU connects again whenever the connection is lost.
    Pvnet,
    /// QEMU, and pvnet connects.
    Qemu,
}

/// A network device over vhost-user.
#[derive(Clone, Debug)]
pub struct VirtioNet {
    /// The name of the daemon's port, and of the socket.
    pub name: String,
    /// Its MAC address.
    pub mac: String,
    /// Pairs of rings.
    pub queues: u32,
    /// Who makes the socket.
    pub side: Side,
    /// Whether its port offers packed rings.
    pub packed: bool,
    /// Whether its port offers offloads for frames to the guest.
    pub guest_offloads: bool,
}

/// The first version of QEMU whose pause before a new connection is in milliseconds.
const RECONNECT_MS: u32 = 10;
/// The first version whose message-signalled interrupts work with vhost-user under software emulation.
const MESSAGE_INTERRUPTS: u32 = 8;

impl VirtioNet {
    /// The socket in a folder.
    #[must_use]
    pub fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.sock", self.name))
    }

    /// Its table in the daemon's configuration.
    #[must_use]
    pub fn table(&self, folder: &Path) -> String {
        let Self { name, mac, queues, side, packed, guest_offloads } = self;
        let mode = match side {
            Side::Pvnet => "server",
            Side::Qemu => "client",
        };
        let socket = self.socket(folder);
        format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nmode = \"{mode}\"\n\
             mac = \"{mac}\"\nqueues = {queues}\npacked = {packed}\nguest_offloads = {guest_offloads}\n"
        )
    }

    /// Adds it to a machine whose sockets are in a folder.
    pub fn plug(
        &self,
        machine: MachineConfig,
        emulator: &Emulator,
        folder: &Path,
    ) -> Result<MachineConfig> {
        let version = emulator.version()?;
        let Self { mac, queues, .. } = self;
        let socket = self.socket(folder);
        let end = match self.side {
            Side::Pvnet if version >= RECONNECT_MS => "reconnect-ms=50",
            Side::Pvnet => "reconnect=1",
            Side::Qemu => "server=on",
        };
        let chardev = format!("socket,id=wire,path={},{end}", socket.display());
        let mut device = format!("virtio-net-pci,id=nic,netdev=net,mac={mac}");
        if *queues > 1 {
            device += ",mq=on";
        }
        if version < MESSAGE_INTERRUPTS {
            device += ",vectors=0";
        }
        let netdev = format!("vhost-user,id=net,chardev=wire,queues={queues}");
        Ok(machine.with(["-chardev", &chardev, "-netdev", &netdev, "-device", &device]))
    }

    /// The same device with these properties as an argument of QEMU's monitor, for a machine whose [`plug`](Self::plug)ged
    /// device was unplugged.
    pub fn again(
        &self,
        emulator: &Emulator,
        properties: &[(&str, bool)],
    ) -> Result<serde_json::Value> {
        let mut device = serde_json::json!({
            "driver": "virtio-net-pci", "id": "nic", "netdev": "net", "mac": self.mac,
        });
        for (name, value) in properties {
            device[*name] = (*value).into();
        }
        if self.queues > 1 {
            device["mq"] = true.into();
        }
        if emulator.version()? < MESSAGE_INTERRUPTS {
            device["vectors"] = 0.into();
        }
        Ok(device)
    }
}

impl From<Side> for &'static str {
    fn from(side: Side) -> Self {
        match side {
            Side::Pvnet => "pvnet makes the socket",
            Side::Qemu => "QEMU makes the socket",
        }
    }
}
