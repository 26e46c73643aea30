//! A guest whose interface is a virtio device.
//!
//! ```text
//!  namespace ── tap ── pvnet run: switch, driver of a vhost-user port ──► the port of the daemon under test
//! ```

use std::path::{Path, PathBuf};

use lab::Endpoint;

use super::daemon::Daemon;
use crate::error::Result;

/// Starts the guest: a second daemon, whose uplinks are the namespace's device and the driver of the port.
pub fn start(end: &Endpoint, mac: &str, folder: &Path) -> Result<Daemon> {
    let socket = quoted(&socket(end, folder));
    let guest = Daemon::start(|folder| {
        format!(
            "[daemon]\ndirectory = {}\nworkers = 1\n\n[[uplink]]\nname = \"port\"\nkind = \"virtio-user\"\n\
             mode = \"client\"\nsocket = {socket}\n\n[[uplink]]\nname = \"guest\"\ntap = \"{}\"\n\
             namespace = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
            quoted(folder),
            end.device,
            end.namespace.name(),
            end.ipv4,
            end.ipv6
        )
    })?;
    // The port's guard knows this address.
    end.namespace.ip(&["link", "set", "dev", end.device, "address", mac])?;
    Ok(guest)
}

/// The table of its port in the configuration of the daemon under test, whose folder has the socket.
pub fn port(end: &Endpoint, mac: &str, folder: &Path) -> String {
    format!(
        "\n[[port]]\nname = \"{}\"\nkind = \"vhost-user\"\nmac = \"{mac}\"\nsocket = {}\n",
        end.namespace.name(),
        quoted(&socket(end, folder))
    )
}

fn socket(end: &Endpoint, folder: &Path) -> PathBuf {
    folder.join(format!("{}.sock", end.namespace.name()))
}

/// A path for TOML, which quotes a name that may have any character.
pub fn quoted(path: &Path) -> toml::Value {
    toml::Value::from(path.to_string_lossy().into_owned())
}
