//! The files that a boot adds to the images: init scripts, agents, and files of this machine.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::image::{Archive, Images, Kind, Linker};
use crate::{Error, Result, tool};

/// A file of this machine to copy into dom0 and all guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    source: PathBuf,
    target: String,
}

impl HostFile {
    /// The file at this path. A program goes to `/usr/local/bin`, stripped and with the libraries
    /// that it needs. Any other file goes to `/lab`, the working folder of commands.
    pub fn new(source: impl Into<PathBuf>) -> Result<Self> {
        let source = source.into();
        let mode = std::fs::metadata(&source).map_err(Error::path(&source))?.permissions().mode();
        let folder = if mode & 0o111 == 0 { "lab" } else { "usr/local/bin" };
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let target = format!("{folder}/{name}");
        Ok(Self { source, target })
    }

    /// The same at another absolute path.
    #[must_use]
    pub fn at(self, path: &str) -> Self {
        Self { target: path.trim_start_matches('/').to_owned(), ..self }
    }
}

/// The archives that the domains boot from.
#[derive(Debug)]
pub(super) struct Roots {
    /// The archive of dom0.
    pub(super) dom0: PathBuf,
    /// A folder with the guests' kernel and archive. dom0 reads it over 9p at this machine's speed: in dom0's
    /// archive these 80 MB would cost a second at every boot.
    pub(super) guests: PathBuf,
}

impl Roots {
    /// Writes both into `folder`: the images with the added files.
    pub(super) fn write(images: &Images, files: &[HostFile], folder: &Path) -> Result<Self> {
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(read).collect::<Result<_>>()?;
        let roots = Self { dom0: folder.join("dom0.cpio"), guests: folder.join("guests") };
        concatenate(&images.root(Kind::Dom0), &dom0(images, &files)?, &roots.dom0)?;
        std::fs::create_dir(&roots.guests).map_err(Error::path(&roots.guests))?;
        let archive = roots.guests.join("domu.cpio");
        concatenate(&images.root(Kind::DomU), &domu(images, &files)?, &archive)?;
        for kernel in [images.kernel(), images.boot_image()] {
            let copy = roots.guests.join(kernel.file_name().unwrap_or_default());
            if kernel.is_file() {
                std::fs::copy(kernel, &copy).map_err(Error::path(copy))?;
            }
        }
        Ok(roots)
    }
}

fn dom0(images: &Images, files: &[(&str, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/dom0.sh"));
    script(&mut overlay, "lab/agent", include_str!("../guest/agent.sh"));
    script(&mut overlay, "lab/link", include_str!("../guest/link.sh"));
    script(&mut overlay, "lab/shellrc", include_str!("../guest/shellrc.sh"));
    script(&mut overlay, "etc/xen/scripts/vif-lab", include_str!("../guest/vif-lab.sh"));
    add(&mut overlay, images.libraries(Kind::Dom0)?, files)?;
    Ok(overlay.finish())
}

fn domu(images: &Images, files: &[(&str, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/domu.sh"));
    script(&mut overlay, "lab/agent", include_str!("../guest/agent.sh"));
    for name in ["poweroff", "reboot"] {
        script(&mut overlay, &format!("usr/sbin/{name}"), include_str!("../guest/end.sh"));
    }
    add(&mut overlay, images.libraries(Kind::DomU)?, files)?;
    Ok(overlay.finish())
}

/// Joins two archives. The kernel reads archives that follow each other as one.
pub(super) fn concatenate(image: &Path, overlay: &[u8], destination: &Path) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut out = File::create(destination)?;
        io::copy(&mut File::open(image)?, &mut out)?;
        out.write_all(overlay)
    };
    write().map_err(Error::path(destination))
}

pub(super) fn script(archive: &mut Archive, path: &str, text: &str) {
    archive.file(path, 0o755, text.as_bytes());
}

pub(super) fn add(
    archive: &mut Archive,
    present: BTreeSet<String>,
    files: &[(&str, Vec<u8>)],
) -> Result<()> {
    let mut linker = Linker::new(Path::new("/"), present);
    files.iter().try_for_each(|(target, content)| linker.add_as(archive, target, content))
}

/// A file's target path and content, without debug information.
pub(super) fn read(file: &HostFile) -> Result<(&str, Vec<u8>)> {
    let mut magic = [0; 4];
    let read = File::open(&file.source).and_then(|mut source| source.read(&mut magic));
    read.map_err(Error::path(&file.source))?;
    let content = if magic == *b"\x7fELF" {
        tool::stripped(&file.source)?
    } else {
        read_whole(&file.source)?
    };
    Ok((&file.target, content))
}

pub(super) fn read_whole(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::path(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::TempDir;

    #[test]
    fn programs_become_commands_and_other_files_go_to_the_working_folder() {
        let folder = TempDir::new().expect("folder");
        let target = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").expect("write");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            HostFile::new(path).expect("there")
        };
        assert_eq!(target("tool", 0o755).target, "usr/local/bin/tool");
        assert_eq!(target("pvnet.toml", 0o644).target, "lab/pvnet.toml");
        assert_eq!(target("x", 0o644).at("/etc/pvnet.toml").target, "etc/pvnet.toml");
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = HostFile::new("/no/such/tool").expect_err("missing").to_string();
        assert!(message.starts_with("/no/such/tool: No such file"), "{message}");
    }

    #[test]
    fn scripts_have_no_syntax_errors() {
        for text in [
            include_str!("../guest/agent.sh"),
            include_str!("../guest/dom0.sh"),
            include_str!("../guest/domu.sh"),
            include_str!("../guest/end.sh"),
            include_str!("../guest/link.sh"),
            include_str!("../guest/linux.sh"),
            include_str!("../guest/machine.sh"),
            include_str!("../guest/shellrc.sh"),
            include_str!("../guest/vif-lab.sh"),
        ] {
            let mut check = lab::command("sh").expect("sh");
            check.args(["-n", "-c", text]);
            tool::run(check).expect(text);
        }
    }
}
