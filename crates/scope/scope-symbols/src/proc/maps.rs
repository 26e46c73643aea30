//! `/proc/PID/maps`: the mapped files of a process.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{hex, line_error};
use crate::{AddressSpace, Error, Program};

const FILE: &str = "/proc/PID/maps";
const FORM: &str = "START-END PERMISSIONS OFFSET DEVICE INODE [PATH]";
/// The kernel appends this to the path of a deleted file, as after an upgrade.
const DELETED: &str = " (deleted)";

/// A mapping of code in a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Its addresses in the process.
    pub range: Range<u64>,
    /// The offset in the file where it begins, in bytes.
    pub offset: u64,
    /// The file's path or the kernel's name in brackets (`[vdso]`); empty for memory without a file.
    pub path: String,
    /// Whether the file was deleted; another may have its path now.
    pub deleted: bool,
}

/// The executable mappings of one process, in the order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Maps {
    mappings: Vec<Mapping>,
}

/// A process, to name its code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// The kernel's number for it.
    pub pid: u32,
    /// Its name: the text of `/proc/PID/comm`.
    pub name: String,
    /// The mappings of its code.
    pub maps: Maps,
}

impl Maps {
    /// The executable mappings in the text of `/proc/PID/maps`. A kernel thread has none.
    ///
    /// # Errors
    /// [`Error::Line`] for a line of another form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut mappings = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let (permissions, mapping) =
                parse(line).ok_or_else(|| line_error(FILE, number, line, FORM))?;
            if permissions.contains('x') {
                mappings.push(mapping);
            }
        }
        mappings.sort_by_key(|mapping| mapping.range.start);
        Ok(Self { mappings })
    }

    /// The mappings.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.range.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        mapping.range.contains(&address).then_some(mapping)
    }
}

impl Mapping {
    /// The module name of its code: the last part of the path, `[vdso]`, or `[anonymous]`.
    #[must_use]
    pub fn module(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        if name.is_empty() { "[anonymous]" } else { name }
    }

    /// The difference from addresses of `program`'s file to those of the process. None if the program has no code at the start
    /// of the mapping, because it is another file.
    #[must_use]
    pub fn bias(&self, program: &Program) -> Option<u64> {
        Some(self.range.start.wrapping_sub(program.address_of(self.offset)?))
    }
}

impl Process {
    /// The address space of the process. `open` returns the program or library of a path, which processes may share. Code for
    /// which it returns none has the name of its file only. It is not called for deleted files. The paths are those of the
    /// system that wrote the text: look up a guest's path among the guest's files.
    pub fn space(&self, mut open: impl FnMut(&Path) -> Option<Arc<Program>>) -> AddressSpace {
        let mut space = AddressSpace::new();
        for mapping in self.maps.mappings() {
            let program = if mapping.deleted { None } else { open(Path::new(&mapping.path)) };
            let placed = program.and_then(|program| Some((mapping.bias(&program)?, program)));
            match placed {
                Some((bias, program)) => space.place_program(mapping.range.clone(), bias, program),
                None => space.place_nameless(mapping.range.clone(), mapping.module()),
            }
        }
        space
    }
}

fn parse(line: &str) -> Option<(&str, Mapping)> {
    let (start_end, rest) = line.split_once(' ')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (_device, rest) = rest.split_once(' ')?;
    let path = rest.split_once(' ').map_or("", |(_inode, path)| path.trim_start_matches(' '));
    let (start, end) = start_end.split_once('-')?;
    let range = hex(start)?..hex(end)?;
    let (path, deleted) = path.strip_suffix(DELETED).map_or((path, false), |path| (path, true));
    let path = path.to_owned();
    let mapping = Mapping { offset: hex(offset)?, path, deleted, range };
    (!mapping.range.is_empty()).then_some((permissions, mapping))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0ad1000 r--p 00000000 fd:01 1234                       /usr/bin/iperf3
55d0c0ad1000-55d0c0ae7000 r-xp 000d0000 fd:01 1234                       /usr/bin/iperf3
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f0000100000-7f0000200000 r-xp 00026000 fd:01 99                         /lib/with space/libc.so.6 (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn executable_mappings_are_kept() {
        let maps = Maps::parse(TEXT).expect("maps");
        let names: Vec<_> = maps.mappings().iter().map(Mapping::module).collect();
        assert_eq!(names, ["iperf3", "libc.so.6", "[vdso]"]);
        let libc = maps.find(0x7f00_0010_0000).expect("mapped");
        assert_eq!((libc.offset, libc.deleted), (0x26000, true));
        assert_eq!(libc.path, "/lib/with space/libc.so.6");
        assert_eq!(maps.find(0x7f00_0020_0000), None);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = Maps::parse("1000-2000 r-xp").expect_err("half a line");
        assert!(
            error.to_string().starts_with("/proc/PID/maps, line 1: \"1000-2000 r-xp\""),
            "{error}"
        );
        assert!(Maps::parse("2000-1000 r-xp 0 0:0 0").is_err(), "upside down");
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read_back(
            mappings in prop::collection::vec((1u64..1 << 40, 0u64..1 << 40, "(/[a-z .:-]{0,8}[a-z])?", any::<bool>()), 0..20),
        ) {
            let (mut text, mut wanted, mut start) = (String::new(), Vec::new(), 0);
            for (len, offset, path, executable) in mappings {
                let (range, x) = (start..start + len, if executable { 'x' } else { '-' });
                start += len;
                writeln!(text, "{:08x}-{:08x} r-{x}p {offset:08x} 08:01 77   {path}", range.start, range.end).unwrap();
                if executable {
                    wanted.push(Mapping { range, offset, path, deleted: false });
                }
            }
            prop_assert_eq!(Maps::parse(&text), Ok(Maps { mappings: wanted }));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "([0-9a-f-]{0,17}[ rx\n/]{0,4}){0,30}") {
            let _ = Maps::parse(&text);
        }
    }
}
