//! Command-line options of the interfaces of a process.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use offload::Features;
use poller::Polling;

use crate::config::Poll;

/// Options of an interface, or of all interfaces of a guest.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// An interface's name in the stack. A guest with several interfaces takes it several times; `pvnet frontend` has one
    /// [default: eth0, eth1, …].
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The most queues [default: one per CPU; the backend may offer fewer].
    #[arg(long, value_name = "N")]
    pub(super) queues: Option<u32>,
    /// An address with its prefix length, instead of the configuration's; can be repeated. It is for
    /// the first interface, or for DEVICE. The `guard` of the configuration has to allow it.
    #[arg(long, value_name = "[DEVICE=]ADDRESS")]
    address: Vec<Address>,
    /// Use no scatter/gather: frames of one page.
    #[arg(long)]
    no_sg: bool,
    /// Use no checksum offload.
    #[arg(long)]
    no_csum: bool,
    /// Use no TCP segmentation offload.
    #[arg(long)]
    no_tso: bool,
    /// Use one event channel for both rings of a queue.
    #[arg(long)]
    pub(super) one_event_channel: bool,
    /// Leave headers in the frames' pages instead of the header pages beside the ring.
    #[arg(long)]
    pub(super) no_header_channel: bool,
    /// Keep no pages mapped: each use of a page is a grant operation.
    #[arg(long)]
    pub(super) no_persistent_grants: bool,
    /// Have the backend spread received flows over the queues by their Toeplitz hash, and pass the hashes on.
    #[arg(long)]
    pub(super) hash: bool,
    /// How the threads between the stack and pvnet wait for frames: `always` never sleeps, and takes a CPU for each queue.
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    poll: Poll,
    /// Poll for at most this many microseconds before a sleep, while round trips are under way; 0: never.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=1000))]
    poll_us: u64,
    /// Leave all copies of received frames to the driver domain.
    #[arg(long)]
    pub(super) no_guest_copy: bool,
    /// For how long to try to join again after the daemon's end. Zero: a guest ends with its daemon.
    #[arg(skip)]
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
    /// The offloads that are not used.
    pub(super) fn without(&self) -> Features {
        let Self { no_sg: sg, no_csum: csum, no_tso: tso, .. } = *self;
        let (csum_v4, csum_v6, tso_v4, tso_v6) = (csum, csum, tso, tso);
        Features { sg, csum_v4, csum_v6, tso_v4, tso_v6, ..Features::NONE }
    }

    /// How the queues' threads wait for frames.
    pub(super) fn polling(&self) -> Polling {
        self.poll.limited_to(Duration::from_micros(self.poll_us))
    }

    /// The names of `count` interfaces for the stack. `further` is what a further one needs.
    ///
    /// # Errors
    /// The options name more interfaces, another one, or one twice.
    pub(super) fn names(&self, count: usize, further: &str) -> Result<Vec<String>, String> {
        if self.device.len() > count {
            let given = self.device.len();
            return Err(format!(
                "--device is given {given} times, and the number of interfaces is {count}; a further one needs {further}"
            ));
        }
        let given = self.device.iter().cloned();
        let unnamed = (given.len()..count).map(|number| format!("eth{number}"));
        let names: Vec<_> = given.chain(unnamed).collect();
        if let Some(n) = (1..count).find(|n| names[..*n].contains(&names[*n])) {
            return Err(format!("two interfaces would be called {}; see --device", names[n]));
        }
        for device in self.address.iter().filter_map(|address| address.device.as_ref()) {
            if !names.contains(device) {
                let names = names.join(", ");
                return Err(format!(
                    "--address: no interface {device:?} (there are: {names}); a further one needs {further}"
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
        let addresses = self.address.iter().filter(is_its);
        let addresses: Vec<_> = addresses.map(|address| address.address.clone()).collect();
        (!addresses.is_empty()).then_some(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(device: &[&str], address: &[&str]) -> Options {
        let device = device.iter().map(|name| (*name).to_owned()).collect();
        let address = address.iter().filter_map(|text| text.parse().ok()).collect();
        Options { device, address, ..Options::default() }
    }

    #[test]
    fn interfaces_have_predictable_names() {
        let names = |device: &[&str], count| options(device, &[]).names(count, "a [[guest.vif]]");
        assert_eq!(names(&[], 2).unwrap(), ["eth0", "eth1"]);
        assert_eq!(names(&["lan"], 3).unwrap(), ["lan", "eth1", "eth2"]);
        assert_eq!(names(&["lan", "wan"], 2).unwrap(), ["lan", "wan"]);
        assert!(names(&["eth1"], 2).unwrap_err().contains("would be called eth1"));
        let error = names(&["lan", "wan"], 1).unwrap_err();
        assert!(error.contains("the number of interfaces is 1") && error.contains("[[guest.vif]]"));
    }

    #[test]
    fn addresses_belong_to_one_interface() {
        let options = options(&[], &["10.0.0.1/24", "eth1=10.0.1.1/24", "eth1=fd00::1/64"]);
        let names = options.names(3, "").unwrap();
        let addresses = |number: usize| options.addresses(number, &names[number]);
        assert_eq!(addresses(0).unwrap(), ["10.0.0.1/24"]);
        assert_eq!(addresses(1).unwrap(), ["10.0.1.1/24", "fd00::1/64"]);
        assert_eq!(addresses(2), None);
        let error = options.names(1, "another `pvnet frontend`").unwrap_err();
        assert!(error.contains("no interface \"eth1\" (there are: eth0)"), "{error}");
        assert!(error.contains("another `pvnet frontend`"), "{error}");
    }
}
