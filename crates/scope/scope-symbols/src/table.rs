//! The symbols of one module, sorted, with their names in one string.

use std::fmt::{self, Write};
use std::ops::Range;

use crate::Error;

/// The longest distance that a symbol of unknown size covers up to the next one, if no range bounds it; beyond it is a hole.
const FAR: u64 = 64 << 10;
/// Before a hole, such a symbol ends with its page.
const PAGE: u64 = 4096;
/// The longest name, in bytes; the longest of real programs have a few hundred.
const NAME_MAX: usize = 4096;
/// The index of no entry.
const NONE: u32 = u32::MAX;

/// The symbols of one module. Their addresses are those of its file: a program's start near 0, a kernel's are final.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    module: String,
    names: String,
    /// Sorted by start; of equal starts, the preferred name first.
    entries: Vec<Entry>,
    /// The ranges of the module according to its headers; sorted, disjoint, empty if unknown.
    ranges: Vec<Range<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    /// The first address beyond the symbol.
    end: u64,
    /// The offset of the name in `names`.
    name: u32,
    name_len: u16,
    /// Whether `end` was given; otherwise it follows from the next symbol.
    sized: bool,
    /// The nearest entry before this one that ends later, for addresses after this one's end.
    outer: u32,
}

/// A symbol, and the position of an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol<'a> {
    /// The name, demangled where it is Rust's.
    pub name: &'a str,
    /// The address of the symbol's first byte.
    pub start: u64,
    /// Bytes from `start` to the address that was looked up.
    pub offset: u64,
}

impl Symbols {
    /// A module without symbols.
    #[must_use]
    pub fn nameless(module: &str) -> Self {
        Self { module: module.to_owned(), ..Self::default() }
    }

    /// The module: `xen`, `vmlinux`, `xen_netback`, `libc.so.6`.
    #[must_use]
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The number of symbols, including those that share an address.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no symbol.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The innermost symbol that covers `address`. Of several that start at the same address it is the preferred one: the first in a kernel's own
    /// table; in a program's, global before local and plain before `__internal`.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<Symbol<'_>> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let mut entry = self.entries.get(after.checked_sub(1)?)?;
        while address >= entry.end {
            entry = self.entries.get(usize::try_from(entry.outer).ok()?)?;
        }
        let first = self.entries.partition_point(|other| other.start < entry.start);
        let symbol = self.symbol(self.entries.get(first)?);
        Some(Symbol { offset: address - symbol.start, ..symbol })
    }

    /// The addresses of the first symbol of this name.
    #[must_use]
    pub fn range_of(&self, name: &str) -> Option<Range<u64>> {
        let entry = self.entries.iter().find(|entry| self.symbol(entry).name == name)?;
        Some(entry.start..entry.end)
    }

    /// Every symbol in the order of addresses, each at its own start.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }

    /// The module's addresses, sorted and disjoint: those of its headers or [`within`](Self::within), and those of its symbols.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let covered = self.entries.iter().map(|entry| entry.start..entry.end);
        merged(self.ranges.iter().cloned().chain(covered).collect())
    }

    /// Sets the ranges of the module: its last symbol, of unknown size, then ends with its range.
    #[must_use]
    pub fn within(mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        self.ranges = merged(ranges.into_iter().collect());
        self.bound();
        self
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        let from = usize::try_from(entry.name).unwrap_or(usize::MAX);
        let to = from.saturating_add(entry.name_len.into());
        let name = self.names.get(from..to).unwrap_or_default();
        Symbol { name, start: entry.start, offset: 0 }
    }

    /// Gives each symbol its end and its outer symbol.
    fn bound(&mut self) {
        self.bound_unsized();
        self.share_ends();
        self.link();
    }

    fn bound_unsized(&mut self) {
        let mut next = None;
        let mut following = None;
        for entry in self.entries.iter_mut().rev() {
            if following != Some(entry.start) {
                next = following.replace(entry.start);
            }
            if !entry.sized {
                entry.end = unsized_end(entry.start, next, &self.ranges);
            }
        }
    }

    /// Symbols at one address name the same code: all of them get the largest end.
    fn share_ends(&mut self) {
        for group in self.entries.chunk_by_mut(|a, b| a.start == b.start) {
            let end = group.iter().map(|entry| entry.end).max().unwrap_or_default();
            group.iter_mut().for_each(|entry| entry.end = end);
        }
    }

    fn link(&mut self) {
        let mut open: Vec<(u64, u32)> = Vec::new();
        for (index, entry) in (0..).zip(&mut self.entries) {
            while open.pop_if(|(end, _)| *end <= entry.end).is_some() {}
            entry.outer = open.last().map_or(NONE, |(_, outer)| *outer);
            open.push((entry.end, index));
        }
    }
}

