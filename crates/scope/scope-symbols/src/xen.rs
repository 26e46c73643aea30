//! The symbols of Xen in its boot image.

use std::collections::HashMap;
use std::ops::Range;

use object::read::elf::{ElfFile32, ElfFile64};
use object::read::pe::PeFile64;
use object::{Endianness, FileKind, Object, ObjectSegment};

use crate::bytes::u32s_at;
use crate::packed::Packed;
use crate::{Error, Symbols};

/// The expected file, in error messages.
const WHAT: &str = "the Xen image";
/// Xen's addresses start at a multiple of this (`XEN_VIRT_START` in `asm-x86/config.h`), and none is further away from it.
const ORIGIN_ALIGN: u64 = 1 << 30;
/// The start of the kernel half of the address space, which contains Xen.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
/// The pointers to its own symbols that an image must contain for its origin to be accepted. Debian's has over a thousand.
const POINTERS: usize = 16;

/// The symbols of Xen on x86, from the table that the hypervisor itself prints its call traces with.
///
/// `image` is the boot image, stripped and uncompressed: `xen-4.17-amd64.gz` after `gunzip` (an ELF file) or
/// `xen-4.17-amd64.efi` (a PE file). The table holds offsets from the address that Xen is linked to, its origin: the
/// gigabyte that most pointers in the image point into. Enough of these must point to symbols. Local symbols have the names
/// that Xen gives them: `common/sched/core.c#schedule`.
///
/// # Errors
/// [`Error::Compressed`], [`Error::NotExecutable`], [`Error::NoSymbols`] and, of a hostile table,
/// [`Error::Overgrown`].
pub fn xen_image(image: &[u8]) -> Result<Symbols, Error> {
    if image.starts_with(&[0x1f, 0x8b]) {
        return Err(Error::Compressed { what: WHAT, form: "gzip", remedy: "gunzip" });
    }
    let segments = segments(image)?;
    for table in Packed::all(image) {
        if let Some((origin, addresses)) = addresses(image, &table) {
            let ranges = segments.iter().map(|range| linked(range, origin));
            return Ok(table.symbols("xen", &addresses)?.build(ranges));
        }
    }
    let remedy = "give the image that boots, or the symbols of the package's xen-syms as a program";
    Err(Error::NoSymbols { what: WHAT, remedy })
}

/// The segments of the image, at the addresses in the headers.
fn segments(image: &[u8]) -> Result<Vec<Range<u64>>, Error> {
    match FileKind::parse(image) {
        // mkelf32 writes a 32-bit ELF file with physical addresses, which boot loaders need.
        Ok(FileKind::Elf32) => ElfFile32::<Endianness>::parse(image).map(|file| of(&file)),
        Ok(FileKind::Pe64) => PeFile64::parse(image).map(|file| of(&file)),
        _ => ElfFile64::<Endianness>::parse(image).map(|file| of(&file)),
    }
    .map_err(|cause| Error::NotExecutable { what: WHAT, cause: cause.to_string() })
}

fn of<'data>(file: &impl Object<'data>) -> Vec<Range<u64>> {
    let range = |start: u64, len: u64| start..start.saturating_add(len);
    file.segments().map(|segment| range(segment.address(), segment.size())).collect()
}

/// Converts a range of physical or virtual addresses to virtual ones: Xen's physical addresses are offsets from its origin.
fn linked(range: &Range<u64>, origin: u64) -> Range<u64> {
    let start = origin | (range.start % ORIGIN_ALIGN);
    start..start.saturating_add(range.end - range.start)
}

