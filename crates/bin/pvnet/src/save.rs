//! `--save`: writes a change to the configuration's file as well, once the daemon has made it.
//!
//! The client writes the file, with its user's rights: the daemon's sandbox has no right to. The new text lies beside the file until the
//! daemon has the change and finds that the new file says the same of these ports. Then it takes the file's place in one step.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use control_socket::{Change, ChangeReport, ChangeRequest, PortKind, Status};

use crate::config::{Config, Edited, PlatformKind, candidate, edit, keeps_its_form};

/// For how long a command waits for others that are saving.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a change is written to the file.
#[derive(Args)]
pub struct SaveArgs {
    /// Write the change to the configuration's file too; its comments and its order stay. If the file says something else about the port
    /// than what runs, nothing is changed.
    #[arg(long)]
    save: bool,
    /// With --save: the configuration's file, if it has another path here [default: the daemon's].
    #[arg(long, value_name = "FILE", requires = "save")]
    config: Option<PathBuf>,
}

/// A change that is ready to be written.
pub struct Saving {
    file: PathBuf,
    /// The file's text before.
    before: String,
    candidate: Candidate,
    /// The ports that the change concerns.
    names: Vec<String>,
}

impl SaveArgs {
    /// Makes the file that is to replace the configuration's, if the change is to be saved.
    pub fn prepare(&self, change: &Change, socket: &Path) -> Result<Option<Saving>, String> {
        if !self.save {
            return Ok(None);
        }
        let status = control_socket::status(socket)?;
        let path = match &self.config {
            Some(path) => path.clone(),
            None => of_daemon(&status)?,
        };
        let saving = Saving::new(&path, change, &status)?;
        let expected = dry_run(socket, change.clone())?;
        let found = saving.would_change(socket).map_err(|error| match &self.config {
            Some(path) => not_the_daemons(path, &status, &error),
            None => error,
        })?;
        let expected = saving.keys(&expected);
        let other = found.iter().find(|step| !expected.contains(step));
        if let Some((name, key)) = other {
            let what = if key.is_empty() { String::new() } else { format!(" {key} of") };
            return Err(format!(
                "{} says something else about{what} {name} than what runs: nothing was changed. Reload first, or set that with --save",
                path.display()
            ));
        }
        Ok(Some(saving))
    }
}

impl Saving {
    fn new(path: &Path, change: &Change, status: &Status) -> Result<Self, String> {
        let start = Instant::now();
        let pause = || {
            std::thread::sleep(PAUSE);
            start.elapsed() < PATIENCE
        };
        Self::wait(path, change, status, pause)
    }

    /// The same. As long as another command is saving, `pause` waits, and says whether to check again.
    fn wait(
        path: &Path,
        change: &Change,
        status: &Status,
        pause: impl FnMut() -> bool,
    ) -> Result<Self, String> {
        let failed = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        let file = std::fs::canonicalize(path).map_err(|error| failed(path, error))?;
        let beside = candidate(&file).map_err(|error| failed(&file, error))?;
        let mut candidate = Candidate::create(&beside, pause)?;
        let before = std::fs::read_to_string(&file).map_err(|error| failed(&file, error))?;
        let of_file = |words| format!("{}: {words}", file.display());
        let served = served(&before, status);
        keeps_its_form(&before).map_err(of_file)?;
        let Edited { text, names, .. } = edit(&before, change, &served).map_err(of_file)?;
        candidate.fill(&text, &file).map_err(|error| failed(&beside, error))?;
        Ok(Self { file, before, candidate, names })
    }

    /// What differs between what runs and the new file, of the ports that the change concerns: names and keys. A key is empty where a
    /// port is new or gone.
    fn would_change(&self, socket: &Path) -> Result<Vec<(String, String)>, String> {
        let report = dry_run(socket, Change::Reload { candidate: true });
        Ok(self.keys(&report.map_err(|error| format!("the new file cannot be read: {error}"))?))
    }

