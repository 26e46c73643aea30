//! What the toolstack's keys of a backend ask for: limits, and for its device a name, an MTU, and a script that puts it into its place.

use control_socket::{IgnoredKey, ToolstackStatus};
use limit::{Limit, Limits};
use wire::netif::keys;
use xenstore::{Store, StoreError};

use crate::daemon::backends::{Backends, VifId};

/// The rate at which the guest may send.
const RATE: &str = "rate";
/// Where a script should put the device, by path, and the value that libxl writes if nobody has said where.
const BRIDGE: &str = "bridge";
const BRIDGE_DEFAULT: &str = "xenbr0";
/// Keys that only a script understands.
const OF_SCRIPTS: [&str; 2] = ["gatewaydev", "vlan"];

/// netback's least burst, in bytes.
const BURST_MIN: u64 = 128 * 1024;
/// The most that a limit of the configuration can be: more is no limit.
const RATE_MAX: u64 = 125_000_000_000;
const BURST_MAX: u64 = 1 << 30;

/// What the toolstack wants of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    rate: Option<String>,
    /// Where the interface should be, key by key.
    places: Vec<(&'static str, String)>,
}

impl Backends {
    /// What the toolstack wants of an interface.
    pub(super) fn wishes(&self, store: &dyn Store, id: VifId) -> Wishes {
        let read = |key: &str| store.read(None, &format!("{}/{key}", self.path(id))).ok();
        let said = |key| read(key).filter(|value| !value.is_empty()).map(|value| (key, value));
        let bridge = said(BRIDGE).filter(|(_, bridge)| bridge != BRIDGE_DEFAULT);
        let places = bridge.into_iter().chain(OF_SCRIPTS.into_iter().filter_map(said)).collect();
        Wishes { rate: read(RATE), places }
    }

    /// Whether a path in the store is that of a wish that may change.
    pub(super) fn is_wish(path: &str) -> bool {
        path.ends_with("/rate")
    }
}

impl Wishes {
    /// The limits of an interface whose configuration has `own`, and what became of the wishes. The configuration comes first.
    pub(super) fn apply(&self, own: Limits, has_device: bool) -> (ToolstackStatus, Limits) {
        let mut status = ToolstackStatus::default();
        let mut limits = own;
        let mut ignore = |key: &str, value: &str, why: &str| {
            let [key, value, why] = [key, value, why].map(str::to_owned);
            status.ignored.push(IgnoredKey { key, value, why });
        };
        if let Some(text) = &self.rate {
            match parse_rate(text) {
                None => ignore(RATE, text, "it is not BYTES,MICROSECONDS"),
                Some(_) if !own.ingress.is_unlimited() => {
                    ignore(RATE, text, "the configuration has limit.ingress");
                }
                Some(rate) => limits.ingress = rate,
            }
        }
        for (key, value) in self.places.iter().filter(|_| !has_device) {
            let why = match *key {
                "vlan" => "with attach = \"switch\" the configuration's vlan and trunk say this",
                _ => "with attach = \"switch\" the port is on pvnet's own switch",
            };
            ignore(key, value, why);
        }
        status.rate = limits.ingress != own.ingress;
        (status, limits)
    }
}

/// A rate as xen-netback understands it: bytes, and the microseconds of an interval. Without an interval there is no limit. None
/// if it is malformed, or lets nothing pass.
fn parse_rate(text: &str) -> Option<Limit> {
    let (bytes, micros) = text.trim().split_once(',')?;
    let (bytes, micros): (u64, u64) = (bytes.parse().ok()?, micros.parse().ok()?);
    if micros == 0 {
        return Some(Limit::default());
    }
    if bytes == 0 {
        return None;
    }
    let rate = (u128::from(bytes) * 1_000_000 / u128::from(micros)).max(1);
    let rate = u64::try_from(rate).ok().filter(|rate| *rate <= RATE_MAX);
    let Some(rate) = rate else { return Some(Limit::default()) };
    Some(Limit { burst_bytes: bytes.clamp(BURST_MIN, BURST_MAX), ..Limit::new(Some(rate), None) })
}

/// The script that puts the device into its place, by path.
const SCRIPT: &str = "script";
/// What the script has done.
const STATUS: &str = "hotplug-status";
/// It has put the device into its place.
const CONNECTED: &str = "connected";
/// The name that the script gives the device.
const NAME: &str = "vifname";

impl Backends {
    /// The names that the device of an interface may have by now, and at last the one that a new device gets.
    pub(super) fn device_names(&self, store: &dyn Store, id: VifId) -> Vec<String> {
        let renamed = self.key(store, id, NAME).filter(|name| !name.is_empty());
        // Before, an interface of that name is another one.
        let renamed = renamed.filter(|_| self.has_script_run(store, id));
        renamed.into_iter().chain([format!("vif{}.{}", id.domain, id.handle)]).collect()
    }

    /// The MTU that the toolstack wants the device to have.
    pub(super) fn mtu(&self, store: &dyn Store, id: VifId) -> Option<u16> {
        self.key(store, id, keys::MTU)?.trim().parse().ok()
    }

    /// Whether a script has yet to put the device into its place. The frontend must not connect before.
    pub(super) fn waits_for_script(&self, store: &dyn Store, id: VifId) -> bool {
        let has_script = self.key(store, id, SCRIPT).is_some_and(|script| !script.is_empty());
        has_script && !self.has_script_run(store, id)
    }