/// Where a symbol of unknown size ends: at the next one, or with the range it lies in.
fn unsized_end(start: u64, next: Option<u64>, ranges: &[Range<u64>]) -> u64 {
    if let Some(range) = containing(ranges, start) {
        return next.map_or(range.end, |next| next.min(range.end));
    }
    let page = (start | (PAGE - 1)).saturating_add(1);
    next.filter(|next| next - start <= FAR).unwrap_or(page)
}

/// The range that contains `address`, of sorted and disjoint ones.
pub(crate) fn containing(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let after = ranges.partition_point(|range| range.start <= address);
    ranges.get(after.checked_sub(1)?).filter(|range| address < range.end)
}

/// The same addresses in as few ranges as possible, sorted.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

#[derive(Debug)]
pub(crate) struct Builder {
    symbols: Symbols,
    /// The most bytes that the names may take together.
    limit: usize,
}

impl Builder {
    /// An empty table. The names may take at most `limit` bytes, which callers derive from the length of the input.
    pub(crate) fn new(module: &str, limit: usize) -> Self {
        Self { symbols: Symbols::nameless(module), limit }
    }

    /// Adds a symbol. `size` is in bytes: none means unknown, 0 a symbol that covers no address. Names of one address come in
    /// the order of preference.
    pub(crate) fn push(
        &mut self,
        name: impl fmt::Display,
        start: u64,
        size: Option<u64>,
    ) -> Result<(), Error> {
        let from = self.symbols.names.len();
        let room = self.limit.saturating_sub(from);
        let mut names = Bounded { names: &mut self.symbols.names, left: room.min(NAME_MAX) };
        let cut = write!(names, "{name}").is_err();
        let len = self.symbols.names.len() - from;
        let overgrown = cut && room < NAME_MAX;
        let (Ok(name), Ok(name_len), false) = (from.try_into(), len.try_into(), overgrown) else {
            let module = self.symbols.module.clone();
            return Err(Error::Overgrown { module, limit: self.limit });
        };
        let end = start.saturating_add(size.unwrap_or_default());
        let entry = Entry { start, end, name, name_len, sized: size.is_some(), outer: NONE };
        self.symbols.entries.push(entry);
        Ok(())
    }

    /// The table of a module that covers `ranges`, which are empty if unknown.
    pub(crate) fn build(mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Symbols {
        self.symbols.entries.sort_by_key(|entry| entry.start);
        self.symbols.names.shrink_to_fit();
        self.symbols.entries.shrink_to_fit();
        self.symbols.within(ranges)
    }
}

/// Appends at most `left` bytes of a name, and fails if it is longer.
struct Bounded<'a> {
    names: &'a mut String,
    left: usize,
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.floor_char_boundary(self.left.min(text.len()));
        self.names.push_str(&text[..fits]);
        self.left -= fits;
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use proptest::prelude::*;

    use super::*;

    fn table(symbols: &[(&str, u64, Option<u64>)], ranges: &[Range<u64>]) -> Symbols {
        let mut builder = Builder::new("test", 1 << 20);
        for (name, start, size) in symbols {
            builder.push(name, *start, *size).expect("room");
        }
        builder.build(ranges.to_vec())
    }

    fn name(symbols: &Symbols, address: u64) -> Option<(&str, u64)> {
        symbols.lookup(address).map(|symbol| (symbol.name, symbol.offset))
    }

