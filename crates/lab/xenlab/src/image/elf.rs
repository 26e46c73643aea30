//! The libraries that a program needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, elf};

use super::cpio::Archive;
use crate::{Error, Result};

/// The folders of libraries, relative to a root whose `/lib` is `/usr/lib`.
const FOLDERS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib"];

/// The requirements of an ELF file for the dynamic loader.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// The loader itself, an absolute path.
    interpreter: Option<String>,
    /// Names of libraries.
    libraries: Vec<String>,
    /// Folders to look for them in first.
    folders: Vec<String>,
}

impl Needs {
    /// Reads them from a file's bytes. A file that is no 64-bit ELF file needs nothing: 32-bit ones are firmware here.
    fn of(bytes: &[u8]) -> object::Result<Self> {
        if !bytes.starts_with(&elf::ELFMAG) || bytes.get(4) == Some(&elf::ELFCLASS32.0) {
            return Ok(Self::default());
        }
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut needs = Self::default();
        let endian = file.endian();
        for header in file.elf_header().program_headers(endian, bytes)? {
            if let Some(interpreter) = header.interpreter(endian, bytes)? {
                needs.interpreter = Some(text(interpreter));
            }
        }
        let table = file.elf_dynamic_table()?;
        for entry in &table {
            match entry.tag {
                elf::DT_NEEDED => needs.libraries.push(text(table.string(entry)?)),
                elf::DT_RUNPATH | elf::DT_RPATH => {
                    let path = text(table.string(entry)?);
                    // Paths relative to the program ($ORIGIN) are skipped: no package here, nor cargo, relies on them.
                    let absolute = path.split(':').filter_map(|folder| folder.strip_prefix('/'));
                    needs.folders.extend(absolute.map(str::to_owned));
                }
                _ => {}
            }
        }
        Ok(needs)
    }
}

/// The fields of a kernel module's `.modinfo` that are called `name`.
pub(super) fn module_info<'a>(module: &'a [u8], name: &str) -> object::Result<Vec<&'a str>> {
    let file = ElfFile64::<Endianness>::parse(module)?;
    let Some(section) = file.section_by_name(".modinfo") else { return Ok(Vec::new()) };
    let fields = section.data()?.split(|byte| *byte == 0);
    let fields = fields.filter_map(|field| std::str::from_utf8(field).ok()?.split_once('='));
    Ok(fields.filter(|(key, _)| *key == name).map(|(_, value)| value).collect())
}

/// Puts programs into an archive, with the libraries that they need and that are missing there.
#[derive(Debug)]
pub(crate) struct Linker<'a> {
    root: &'a Path,
    present: BTreeSet<String>,
}

impl<'a> Linker<'a> {
    /// Takes libraries from the file system at `root`, except those named in `present`.
    pub(crate) fn new(root: &'a Path, present: BTreeSet<String>) -> Self {
        Self { root, present }
    }

    /// Adds a program or library of the root, under its own path.
    pub(crate) fn add(&mut self, archive: &mut Archive, path: &str) -> Result<()> {
        let file = resolve(self.root, path);
        let bytes = std::fs::read(&file).map_err(Error::path(&file))?;
        self.add_as(archive, path, &bytes)
    }

    /// Adds a program at any path.
    pub(crate) fn add_as(&mut self, archive: &mut Archive, path: &str, bytes: &[u8]) -> Result<()> {
        archive.file(path, 0o755, bytes);
        let needs = Needs::of(bytes).map_err(|cause| Error::content(path, &cause))?;
        // The loader must be at its absolute path, even if the same file lies elsewhere too.
        let loader = needs.interpreter.iter().map(|loader| (file_name(loader), place(loader)));
        let libraries =
            needs.libraries.iter().map(|name| (&**name, self.find(name, &needs.folders)));
        let files: Vec<(String, Option<String>)> =
            loader.chain(libraries).map(|(name, file)| (name.to_owned(), file)).collect();
        for (name, file) in files {
            if self.present.insert(name.clone()) {
                let lost = || Error::content(path, &format!("needs {name}, which is missing"));
                let file = file.filter(|file| resolve(self.root, file).is_file());
                self.add(archive, &file.ok_or_else(lost)?)?;
            }
        }
        Ok(())
    }