    fn has_script_run(&self, store: &dyn Store, id: VifId) -> bool {
        self.key(store, id, STATUS).as_deref() == Some(CONNECTED)
    }

    /// Tells the frontend the MTU of its network, as Xen's scripts do.
    pub(super) fn tell_mtu(
        &self,
        store: &dyn Store,
        id: VifId,
        mtu: u32,
    ) -> Result<(), StoreError> {
        let frontend = store.read(None, &format!("{}/frontend", self.path(id)))?;
        store.write(None, &format!("{frontend}/{}", keys::MTU), &mtu.to_string())
    }

    fn key(&self, store: &dyn Store, id: VifId, key: &str) -> Option<String> {
        store.read(None, &format!("{}/{key}", self.path(id))).ok()
    }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use machine::Machine;
    use machine::toolstack::{create_domain, create_vif};

    use super::*;

    #[test]
    fn a_rate_is_what_netback_takes_it_for() {
        let rate = |text| parse_rate(text).map(|limit| (limit.bytes_per_second, limit.burst_bytes));
        // 1 Mb/s as libxl writes it, in intervals of 50 ms.
        assert_eq!(rate("6250,50000"), Some((Some(125_000), BURST_MIN)));
        assert_eq!(rate("250000,2000000"), Some((Some(125_000), 250_000)));
        assert_eq!(rate("1,4000000"), Some((Some(1), BURST_MIN)));
        for none in ["6250,0", "18446744073709551615,1"] {
            assert!(parse_rate(none).is_some_and(Limit::is_unlimited), "{none}");
        }
        for malformed in ["", "6250", "6250,", ",50000", "6250,50000,1", "1Mb/s", "-1,5", "0,50000"]
        {
            assert_eq!(rate(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn what_is_not_done_is_said() {
        let store = Machine::new().store().connect(DomId(0));
        let backends = Backends::new(DomId(0), "vif");
        create_domain(&store, DomId(7), "web").unwrap();
        create_vif(&store, DomId(7), 0, "02:00:00:00:00:01").unwrap();
        let id = VifId { domain: DomId(7), handle: 0 };
        let write = |key: &str, value: &str| {
            store.write(None, &format!("{}/{key}", backends.path(id)), value).unwrap();
        };
        let own = Limits::default();
        let apply = |own, has_device| backends.wishes(&store, id).apply(own, has_device);
        assert_eq!(apply(own, false), (ToolstackStatus::default(), own));
        // What libxl writes for each interface.
        for (key, value) in [("bridge", "xenbr0"), ("script", "/etc/xen/scripts/vif-bridge")] {
            write(key, value);
        }
        assert_eq!(apply(own, false), (ToolstackStatus::default(), own));
        write("rate", "6250,50000");
        let (status, limits) = apply(own, true);
        assert!(status.rate && status.ignored.is_empty());
        assert_eq!(limits.ingress.bytes_per_second, Some(125_000));
        assert!(limits.egress.is_unlimited());

        let keys = |status: &ToolstackStatus| {
            let keys = status.ignored.iter().map(|ignored| ignored.key.clone());
            (status.rate, keys.collect::<Vec<_>>())
        };
        let packets = Limits { ingress: Limit::new(None, Some(9)), ..own };
        let (status, limits) = apply(packets, true);
        assert_eq!((keys(&status), limits), ((false, vec!["rate".to_owned()]), packets));
        write("rate", "fast");
        write("bridge", "dmz");
        write("vlan", "10p");
        write("gatewaydev", "eth0");
        assert_eq!(keys(&apply(own, true).0), (false, vec!["rate".to_owned()]));
        let all = ["rate", "bridge", "gatewaydev", "vlan"].map(str::to_owned).to_vec();
        assert_eq!(keys(&apply(own, false).0), (false, all));
    }

    #[test]
    fn a_script_is_waited_for_where_there_is_one() {
        let store = Machine::new().store().connect(DomId(0));
        let backends = Backends::new(DomId(0), "vif");
        create_domain(&store, DomId(7), "web").unwrap();
        create_vif(&store, DomId(7), 1, "02:00:00:00:00:01").unwrap();
        let id = VifId { domain: DomId(7), handle: 1 };
        let write = |key: &str, value: &str| {
            store.write(None, &format!("{}/{key}", backends.path(id)), value).unwrap();
        };
        let waits = || backends.waits_for_script(&store, id);
        assert!(!waits());
        write("script", "/etc/xen/scripts/vif-bridge");
        assert!(waits());
        write("hotplug-status", "error");
        assert!(waits());
        write("hotplug-status", "connected");
        assert!(!waits());
        write("vifname", "dmz");
        assert_eq!(backends.device_names(&store, id), ["dmz", "vif7.1"]);
        write("hotplug-status", "error");
        assert_eq!(backends.device_names(&store, id), ["vif7.1"]);
        assert_eq!(backends.mtu(&store, id), None);
        write("mtu", "9000");
        assert_eq!(backends.mtu(&store, id), Some(9000));
        backends.tell_mtu(&store, id, 1442).unwrap();
        let announced = store.read(None, "/local/domain/7/device/vif/1/mtu");
        assert_eq!(announced.as_deref(), Ok("1442"));
    }
}
