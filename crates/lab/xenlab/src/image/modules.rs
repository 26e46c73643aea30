//! Kernel modules and their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::cpio::Archive;
use super::{elf, kernel};
use crate::{Error, Result};

/// All modules of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    /// `/lib/modules/RELEASE` in the images.
    folder: String,
    /// Files by the modules' names, with `_` for `-`.
    files: BTreeMap<String, PathBuf>,
    /// Names of modules that are built into the kernel.
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Finds the modules below `root`, which must hold those of exactly one kernel.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let above = root.join("usr/lib/modules");
        let mut kernels = entries(&above)?;
        let (Some(kernel), None) = (kernels.pop(), kernels.pop()) else {
            return Err(Error::content(above.display().to_string(), "not one kernel"));
        };
        let release = kernel.file_name().unwrap_or_default().to_string_lossy();
        let folder = format!("usr/lib/modules/{release}");
        let list = kernel.join("modules.builtin");
        let builtin = std::fs::read_to_string(&list).map_err(Error::path(list))?;
        let builtin = builtin.lines().filter_map(|line| name(Path::new(line))).collect();
        let mut files = BTreeMap::new();
        collect(&kernel, &mut files)?;
        Ok(Self { folder, files, builtin })
    }

    /// The kernel's release, as in the names of its files.
    pub(super) fn release(&self) -> &str {
        elf::file_name(&self.folder)
    }

    /// Adds modules, their dependencies, and `modules.dep`, by which `modprobe` finds both.
    pub(super) fn add(&self, archive: &mut Archive, names: &[&str]) -> Result<()> {
        let mut chosen = BTreeMap::new();
        for name in names {
            self.choose(&normal(name), &mut chosen)?;
        }
        let mut list = String::new();
        for (name, module) in &chosen {
            let path = |name: &str| format!("kernel/{name}.ko");
            archive.file(&format!("{}/{}", self.folder, path(name)), 0o644, &module.bytes);
            // A module's line names all its dependencies, in the order in which to remove them.
            let mut below = Vec::new();
            dependencies(&chosen, name, &mut below);
            let below: Vec<String> = below.iter().map(|name| path(name)).collect();
            let _ = writeln!(list, "{}: {}", path(name), below.join(" "));
        }
        archive.file(&format!("{}/modules.dep", self.folder), 0o644, list.as_bytes());
        Ok(())
    }

    fn choose(&self, name: &str, chosen: &mut BTreeMap<String, Module>) -> Result<()> {
        if self.builtin.contains(name) || chosen.contains_key(name) {
            return Ok(());
        }
        let lost = || Error::content(format!("the module {name}"), "no such module in the kernel");
        let bytes = kernel::read_unpacked(self.files.get(name).ok_or_else(lost)?)?;
        let info = elf::module_info(&bytes, "depends");
        let info = info.map_err(|cause| Error::content(format!("the module {name}"), &cause))?;
        let depends = info.iter().flat_map(|names| names.split(','));
        let depends: Vec<String> = depends.filter(|name| !name.is_empty()).map(normal).collect();
        chosen.insert(name.to_owned(), Module { bytes, depends: depends.clone() });
        depends.iter().try_for_each(|name| self.choose(name, chosen))
    }
}

#[derive(Debug)]
struct Module {
    bytes: Vec<u8>,
    depends: Vec<String>,
}

/// Adds all modules that `name` depends on, each before its own dependencies.
fn dependencies(chosen: &BTreeMap<String, Module>, name: &str, below: &mut Vec<String>) {
    for direct in chosen.get(name).map_or(&[][..], |module| &module.depends) {
        if chosen.contains_key(direct) {
            // A module that is listed already moves to the end, because several depend on it.
            below.retain(|known| known != direct);
            below.push(direct.clone());
            dependencies(chosen, direct, below);
        }
    }
}

/// A module's name with `_` for `-`: the kernel treats the two characters as equal.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn name(file: &Path) -> Option<String> {
    let (name, compression) = file.file_name()?.to_str()?.split_once(".ko")?;
    ["", ".gz", ".xz", ".zst"].contains(&compression).then(|| normal(name))
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in entries(folder)? {
        if entry.is_dir() && !entry.is_symlink() {
            collect(&entry, files)?;
        } else if let Some(name) = name(&entry) {
            files.insert(name, entry);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(Error::path(folder))?;
    entries.map(|entry| Ok(entry.map_err(Error::path(folder))?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(graph: &[(&str, &[&str])]) -> BTreeMap<String, Module> {
        let module = |depends: &[&str]| Module {
            bytes: Vec::new(),
            depends: depends.iter().map(|name| (*name).to_owned()).collect(),
        };
        graph.iter().map(|(name, depends)| ((*name).to_owned(), module(depends))).collect()
    }

    #[test]
    fn dependencies_are_named_before_their_own() {
        let graph = chosen(&[
            ("bridge", &["stp", "llc"]),
            ("stp", &["llc"]),
            ("llc", &[]),
            ("virtio_pci", &["legacy", "ring"]),
            ("legacy", &["builtin"]),
            ("ring", &["legacy"]),
        ]);
        let below = |name| {
            let mut below = Vec::new();
            dependencies(&graph, name, &mut below);
            below
        };
        assert_eq!(below("bridge"), ["stp", "llc"]);
        assert_eq!(below("virtio_pci"), ["ring", "legacy"]);
        assert!(below("llc").is_empty());
    }

    #[test]
    fn names_of_files_are_names_of_modules() {
        for (file, expected) in [
            ("kernel/drivers/net/xen-netback.ko", Some("xen_netback")),
            ("kernel/tun.ko.xz", Some("tun")),
            ("kernel/tun.ko.zst", Some("tun")),
            ("modules.dep", None),
            ("kernel/notes.kox", None),
        ] {
            assert_eq!(name(Path::new(file)).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn a_folder_without_a_kernel_or_with_two_is_refused() {
        let folder = lab::TempDir::new().expect("folder");
        assert!(Modules::find(folder.path()).is_err());
        for (release, is_alone) in [("6.1", true), ("6.12", false)] {
            let kernel = folder.path().join("usr/lib/modules").join(release);
            std::fs::create_dir_all(&kernel).expect("folders");
            std::fs::write(kernel.join("modules.builtin"), "").expect("list");
            assert_eq!(Modules::find(folder.path()).is_ok(), is_alone, "{release}");
        }
    }

    #[test]
    fn what_is_built_in_is_no_file_and_what_is_neither_is_an_error() {
        let folder = lab::TempDir::new().expect("folder");
        let kernel = folder.path().join("usr/lib/modules/6.1");
        std::fs::create_dir_all(&kernel).expect("folders");
        std::fs::write(kernel.join("modules.builtin"), "kernel/fs/xen-fs.ko\n").expect("list");
        let modules = Modules::find(folder.path()).expect("one kernel");
        assert_eq!(modules.release(), "6.1");
        let mut archive = Archive::new();
        modules.add(&mut archive, &["xen_fs"]).expect("built in");
        assert!(!archive.paths().any(|path| path.ends_with(".ko")));
        let message = modules.add(&mut archive, &["xen-gone"]).expect_err("missing").to_string();
        assert_eq!(message, "the module xen_gone: no such module in the kernel");
    }
}
