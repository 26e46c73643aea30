//! Digests of files: names for what a recording or a snapshot was made with.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// The first eight bytes of a digest.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The digest of a file.
pub fn of_file(path: &Path) -> Result<String> {
    Ok(of_bytes(&std::fs::read(path).map_err(Error::path(path))?))
}
