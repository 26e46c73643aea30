//! pvnet with `attach = "device"`, a bridge, and guests.

use std::collections::BTreeMap;

use crate::host::{Domu, DomuConfig, GuestType, Host, Shell};
use crate::{Error, Result};

use super::super::backend::{Backend, RunningBackend};
use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};

/// The bridge, and its address.
pub(super) const BRIDGE: &str = "xenbr0";
pub(super) const BRIDGE_ADDRESS: &str = "10.0.0.1";
/// The bridge of Open vSwitch, and its address.
pub(super) const SWITCH: &str = "ovsbr0";
pub(super) const SWITCH_ADDRESS: &str = "10.0.2.1";
/// The bridge's MTU, in bytes.
pub(super) const MTU: u32 = 1400;
/// The number of queues of each guest's interface and device.
pub(super) const QUEUES: &str = "2";

/// Configures pvnet and the bridge, and adds a hook that the scripts call after their work. It notes the device that it sees.
const CONFIGURATION: &str = r#"
set -e
ip link del pvnet0
cat >/lab/pvnet.toml <<'END'
[daemon]
platform = "xen"
workers = 2
meter = true

[xen]
attach = "device"

[[guest]]
name = "*"
queues = 2
END
mkdir -p /etc/xen/scripts/vif-post.d /run/xen-hotplug /var/log/xen
cat >/etc/xen/scripts/vif-post.d/lab.hook <<'END'
echo "$command $dev $(cat "/sys/class/net/$dev/ifindex")" >>/run/hotplug
END
chmod +x /etc/xen/scripts/vif-post.d/lab.hook
modprobe bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip link set xenbr0 mtu 1400
ip addr add 10.0.0.1/24 dev xenbr0
ip link set xenbr0 up
"#;

/// The backend and the guests on the host.
pub(super) struct Testbed<'a> {
    pub(super) host: &'a Host,
    pub(super) backend: RunningBackend,
    pub(super) guests: Vec<Domu>,
}

impl<'a> Testbed<'a> {
    pub(super) fn begin(host: &'a Host, backend: Backend) -> Result<Self> {
        let backend = backend.start_changed(host, CONFIGURATION)?;
        if backend.domain().is_some() {
            let devd = "modprobe xen-privcmd && $(echo /usr/lib/xen-*/bin/xl) devd";
            backend.shell().run(devd, COMMAND_TIMEOUT)?;
        }
        Ok(Self { host, backend, guests: Vec::new() })
    }

    /// The shell of pvnet's domain.
    pub(super) fn shell(&self) -> &Shell {
        self.backend.shell()
    }

    /// The line for an interface on a bridge, for the toolstack's default script unless `more` says otherwise.
    pub(super) fn vif(&self, number: u8, bridge: &str, more: &str) -> String {
        self.interface(number, &format!(",bridge={bridge}{more}"))
    }

    /// The line for an interface: its backend, its MAC address, and `more`.
    pub(super) fn interface(&self, number: u8, more: &str) -> String {
        let place = self.backend.domain().map(|domain| format!("backend={},", domain.name()));
        format!("{}mac={}{more}", place.unwrap_or_default(), mac(number))
    }

    /// Creates the guest with this number, and configures its first interface.
    pub(super) fn create(
        &self,
        number: u8,
        guest_type: GuestType,
        more: &[String],
    ) -> Result<Domu> {
        let config = DomuConfig::new(format!("guest{number}")).vif(self.vif(number, BRIDGE, ""));
        let mut config = DomuConfig { restarts: true, guest_type, ..config };
        config.vifs.extend_from_slice(more);
        // Virtualisation in an emulated processor is slow.
        let limit = if guest_type == GuestType::Pv { BOOT_TIMEOUT } else { BOOT_TIMEOUT * 3 };
        let guest = self.host.create(&config, limit)?;
        self.bring_up(&guest, 0, &address(number))?;
        Ok(guest)
    }

    /// Configures an interface of a guest as a distribution would, with the MTU from the toolstack, and waits until the backend has
    /// connected it. In a driver domain the script may still run after `xl` has ended.
    pub(super) fn bring_up(&self, guest: &Domu, devid: u32, address: &str) -> Result<()> {
        guest.run(
            &format!(
                "set -e\nmodprobe xen-netfront max_queues={QUEUES}\n\
                 until [ -e /sys/class/net/eth{devid} ]; do sleep 0.05; done\n\
                 if mtu=$(xenstore-read device/vif/{devid}/mtu); then ip link set eth{devid} mtu $mtu; fi\n\
                 ip addr add {address}/24 dev eth{devid}\nip link set eth{devid} up"
            ),
            COMMAND_TIMEOUT,
        )?;
        self.until_connected(guest, devid)
    }