    fn keys(&self, report: &ChangeReport) -> Vec<(String, String)> {
        let steps = report.steps.iter().filter(|step| self.names.contains(&step.name));
        let keys = steps.flat_map(|step| {
            let keys = if step.keys.is_empty() { vec![String::new()] } else { step.keys.clone() };
            keys.into_iter().map(|key| (step.name.clone(), key))
        });
        keys.collect()
    }

    /// Puts the new file in the place of the configuration's. Returns its path.
    pub fn finish(self, socket: &Path) -> Result<String, String> {
        let path = self.file.display().to_string();
        if let Some((name, key)) = self.would_change(socket)?.first() {
            return Err(format!(
                "{path} would still say something else about {name} than what runs ({key}); an option --set of the daemon may be why"
            ));
        }
        let failed = |error: io::Error| format!("{path}: {error}");
        if std::fs::read_to_string(&self.file).map_err(failed)? != self.before {
            return Err(format!("{path} was changed meanwhile"));
        }
        self.candidate.replace(&self.file).map_err(failed)?;
        let folder = self.file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all());
        folder.map_err(|error| {
            format!(
                "{path} is written, but may be the old one after a crash of this machine: {error}"
            )
        })?;
        Ok(path)
    }
}

/// Why a file that the command names cannot be the configuration's. The daemon looks for the new file beside its own.
fn not_the_daemons(path: &Path, status: &Status, error: &str) -> String {
    let (path, own) = (path.display(), &status.config);
    format!(
        "is {path} the file of the daemon, which has read {own}? It finds no valid new file beside that: {error}: nothing was changed"
    )
}

fn dry_run(socket: &Path, change: Change) -> Result<ChangeReport, String> {
    control_socket::change(socket, &ChangeRequest { change, dry_run: true, reconnect: true })
}

/// The file that the daemon names. The daemon has fewer rights than its operator, so it must not choose what the operator writes: a file
/// in a folder that others may change.
fn of_daemon(status: &Status) -> Result<PathBuf, String> {
    let reported = Path::new(&status.config);
    let name_it = "name the configuration's file with --config";
    if status.config.is_empty() {
        return Err(format!("the daemon does not say what file it has read: {name_it}"));
    }
    let failed = |error: io::Error| format!("{}: {error}: {name_it}", reported.display());
    let file = std::fs::canonicalize(reported).map_err(failed)?;
    for path in file.ancestors() {
        let found = std::fs::metadata(path).map_err(failed)?;
        if !is_trusted(&found) {
            let path = path.display();
            return Err(format!(
                "{path} may be changed by other users than root and you: {name_it}"
            ));
        }
    }
    Ok(file)
}

/// Whether only root and this user may change a file, or the entries of a folder that are theirs.
fn is_trusted(found: &std::fs::Metadata) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let is_ours = found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw();
    let is_sticky = found.is_dir() && found.mode() & STICKY != 0;
    is_ours && (found.mode() & OTHERS_WRITE == 0 || is_sticky)
}

/// The ports of guests that need no table in the configuration.
fn served(text: &str, status: &Status) -> Vec<String> {
    let is_xen =
        Config::parse(text).is_ok_and(|config| config.daemon.platform == PlatformKind::Xen);
    let guests = status.ports.iter().filter(|port| is_xen && port.kind == PortKind::Guest);
    guests.map(|port| port.name.clone()).collect()
}

/// A file beside the configuration's. Nobody else makes one meanwhile. It goes when this is dropped, unless it has taken the other's place.
struct Candidate {
    path: PathBuf,
    file: File,
    /// Whether the file at the path is still this one.
    is_there: bool,
}

