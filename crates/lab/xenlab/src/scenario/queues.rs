//! How many queues a frontend and a backend agree on, depending on their virtual CPUs.

use lab::Progress;
use schemars::JsonSchema;
use serde::Serialize;

use super::backend::{self, Backend, RunningBackend};
use super::cell::Frontend;
use super::check::{self, Features};
use super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, GUEST_ADDRESS};
use crate::Result;
use crate::host::{DomuConfig, Host};

/// The virtual CPUs of the guests.
pub const GUEST_VCPUS: [u32; 3] = [1, 2, 4];
/// The number of echoes that show that the queues carry frames.
const PINGS: u32 = 5;

/// The queues that a guest with the kernel's frontend and a backend in dom0 agreed on.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Negotiation {
    /// The backend.
    pub backend: &'static str,
    /// Virtual CPUs of dom0.
    pub dom0_vcpus: u32,
    /// Virtual CPUs of the guest.
    pub guest_vcpus: u32,
    /// The most queues that the backend offers.
    pub offered: u32,
    /// The queues that the frontend took.
    pub queues: u32,
    /// Echoes that were answered and echoes that were sent.
    pub ping: [u64; 2],
}

impl Negotiation {
    fn new(backend: Backend, vcpus: [u32; 2], features: &Features, ping: [u64; 2]) -> Self {
        // Without the keys there is one queue.
        let number = |value: Option<&String>| value.and_then(|it| it.parse().ok()).unwrap_or(1);
        let [dom0_vcpus, guest_vcpus] = vcpus;
        Self {
            backend: backend.name(),
            dom0_vcpus,
            guest_vcpus,
            offered: number(features.backend.get("multi-queue-max-queues")),
            queues: number(features.frontend.get("multi-queue-num-queues")),
            ping,
        }
    }

    /// As many queues as the end with fewer virtual CPUs has, which is XenServer's default.
    #[must_use]
    pub fn expected(&self) -> u32 {
        self.dom0_vcpus.min(self.guest_vcpus)
    }

    /// Whether both agreed on the expected number, and every echo was answered.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.queues == self.expected() && self.ping[0] == self.ping[1]
    }
}

/// Connects guests with 1, 2 and 4 virtual CPUs, one after the other, on a freshly booted host whose dom0 has
/// `dom0_vcpus`.
pub fn queues(
    host: &Host,
    backend: Backend,
    dom0_vcpus: u32,
    progress: &Progress,
) -> Result<Vec<Negotiation>> {
    let running = backend.start(host)?;
    let connect = |guest_vcpus: u32| {
        progress.step(format!("{}, dom0 {dom0_vcpus}, guest {guest_vcpus}", backend.name()));
        let seen = negotiate(host, &running, guest_vcpus);
        let (features, ping) = seen.map_err(|error| backend::explain(error, &running))?;
        Ok(Negotiation::new(backend, [dom0_vcpus, guest_vcpus], &features, ping))
    };
    GUEST_VCPUS.into_iter().map(connect).collect()
}

fn negotiate(host: &Host, backend: &RunningBackend, vcpus: u32) -> Result<(Features, [u64; 2])> {
    let config = DomuConfig::new(format!("guest{vcpus}")).vif(backend.vif());
    let guest = host.create(&DomuConfig { vcpus, ..config }, BOOT_TIMEOUT)?;
    let _frontend = Frontend::Stock.start(&guest)?;
    let features = check::features(host.dom0(), &guest)?;
    let ping = check::ping(backend.shell(), GUEST_ADDRESS, PINGS)?;
    let gone = format!("! xl domid {}", guest.name());
    guest.destroy()?;
    host.dom0().until("the end of the guest", &gone, COMMAND_TIMEOUT)?;
    Ok((features, [ping.received, ping.sent]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(offered: &str, queues: &str) -> Features {
        let key = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        Features {
            frontend: key("multi-queue-num-queues", queues),
            backend: key("multi-queue-max-queues", offered),
            offloads: Vec::new(),
        }
    }

    #[test]
    fn the_end_with_fewer_cpus_decides() {
        let seen = Negotiation::new(Backend::Stock, [2, 4], &features("2", "2"), [5, 5]);
        assert_eq!((seen.offered, seen.queues, seen.expected()), (2, 2, 2));
        assert!(seen.passed());
        assert!(!Negotiation { ping: [4, 5], ..seen.clone() }.passed());
        assert!(!Negotiation { queues: 1, ..seen }.passed());
        let one = Negotiation::new(Backend::Pvnet, [1, 4], &features("1", "1"), [5, 5]);
        assert!(one.passed() && one.backend == "pvnet");
    }

    #[test]
    fn without_keys_there_is_one_queue() {
        let seen = Negotiation::new(Backend::Stock, [2, 1], &Features::default(), [5, 5]);
        assert_eq!((seen.offered, seen.queues, seen.passed()), (1, 1, true));
    }
}
