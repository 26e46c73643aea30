//! Command-line options of the interfaces of a process.

use std::str::FromStr;
use std::time::Duration;

use offload::Features;
use poller::Polling;

/// Options of the interfaces, on either platform.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The first interfaces' names for the stack. The others are called eth and their number.
    pub devices: Vec<String>,
    /// The most queues of an interface; one per CPU if absent.
    pub queues: Option<u32>,
    /// Addresses that replace the toolstack's for their interface.
    pub addresses: Vec<Address>,
    /// Offloads that are not used.
    pub without: Features,
    /// One event channel for both rings.
    pub one_event_channel: bool,
    /// Headers stay in the frames' pages.
    pub no_header_channel: bool,
    /// The daemon keeps no pages mapped.
    pub no_persistent_grants: bool,
    /// The backend spreads received flows over the queues by their hash, and passes the hashes on.
    pub hash: bool,
    /// How the queues' threads wait for frames.
    pub polling: Polling,
    /// Leave all copies of received frames to the driver domain.
    pub no_guest_copy: bool,
    /// For how long to try to join again after the daemon's end. Zero: a guest ends with its daemon.
    pub rejoin: Duration,
}

/// `DEVICE=ADDRESS`, or `ADDRESS` for the first interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    device: Option<String>,
    address: String,
}

impl FromStr for Address {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (device, address) = match text.split_once('=') {
            Some((device, address)) => (Some(device.to_owned()), address),
            None => (None, text),
        };
        Ok(Self { device, address: address.to_owned() })
    }
}

impl Options {
    /// The names of `count` interfaces for the stack.
    ///
    /// # Errors
    /// The options name more interfaces, another one, or one twice.
    pub(super) fn names(&self, count: usize) -> Result<Vec<String>, String> {
        if self.devices.len() > count {
            return Err(format!(
                "--device is given {} times, and there are {count} interfaces; a further one \
                 needs a [[guest.vif]] in the daemon's configuration",
                self.devices.len()
            ));
        }
        let given = self.devices.iter().cloned();
        let further = (given.len()..count).map(|number| format!("eth{number}"));
        let names: Vec<_> = given.chain(further).collect();
        if let Some(n) = (1..count).find(|n| names[..*n].contains(&names[*n])) {
            return Err(format!("two interfaces would be called {}; see --device", names[n]));
        }
        for device in self.addresses.iter().filter_map(|address| address.device.as_ref()) {
            if !names.contains(device) {
                let names = names.join(", ");
                return Err(format!(
                    "--address: no interface {device:?} (there are: {names}); a further one needs \
                     a [[guest.vif]] in the daemon's configuration"
                ));
            }
        }
        Ok(names)
    }

    /// The addresses of interface `number`, called `name`; none if the toolstack decides.
    pub(super) fn addresses(&self, number: usize, name: &str) -> Option<Vec<String>> {
        let is_its = |address: &&Address| match &address.device {
            Some(device) => device == name,
            None => number == 0,
        };
        let addresses = self.addresses.iter().filter(is_its);
        let addresses: Vec<_> = addresses.map(|address| address.address.clone()).collect();
        (!addresses.is_empty()).then_some(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(devices: &[&str], addresses: &[&str]) -> Options {
        let devices = devices.iter().map(|name| (*name).to_owned()).collect();
        let addresses = addresses.iter().filter_map(|text| text.parse().ok()).collect();
        Options { devices, addresses, ..Options::default() }
    }

    #[test]
    fn interfaces_have_predictable_names() {
        let names = |devices: &[&str], count| options(devices, &[]).names(count);
        assert_eq!(names(&[], 2).unwrap(), ["eth0", "eth1"]);
        assert_eq!(names(&["lan"], 3).unwrap(), ["lan", "eth1", "eth2"]);
        assert_eq!(names(&["lan", "wan"], 2).unwrap(), ["lan", "wan"]);
        assert!(names(&["eth1"], 2).unwrap_err().contains("would be called eth1"));
        let error = names(&["lan", "wan"], 1).unwrap_err();
        assert!(error.contains("there are 1 interfaces") && error.contains("[[guest.vif]]"));
    }

    #[test]
    fn addresses_belong_to_one_interface() {
        let options = options(&[], &["10.0.0.1/24", "eth1=10.0.1.1/24", "eth1=fd00::1/64"]);
        let names = options.names(3).unwrap();
        let addresses = |number: usize| options.addresses(number, &names[number]);
        assert_eq!(addresses(0).unwrap(), ["10.0.0.1/24"]);
        assert_eq!(addresses(1).unwrap(), ["10.0.1.1/24", "fd00::1/64"]);
        assert_eq!(addresses(2), None);
        let error = options.names(1).unwrap_err();
        assert!(error.contains("no interface \"eth1\" (there are: eth0)"), "{error}");
    }
}
