//! The mirrors of the configuration, and what each port has to do with them.

mod to_file;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capture::Recording;
use control_socket::MirrorStatus;
use datapath::{Datapath, Port};
use mirror::{Mirror, MirrorCounts, MirrorLayer};
use to_file::ToFile;
use tracing::{info, warn};

use crate::config;
use crate::daemon::disk::Disk;

/// What a port has to do with mirrors.
#[derive(Clone, Debug, Default)]
pub(super) struct MirrorRole {
    /// Those that copy its frames.
    pub(super) copies: MirrorLayer,
    /// Those that write its frames to files.
    pub(super) recordings: Vec<Recording>,
    /// The port of the mirror whose copies it gets, if it is a target.
    pub(super) target_of: Option<Arc<Port>>,
}

impl PartialEq for MirrorRole {
    fn eq(&self, other: &Self) -> bool {
        let id = |role: &Self| role.target_of.as_ref().map(Arc::as_ptr);
        (&self.copies, &self.recordings, id(self)) == (&other.copies, &other.recordings, id(other))
    }
}

/// A mirror that runs.
pub(super) struct PluggedMirror {
    config: config::Mirror,
    target: Target,
}

/// Where the copies go.
enum Target {
    Port(ToPort),
    File(ToFile),
}

impl PluggedMirror {
    /// Starts a mirror, without ports. With a disk, files that it does not make are an error; otherwise they are tried again.
    fn start(
        config: &config::Mirror,
        folder: &Path,
        disk: Option<&Disk>,
        datapath: &Datapath,
    ) -> Result<Self, String> {
        let target = match &config.to {
            Some(_) => ToPort::start(config, datapath).map(Target::Port),
            None => ToFile::start(config, folder, disk).map(Target::File),
        };
        let target = target.map_err(|reason| format!("mirror {:?}: {reason}", config.name))?;
        info!(mirror = config.name, to = config.to, file = config.file, "mirroring");
        Ok(Self { config: config.clone(), target })
    }

    /// Whether it can be the mirror of a configuration as it is.
    fn fits(&self, config: &config::Mirror) -> bool {
        match &self.target {
            // Its target and its sources change while it runs.
            Target::Port(_) => {
                let own = &self.config;
                config.to.is_some() && own.name == config.name && own.snaplen == config.snaplen
            }
            Target::File(_) => self.config == *config,
        }
    }

    pub(super) fn status(&self) -> MirrorStatus {
        let config::Mirror { name, from, to, .. } = self.config.clone();
        let ((copied, lost), file) = match &self.target {
            Target::Port(target) => (target.counts(), None),
            Target::File(target) => (target.counts(), Some(target.status())),
        };
        MirrorStatus { name, from, to, file, copied, lost }
    }

    /// Ends a mirror that no port has in its role. A file is waited for until `deadline`.
    fn end(self, datapath: &Datapath, deadline: Instant) {
        match self.target {
            Target::Port(target) => target.end(datapath),
            Target::File(target) => target.end(deadline),
        }
        info!(mirror = self.config.name, "not mirroring any more");
    }
}

/// Starts those mirrors of a configuration that do not run, before anything else changes.
pub(super) fn start_new(
    mirrors: &[PluggedMirror],
    wanted: &config::Config,
    disk: &Disk,
    datapath: &Datapath,
) -> Result<Vec<PluggedMirror>, String> {
    let mut new = Vec::new();
    keep_files(mirrors, |mirror| !wanted.mirrors.iter().any(|config| mirror.fits(config)));
    for config in &wanted.mirrors {
        if mirrors.iter().any(|mirror| mirror.fits(config)) {
            continue;
        }
        match PluggedMirror::start(config, &wanted.daemon.recordings, Some(disk), datapath) {
            Ok(mirror) => new.push(mirror),
            Err(reason) => {
                remove(new, datapath);
                keep_files(mirrors, |_| false);
                return Err(reason);
            }
        }
    }
    Ok(new)
}

/// Has those recordings remove no file that others of their name replace, and all others remove what is too many.
fn keep_files(mirrors: &[PluggedMirror], are_replaced: impl Fn(&PluggedMirror) -> bool) {
    for mirror in mirrors {
        if let Target::File(target) = &mirror.target {
            target.keep_files(are_replaced(mirror));
        }
    }
}

/// Makes the mirrors those of a configuration, of which `new` were started already. Returns those that are gone, whose ports no
/// other port uses after its next role.
pub(super) fn set(
    mirrors: &mut Vec<PluggedMirror>,
    new: Vec<PluggedMirror>,
    wanted: &config::Config,
    datapath: &Datapath,
) -> Vec<PluggedMirror> {
    let mut old: Vec<_> = std::mem::take(mirrors).into_iter().chain(new).collect();
    for config in &wanted.mirrors {
        match old.iter().position(|one| one.fits(config)) {
            Some(place) => {
                mirrors.push(PluggedMirror { config: config.clone(), ..old.swap_remove(place) });
            }
            None => match PluggedMirror::start(config, &wanted.daemon.recordings, None, datapath) {
                Ok(mirror) => mirrors.push(mirror),
                Err(error) => warn!(error, "not mirroring"),
            },
        }
    }
    old
}

/// What the port of this name has to do with these mirrors.
pub(super) fn role_of(name: &str, mirrors: &[PluggedMirror]) -> MirrorRole {
    let mut role = MirrorRole::default();
    for PluggedMirror { config, target } in mirrors {
        let is_source = config.from.iter().any(|from| from == name);
        match target {
            Target::Port(ToPort { mirror, port }) => {
                if config.to.as_deref() == Some(name) {
                    role.target_of = Some(port.clone());
                }
                let [ingress, egress] = config.direction.parts().map(|part| part && is_source);
                role.copies.ingress.extend(ingress.then(|| mirror.clone()));
                role.copies.egress.extend(egress.then(|| mirror.clone()));
            }
            Target::File(target) => {
                role.recordings.extend(is_source.then(|| target.recording().clone()));
            }
        }
    }
    role
}

/// How long the last writes of all files are waited for: a disk may hang, and the whole daemon waits.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// Removes mirrors that no port has in its role.
pub(super) fn remove(mirrors: Vec<PluggedMirror>, datapath: &Datapath) {
    for mirror in &mirrors {
        if let Target::File(target) = &mirror.target {
            target.stop();
        }
    }
    let deadline = Instant::now() + LAST_WRITE;
    mirrors.into_iter().for_each(|mirror| mirror.end(datapath, deadline));
}

/// The copies, and the port that sends them.
struct ToPort {
    mirror: Mirror,
    port: Arc<Port>,
}

impl ToPort {
    fn start(config: &config::Mirror, datapath: &Datapath) -> Result<Self, String> {
        let mirror = Mirror::new(config.snaplen).map_err(|error| error.to_string())?;
        let name = format!("mirror {}", config.name);
        let port = datapath.attach_apart(&name, vec![mirror.queue()], Vec::new(), None);
        Ok(Self { mirror, port })
    }

    /// Frames that were copied, and lost.
    fn counts(&self) -> (u64, u64) {
        let MirrorCounts { copied, lost } = self.mirror.counts();
        (copied, lost)
    }

    fn end(self, datapath: &Datapath) {
        datapath.detach(self.port.id());
    }
}
