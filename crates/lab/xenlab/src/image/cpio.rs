//! The archive that Linux unpacks into its initial root: cpio in the format "newc"
//! (Documentation/driver-api/early-userspace/buffer-format.rst in the kernel).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Type bits of a mode, as in `stat(2)`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;

const TRAILER: &str = "TRAILER!!!";
/// Headers and contents begin at multiples of this, counted from the start of the archive.
const ALIGNMENT: usize = 4;

/// An archive being written. Adding a path adds the folders above it. If a path is added twice, the first stays.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the archive has an entry at `path`. All paths here are relative to the root.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// All paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// Adds a folder and those above it.
    pub fn folder(&mut self, path: &str) {
        self.add(path, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file with its permission bits.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.add(path, REGULAR | permissions & 0o7777, content);
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.add(path, SYMLINK | 0o777, target.as_bytes());
    }

    /// The archive with its trailer. The kernel reads several archives, one after another, as one: later files replace
    /// earlier ones.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        debug_assert!(!path.is_empty() && !path.starts_with('/') && !path.contains('\0'));
        if self.contains(path) {
            return;
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(path, mode, content);
        self.paths.insert(path.to_owned());
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        // Inode numbers only connect hard links. There are none, so each entry has its own.
        let inode = self.paths.len() + 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let name_size = path.len() + 1;
        // Magic; inode, mode, owner, group, links, time, size, two devices of two numbers, size of the name, checksum.
        let header = format!(
            "070701{inode:08x}{mode:08x}{zero:08x}{zero:08x}{links:08x}{zero:08x}{size:08x}\
             {zero:08x}{zero:08x}{zero:08x}{zero:08x}{name_size:08x}{zero:08x}",
            zero = 0,
            size = content.len(),
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// The byte ranges of the regular files in several joined archives.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Index {
    files: HashMap<String, Range<usize>>,
}

impl Index {
    /// Reads the headers of `archives`. Of several files at one path the last one counts, as for the kernel. `None`
    /// if a header is malformed.
    #[must_use]
    pub fn of(archives: &[u8]) -> Option<Self> {
        let mut index = Self::default();
        let mut at = 0;
        while let Some(start) = archives.get(at..)?.iter().position(|byte| *byte != 0) {
            let header = Header::at(archives, at + start)?;
            at = header.content.end.next_multiple_of(ALIGNMENT).min(archives.len());
            if header.mode & TYPE == REGULAR && header.path != TRAILER {
                index.files.insert(header.path.to_owned(), header.content);
            }
        }
        Some(index)
    }

    /// The byte range of the content of the file at `path`.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<Range<usize>> {
        self.files.get(path).cloned()
    }
}

/// An entry's header.
struct Header<'a> {
    path: &'a str,
    mode: u32,
    content: Range<usize>,
}

impl<'a> Header<'a> {
    /// Bytes of a header without the name.
    const LEN: usize = 110;

    fn at(archives: &'a [u8], at: usize) -> Option<Self> {
        let name_start = at.checked_add(Self::LEN)?;
        let header = std::str::from_utf8(archives.get(at..name_start)?).ok()?;
        let fields = header.strip_prefix("070701")?;
        let field =
            |number: usize| u32::from_str_radix(fields.get(8 * number..8 * (number + 1))?, 16).ok();
        let size = |number| usize::try_from(field(number)?).ok();
        let name_end = name_start.checked_add(size(11)?)?;
        let name = archives.get(name_start..name_end)?.strip_suffix(b"\0")?;
        let start = name_end.checked_next_multiple_of(ALIGNMENT)?;
        let content = start..start.checked_add(size(6)?)?;
        let is_whole = content.end <= archives.len();
        let path = std::str::from_utf8(name).ok()?;
        is_whole.then_some(Self { path, mode: field(1)?, content })
    }
}

#[cfg(test)]
pub(crate) mod reader {
    //! Reading, for tests.

    use super::{ALIGNMENT, TRAILER};

