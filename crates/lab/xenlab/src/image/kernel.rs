//! Unpacks the kernel in a `vmlinuz`. Xen boots the unpacked one, which saves seconds at every boot.

use std::fs::File;
use std::path::Path;

use crate::tool;
use crate::{Error, Result};

/// Offsets into the setup header (Documentation/arch/x86/boot.rst): the number of the setup code's sectors, its magic,
/// and the payload's offset behind these sectors and length.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;

/// How a payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    fn of(payload: &[u8]) -> Option<Self> {
        let known: [(&[u8], Self); 3] = [
            (b"\x1f\x8b", Self::Gzip),
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
        ];
        known.into_iter().find(|(magic, _)| payload.starts_with(magic)).map(|(_, kind)| kind)
    }

    /// The command that unpacks standard input.
    fn command(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Gzip => ("gzip", &["-dc"]),
            // The kernel's build appends the size, which is not part of the stream.
            Self::Xz => ("xz", &["-dc", "--single-stream"]),
            Self::Zstd => ("zstd", &["-dcq"]),
        }
    }

    /// The compressed stream alone.
    fn stream(self, payload: &[u8]) -> &[u8] {
        match self {
            // zstd has no option to ignore the appended size.
            Self::Zstd => &payload[..payload.len().saturating_sub(4)],
            Self::Gzip | Self::Xz => payload,
        }
    }
}

/// The content of a boot loader's image: the ELF file in a bzImage, the unpacked content of a compressed file, or any
/// other file as it is.
pub fn read_boot_image(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_unpacked(path)?;
    if bytes.get(MAGIC..MAGIC + 4) == Some(b"HdrS") { inside(path, &bytes) } else { Ok(bytes) }
}

/// Unpacks the ELF file in `vmlinuz` into `destination`.
pub(super) fn unpack(vmlinuz: &Path, destination: &Path) -> Result<()> {
    let image = std::fs::read(vmlinuz).map_err(Error::path(vmlinuz))?;
    let elf = inside(vmlinuz, &image)?;
    std::fs::write(destination, elf).map_err(Error::path(destination))
}

/// The ELF file in `image`, which was read from `vmlinuz`.
fn inside(vmlinuz: &Path, image: &[u8]) -> Result<Vec<u8>> {
    let wrong = |cause: &str| Error::content(vmlinuz.display().to_string(), &cause);
    let payload = payload(image).map_err(wrong)?;
    let compression =
        Compression::of(payload).ok_or_else(|| wrong("compressed in an unknown way"))?;
    let elf = decompress(compression, payload)?;
    if !elf.starts_with(b"\x7fELF") {
        return Err(wrong("no ELF file inside"));
    }
    Ok(elf)
}

/// Unpacks a compressed file, such as a module. Any other file is returned unchanged.
pub(super) fn read_unpacked(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(Error::path(path))?;
    let Some(compression) = Compression::of(&bytes) else { return Ok(bytes) };
    let (program, arguments) = compression.command();
    tool::filter(program, arguments, File::open(path).map_err(Error::path(path))?)
}

fn decompress(compression: Compression, payload: &[u8]) -> Result<Vec<u8>> {
    let (program, arguments) = compression.command();
    tool::filter(program, arguments, tool::in_memory(compression.stream(payload))?)
}

/// The compressed part of a bzImage.
fn payload(image: &[u8]) -> std::result::Result<&[u8], &'static str> {
    if image.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err("no bzImage");
    }
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let find = || {
        // Zero stands for four, for old boot loaders.
        let sectors = match image.get(SETUP_SECTORS)? {
            0 => 4,
            sectors => usize::from(*sectors),
        };
        let start = ((sectors + 1) * SECTOR).checked_add(word(PAYLOAD_OFFSET)?)?;
        image.get(start..start.checked_add(word(PAYLOAD_LENGTH)?)?)
    };
    find().ok_or("cut short")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bzImage with the given payload, after some setup code as in real ones.
    fn image(sectors: u8, payload: &[u8]) -> Vec<u8> {
        let code = 64;
        let setup = (usize::from(if sectors == 0 { 4 } else { sectors }) + 1) * SECTOR;
        let mut image = vec![0; setup + code];
        image[SETUP_SECTORS] = sectors;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&64_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("small");
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"relocations and checksum");
        image
    }

    /// A tool's output for `content`.
    fn compressed(program: &str, content: &[u8]) -> Vec<u8> {
        tool::filter(program, &["-c"], tool::in_memory(content).expect("memory")).expect("tool")
    }

    #[test]
    fn a_kernel_of_each_compression_is_unpacked() {
        let elf = [b"\x7fELF".as_slice(), &[7; 3000]].concat();
        let folder = lab::TempDir::new().expect("folder");
        let (vmlinuz, vmlinux) = (folder.path().join("vmlinuz"), folder.path().join("vmlinux"));
        for (program, size_appended) in
            [("gzip", false), ("xz", false), ("xz", true), ("zstd", true)]
        {
            let mut payload = compressed(program, &elf);
            if size_appended {
                payload.extend_from_slice(&3004_u32.to_le_bytes());
            }
            for sectors in [0, 27] {
                std::fs::write(&vmlinuz, image(sectors, &payload)).expect("write");
                unpack(&vmlinuz, &vmlinux).expect(program);
                assert_eq!(std::fs::read(&vmlinux).expect("read"), elf, "{program}");
                assert_eq!(read_boot_image(&vmlinuz).expect("read"), elf, "{program}");
            }
            std::fs::write(&vmlinuz, compressed(program, &elf)).expect("write");
            for whole in [&vmlinuz, &vmlinux] {
                assert_eq!(read_boot_image(whole).expect("read"), elf, "{program}");
            }
        }
    }

    #[test]
    fn what_is_no_kernel_is_named_with_the_reason() {
        let folder = lab::TempDir::new().expect("folder");
        let (vmlinuz, vmlinux) = (folder.path().join("vmlinuz"), folder.path().join("vmlinux"));
        for (content, reason) in [
            (b"text".to_vec(), "no bzImage"),
            (image(4, b"text"), "compressed in an unknown way"),
            (image(4, &compressed("gzip", b"text")), "no ELF file inside"),
        ] {
            std::fs::write(&vmlinuz, content).expect("write");
            let message = unpack(&vmlinuz, &vmlinux).expect_err("no kernel").to_string();
            assert!(message.ends_with(reason), "{message}");
            assert!(message.contains("vmlinuz"), "{message}");
        }
    }

    #[test]
    fn a_file_that_is_not_compressed_is_left_alone() {
        let folder = lab::TempDir::new().expect("folder");
        let path = folder.path().join("module.ko");
        for stored in [b"\x7fELF module".to_vec(), compressed("xz", b"\x7fELF module")] {
            std::fs::write(&path, stored).expect("write");
            assert_eq!(read_unpacked(&path).expect("read"), b"\x7fELF module");
        }
    }

    proptest! {
        #[test]
        fn an_image_cut_short_is_an_error_and_no_panic(length in 0..4000_usize) {
            let whole = image(4, &[1; 2000]);
            let cut = &whole[..length.min(5 * SECTOR + 64 + 1999)];
            prop_assert!(payload(cut).is_err());
        }

        #[test]
        fn no_header_makes_it_panic(words in prop::collection::vec(any::<u8>(), 0x250..0x300)) {
            let mut image = words;
            image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
            let _ = payload(&image);
        }
    }
}