    #[test]
    fn an_unknown_size_reaches_to_the_next_symbol_and_the_range_ends_the_last() {
        let symbols =
            table(&[("b", 0x2000, None), ("a", 0x1000, None)], from_ref(&(0x1000..0x9_0000)));
        assert_eq!(name(&symbols, 0xfff), None);
        assert_eq!(name(&symbols, 0x1fff), Some(("a", 0xfff)));
        assert_eq!(name(&symbols, 0x2000), Some(("b", 0)));
        assert_eq!(name(&symbols, 0x8_ffff), Some(("b", 0x8_dfff)));
        assert_eq!(name(&symbols, 0x9_0000), None);
    }

    #[test]
    fn without_a_range_a_hole_begins_at_the_end_of_the_page() {
        let symbols = table(&[("a", 0x1010, None), ("b", 0x100_0000, None)], &[]);
        assert_eq!(name(&symbols, 0x1fff), Some(("a", 0xfef)));
        assert_eq!(name(&symbols, 0x2000), None);
        assert_eq!(symbols.ranges(), [0x1010..0x2000, 0x100_0000..0x100_1000]);
    }

    #[test]
    fn a_symbol_inside_another_gives_way_where_it_ends() {
        let sizes = [("outer", 0, Some(100)), ("inner", 10, Some(10)), ("other", 30, Some(5))];
        let symbols = table(&sizes, &[]);
        assert_eq!(name(&symbols, 19), Some(("inner", 9)));
        assert_eq!(name(&symbols, 20), Some(("outer", 20)));
        assert_eq!(name(&symbols, 99), Some(("outer", 99)));
        assert_eq!(name(&symbols, 100), None);
    }

    #[test]
    fn the_first_of_several_names_is_preferred() {
        let sizes = [("first", 8, Some(2)), ("second", 8, Some(4)), ("third", 8, None)];
        let symbols = table(&sizes, from_ref(&(0..16)));
        assert_eq!(name(&symbols, 15), Some(("first", 7)));
        assert_eq!(symbols.len(), 3);
    }

    #[test]
    fn a_symbol_of_size_zero_holds_no_address() {
        let symbols = table(&[("percpu", 0, Some(0)), ("text", 0x1000, None)], &[]);
        assert_eq!(name(&symbols, 0), None);
        assert_eq!(&symbols.ranges(), from_ref(&(0x1000..0x2000)));
    }

    #[test]
    fn names_beyond_the_limit_are_refused() {
        let mut builder = Builder::new("test", 5);
        assert_eq!(builder.push("abc", 0, None), Ok(()));
        let refused = builder.push("def", 1, None).expect_err("5 bytes are not 6");
        assert!(refused.to_string().contains("more than 5 bytes"), "{refused}");
    }

    #[test]
    fn one_endless_name_is_cut() {
        let mut builder = Builder::new("test", 1 << 20);
        builder.push("x".repeat(10_000), 0, Some(1)).expect("cut, not refused");
        let symbols = builder.build([]);
        assert_eq!(symbols.lookup(0).map(|symbol| symbol.name.len()), Some(NAME_MAX));
    }

    proptest! {
        /// A search through the whole table, from its end, is the definition of a lookup.
        #[test]
        fn a_lookup_finds_what_a_search_finds(
            sizes in prop::collection::vec((0u64..200, prop::option::of(0u64..50)), 0..40),
            address in 0u64..260,
        ) {
            let mut builder = Builder::new("test", 1 << 20);
            for (start, size) in &sizes {
                builder.push("f", *start, *size).expect("room");
            }
            let symbols = builder.build(vec![0..100, 150..220]);
            let holds = |entry: &&Entry| (entry.start..entry.end).contains(&address);
            let wanted = symbols.entries.iter().rev().find(holds).map(|entry| entry.start);
            prop_assert_eq!(symbols.lookup(address).map(|symbol| symbol.start), wanted);
        }

        #[test]
        fn merged_ranges_hold_the_same_addresses(
            ranges in prop::collection::vec((0u64..100, 0u64..20), 0..10),
            address in 0u64..130,
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(start, len)| *start..start + len).collect();
            let held = ranges.iter().any(|range| range.contains(&address));
            let merged = merged(ranges);
            prop_assert!(merged.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(containing(&merged, address).is_some(), held);
        }
    }
}