/// The origin and the addresses of the symbols in `table`; none if they are not consistent.
fn addresses(image: &[u8], table: &Packed<'_>) -> Option<(u64, Vec<u64>)> {
    let at = table.front().checked_sub(table.count().checked_mul(4)?)?;
    let offsets: Vec<u32> = u32s_at(image, at, table.count())?.collect();
    let ends = offsets.last().is_some_and(|last| u64::from(*last) < ORIGIN_ALIGN);
    if !ends || !offsets.is_sorted() {
        return None;
    }
    let origin = origin(image)?;
    let addresses: Vec<u64> = offsets.iter().map(|offset| origin + u64::from(*offset)).collect();
    let to_symbol = |pointer: &u64| addresses.binary_search(pointer).is_ok();
    (pointers(image).filter(to_symbol).take(POINTERS).count() == POINTERS)
        .then_some((origin, addresses))
}

/// The gigabyte of the kernel half that most words of the image point into.
fn origin(image: &[u8]) -> Option<u64> {
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for pointer in pointers(image) {
        *seen.entry(pointer & !(ORIGIN_ALIGN - 1)).or_default() += 1;
    }
    seen.into_iter().max_by_key(|(origin, count)| (*count, *origin)).map(|(origin, _)| origin)
}

/// The aligned words of the image that could be addresses of the kernel half.
fn pointers(image: &[u8]) -> impl Iterator<Item = u64> {
    let words = image.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.filter(|word| *word >= KERNEL_HALF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packed::sample::{self, Order};

    const ORIGIN: u64 = 0xffff_82d0_4000_0000;
    const TEXT: u64 = 0x20_0000;

    /// An image with `count` symbols of 16 bytes each, and pointers to `pointers` of them.
    fn image(count: u64, pointers: u64) -> Vec<u8> {
        let mut body = vec![0x90; 64];
        for symbol in 0..pointers {
            body.extend((ORIGIN + TEXT + symbol * 16).to_le_bytes());
        }
        for symbol in 0..count {
            body.extend(u32::try_from(TEXT + symbol * 16).expect("small").to_le_bytes());
        }
        let names: Vec<_> = (0..count).map(name).collect();
        body.extend(sample::table(names.iter().map(String::as_str), 4, Order::Absent));
        sample::elf(false, TEXT, &body)
    }

    fn name(symbol: u64) -> String {
        match symbol {
            1 => "Tdo_grant_table_op".to_owned(),
            2 => "Tcontext_switch".to_owned(),
            other => format!("tcommon/file.c#f{other}"),
        }
    }

    #[test]
    fn names_and_addresses_are_read() {
        let xen = xen_image(&image(700, 20)).expect("table");
        assert_eq!((xen.module(), xen.len()), ("xen", 700));
        let found = xen.lookup(ORIGIN + TEXT + 2 * 16 + 5).expect("inside");
        assert_eq!((found.name, found.offset), ("context_switch", 5));
        assert_eq!(
            xen.lookup(ORIGIN + TEXT + 16).map(|symbol| symbol.name),
            Some("do_grant_table_op")
        );
        assert_eq!(xen.lookup(ORIGIN + TEXT - 1), None);
    }

    #[test]
    fn an_origin_that_nothing_points_to_is_not_believed() {
        assert!(matches!(xen_image(&image(700, 3)), Err(Error::NoSymbols { .. })));
    }

    #[test]
    fn what_is_not_xen_is_refused_with_the_next_step() {
        let packed = xen_image(&[0x1f, 0x8b, 8, 0]).expect_err("gzip").to_string();
        assert!(packed.ends_with("give it uncompressed: gunzip"), "{packed}");
        assert!(matches!(xen_image(b"text"), Err(Error::NotExecutable { .. })));
        let mut cut = image(700, 20);
        cut.truncate(cut.len() - 2);
        assert!(matches!(xen_image(&cut), Err(Error::NoSymbols { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = xen_image(&bytes);
        }

        /// Damage in one place is noticed, or harms a few names or addresses; nothing panics.
        #[test]
        fn a_damaged_image_is_read_or_refused(at in 0usize..20_000, bytes in any::<[u8; 4]>()) {
            let mut image = image(300, 20);
            let at = at % (image.len() - 4);
            image[at..at + 4].copy_from_slice(&bytes);
            let _ = xen_image(&image);
        }
    }
}
