//! The symbols of Linux in its uncompressed kernel.

use std::ops::Range;

use object::Endianness;
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::bytes::{u32s_at, u64_at};
use crate::packed::Packed;
use crate::table::containing;
use crate::{Error, Program, Symbols};

/// The expected file, in error messages.
const WHAT: &str = "the Linux kernel";
/// The start of the kernel half of the address space. Values below it are per-CPU symbols, not addresses.
const KERNEL_HALF: u64 = 1 << 63;
/// The alignment of the kernel's own libraries.
const PAGE: usize = 4096;
/// The most bytes of a vDSO; today's has two pages.
const VDSO_MOST: usize = 16 * PAGE;
/// The magic bytes of compressed files, their format, and the command that unpacks them.
const FORMS: [(&[u8], &str, &str); 4] = [
    (&[0x1f, 0x8b], "gzip", "gunzip"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "XZ", "xz -d"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "Zstandard", "zstd -d"),
    (b"MZ", "bzImage", "scripts/extract-vmlinux of the kernel's source"),
];

/// The symbols of Linux, from the table (kallsyms) that the kernel itself prints its call traces with.
///
/// `vmlinux` is the uncompressed ELF file of a 64-bit little-endian kernel, stripped or not; addresses are those that
/// it is linked to, which under Xen PV are those it runs at. Per-CPU symbols are listed but cover no address. Supported are
/// tables of offsets from a base (the default since 4.6), in the orders before and since 6.4.
///
/// # Errors
/// [`Error::Compressed`], [`Error::NotExecutable`], [`Error::NoSymbols`] and, of a hostile table,
/// [`Error::Overgrown`].
pub fn linux_image(vmlinux: &[u8]) -> Result<Symbols, Error> {
    if let Some((_, form, remedy)) = FORMS.iter().find(|(magic, ..)| vmlinux.starts_with(magic)) {
        return Err(Error::Compressed { what: WHAT, form, remedy });
    }
    let segments = segments(vmlinux)?;
    for table in Packed::all(vmlinux) {
        if let Some(addresses) = addresses(vmlinux, &table, &segments) {
            return Ok(table.symbols("vmlinux", &addresses)?.build(segments));
        }
    }
    let remedy = "read /proc/kallsyms in the guest instead, as root";
    Err(Error::NoSymbols { what: WHAT, remedy })
}

/// The vDSO: a library that Linux maps into every process, from its own image. `vmlinux` is as for [`linux_image`].
/// Returns none if there is no vDSO for 64-bit programs.
#[must_use]
pub fn vdso(vmlinux: &[u8]) -> Option<Program> {
    let pages = (0..vmlinux.len()).step_by(PAGE).skip(1);
    let mut libraries = pages.filter_map(|at| {
        let start = vmlinux.get(at..)?;
        // 64 bits, little-endian, version 1; a shared library.
        let is_library = start.starts_with(b"\x7fELF\x02\x01\x01") && start.get(16..18)? == [3, 0];
        is_library.then(|| &start[..start.len().min(VDSO_MOST)])
    });
    libraries.find_map(|library| {
        let program = Program::parse("[vdso]", library).ok()?;
        let is_vdso = program.symbols().iter().any(|symbol| symbol.name.contains("clock_gettime"));
        is_vdso.then_some(program)
    })
}

/// The segments in the kernel half, sorted.
fn segments(vmlinux: &[u8]) -> Result<Vec<Range<u64>>, Error> {
    let file = ElfFile64::<Endianness>::parse(vmlinux)
        .map_err(|cause| Error::NotExecutable { what: WHAT, cause: cause.to_string() })?;
    let endian = file.endian();
    let loads = file.elf_program_headers().iter().filter(|header| header.p_type(endian) == PT_LOAD);
    let range = |header: &object::elf::ProgramHeader64<Endianness>| {
        let start = header.p_vaddr(endian);
        start..start.saturating_add(header.p_memsz(endian))
    };
    let mut ranges: Vec<_> = loads.map(range).filter(|range| range.start >= KERNEL_HALF).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    Ok(ranges)
}

/// The addresses of the symbols in `table`, which lie before or after it.
fn addresses(vmlinux: &[u8], table: &Packed<'_>, segments: &[Range<u64>]) -> Option<Vec<u64>> {
    let count = table.count();
    let len = count.checked_mul(4)?;
    let older = table.front().checked_sub(8).into_iter().flat_map(|base_at| {
        // The offsets start at a multiple of 8; an odd number of them is followed by padding.
        [0, 4]
            .into_iter()
            .filter_map(move |padding| Some((base_at.checked_sub(len + padding)?, base_at)))
    });
    let newer = [table.back(), table.back().next_multiple_of(8)].into_iter().flat_map(|at| {
        [0, 4]
            .into_iter()
            .filter_map(move |padding| Some((at, at.checked_add(len)?.checked_add(padding)?)))
    });
    older.chain(newer).find_map(|(offsets_at, base_at)| {
        let offsets = u32s_at(vmlinux, offsets_at, count)?;
        let addresses = absolute(offsets.collect(), u64_at(vmlinux, base_at)?)?;
        // Some symbols are per-CPU and some mark ends, but a wrong table has hardly any symbol inside.
        let inside = addresses.iter().filter(|address| containing(segments, **address).is_some());
        (addresses.is_sorted() && inside.count() * 2 > count).then_some(addresses)
    })
}

