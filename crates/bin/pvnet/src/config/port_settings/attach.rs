//! `attach`: what a guest's interface is joined to, and the device that it then has on the host.

use schemars::JsonSchema;
use serde::Deserialize;

use super::PortSettings;
use crate::config::capabilities::Capabilities;

/// `attach`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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
pub struct HostDevice {
    /// Its name. None on Xen, where domain and number give it one.
    pub name: Option<String>,
    /// What the network behind it can do with the guest's frames.
    pub capabilities: Capabilities,
    /// Its MTU when it is made.
    pub mtu: Option<u16>,
}

/// The longest name of an interface.
const NAME_MAX: usize = 15;
impl PortSettings {
    /// Checks what a guest or virtual machine is joined to.
    pub(in crate::config) fn check_attachment(&self, is_xen: bool) -> Result<(), String> {
        let Self { attach, device, device_capabilities, .. } = self;
        // On Xen the default may be "device".
        let may_have_device = *attach == Some(Attach::Device) || is_xen && attach.is_none();
        if !may_have_device && (device.is_some() || device_capabilities.is_some()) {
            return Err("device and device_capabilities are for attach = \"device\"".into());
        }
        if is_xen && device.is_some() {
            return Err("on Xen a device's name is vif, the domain's number and the interface's; leave device out".into());
        }
        Ok(())
    }

    /// The device that a guest or virtual machine has on the host, if it has one. `default` is for those that do not say what they
    /// are joined to; `port` is the port's name where that names the device.
    pub(in crate::config) fn device(
        &self,
        default: Attach,
        port: Option<&str>,
    ) -> Option<HostDevice> {
        let of_port = || port.map(|port| format!("vif-{port}"));
        (self.attach.unwrap_or(default) == Attach::Device).then(|| HostDevice {
            name: self.device.clone().or_else(of_port),
            capabilities: self.device_capabilities.unwrap_or_default(),
            mtu: self.mtu,
        })
    }
}

impl HostDevice {
    /// Checks the name, which may be made from a port's.
    pub(in crate::config) fn check(&self) -> Result<(), String> {
        match &self.name {
            Some(name) if name.len() > NAME_MAX => Err(format!(
                "its device {name:?} has more than {NAME_MAX} characters; set device to a shorter name"
            )),
            Some(name) if name.is_empty() => Err("device is empty".into()),
            Some(name) => check_interface("device", name),
            None => Ok(()),
        }
    }
}

/// Checks that the kernel can have an interface of this name.
pub(in crate::config) fn check_interface(key: &str, name: &str) -> Result<(), String> {
    let is_odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    match name.len() > NAME_MAX || name.contains(is_odd) || [".", ".."].contains(&name) {
        true => Err(format!(
            "{key} = {name:?} is no interface's name: that has at most {NAME_MAX} characters, without blanks, / and :"
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> PortSettings {
        PortSettings::default()
    }

    fn with_device(name: Option<&str>) -> PortSettings {
        let device = name.map(str::to_owned);
        PortSettings { attach: Some(Attach::Device), device, ..none() }
    }

    #[test]
    fn a_port_has_a_device_if_it_says_so_or_by_default() {
        assert_eq!(none().device(Attach::Switch, Some("red")), None);
        let device = none().device(Attach::Device, None).unwrap();
        assert_eq!(
            device,
            HostDevice { name: None, capabilities: Capabilities::default(), mtu: None }
        );
        let name = |keys: PortSettings| keys.device(Attach::Switch, Some("red")).unwrap().name;
        assert_eq!(name(with_device(None)).as_deref(), Some("vif-red"));
        assert_eq!(name(with_device(Some("tap7"))).as_deref(), Some("tap7"));
        let switch = PortSettings { attach: Some(Attach::Switch), ..none() };
        assert_eq!(switch.device(Attach::Device, None), None);
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        for is_xen in [false, true] {
            assert_eq!(none().check_attachment(is_xen), Ok(()));
            let announced = PortSettings { mtu: Some(1442), ..none() };
            assert_eq!(announced.check_attachment(is_xen).and(announced.check()), Ok(()));
        }
        let named = PortSettings { attach: None, ..with_device(Some("tap7")) };
        assert!(named.check_attachment(false).unwrap_err().contains("attach = \"device\""));
        let small = PortSettings { mtu: Some(60), ..with_device(None) };
        assert!(small.check().unwrap_err().contains("at least 68"));
        let named = with_device(Some("tap7"));
        assert_eq!(named.check_attachment(false), Ok(()));
        assert!(named.check_attachment(true).unwrap_err().contains("leave device out"));
        let long = with_device(None).device(Attach::Switch, Some("a-guest-far-away")).unwrap();
        assert!(long.check().unwrap_err().contains("set device"));
    }
}
