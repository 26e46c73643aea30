//! The programs and libraries whose code runs in domains, for the names of their functions.
//!
//! ```text
//!  pvnet, --program ─ a file on this machine, which has symbols; the domains' copy may be stripped
//!  [vdso] ─────────── the kernel's image
//!  anything else ──── the archive that the domain started from: a library's functions are those it exports
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use scope_symbols::Program;
use xenlab::{BatchFiles, Kind};

use crate::error::{Error, Result};

/// How Linux calls the library of its own.
const VDSO: &str = "[vdso]";

/// All of a machine's, each read when it is first asked for.
pub struct Programs<'a> {
    /// The archives from which the domains of the lab started.
    files: Option<&'a BatchFiles>,
    /// Those that are the same in every domain, by path.
    everywhere: HashMap<String, Arc<Program>>,
    /// Those that were asked for.
    read: HashMap<(Kind, String), Option<Arc<Program>>>,
}

impl<'a> Programs<'a> {
    /// Those in the archives from which the domains of the lab started, all of which run `vmlinux`.
    pub fn of_lab(files: &'a BatchFiles, vmlinux: &[u8]) -> Self {
        let vdso = scope_symbols::vdso(vmlinux).map(|vdso| (VDSO.to_owned(), Arc::new(vdso)));
        let everywhere = vdso.into_iter().collect();
        Self { files: Some(files), everywhere, read: HashMap::new() }
    }

    /// None but those that are read from [here](Self::here).
    pub fn of_nobody() -> Self {
        Self { files: None, everywhere: HashMap::new(), read: HashMap::new() }
    }

    /// Reads one from this machine that domains have at `place`, stripped or not.
    pub fn here(&mut self, place: &str, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(Error::path(path))?;
        let program = Program::parse(file_name(place), bytes);
        let program = program.map_err(|cause| Error::Symbols { path: path.to_owned(), cause })?;
        self.everywhere.insert(place.to_owned(), Arc::new(program));
        Ok(())
    }

    /// What a domain has at a path; nothing if that is no ELF file of its archive.
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
