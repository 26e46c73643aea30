//! What a recording is made with.

use std::path::Path;

use scope_result::{FileDigest, Provenance};
use sha2::{Digest as _, Sha256};
use xenlab::{Images, Kind};

use crate::error::{Error, Result};

/// How rustc signs what it compiles.
const SIGNATURE: &[u8] = b"rustc version ";

/// Of this pvscope and this QEMU.
pub fn provenance(qemu: &str) -> Provenance {
    let pvscope = env!("CARGO_PKG_VERSION").to_owned();
    Provenance { pvscope, qemu: qemu.to_owned(), ..Provenance::default() }
}

/// How a machine came to its first mark.
pub fn start(from_snapshot: bool) -> &'static str {
    if from_snapshot { "from a snapshot" } else { "from a boot" }
}

/// The lab's images, before the workload's scripts and programs are added.
pub fn of_images(images: &Images, has_xen: bool) -> Result<Vec<FileDigest>> {
    let mut files = vec![("kernel", images.kernel()), ("dom0", images.root(Kind::Dom0))];
    if has_xen {
        files.extend([("xen", images.xen()), ("domU", images.root(Kind::DomU))]);
    }
    files.iter().map(|(name, path)| image(name, path)).collect()
}

pub fn image(name: &str, path: &Path) -> Result<FileDigest> {
    let built_by = String::new();
    Ok(FileDigest { name: name.to_owned(), digest: of_file(path)?, built_by })
}

/// A program by its path in the guests; `path` is its file here.
pub fn program(guest_path: &str, path: &Path) -> Result<FileDigest> {
    let built_by = match compiler(path)?.as_str() {
        "unknown" => String::new(),
        rustc => format!("rustc {rustc}, {}", profile(path)),
    };
    Ok(FileDigest { built_by, ..image(guest_path, path)? })
}

/// The compiler that made a program, as it says itself.
pub fn compiler(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::path(path))?;
    let mut places = bytes.windows(SIGNATURE.len()).enumerate();
    // The program may contain the words too, so the last place counts: sections of notes come after the data.
    let found = places.rfind(|(_, words)| *words == SIGNATURE);
    let after = found.map(|(at, _)| &bytes[at + SIGNATURE.len()..]);
    let version = after.and_then(|rest| rest.split(|byte| *byte == b' ' || *byte == 0).next());
    Ok(version.map_or("unknown".to_owned(), |word| String::from_utf8_lossy(word).into_owned()))
}

/// The profile that a program was built with: the name of cargo's folder.
pub fn profile(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name);
    folder.map_or("unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The first eight bytes of a digest.
pub fn hex(digest: &[u8]) -> String {
    lab::hexadecimal(&digest[..8])
}

/// The digest of bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The digest of a file.
pub fn of_file(path: &Path) -> Result<String> {
    Ok(of_bytes(&std::fs::read(path).map_err(Error::path(path))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_signs() {
        let this = std::env::current_exe().unwrap();
        let found = compiler(&this).unwrap();
        assert!(found.starts_with("1."), "{found}");
        let program = program("/bin/x", &this).unwrap();
        assert_eq!((program.name.as_str(), program.digest.len()), ("/bin/x", 16));
        assert!(program.built_by.starts_with("rustc 1.") && program.built_by.ends_with(", deps"));
    }
}