    /// An entry of an archive.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Member {
        pub path: String,
        pub mode: u32,
        pub links: u32,
        pub content: Vec<u8>,
    }

    /// All entries before the trailer.
    pub fn read(archive: &[u8]) -> Vec<Member> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(at % ALIGNMENT, 0, "headers are aligned");
            let header = std::str::from_utf8(&archive[at..at + 110]).expect("hexadecimal");
            assert_eq!(&header[..6], "070701");
            let field = |number: usize| {
                let start = 6 + 8 * number;
                u32::from_str_radix(&header[start..start + 8], 16).expect("hexadecimal")
            };
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = &archive[at + 110..at + 110 + name_size];
            let (end, name) = name.split_last().expect("a name");
            assert_eq!(*end, 0, "names end with a zero");
            let path = String::from_utf8(name.to_vec()).expect("text");
            let start = (at + 110 + name_size).next_multiple_of(ALIGNMENT);
            let content = archive[start..start + size].to_vec();
            at = (start + size).next_multiple_of(ALIGNMENT);
            if path == TRAILER {
                assert_eq!(at, archive.len(), "nothing follows the end");
                return entries;
            }
            entries.push(Member { path, mode: field(1), links: field(4), content });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::reader::{Member, read};
    use super::*;
    use proptest::prelude::*;

    fn entry(path: &str, mode: u32, content: &[u8]) -> Member {
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        Member { path: path.to_owned(), mode, links, content: content.to_vec() }
    }

    #[test]
    fn what_was_written_is_read_back_with_folders_before_their_content() {
        let mut archive = Archive::new();
        archive.file("usr/bin/tool", 0o755, b"\x7fELF!");
        archive.symlink("bin", "usr/bin");
        archive.folder("usr/lib");
        archive.file("etc/hosts", 0o644, b"");
        assert_eq!(
            read(&archive.finish()),
            [
                entry("usr", 0o040_755, b""),
                entry("usr/bin", 0o040_755, b""),
                entry("usr/bin/tool", 0o100_755, b"\x7fELF!"),
                entry("bin", 0o120_777, b"usr/bin"),
                entry("usr/lib", 0o040_755, b""),
                entry("etc", 0o040_755, b""),
                entry("etc/hosts", 0o100_644, b""),
            ]
        );
    }

    #[test]
    fn the_first_of_one_path_stays() {
        let mut archive = Archive::new();
        archive.file("init", 0o755, b"first");
        archive.file("init", 0o644, b"second");
        assert!(archive.contains("init"));
        assert_eq!(archive.paths().collect::<Vec<_>>(), ["init"]);
        assert_eq!(read(&archive.finish()), [entry("init", 0o100_755, b"first")]);
    }

    #[test]
    fn an_empty_archive_is_only_an_end() {
        let bytes = Archive::new().finish();
        assert_eq!(bytes.len(), (110 + TRAILER.len() + 1).next_multiple_of(ALIGNMENT));
        assert!(read(&bytes).is_empty());
    }

    #[test]
    fn files_of_archives_in_a_row_are_found_and_later_ones_count() {
        let mut first = Archive::new();
        first.file("usr/bin/tool", 0o755, b"old");
        first.symlink("usr/bin/link", "tool");
        first.file("etc/empty", 0o644, b"");
        let mut second = Archive::new();
        second.file("usr/bin/tool", 0o755, b"newer");
        // The kernel skips zeros between archives; images that dd has written have some.
        let both = [first.finish(), vec![0; 512], second.finish()].concat();
        let index = Index::of(&both).expect("headers");
        let found = |path: &str| index.find(path).map(|range| &both[range]);
        assert_eq!(found("usr/bin/tool"), Some(&b"newer"[..]));
        assert_eq!(found("etc/empty"), Some(&b""[..]));
        assert_eq!([found("usr/bin/link"), found("usr/bin"), found(TRAILER)], [None; 3]);
    }

    #[test]
    fn what_is_no_archive_or_cut_off_has_no_index() {
        let mut archive = Archive::new();
        archive.file("file", 0o644, b"some content");
        let whole = archive.finish();
        assert_eq!(Index::of(&[]), Some(Index::default()));
        assert_eq!(Index::of(b"\x1f\x8b\x08"), None);
        let content = whole.windows(4).position(|bytes| bytes == b"some").expect("content");
        assert_eq!(Index::of(&whole[..content + 4]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_indexed_or_refused(
            at in any::<prop::sample::Index>(), bytes in any::<[u8; 3]>()
        ) {
            let mut archive = Archive::new();
            archive.file("usr/lib/a", 0o644, b"content");
            let mut archive = archive.finish();
            let at = at.index(archive.len() - 3);
            archive[at..at + 3].copy_from_slice(&bytes);
            if let Some(index) = Index::of(&archive) {
                let ranges = index.files.values();
                prop_assert!(ranges.cloned().all(|range| archive.get(range).is_some()));
            }
        }

        #[test]
        fn any_length_of_name_and_content_keeps_the_alignment(
            files in prop::collection::vec(("[a-z]{1,9}", prop::collection::vec(any::<u8>(), 0..40)), 0..20)
        ) {
            let mut archive = Archive::new();
            let mut expected: Vec<Member> = Vec::new();
            for (name, content) in &files {
                archive.file(name, 0o640, content);
                if expected.iter().all(|entry| entry.path != *name) {
                    expected.push(entry(name, 0o100_640, content));
                }
            }
            prop_assert_eq!(read(&archive.finish()), expected);
        }
    }
}
