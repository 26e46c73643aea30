//! Files and standard output for results.

use std::io::Write as _;
use std::path::Path;

use document::Document;
use rustix::fs::{Access, access};
use serde::Serialize;

use crate::error::{Error, Result};

/// Creates the folder of `file` and checks that it is writable, so that an error comes before minutes
/// of measuring.
pub fn prepare(file: &Path) -> Result<()> {
    let failed = |source| Error::Path { path: file.to_owned(), source };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed)?;
    access(folder, Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
    if file.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    Ok(())
}

/// A value as a line of JSON, for a program of this crate.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value).map_err(report::Error::from)? + "\n")
}

/// A document as a line of JSON, with the name of its schema.
pub fn line(document: &impl Document) -> Result<String> {
    Ok(document::line(document).map_err(report::Error::from)?)
}

/// Writes a document as JSON, in one step.
pub fn write_json(file: &Path, document: &impl Document) -> Result<()> {
    Ok(report::write_atomic(file, line(document)?.as_bytes())?)
}

/// Writes to standard output, which may be closed by now.
pub fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Print)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::TempDir;

    #[test]
    fn folders_are_created_and_errors_name_the_path() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("a/b/report.html");
        prepare(&file).unwrap();
        assert!(file.parent().unwrap().is_dir());
        assert!(prepare(Path::new("report.html")).is_ok());

        let message = prepare(folder.path()).unwrap_err().to_string();
        assert!(message.starts_with(&folder.path().display().to_string()), "{message}");
        std::fs::write(&file, "").unwrap();
        assert!(prepare(&file.join("report.html")).is_err());
    }
}
