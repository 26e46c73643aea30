//! The programs and libraries that run in domains, for the names of their functions.
//!
//! ```text
//!  pvnet, --program ─ a file with symbols on this host; the domains' copy may be stripped
//!  [vdso] ─────────── the kernel's image
//!  all others ─────── the archive that the domain booted from; a library has its exported functions
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scope_symbols::Program;
use xenlab::{BatchFiles, Kind};

use crate::error::{Error, Result};

/// Linux's name for the library that it maps into every process.
const VDSO: &str = "[vdso]";

/// The programs of a machine. Each is read at its first use.
pub struct Programs<'a> {
    /// The archives that the domains of the lab booted from.
    files: Option<&'a BatchFiles>,
    /// Programs that are the same in every domain, by path.
    everywhere: HashMap<String, Arc<Program>>,
    /// Programs that were used, or that could not be read.
    read: HashMap<(Kind, String), Option<Arc<Program>>>,
}

impl<'a> Programs<'a> {
    /// The programs in the archives that the domains of the lab booted from, with the vDSO of `vmlinux`.
    pub fn of_lab(files: &'a BatchFiles, vmlinux: &[u8]) -> Self {
        let vdso = scope_symbols::vdso(vmlinux).map(|vdso| (VDSO.to_owned(), Arc::new(vdso)));
        let everywhere = vdso.into_iter().collect();
        Self { files: Some(files), everywhere, read: HashMap::new() }
    }

    /// No programs except those that are [added](Self::add_host_file).
    pub fn none() -> Self {
        Self { files: None, everywhere: HashMap::new(), read: HashMap::new() }
    }

    /// Adds a file of this host, which domains have at `guest_path`, perhaps stripped.
    pub fn add_host_file(&mut self, guest_path: &str, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(Error::path(path))?;
        let program = Program::parse(file_name(guest_path), bytes);
        let program = program.map_err(|cause| Error::Symbols { path: path.to_owned(), cause })?;
        self.everywhere.insert(guest_path.to_owned(), Arc::new(program));
        Ok(())
    }

    /// The program at a path in a domain; none if it is not an ELF file in the domain's archive.
    pub fn open(&mut self, domain: u16, path: &str) -> Option<Arc<Program>> {
        if let Some(program) = self.everywhere.get(path) {
            return Some(Arc::clone(program));
        }
        let kind = if domain == 0 { Kind::Dom0 } else { Kind::DomU };
        let read = || {
            let program = Program::parse(file_name(path), self.files?.file(kind, path)?);
            program.ok().map(Arc::new)
        };
        self.read.entry((kind, path.to_owned())).or_insert_with(read).clone()
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A file of this project: the given path, or the file of this name beside this program.
pub fn built(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    if let Some(path) = given {
        return absolute(path);
    }
    let this = std::env::current_exe().map_err(Error::path("/proc/self/exe"))?;
    let folders = this.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NotBuilt(name.to_owned()))
}

/// The path, independent of the working directory.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::path(path))
}
