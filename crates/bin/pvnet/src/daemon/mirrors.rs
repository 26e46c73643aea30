//! The mirrors of the configuration, to ports or to files.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use capture::{Files, Recording, Totals};
use control_socket::MirrorStatus;
use datapath::{Datapath, MemorySleep, Port, PortMemory, PortParts};
use mirror::{Mirror, MirrorCounts, MirrorLayer};
use tracing::{info, warn};

use crate::config;
use crate::daemon::disk::{Answer, Disk};
use crate::daemon::thread::spawn_for_client;
use crate::program::text;

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
            Target::File(target) => (target.counts(), Some(target.recording.status())),
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
        let memory = PortMemory { sleep: MemorySleep::Never, ..PortMemory::default() };
        let parts = PortParts { queues: vec![mirror.queue()], memory, ..PortParts::default() };
        let port = datapath.attach_apart(&name, parts, None);
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

/// A recording, and the thread that writes it.
struct ToFile {
    recording: Recording,
    stop: Arc<AtomicBool>,
    keeps_files: Arc<AtomicBool>,
    /// Says nothing, and ends with the thread.
    ended: mpsc::Receiver<()>,
}

impl ToFile {
    /// With a disk, a first file that it does not make at once is an error; otherwise nothing is waited for, and it is tried again.
    fn start(config: &config::Mirror, folder: &Path, disk: Option<&Disk>) -> Result<Self, String> {
        let (bytes, files) = config.file_limits();
        let keeps_files = Arc::<AtomicBool>::default();
        let name = config.file_name().unwrap_or_default();
        let mut files = Files::new(folder, name, bytes, files).keeping(keeps_files.clone());
        let recording = Recording::new(&config.from, &config.recorded()).map_err(text)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (lives, ended) = mpsc::channel::<()>();
        let asked =
            disk.map(Disk::question).transpose().map_err(|error| with_hint(folder, &error))?;
        let (question, answer) = asked.unzip();
        let (writer, stops) = (recording.clone(), stop.clone());
        spawn_for_client("recording", move || {
            let _lives = lives;
            if let Some(question) = question {
                let first = open_first(&mut files, &stops);
                let has_failed = first.is_err();
                question.answer(first);
                if has_failed {
                    return;
                }
            }
            // One that was stopped meanwhile removes its own file, which is empty, and no other.
            writer.run(files, &mut || stops.load(Ordering::Acquire));
        })
        .map_err(text)?;
        let this = Self { recording, stop, keeps_files, ended };
        if let Some(Err(error)) = answer.map(Answer::wait) {
            this.stop();
            return Err(with_hint(folder, &error));
        }
        Ok(this)
    }

    fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Frames that were written, and lost.
    fn counts(&self) -> (u64, u64) {
        let Totals { written, lost } = self.recording.totals();
        (written, lost)
    }

    /// Whether the thread removes no files.
    fn keep_files(&self, keeps: bool) {
        self.keeps_files.store(keeps, Ordering::Release);
    }

    /// Tells the thread of a recording, which no port gives packets any more, to end.
    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Waits until the thread has ended: then its file is complete. A disk may hang, so no longer than to `deadline`.
    fn end(self, deadline: Instant) {
        self.stop();
        // An error is what is waited for: the thread has ended.
        let _ = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Opens the first file, unless nobody waits for it any more.
fn open_first(files: &mut Files, stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Acquire) {
        return Err(ErrorKind::TimedOut.into());
    }
    files.open_first()
}

/// Why a recording does not begin, and what it needs.
fn with_hint(folder: &Path, error: &dyn Display) -> String {
    format!(
        "{}: {error}; make this folder (recordings in [daemon]), owned by the daemon's user, and restart the daemon",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_the_first_file_of_a_recording_that_was_stopped() {
        let folder = host::TempDir::new().unwrap();
        let mut files = Files::new(folder.path(), "span", 1 << 20, 1);
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        open_first(&mut files, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(count(), 0);
        open_first(&mut files, &AtomicBool::new(false)).unwrap();
        assert_eq!(count(), 1);
    }
}
