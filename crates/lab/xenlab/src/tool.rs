//! Calls of other programs.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{Error, Result};
use lab::TempDir;

/// The limit for programs that only read and write local files.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a program to its end and returns its output as text.
pub(crate) fn run(command: Command) -> Result<String> {
    Ok(lab::run(command, LIMIT)?)
}

/// Runs a program on `input` and returns its output.
pub(crate) fn filter(program: &str, arguments: &[&str], input: File) -> Result<Vec<u8>> {
    let mut command = lab::command(program)?;
    command.args(arguments).stdin(input);
    let mut bytes = Vec::new();
    let read = output_of(command)?.read_to_end(&mut bytes);
    read.map_err(Error::path("a file in memory"))?;
    Ok(bytes)
}

/// Runs a program and returns its output as a file, positioned at its start.
pub(crate) fn output(mut command: Command) -> Result<File> {
    command.stdin(Stdio::null());
    output_of(command)
}

/// Runs a program on `input`.
pub(crate) fn feed(mut command: Command, input: File) -> Result<()> {
    command.stdin(input);
    output_of(command).map(drop)
}

/// A file without a name that holds `content`, positioned at its start.
pub(crate) fn in_memory(content: &[u8]) -> Result<File> {
    let fill = || -> io::Result<File> {
        let mut file = File::from(memfd_create("xenlab", MemfdFlags::CLOEXEC)?);
        file.write_all(content)?;
        file.rewind()?;
        Ok(file)
    };
    fill().map_err(Error::path("a file in memory"))
}

/// `program` without debug information, or unchanged if `strip` fails.
pub(crate) fn stripped(program: &Path) -> Result<Vec<u8>> {
    let strip = || -> Result<Vec<u8>> {
        let folder = TempDir::new()?;
        let small = folder.path().join("stripped");
        let mut command = lab::command("strip")?;
        command.arg("-o").arg(&small).arg(program);
        run(command)?;
        std::fs::read(&small).map_err(Error::path(&small))
    };
    strip().or_else(|_| std::fs::read(program).map_err(Error::path(program)))
}

/// The output of a program. Input and output are files, so that no thread has to feed or drain a pipe.
fn output_of(mut command: Command) -> Result<File> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let program = words.join(" ");
    let mut result = in_memory(&[])?;
    let mut run = || -> io::Result<std::process::Output> {
        command.stdout(result.try_clone()?).stderr(Stdio::piped());
        command.spawn()?.wait_with_output()
    };
    let output = run().map_err(|cause| Error::content(&program, &cause))?;
    if !output.status.success() {
        // Ctrl-C may have ended the program too.
        lab::Interrupt::check()?;
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(Error::content(program, &format!("{}: {}", output.status, words.trim())));
    }
    result.rewind().map_err(Error::path("a file in memory"))?;
    Ok(result)
}