    /// The path of a library below the root.
    fn find(&self, library: &str, folders: &[String]) -> Option<String> {
        let folders = folders.iter().map(String::as_str).chain(FOLDERS);
        let mut paths = folders.map(|folder| format!("{folder}/{library}"));
        paths.find(|path| resolve(self.root, path).is_file())
    }
}

/// An absolute path relative to a root whose `/lib64` is `/usr/lib64`.
fn place(path: &str) -> Option<String> {
    let inside = path.strip_prefix("/usr/").or_else(|| path.strip_prefix('/'))?;
    Some(format!("usr/{inside}"))
}

/// The last component of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The file at `path` below `root`, with links followed: a link to an absolute path stays below `root`.
fn resolve(root: &Path, path: &str) -> PathBuf {
    let mut file = root.join(path);
    // The kernel's limit for links.
    for _ in 0..40 {
        let Ok(target) = std::fs::read_link(&file) else { break };
        file = match target.strip_prefix("/") {
            Ok(inside) => root.join(inside),
            Err(_) => file.parent().unwrap_or(root).join(target),
        };
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::TempDir;

    fn this_program() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("this program")
    }

    #[test]
    fn a_program_needs_its_loader_and_the_c_library() {
        let needs = Needs::of(&this_program()).expect("ELF");
        assert!(needs.interpreter.expect("a loader").contains("/ld-linux"));
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")));
    }

    #[test]
    fn a_script_needs_nothing_and_a_broken_program_is_an_error() {
        assert_eq!(Needs::of(b"#!/bin/sh\n").expect("text"), Needs::default());
        assert!(Needs::of(b"\x7fELF").is_err());
        assert_eq!(Needs::of(b"\x7fELF\x01 firmware").expect("32 bits"), Needs::default());
    }

    #[test]
    fn libraries_come_with_a_program_once() {
        let mut archive = Archive::new();
        let mut linker = Linker::new(Path::new("/"), BTreeSet::new());
        for name in ["usr/bin/one", "usr/bin/two"] {
            linker.add_as(&mut archive, name, &this_program()).expect("complete");
        }
        let named = |name: &str| archive.paths().filter(|path| path.ends_with(name)).count();
        assert_eq!((named("/libc.so.6"), named("/one"), named("/two")), (1, 1, 1));
    }

    #[test]
    fn what_is_there_already_is_not_added() {
        let mut archive = Archive::new();
        let needs = Needs::of(&this_program()).expect("ELF");
        let loader = needs.interpreter.map(|path| file_name(&path).to_owned());
        let present = needs.libraries.into_iter().chain(loader).collect();
        let mut linker = Linker::new(Path::new("/"), present);
        linker.add_as(&mut archive, "one", &this_program()).expect("complete");
        assert_eq!(archive.paths().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn a_missing_library_is_named() {
        let empty = TempDir::new().expect("folder");
        let mut linker = Linker::new(empty.path(), BTreeSet::new());
        let error = linker.add_as(&mut Archive::new(), "usr/bin/tool", &this_program());
        let message = error.expect_err("no library").to_string();
        assert!(message.starts_with("usr/bin/tool: needs "), "{message}");
    }

    #[test]
    fn a_loader_is_where_programs_say() {
        let expected = Some("usr/lib64/ld-linux-x86-64.so.2".to_owned());
        assert_eq!(place("/lib64/ld-linux-x86-64.so.2"), expected);
        assert_eq!(place("/usr/lib64/ld-linux-x86-64.so.2"), expected);
        assert_eq!(place("ld.so"), None);
    }

    #[test]
    fn links_stay_inside_of_the_root() {
        let folder = TempDir::new().expect("folder");
        let root = folder.path();
        std::fs::create_dir_all(root.join("usr/lib/real")).expect("folders");
        std::fs::write(root.join("usr/lib/real/lib.so.1.2"), "x").expect("file");
        let link = |target: &str, path: &str| {
            std::os::unix::fs::symlink(target, root.join(path)).expect("link");
        };
        link("/usr/lib/real/lib.so.1.2", "usr/lib/lib.so.1");
        link("lib.so.1", "usr/lib/lib.so");
        assert_eq!(resolve(root, "usr/lib/lib.so"), root.join("usr/lib/real/lib.so.1.2"));
    }
}
