//! `attach`: what a guest's interface is joined to, and the device that it then has on the host.

use serde::Deserialize;

use super::capabilities::Capabilities;

/// `attach`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    /// pvnet's own switch.
    #[default]
    Switch,
    /// A tap on the host, which takes all its frames, as a vif device of xen-netback does.
    Device,
}

/// A guest's interface on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name. None on Xen, where domain and number give it one.
    pub name: Option<String>,
    /// What the network behind it can do with the guest's frames.
    pub capabilities: Capabilities,
    /// Its MTU when it is made.
    pub mtu: Option<u16>,
}

/// The longest name of an interface.
const NAME_MAX: usize = 15;
/// The smallest MTU that IPv4 allows (RFC 791).
const MTU_MIN: u16 = 68;

/// Checks `mtu`.
pub(super) fn check_mtu(mtu: Option<u16>) -> Result<(), String> {
    match mtu {
        Some(mtu) if mtu < MTU_MIN => Err(format!("mtu is {mtu}, and at least {MTU_MIN}")),
        _ => Ok(()),
    }
}

/// The keys of an interface's table that say what it is joined to.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) attach: Option<Attach>,
    pub(super) device: Option<&'a str>,
    pub(super) capabilities: Option<Capabilities>,
    pub(super) mtu: Option<u16>,
}

impl Keys<'_> {
    /// Checks what TOML cannot express.
    pub(super) fn check(self, is_xen: bool) -> Result<(), String> {
        let Self { attach, device, capabilities, mtu } = self;
        // On Xen the default may be "device".
        let may_have_device = attach == Some(Attach::Device) || is_xen && attach.is_none();
        if !may_have_device && (device.is_some() || capabilities.is_some()) {
            return Err("device and device_capabilities are for attach = \"device\"".into());
        }
        if is_xen && device.is_some() {
            return Err("on Xen a device's name is vif, the domain's number and the interface's; leave device out".into());
        }
        check_mtu(mtu)
    }

    /// The device of the port `port`, if it has one. `default` is for interfaces that do not say what they are joined to.
    pub(super) fn device(self, default: Attach, port: Option<&str>) -> Option<Device> {
        let Self { attach, device, capabilities, mtu } = self;
        let of_port = || port.map(|port| format!("vif-{port}"));
        (attach.unwrap_or(default) == Attach::Device).then(|| Device {
            name: device.map(str::to_owned).or_else(of_port),
            capabilities: capabilities.unwrap_or_default(),
            mtu,
        })
    }
}

impl Device {
    /// Checks the name, which may be made from a port's.
    pub(super) fn check(&self) -> Result<(), String> {
        match &self.name {
            Some(name) if name.len() > NAME_MAX => Err(format!(
                "its device {name:?} has more than {NAME_MAX} characters; set device to a shorter name"
            )),
            Some(name) if name.is_empty() => Err("device is empty".into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Keys<'_> = Keys { attach: None, device: None, capabilities: None, mtu: None };
    const DEVICE: Keys<'_> = Keys { attach: Some(Attach::Device), ..NONE };

    #[test]
    fn a_port_has_a_device_if_it_says_so_or_by_default() {
        assert_eq!(NONE.device(Attach::Switch, Some("red")), None);
        let device = NONE.device(Attach::Device, None).unwrap();
        assert_eq!(device, Device { name: None, capabilities: Capabilities::default(), mtu: None });
        let name = |keys: Keys<'_>| keys.device(Attach::Switch, Some("red")).unwrap().name;
        assert_eq!(name(DEVICE).as_deref(), Some("vif-red"));
        assert_eq!(name(Keys { device: Some("tap7"), ..DEVICE }).as_deref(), Some("tap7"));
        let switch = Keys { attach: Some(Attach::Switch), ..NONE };
        assert_eq!(switch.device(Attach::Device, None), None);
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        assert_eq!(NONE.check(false).and(NONE.check(true)).and(DEVICE.check(false)), Ok(()));
        let named = Keys { device: Some("tap7"), ..NONE };
        assert!(named.check(false).unwrap_err().contains("attach = \"device\""));
        let mtu = Keys { mtu: Some(1442), ..NONE };
        assert_eq!(mtu.check(false).and(mtu.check(true)), Ok(()));
        let small = Keys { mtu: Some(60), ..DEVICE };
        assert!(small.check(false).unwrap_err().contains("at least 68"));
        let named = Keys { device: Some("tap7"), ..DEVICE };
        assert_eq!(named.check(false), Ok(()));
        assert!(named.check(true).unwrap_err().contains("leave device out"));
        let long = DEVICE.device(Attach::Switch, Some("a-guest-far-away")).unwrap();
        assert!(long.check().unwrap_err().contains("set device"));
    }
}
