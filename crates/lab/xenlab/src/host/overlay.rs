//! What is laid over the images at a boot: the first processes, the agents, and this machine's own files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::batch::Batch;
use crate::image::{Archive, Images, Kind, Linker};
use crate::{Error, Result, tool};

/// A file of this machine that dom0 and all guests get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    source: PathBuf,
    target: String,
}

impl HostFile {
    /// A file by its path here: a program becomes a command there (`/usr/local/bin`), stripped and with the libraries
    /// that it needs; anything else lies in `/lab`, where commands start.
    ///
    /// # Errors
    /// [`Error::Path`] if it cannot be looked at.
    pub fn new(source: impl Into<PathBuf>) -> Result<Self> {
        let source = source.into();
        let mode = std::fs::metadata(&source).map_err(Error::path(&source))?.permissions().mode();
        let folder = if mode & 0o111 == 0 { "lab" } else { "usr/local/bin" };
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let target = format!("{folder}/{name}");
        Ok(Self { source, target })
    }

    /// The same under another absolute path.
    #[must_use]
    pub fn at(self, path: &str) -> Self {
        Self { target: path.trim_start_matches('/').to_owned(), ..self }
    }
}

/// What domains start from.
#[derive(Debug)]
pub(super) struct Roots {
    /// The archive of dom0.
    pub(super) dom0: PathBuf,
    /// A folder with the kernel and the archive of guests. dom0 reads it over 9p, at the speed of this machine: in its
    /// own archive these 80 MB would cost it a second at every boot.
    pub(super) guests: PathBuf,
}

impl Roots {
    /// Writes both into `folder`: the images, with this machine's files and the lab's own laid over them.
    pub(super) fn write(images: &Images, files: &[HostFile], folder: &Path) -> Result<Self> {
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(read).collect::<Result<_>>()?;
        let roots = Self { dom0: folder.join("dom0.cpio"), guests: folder.join("guests") };
        concatenate(&images.root(Kind::Dom0), &dom0(images, &files)?, &roots.dom0)?;
        std::fs::create_dir(&roots.guests).map_err(Error::path(&roots.guests))?;
        let archive = roots.guests.join("domu.cpio");
        concatenate(&images.root(Kind::DomU), &domu(images, &files)?, &archive)?;
        let kernel = roots.guests.join("vmlinux");
        std::fs::copy(images.kernel(), &kernel).map_err(Error::path(kernel))?;
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

/// Where dom0 has the archive of a guest that nobody talks to.
pub(super) const GUEST_ROOT: &str = "lab/guests/domu.cpio";

/// Writes the archive of a dom0 that nobody talks to: guests and scripts are in it.
pub(super) fn write_batch(images: &Images, batch: &Batch, destination: &Path) -> Result<()> {
    let files: Vec<(&str, Vec<u8>)> = batch.files.iter().map(read).collect::<Result<_>>()?;
    let mut guest = Archive::new();
    script(&mut guest, "init", include_str!("../guest/domu.sh"));
    script(&mut guest, "lab/script", &batch.guest_script);
    programs(&mut guest, batch);
    add(&mut guest, images.libraries(Kind::DomU)?, &files)?;
    let mut guest_root = read_whole(&images.root(Kind::DomU))?;
    guest_root.extend(guest.finish());

    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/dom0.sh"));
    script(&mut overlay, "lab/script", &batch.script);
    script(&mut overlay, "etc/xen/scripts/vif-lab", include_str!("../guest/vif-lab.sh"));
    overlay.file("lab/guests/vmlinux", 0o644, &read_whole(&images.kernel())?);
    overlay.file(GUEST_ROOT, 0o644, &guest_root);
    for guest in &batch.guests {
        overlay.file(&format!("lab/{}.cfg", guest.name), 0o644, guest.text().as_bytes());
    }
    programs(&mut overlay, batch);
    add(&mut overlay, images.libraries(Kind::Dom0)?, &files)?;
    concatenate(&images.root(Kind::Dom0), &overlay.finish(), destination)
}

/// Writes the archive of a machine without a hypervisor that nobody talks to: dom0's, with another first process.
pub(super) fn write_linux(images: &Images, batch: &Batch, destination: &Path) -> Result<()> {
    let files: Vec<(&str, Vec<u8>)> = batch.files.iter().map(read).collect::<Result<_>>()?;
    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/linux.sh"));
    script(&mut overlay, "lab/script", &batch.script);
    programs(&mut overlay, batch);
    add(&mut overlay, images.libraries(Kind::Dom0)?, &files)?;
    concatenate(&images.root(Kind::Dom0), &overlay.finish(), destination)
}

fn programs(archive: &mut Archive, batch: &Batch) {
    for (name, bytes) in &batch.programs {
        archive.file(&format!("usr/local/bin/{name}"), 0o755, bytes);
    }
}

/// The kernel reads archives that follow each other as one.
fn concatenate(image: &Path, overlay: &[u8], destination: &Path) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut out = File::create(destination)?;
        io::copy(&mut File::open(image)?, &mut out)?;
        out.write_all(overlay)
    };
    write().map_err(Error::path(destination))
}

fn script(archive: &mut Archive, path: &str, text: &str) {
    archive.file(path, 0o755, text.as_bytes());
}

fn add(archive: &mut Archive, present: BTreeSet<String>, files: &[(&str, Vec<u8>)]) -> Result<()> {
    let mut linker = Linker::new(Path::new("/"), present);
    files.iter().try_for_each(|(target, content)| linker.add_as(archive, target, content))
}

/// A file's place and content, without what only debuggers read.
fn read(file: &HostFile) -> Result<(&str, Vec<u8>)> {
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

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::path(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::Folder;

    #[test]
    fn programs_become_commands_and_other_files_lie_where_commands_start() {
        let folder = Folder::new().expect("folder");
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
    fn scripts_are_sound() {
        for text in [
            include_str!("../guest/agent.sh"),
            include_str!("../guest/dom0.sh"),
            include_str!("../guest/domu.sh"),
            include_str!("../guest/end.sh"),
            include_str!("../guest/link.sh"),
            include_str!("../guest/linux.sh"),
            include_str!("../guest/shellrc.sh"),
            include_str!("../guest/vif-lab.sh"),
        ] {
            let mut check = lab::command("sh").expect("sh");
            check.args(["-n", "-c", text]);
            tool::run(check).expect(text);
        }
    }
}
