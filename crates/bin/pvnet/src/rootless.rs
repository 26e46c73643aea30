//! `pvnet rootless`: a command in a user namespace, in which everything that pvnet needs root for is allowed.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A fresh `/run`, where namespaces have their names and the daemon its sockets; then the command.
const SCRIPT: &str = "mount -t tmpfs -o mode=755 tmpfs /run && exec \"$@\"";

/// Replaces this process with a command, or a shell, as root of new namespaces: users, network, mounts.
pub fn run(command: &[String]) -> Result<std::convert::Infallible, String> {
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let command = if command.is_empty() { vec![shell] } else { command.to_vec() };
    let error = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--", "sh", "-c", SCRIPT, "pvnet"])
        .args(command)
        .exec();
    Err(format!("unshare: {error}; apt-get install util-linux"))
}
