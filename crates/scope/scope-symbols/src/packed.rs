//! The compressed symbol table that Xen and Linux carry to name their own addresses.
//!
//! Descendants of one program write both (Linux `scripts/kallsyms.c`, Xen `xen/tools/symbols.c`). Nothing in the image points to
//! the table, so it is found by its form, from its most regular part outwards:
//!
//! ```text
//! [offsets: N × u32] [Linux: base u64] [N: u32] [names: N × (length, tokens)] [markers: u32 for each 256 names]
//! [Linux 6.1.y to 6.3: order of names, N × 3 bytes] [token table: 256 strings] [token index: 256 × u16]
//! [Linux from 6.4: offsets and base here]
//! ```
//!
//! The token index must match the 256 strings before it, and the markers must match a walk through all names: no other data
//! passes for such a table.

mod names;
#[cfg(test)]
pub(crate) mod sample;
mod tokens;

use names::Names;
use tokens::Tokens;

use crate::Error;
use crate::table::Builder;

/// The most token tables to try; a real image has one.
const TABLES: usize = 16;
/// The longest name, in bytes; Linux allows 511, Xen 127.
const NAME_MAX: usize = 1023;
/// The most by which names may expand; real ones double in length.
const EXPANSION: usize = 16;

/// A compressed symbol table in an image, without its addresses.
pub(crate) struct Packed<'a> {
    image: &'a [u8],
    tokens: Tokens<'a>,
    names: Names,
}

impl<'a> Packed<'a> {
    /// Every table in `image` with consistent names.
    pub(crate) fn all(image: &'a [u8]) -> impl Iterator<Item = Self> {
        Tokens::all(image).take(TABLES).filter_map(move |tokens| {
            let names = Names::before(image, tokens.start)?;
            Some(Self { image, tokens, names })
        })
    }

    /// How many symbols the table has.
    pub(crate) fn count(&self) -> usize {
        self.names.count
    }

    /// The offset of the number of symbols. In the older order the addresses come before it.
    pub(crate) fn front(&self) -> usize {
        self.names.count_at
    }

    /// The end of the table's last part. In the newer order the addresses come after it.
    pub(crate) fn back(&self) -> usize {
        self.tokens.end
    }

    /// The symbols of `module` with the names of this table, at `addresses`. Absolute symbols are not code and cover no address.
    pub(crate) fn symbols(&self, module: &str, addresses: &[u64]) -> Result<Builder, Error> {
        let limit = (self.names.end - self.names.start).saturating_mul(EXPANSION);
        let mut builder = Builder::new(module, limit);
        let mut name = Vec::new();
        for (packed, address) in self.names.iter(self.image).zip(addresses) {
            self.unpack(packed, &mut name);
            let (kind, name) = name.split_first().unwrap_or((&b'?', &[]));
            let size = (*kind == b'A').then_some(0);
            builder.push(String::from_utf8_lossy(name), *address, size)?;
        }
        Ok(builder)
    }

    /// Replaces `name` by the expanded name, after the letter of its kind.
    fn unpack(&self, packed: &[u8], name: &mut Vec<u8>) {
        name.clear();
        for token in packed {
            name.extend_from_slice(self.tokens.get(*token));
            if name.len() > NAME_MAX {
                return name.truncate(NAME_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::sample::Order;
    use super::*;

    /// Numbers of names near those at which the number of markers changes.
    fn counts() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..20, 250usize..260, 505usize..520, 765usize..1200]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn every_name_is_read_back(
            some in prop::collection::vec("[a-zA-Z][a-z_.#]{1,300}", 1..20),
            count in counts(),
            (align, order) in prop_oneof![
                Just((4, Order::Absent)), Just((8, Order::Absent)), Just((8, Order::Present))
            ],
            mut image in prop::collection::vec(any::<[u8; 8]>(), 1..50).prop_map(|junk| junk.concat()),
        ) {
            let names: Vec<&str> = some.iter().map(String::as_str).cycle().take(count).collect();
            image.extend(sample::table(names.iter().copied(), align, order));
            image.extend([0x5a; 64]);
            let table = Packed::all(&image).next().expect("the table");
            prop_assert_eq!(table.count(), count);
            let symbols = table.symbols("test", &vec![0; count]).expect("room").build([]);
            let read: Vec<&str> = symbols.iter().map(|symbol| symbol.name).collect();
            prop_assert_eq!(read, names.iter().map(|name| &name[1..]).collect::<Vec<_>>());
        }
    }
}
