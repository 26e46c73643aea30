//! The file of a recording.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::Recording;

const MAGIC: [u8; 8] = *b"PVSCOPE\n";
/// The version of the format, which changes whenever [`Recording`] does.
pub const VERSION: u32 = 8;
/// Bytes of the header: magic, version, length, checksum.
const HEAD: usize = 8 + 4 + 8 + 4;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{}: {cause}", path.display())]
    Path {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The file is something else.
    #[error("{} is not a recording of pvscope", .0.display())]
    Foreign(PathBuf),
    /// Another version of pvscope wrote it.
    #[error("{} has version {found}, and this pvscope reads version {VERSION}: record it again with `pvscope run`", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The end of the file is missing.
    #[error("{} is cut short: it has {found} of {length} bytes", path.display())]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// Bytes of the body in the file.
        found: u64,
        /// Bytes of the whole body.
        length: u64,
    },
    /// The file was altered.
    #[error("{} is damaged: its checksum differs", .0.display())]
    Damaged(PathBuf),
}

/// Writes a recording to a file, atomically.
///
/// # Errors
/// [`Error::Path`], as for a full disk: then no unfinished file is left behind.
pub fn write(path: &Path, recording: &Recording) -> Result<(), Error> {
    let failed = |cause| Error::Path { path: path.to_owned(), cause };
    let body = postcard::to_stdvec(recording).map_err(|error| failed(io::Error::other(error)))?;
    let mut head = Vec::with_capacity(HEAD);
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend((body.len() as u64).to_le_bytes());
    head.extend(crc32fast::hash(&body).to_le_bytes());
    let mut name = OsString::from(path);
    name.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(name);
    let save = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(&head)?;
        file.write_all(&body)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    save().map_err(|cause| {
        // It may not exist.
        let _ = fs::remove_file(&unfinished);
        failed(cause)
    })
}

/// Reads a recording from a file.
///
/// # Errors
/// Every variant of [`Error`].
pub fn read(path: &Path) -> Result<Recording, Error> {
    let bytes = fs::read(path).map_err(|cause| Error::Path { path: path.to_owned(), cause })?;
    parse(path, &bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Recording, Error> {
    let foreign = || Error::Foreign(path.to_owned());
    let rest = bytes.strip_prefix(&MAGIC).ok_or_else(foreign)?;
    let (version, rest) = rest.split_first_chunk().ok_or_else(foreign)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(Error::Version { path: path.to_owned(), found });
    }
    let (length, rest) = rest.split_first_chunk().ok_or_else(foreign)?;
    let (sum, body) = rest.split_first_chunk().ok_or_else(foreign)?;
    let (length, found) = (u64::from_le_bytes(*length), body.len() as u64);
    if found < length {
        return Err(Error::Truncated { path: path.to_owned(), found, length });
    }
    let damaged = || Error::Damaged(path.to_owned());
    if found > length || crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(damaged());
    }
    postcard::from_bytes(body).map_err(|_| damaged())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("pvscope-{}-{name}", std::process::id()))
    }

    fn recording() -> Recording {
        let work =
            crate::Work { what: "tx".to_owned(), frames: 3, bytes: 4542, ..crate::Work::default() };
        // xor eax, eax; ret
        let code = vec![0x31, 0xc0, 0xc3];
        let block =
            crate::Block { code, instructions: 2, space: 0x5000, ..crate::Block::at(0x40_0000) };
        Recording { instructions: 7, blocks: vec![block], work, ..Recording::default() }
    }

    #[test]
    fn what_is_written_is_read() {
        let path = file("whole");
        write(&path, &recording()).unwrap();
        assert_eq!(read(&path).unwrap(), recording());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_that_are_cut_short_altered_or_foreign_are_refused_with_the_reason() {
        let path = file("parts");
        write(&path, &recording()).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = |bytes: &[u8]| parse(&path, bytes).unwrap_err();
        assert!(matches!(error(&whole[..whole.len() - 1]), Error::Truncated { .. }));
        assert!(matches!(error(b"something else"), Error::Foreign(_)));
        assert!(matches!(error(&whole[..10]), Error::Foreign(_)));
        let mut altered = whole.clone();
        *altered.last_mut().unwrap() ^= 1;
        assert!(matches!(error(&altered), Error::Damaged(_)));
        altered = whole.clone();
        altered[8] += 1;
        let message = error(&altered).to_string();
        let known = format!("reads version {VERSION}");
        assert!(message.contains(&known) && message.contains("pvscope run"), "{message}");
        altered = whole;
        altered.push(0);
        assert!(matches!(error(&altered), Error::Damaged(_)));
    }

    #[test]
    fn a_file_that_cannot_be_finished_leaves_nothing_behind() {
        let folder = file("folder");
        // A folder that is not empty cannot be replaced by the file.
        let path = folder.join("result");
        fs::create_dir_all(path.join("taken")).unwrap();
        let error = write(&path, &recording()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
        let names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["result"], "what was written is removed");
        fs::remove_dir_all(&folder).unwrap();
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_recording(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(Path::new("x"), &bytes).is_err());
            let sum = crc32fast::hash(&bytes).to_le_bytes();
            let length = (bytes.len() as u64).to_le_bytes();
            let head = [&MAGIC[..], &VERSION.to_le_bytes(), &length, &sum].concat();
            bytes.splice(0..0, head);
            // A body that is nonsense is parsed without a panic.
            let _ = parse(Path::new("x"), &bytes);
        }
    }
}