/// Addresses from offsets, as `kallsyms_sym_address` makes them. With per-CPU symbols in the table (x86) a positive
/// offset is an absolute value and a negative one counts from the base; without, all count from the base, upwards.
fn absolute(offsets: Vec<u32>, base: u64) -> Option<Vec<u64>> {
    let per_cpu = offsets.iter().any(|offset| offset.cast_signed() < 0);
    let address = |offset: u32| match offset {
        absolute if per_cpu && absolute.cast_signed() >= 0 => Some(absolute.into()),
        negative if per_cpu => base.checked_add((!negative).into()),
        above => base.checked_add(above.into()),
    };
    offsets.into_iter().map(address).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packed::sample::{self, Order, align_to};

    const BASE: u64 = 0xffff_ffff_8100_0000;

    /// The position of the addresses.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Layout {
        Before,
        After,
    }

    /// An image with `count` symbols of 16 bytes each, the first two of them per-CPU if `per_cpu`.
    fn image(count: u32, layout: Layout, order: Order, per_cpu: bool) -> Vec<u8> {
        let offsets = (0..count).flat_map(|symbol| {
            match symbol {
                percpu if per_cpu && symbol < 2 => percpu * 8,
                other if per_cpu => !(other * 16),
                other => other * 16,
            }
            .to_le_bytes()
        });
        let mut addresses: Vec<u8> = offsets.collect();
        align_to(&mut addresses, 8);
        addresses.extend(BASE.to_le_bytes());
        let names: Vec<_> = (0..count).map(|symbol| name(symbol, per_cpu)).collect();
        let table = sample::table(names.iter().map(String::as_str), 8, order);
        let mut body = vec![0xcc; 64];
        match layout {
            Layout::Before => body.extend(addresses.iter().chain(&table)),
            Layout::After => body.extend(table.iter().chain(&addresses)),
        }
        // Make the image as large as the range of the symbols.
        align_to(&mut body, 32 << 10);
        sample::elf(true, BASE, &body)
    }

    fn name(symbol: u32, per_cpu: bool) -> String {
        match symbol {
            0 | 1 if per_cpu => format!("Apercpu{symbol}"),
            3 => "Tcontext_tracking".to_owned(),
            5 => format!("t{}", "long".repeat(50)),
            other => format!("tfunction{other}"),
        }
    }

    #[test]
    fn every_order_of_the_parts_is_read() {
        for (layout, order) in [
            (Layout::Before, Order::Absent),
            (Layout::Before, Order::Present),
            (Layout::After, Order::Absent),
        ] {
            for count in [20, 256, 257, 601] {
                let linux = linux_image(&image(count, layout, order, true));
                let linux =
                    linux.unwrap_or_else(|cause| panic!("{layout:?}, {order:?}, {count}: {cause}"));
                let found = linux.lookup(BASE + 3 * 16 + 1).expect("inside");
                assert_eq!((found.name, found.offset), ("context_tracking", 1));
                assert_eq!(linux.lookup(BASE + 5 * 16).map(|symbol| symbol.name.len()), Some(200));
                assert_eq!(linux.iter().count(), usize::try_from(count).expect("small"));
                assert_eq!(linux.lookup(8), None, "per-CPU");
            }
        }
    }

    #[test]
    fn without_per_cpu_symbols_offsets_count_upwards() {
        let linux = linux_image(&image(300, Layout::Before, Order::Absent, false)).expect("table");
        assert_eq!(linux.lookup(BASE + 299 * 16).map(|symbol| symbol.name), Some("function299"));
    }

    #[test]
    fn a_compressed_kernel_is_refused_with_the_next_step() {
        let error = linux_image(b"MZ and more").expect_err("bzImage").to_string();
        assert!(error.contains("scripts/extract-vmlinux"), "{error}");
        let error =
            linux_image(&sample::elf(true, BASE, &[0; 4096])).expect_err("no table").to_string();
        assert!(error.ends_with("read /proc/kallsyms in the guest instead, as root"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = linux_image(&sample::elf(true, BASE, &bytes));
            let _ = linux_image(&bytes);
        }

        #[test]
        fn a_damaged_image_is_read_or_refused(at in 0usize..32_000, bytes in any::<[u8; 4]>()) {
            let mut image = image(300, Layout::Before, Order::Present, true);
            let at = at % (image.len() - 4);
            image[at..at + 4].copy_from_slice(&bytes);
            let _ = linux_image(&image);
        }
    }
}
