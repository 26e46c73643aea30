//! The configuration's file, which is read when the daemon starts and at each reload.

use std::path::{Path, PathBuf};

use toml::Table;

use super::{Config, Error, Override, shorthand};

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
    /// The same as tables, with shorthands written out.
    pub tables: Table,
}

impl ConfigFile {
    /// The file at `path`, with these changes.
    pub fn new(path: PathBuf, overrides: Vec<Override>) -> Self {
        Self { path, overrides }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it, applies the changes of the command line, and checks the result.
    pub fn read(&self) -> Result<Loaded, Error> {
        let Self { path, overrides } = self;
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let parse =
            |source: toml::de::Error| Error::Parse { path: path.to_owned(), source: source.into() };
        // The unchanged file first: only its errors have a line number.
        let mut config = Config::parse(&text).map_err(parse)?;
        let mut tables: Table = shorthand::read(&text).map_err(parse)?;
        for set in overrides {
            config = changed(&mut tables, set)
                .map_err(|reason| Error::Set { set: set.to_string(), reason })?;
        }
        config.check().map_err(|reason| Error::Invalid { path: path.to_owned(), reason })?;
        Ok(Loaded { config, tables })
    }
}

pub(super) fn changed(tables: &mut Table, set: &Override) -> Result<Config, String> {
    set.apply(tables)?;
    config_of(tables)
}

fn config_of(tables: &Table) -> Result<Config, String> {
    tables.clone().try_into().map_err(|error| error.to_string().trim_end().to_owned())
}

impl Config {
    /// What tables say whose shorthands are written out.
    ///
    /// # Errors
    /// A sentence for an operator: they are not a configuration.
    pub fn of_tables(tables: &Table) -> Result<Self, String> {
        let config = config_of(tables)?;
        config.check().map(|()| config)
    }
}
