//! Xen's hotplug scripts, as the toolstack runs them, on a device that pvnet has made.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lab::TempDir;
use xenlab::{Error, Result};

use crate::host::Host;
use crate::programs::LIMIT;
use crate::testbed::Testbed;

/// The backend's folder in the store.
const BACKEND: &str = "/local/domain/0/backend/vif/21/0";
/// The programs by which the scripts read and write the store, which is a folder.
const READ: &str = "#!/bin/sh\nfor key; do cat \"$STORE$key\" || exit 1; done\n";
const WRITE: &str = "#!/bin/sh\nwhile [ $# -ge 2 ]; do mkdir -p \"$STORE${1%/*}\" && echo \"$2\" >\"$STORE$1\"; shift 2; done\n";
/// The scripts log to a folder that only a Xen host has: a mount namespace gives them one. Without -n, `mount` would leave /run/mount behind.
const INSIDE: &str = "mount -n -t tmpfs log /var/log && mkdir /var/log/xen && exec \"$@\"";

struct Store {
    folder: TempDir,
}

impl Store {
    fn make() -> Result<Self> {
        let store = Self { folder: TempDir::new()? };
        for (name, text) in [("xenstore-read", READ), ("xenstore-write", WRITE)] {
            let path = store.folder.path().join(name);
            let failed = |cause| Error::Path { path: path.clone(), cause };
            std::fs::write(&path, text).map_err(failed)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                .map_err(failed)?;
        }
        Ok(store)
    }

    fn write(&self, key: &str, value: &str) -> Result<()> {
        let path = self.folder.path().join(&key[1..]);
        let failed = |cause| Error::Path { path: path.clone(), cause };
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
        std::fs::write(&path, format!("{value}\n")).map_err(failed)
    }

    fn read(&self, key: &str) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(&key[1..]));
        text.unwrap_or_default().trim().to_owned()
    }

    /// Runs a script for the device. Returns the `hotplug-status` that it writes.
    fn script(&self, host: &Host, name: &str, command: &str) -> Result<String> {
        self.write(&format!("{BACKEND}/hotplug-status"), "none")?;
        let mut run = host.node.namespace.exec("unshare")?;
        run.args(["--mount", "sh", "-c", INSIDE, "sh", "bash"]);
        let programs = &host.node.programs;
        run.arg(programs.file("etc/xen/scripts").join(name)).args([command, "type_if=vif"]);
        run.env("STORE", self.folder.path()).env("XENBUS_PATH", BACKEND).env("vif", DEVICE);
        run.env("OVS_RUNDIR", host.node.folder.path());
        let own = self.folder.path().display();
        run.env("PATH", format!("{own}:{}", programs.search_path()));
        lab::run(run, LIMIT)?;
        Ok(self.read(&format!("{BACKEND}/hotplug-status")))
    }
}

/// The device of the guest on host b, as if domain 21 had it.
const DEVICE: &str = "vif21.0";

/// `vif-openvswitch` puts the device into the integration bridge and `vif-bridge` into a bridge of Linux.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let host = &testbed.hosts[1];
    let store = Store::make()?;
    for (key, value) in [
        (format!("{BACKEND}/frontend-id"), "21"),
        (format!("{BACKEND}/mac"), "0e:aa:00:00:00:21"),
        (format!("{BACKEND}/bridge"), "br-int"),
        ("/local/domain/21/vm".to_owned(), "/vm/21"),
        ("/vm/21/name".to_owned(), "web"),
        ("/vm/21/uuid".to_owned(), "00000000-0000-0000-0000-000000000021"),
    ] {
        store.write(&key, value)?;
    }
    let switch = store.script(host, "vif-openvswitch", "online")?;
    let ids = host.vsctl(&format!("get interface {DEVICE} external_ids"))?;
    let is_port = ids.contains("attached-mac") && ids.contains("xen-vm-uuid");
    store.script(host, "vif-openvswitch", "offline")?;
    let left = host.vsctl("list-ports br-int")?.lines().any(|port| port == DEVICE);

    host.node.namespace.ip(&["link", "add", "xenbr0", "type", "bridge"])?;
    host.node.namespace.ip(&["link", "set", "xenbr0", "mtu", "1400", "up"])?;
    store.write(&format!("{BACKEND}/bridge"), "xenbr0")?;
    let bridge = store.script(host, "vif-bridge", "online")?;
    let link = host.node.namespace.ip(&["-d", "link", "show", "dev", DEVICE])?;
    let in_bridge = ["master xenbr0", "mtu 1400", "fe:ff:ff:ff:ff:ff", ",UP"];
    let in_bridge = in_bridge.iter().all(|word| link.contains(word));
    let announced = store.read("/local/domain/21/device/vif/0/mtu");
    store.script(host, "vif-bridge", "offline")?;
    let out = !host.node.namespace.ip(&["link", "show", "dev", DEVICE])?.contains("master xenbr0");
    let seen = format!("vif-openvswitch {switch}, vif-bridge {bridge}, MTU {announced}");
    let both = switch == "connected" && bridge == "connected";
    Ok((seen, both && is_port && !left && in_bridge && announced == "1400" && out))
}
