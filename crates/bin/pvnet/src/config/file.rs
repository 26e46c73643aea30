//! The configuration's file, which is read when the daemon starts and at each reload.

use std::path::{Path, PathBuf};

use super::overrides::with_overrides;
use super::{Config, Error, Override};

/// A file, and the changes of the command line.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    overrides: Vec<Override>,
}

/// What a file says.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Checked.
    pub config: Config,
    /// Its text, with the changes of the command line.
    pub text: String,
}

impl ConfigFile {
    /// The file at `path`, with these changes. A relative path becomes absolute here: clients have other working folders, and the daemon
    /// cannot ask for its own any more once it is in its sandbox.
    pub fn new(path: PathBuf, overrides: Vec<Override>) -> Self {
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { path, overrides }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that would replace it.
    ///
    /// # Errors
    /// There is no such file as this one.
    pub fn candidate(&self) -> Result<Self, Error> {
        let path = candidate(&self.path);
        let path = path.map_err(|source| Error::Read { path: self.path.clone(), source })?;
        Ok(Self { path, overrides: self.overrides.clone() })
    }

    /// [Reads](Self::read) it while a daemon runs, whose ports become what it says.
    ///
    /// # Errors
    /// Also if it is empty: it may still be being written, and a reload would remove all ports. And if it is no regular file: reading a
    /// pipe would wait.
    pub fn read_again(&self) -> Result<Loaded, Error> {
        let unread = |source| Error::Read { path: self.path.clone(), source };
        let file = std::fs::metadata(&self.path).map_err(unread)?;
        let reason = match file.len() {
            _ if !file.is_file() => "is no regular file",
            0 => "is empty",
            _ => return self.read(),
        };
        Err(unread(std::io::Error::other(reason)))
    }

    /// Reads it, applies the changes of the command line, and checks the result.
    pub fn read(&self) -> Result<Loaded, Error> {
        let Self { path, overrides } = self;
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        // The unchanged file first: only its errors have a line number.
        let parsed = Config::parse(&text);
        let mut config = parsed.map_err(|fault| Error::Parse { path: path.to_owned(), fault })?;
        let text = with_overrides(&text, overrides)?;
        if !overrides.is_empty() {
            config = Config::parse(&text)
                .map_err(|fault| Error::Parse { path: path.to_owned(), fault })?;
        }
        config.check().map_err(|reason| Error::Invalid { path: path.to_owned(), reason })?;
        Ok(Loaded { config, text })
    }
}

/// The file beside a configuration's that will replace it: in the folder to which links lead.
///
/// # Errors
/// There is no such configuration.
pub fn candidate(file: &Path) -> std::io::Result<PathBuf> {
    let file = std::fs::canonicalize(file)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".new");
    Ok(file.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use host::TempDir;

    use super::*;

    #[test]
    fn a_file_that_is_being_written_removes_no_ports() {
        let folder = TempDir::new().unwrap();
        let file = ConfigFile::new(folder.path().join("pvnet.toml"), Vec::new());
        std::fs::write(file.path(), "").unwrap();
        assert!(file.read_again().unwrap_err().to_string().ends_with("pvnet.toml: is empty"));
        std::fs::write(file.path(), "[daemon]\nmeter = true\n").unwrap();
        assert!(file.read_again().unwrap().config.daemon.meter);
        let device = ConfigFile::new("/dev/null".into(), Vec::new());
        assert!(device.read_again().unwrap_err().to_string().ends_with("is no regular file"));
    }
}