impl Candidate {
    /// Waits for other commands that are saving, see [`Saving::wait`].
    fn create(path: &Path, mut pause: impl FnMut() -> bool) -> Result<Self, String> {
        let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        let mut file = open();
        while file.as_ref().is_err_and(is_there) && pause() {
            file = open();
        }
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!(
                "{} is still there after {} s: another command is saving, or was interrupted; then remove it",
                path.display(),
                PATIENCE.as_secs()
            ),
            _ => format!("{}: {error}: nothing was changed", path.display()),
        })?;
        Ok(Self { path: path.to_owned(), file, is_there: true })
    }

    /// Writes the text, with owner and mode of another file.
    fn fill(&mut self, text: &str, like: &Path) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        let (wanted, own) = (std::fs::metadata(like)?, self.file.metadata()?);
        if (wanted.uid(), wanted.gid()) != (own.uid(), own.gid()) {
            fchown(&self.file, Some(wanted.uid()), Some(wanted.gid()))?;
        }
        self.file.set_permissions(wanted.permissions())?;
        self.file.sync_all()
    }

    /// Takes a file's place.
    fn replace(mut self, file: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, file)?;
        // From here on another command may have a file of this name.
        self.is_there = false;
        Ok(())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if self.is_there {
            // Nobody needs it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TEXT: &str = "# Ours.\n[[uplink]]\nname = \"up\" # the only one\ntap = \"up0\"\n";

    fn setting() -> Change {
        let set = vec![("enabled".to_owned(), "false".to_owned())];
        Change::Set { name: "up".to_owned(), set, unset: Vec::new() }
    }

    #[test]
    fn the_new_file_has_the_mode_of_the_old_one_and_takes_its_place_behind_a_link() {
        let folder = host::TempDir::new().unwrap();
        let [file, link] = ["real.toml", "link.toml"].map(|name| folder.path().join(name));
        std::fs::write(&file, TEXT).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let saving = Saving::new(&link, &setting(), &Status::default()).unwrap();
        assert_eq!(saving.names, ["up"]);
        let error = Saving::wait(&link, &setting(), &Status::default(), || false).err().unwrap();
        assert!(error.contains("another command is saving"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), TEXT);
        let Saving { candidate, .. } = saving;
        candidate.replace(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&link).unwrap(), format!("{TEXT}enabled = false\n"));
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_the_daemon_s_user_can_change_must_be_named() {
        let folder = host::TempDir::new().unwrap();
        let file = folder.path().join("pvnet.toml");
        std::fs::write(&file, TEXT).unwrap();
        let status = Status { config: file.display().to_string(), ..Status::default() };
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(of_daemon(&status), Ok(std::fs::canonicalize(&file).unwrap()));
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(of_daemon(&status).unwrap_err().contains("--config"));
        assert!(of_daemon(&Status::default()).unwrap_err().contains("--config"));
    }

    #[test]
    fn commands_that_save_wait_for_one_another() {
        let folder = host::TempDir::new().unwrap();
        let file = folder.path().join("pvnet.toml");
        std::fs::write(&file, TEXT).unwrap();
        let mut first = Some(Saving::new(&file, &setting(), &Status::default()).unwrap());
        let mut pauses = 0;
        let second = Saving::wait(&file, &setting(), &Status::default(), || {
            pauses += 1;
            if let Some(first) = first.take_if(|_| pauses == 3) {
                first.candidate.replace(&file).unwrap();
            }
            true
        });
        assert_eq!(second.unwrap().before, format!("{TEXT}enabled = false\n"));
        assert_eq!(pauses, 3);
    }

    #[test]
    fn a_change_that_is_given_up_leaves_nothing() {
        let folder = host::TempDir::new().unwrap();
        let file = folder.path().join("pvnet.toml");
        std::fs::write(&file, TEXT).unwrap();
        drop(Saving::new(&file, &setting(), &Status::default()).unwrap());
        let unknown = Change::Delete { name: "nobody".to_owned() };
        let error = Saving::new(&file, &unknown, &Status::default()).err().unwrap();
        assert!(error.contains("pvnet.toml: no port \"nobody\""), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), TEXT);
    }
}
