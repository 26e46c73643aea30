//! The mirrors of the configuration, and what each port has to do with them.

use std::sync::Arc;

use control_socket::MirrorStatus;
use datapath::{Datapath, Port};
use mirror::{Mirror, MirrorCounts};
use tracing::{info, warn};

use crate::config;

/// What a port has to do with mirrors.
#[derive(Clone, Debug, Default)]
pub(super) struct MirrorRole {
    /// Those that get the frames from the port into the switch.
    pub(super) ingress: Vec<Mirror>,
    /// Those that get the frames from the switch out of the port.
    pub(super) egress: Vec<Mirror>,
    /// The port of the mirror whose copies it gets, if it is a target.
    pub(super) target_of: Option<Arc<Port>>,
}

impl PartialEq for MirrorRole {
    fn eq(&self, other: &Self) -> bool {
        let id = |role: &Self| role.target_of.as_ref().map(Arc::as_ptr);
        (&self.ingress, &self.egress, id(self)) == (&other.ingress, &other.egress, id(other))
    }
}

/// A mirror that runs.
pub(super) struct PluggedMirror {
    config: config::Mirror,
    mirror: Mirror,
    port: Arc<Port>,
}

impl PluggedMirror {
    fn new(config: &config::Mirror, datapath: &Datapath) -> std::io::Result<Self> {
        let mirror = Mirror::new(config.snaplen)?;
        let name = format!("mirror {}", config.name);
        let port = datapath.attach_apart(&name, vec![mirror.queue()], Vec::new(), None);
        info!(mirror = config.name, to = config.to, "mirroring");
        Ok(Self { config: config.clone(), mirror, port })
    }

    pub(super) fn status(&self) -> MirrorStatus {
        let MirrorCounts { copied, lost } = self.mirror.counts();
        let config::Mirror { name, from, to, .. } = self.config.clone();
        MirrorStatus { name, from, to, copied, lost }
    }
}

/// Makes the mirrors those of a configuration. Returns those that are gone, whose ports no other port uses after its next role.
pub(super) fn set(
    mirrors: &mut Vec<PluggedMirror>,
    wanted: &[config::Mirror],
    datapath: &Datapath,
) -> Vec<PluggedMirror> {
    let mut old = std::mem::take(mirrors);
    for config in wanted {
        let is_its = |one: &PluggedMirror| {
            one.config.name == config.name && one.config.snaplen == config.snaplen
        };
        match old.iter().position(is_its) {
            Some(place) => {
                mirrors.push(PluggedMirror { config: config.clone(), ..old.swap_remove(place) });
            }
            None => match PluggedMirror::new(config, datapath) {
                Ok(mirror) => mirrors.push(mirror),
                Err(error) => warn!(mirror = config.name, %error, "not mirroring"),
            },
        }
    }
    old
}

/// What the port of this name has to do with these mirrors.
pub(super) fn role_of(name: &str, mirrors: &[PluggedMirror]) -> MirrorRole {
    let mut role = MirrorRole::default();
    for PluggedMirror { config, mirror, port } in mirrors {
        if config.to == name {
            role.target_of = Some(port.clone());
        }
        if config.from.iter().any(|from| from == name) {
            let [ingress, egress] = config.direction.parts();
            role.ingress.extend(ingress.then(|| mirror.clone()));
            role.egress.extend(egress.then(|| mirror.clone()));
        }
    }
    role
}

/// Removes mirrors that no port has in its role.
pub(super) fn remove(mirrors: Vec<PluggedMirror>, datapath: &Datapath) {
    for PluggedMirror { config, port, .. } in mirrors {
        datapath.detach(port.id());
        info!(mirror = config.name, "not mirroring any more");
    }
}
