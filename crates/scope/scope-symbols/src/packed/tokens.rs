//! The 256 strings that names consist of.

use crate::bytes::{u16_at, u32_at};

/// The number of tokens: one per value of a byte.
const COUNT: usize = 256;
/// The length of the token index in bytes.
const INDEX_LEN: usize = COUNT * 2;
/// The token index starts at a multiple of this: 4 in Xen, 8 in Linux.
const ALIGN: usize = 4;

/// A token table and its index.
pub(super) struct Tokens<'a> {
    image: &'a [u8],
    /// The offset of each token's string in the table.
    offsets: [usize; COUNT],
    /// The start of the table.
    pub(super) start: usize,
    strings_end: usize,
    /// The end of the index and of the table.
    pub(super) end: usize,
}

impl<'a> Tokens<'a> {
    /// Every token table in `image`.
    pub(super) fn all(image: &'a [u8]) -> impl Iterator<Item = Self> {
        let last = image.len().saturating_sub(INDEX_LEN);
        (0..=last).step_by(ALIGN).filter_map(move |index| Self::at(image, index))
    }

    /// The string of `token`.
    pub(super) fn get(&self, token: u8) -> &'a [u8] {
        let token = usize::from(token);
        let next = self.offsets.get(token + 1).map(|offset| self.start + offset);
        let end = next.unwrap_or(self.strings_end) - 1;
        self.image.get(self.start + self.offsets[token]..end).unwrap_or_default()
    }

    /// The token table whose index lies at `index`.
    fn at(image: &'a [u8], index: usize) -> Option<Self> {
        // Nearly every place fails here: the first token starts at 0, the second soon after.
        let first = u32_at(image, index)?;
        if first & 0xffff != 0 || first == 0 {
            return None;
        }
        let offsets = offsets(image, index)?;
        let ends = index.saturating_sub(7)..=index;
        ends.rev().find_map(|strings_end| {
            let start = start(image, &offsets, strings_end)?;
            Some(Self { image, offsets, start, strings_end, end: index + INDEX_LEN })
        })
    }
}

/// The offsets at `index`, if they ascend from 0 as those of NUL-terminated strings do.
fn offsets(image: &[u8], index: usize) -> Option<[usize; COUNT]> {
    let mut offsets = [0; COUNT];
    for token in 1..COUNT {
        offsets[token] = u16_at(image, index + token * 2)?.into();
        if offsets[token] <= offsets[token - 1] {
            return None;
        }
    }
    Some(offsets)
}

/// The start of the strings before `end`, if each one ends where the next begins according to `offsets`.
fn start(image: &[u8], offsets: &[usize; COUNT], end: usize) -> Option<usize> {
    let (nul, strings) = image.get(..end)?.split_last()?;
    let last = strings.iter().rposition(|byte| *byte == 0)? + 1;
    let start = last.checked_sub(offsets[COUNT - 1])?;
    let whole = |pair: &[usize]| {
        let string = image.get(start + pair[0]..start + pair[1]);
        string.is_some_and(|string| {
            string.iter().position(|byte| *byte == 0) == Some(string.len() - 1)
        })
    };
    (*nul == 0 && offsets.windows(2).all(whole)).then_some(start)
}
