//! The programs and rights that the lab borrows from the machine.

use crate::{Error, Result};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{env, iter};

/// Where Debian keeps what is not in a user's PATH.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// A command that runs `program` and dies with the thread that starts it.
///
/// The second half keeps a crash of ours from leaving programs behind. It is done by `setpriv` of util-linux, where
/// installed and not older than 2.33: asking the kernel between fork and exec would need `unsafe`. Start long-lived programs from a thread that
/// outlives them.
///
/// # Errors
/// [`Error::MissingTool`] if there is no such program.
pub fn command(program: &str) -> Result<Command> {
    wrapped(&[], program)
}

/// The same behind a prefix such as `ip netns exec NAME`, whose first word is a program too.
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
    // Their words are parsed here: no translations, no decimal commas.
    command.args(&words[1..]).env("LC_ALL", "C");
    Ok(command)
}

/// The machine's `setpriv`, if it can do what it is wanted for: busybox has one that can not.
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

/// Checks that this process may make namespaces and that `ip` and the given programs are installed: the first thing
/// for a demo to call, and what a test asks before it skips itself.
///
/// # Errors
/// [`Error::NotRoot`] or [`Error::MissingTool`].
pub fn preflight(programs: &[&str]) -> Result<()> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    // Root in a container may lack them; somebody else may have been given them.
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
            assert_eq!(message, format!("{program} not found: run `make deps`"));
        }
    }

    #[test]
    fn the_program_runs_behind_its_guard() {
        let output = command("echo").expect("echo").arg("hello").output().expect("run");
        assert_eq!(output.stdout, b"hello\n");
    }
}
