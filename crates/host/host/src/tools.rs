//! The programs and privileges that the crate needs.

use crate::{Error, Result};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{env, iter};

/// Debian's folders for programs that may not be in PATH.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// A command that runs `program` and dies with the thread that starts it.
///
/// So a crash of this process leaves no programs behind. `setpriv` of util-linux sets this up, if it is installed and
/// not older than 2.33: a system call between fork and exec would need `unsafe`. Start long-lived programs from a
/// thread that outlives them.
///
/// # Errors
/// [`Error::MissingTool`] if there is no such program.
pub fn command(program: &str) -> Result<Command> {
    wrapped(&[], program)
}

/// The same after a prefix such as `ip netns exec NAME`, whose first word is a program too.
pub(crate) fn wrapped(prefix: &[&str], program: &str) -> Result<Command> {
    static SETPRIV: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = find(program)?;
    let mut words = Vec::new();
    if let Some(setpriv) = SETPRIV.get_or_init(setpriv) {
        words.extend([
            setpriv.as_os_str(),
            OsStr::new("--pdeathsig"),
            OsStr::new("KILL"),
            OsStr::new("--"),
        ]);
    }
    let leader = prefix.first().map(|leader| find(leader)).transpose()?;
    words.extend(leader.as_ref().map(|leader| leader.as_os_str()));
    words.extend(prefix.iter().skip(1).map(OsStr::new));
    words.push(program.as_os_str());

    let mut command = Command::new(words[0]);
    // Their output is parsed: no translations, no decimal commas.
    command.args(&words[1..]).env("LC_ALL", "C");
    Ok(command)
}

/// The machine's `setpriv`, if it has the needed option: busybox's does not.
fn setpriv() -> Option<PathBuf> {
    let setpriv = find("setpriv").ok()?;
    let mut trial = Command::new(&setpriv);
    trial.args(["--pdeathsig", "KILL", "--", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    trial.status().is_ok_and(|status| status.success()).then_some(setpriv)
}

/// The file that `program` names: itself if it is a path, else the first match along PATH.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let missing = || Error::MissingTool { tool: program.to_owned() };
    if program.contains('/') {
        let path = PathBuf::from(program);
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    folders
        .find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()))
        .ok_or_else(missing)
}

/// Checks that this process may make namespaces and that `ip` and the given programs are installed. A demo calls
/// this first; a test calls [`able`](crate::able).
pub fn preflight(programs: &[&str]) -> Result<()> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    // Checks capabilities and not the user: root in a container may lack them, and another user may have them.
    if !capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)) {
        return Err(Error::NotRoot);
    }
    iter::once(&"ip").chain(programs).try_for_each(|program| find(program).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_next_step() {
        for program in ["no-such-program", "/no/such/program"] {
            let message = command(program).expect_err("not installed").to_string();
            assert!(message.starts_with(&format!("{program} not found: ")), "{message}");
            assert!(message.contains("`make deps`"), "{message}");
        }
    }

    #[test]
    fn the_program_runs_behind_its_guard() {
        let output = command("echo").expect("echo").arg("hello").output().expect("run");
        assert_eq!(output.stdout, b"hello\n");
    }
}