    /// Waits until the backend has connected an interface.
    pub(super) fn until_connected(&self, guest: &Domu, devid: u32) -> Result<()> {
        let back =
            format!("$(xenstore-read /local/domain/{}/device/vif/{devid}/backend)", guest.id());
        let connected = format!("[ $(xenstore-read {back}/state) = 4 ]");
        self.host.dom0().until("a connected backend", &connected, COMMAND_TIMEOUT).map(drop)
    }

    /// An interface's values in the store.
    pub(super) fn store(&self, guest: &Domu, devid: u32) -> Result<Facts> {
        let front = format!("/local/domain/{}/device/vif/{devid}", guest.id());
        Facts::read(
            self.host.dom0(),
            &format!(
                "back=$(xenstore-read {front}/backend)\n\
                 for key in script hotplug-status state; do echo $key=$(xenstore-read $back/$key); done\n\
                 echo mtu-announced=$(xenstore-read {front}/mtu)\n\
                 echo negotiated=$(xenstore-read {front}/multi-queue-num-queues)"
            ),
        )
    }

    /// The state of an interface's device in the backend's domain.
    pub(super) fn device(&self, guest: &Domu, devid: u32) -> Result<Facts> {
        let name = device_name(guest, devid);
        Facts::read(
            self.shell(),
            &format!(
                "cd /sys/class/net/{name} || exit 0\n\
                 for key in mtu address ifindex carrier; do echo $key=$(cat $key); done\n\
                 for key in bytes packets; do echo $key=$(cat statistics/rx_$key); done\n\
                 echo master=$(basename $(readlink master))\n\
                 echo queues=$(ls -d queues/rx-* | wc -l)\n\
                 echo hook=$(grep -c \"^online {name} $(cat ifindex)\\$\" /run/hotplug)"
            ),
        )
    }

    /// Waits for the end of an interface. Returns what is left of its device and in the store.
    pub(super) fn left(&self, domain: u32, devid: u32) -> Result<Vec<String>> {
        let own = self.backend.domain().map_or(0, Domu::id);
        let device = format!("ls -d /sys/class/net/vif{domain}.{devid} 2>/dev/null");
        let nodes = format!(
            "for node in /local/domain/{own}/backend/vif/{domain}/{devid} /local/domain/{domain}/device/vif/{devid}; do\n\
             xenstore-exists $node && echo $node; done"
        );
        Ok([remains(self.shell(), &device)?, remains(self.host.dom0(), &nodes)?].concat())
    }
}

/// Waits until a command prints nothing more. Returns the lines that it printed last.
pub(super) fn remains(shell: &Shell, command: &str) -> Result<Vec<String>> {
    let nothing = format!("left=$({command}); echo \"$left\"; [ -z \"$left\" ]");
    match shell.until("the end", &nothing, COMMAND_TIMEOUT) {
        Ok(_) => Ok(Vec::new()),
        Err(Error::Late { text, .. }) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) => Err(error),
    }
}

/// Values by name.
pub(super) struct Facts(BTreeMap<String, String>);

impl Facts {
    /// Reads the lines `NAME=VALUE` that a script prints.
    pub(super) fn read(shell: &Shell, script: &str) -> Result<Self> {
        Ok(Self::parse(&shell.run(script, COMMAND_TIMEOUT)?))
    }

    fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A value; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A value that is a number; 0 if there is none.
    pub(super) fn number(&self, name: &str) -> f64 {
        self.get(name).parse().unwrap_or(0.0)
    }

    /// The values that differ from the expected ones.
    pub(super) fn wrong(&self, expected: &[(&str, &str)]) -> Vec<String> {
        let other = expected.iter().filter(|(name, value)| self.get(name) != *value);
        other.map(|(name, _)| format!("{name} {:?}", self.get(name))).collect()
    }
}

/// The name of an interface's device.
pub(super) fn device_name(guest: &Domu, devid: u32) -> String {
    format!("vif{}.{devid}", guest.id())
}

pub(super) fn address(number: u8) -> String {
    format!("10.0.0.{number}")
}

/// An interface's MAC address.
pub(super) fn mac(number: u8) -> String {
    format!("00:16:3e:00:00:{number:02x}")
}

/// A step's result: what was seen, and whether nothing is wrong.
pub(super) fn verdict(seen: String, wrong: &[String]) -> (String, bool) {
    match wrong {
        [] => (seen, true),
        _ => (format!("{seen}; WRONG: {}", wrong.join(", ")), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_that_are_missing_or_other_are_wrong() {
        let facts = Facts::parse("mtu=1400\nmaster=xenbr0\nno fact\nempty=\n");
        assert_eq!((facts.number("mtu"), facts.number("none")), (1400.0, 0.0));
        assert!(facts.wrong(&[("mtu", "1400"), ("master", "xenbr0"), ("empty", "")]).is_empty());
        let wrong = facts.wrong(&[("mtu", "1500"), ("state", "4")]);
        assert_eq!(wrong, ["mtu \"1400\"", "state \"\""]);
        assert_eq!(verdict("all".to_owned(), &[]), ("all".to_owned(), true));
        assert!(!verdict("all".to_owned(), &wrong).1);
    }
}
