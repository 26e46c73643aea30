//! Permissions as text: `n0`, `r3`, `w4`, `b5`.
//!
//! The first entry names the owner and what unlisted domains may do.

use hypervisor::DomId;

use super::{ErrorCode, text};
use crate::store::{Access, Permissions};

/// The entries of a node's permissions, owner first.
#[must_use]
pub fn to_texts(permissions: &Permissions) -> Vec<String> {
    let owner = (permissions.owner, permissions.default);
    std::iter::once(&owner)
        .chain(&permissions.others)
        .map(|(domid, access)| format!("{}{domid}", letter(*access)))
        .collect()
}

/// Reads entries, owner first.
///
/// # Errors
/// [`ErrorCode::Einval`] if there is none or one is malformed.
pub fn from_texts(texts: &[&str]) -> Result<Permissions, ErrorCode> {
    let entries: Result<Vec<_>, _> = texts.iter().map(|text| entry(text)).collect();
    let mut entries = entries?.into_iter();
    let (owner, default) = entries.next().ok_or(ErrorCode::Einval)?;
    Ok(Permissions { owner, default, others: entries.collect() })
}

fn letter(access: Access) -> char {
    match (access.read, access.write) {
        (false, false) => 'n',
        (true, false) => 'r',
        (false, true) => 'w',
        (true, true) => 'b',
    }
}

fn entry(text: &str) -> Result<(DomId, Access), ErrorCode> {
    let (read, write) = match text.as_bytes().first() {
        Some(b'n') => (false, false),
        Some(b'r') => (true, false),
        Some(b'w') => (false, true),
        Some(b'b') => (true, true),
        _ => return Err(ErrorCode::Einval),
    };
    let domid = text::number(&text[1..])?;
    Ok((DomId(domid), Access { read, write }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_entry_is_the_owner() {
        let permissions = from_texts(&["r3", "n0", "w4", "b5"]).unwrap();
        assert_eq!(permissions.owner, DomId(3));
        assert_eq!(permissions.default, Access::READ);
        let write = Access { read: false, write: true };
        let others = [(DomId(0), Access::NONE), (DomId(4), write), (DomId(5), Access::BOTH)];
        assert_eq!(permissions.others, others);
        assert_eq!(to_texts(&permissions), ["r3", "n0", "w4", "b5"]);
    }

    #[test]
    fn malformed_entries_are_refused() {
        assert_eq!(from_texts(&[]), Err(ErrorCode::Einval));
        for wrong in ["", "r", "x1", "r-1", "r65536", "r1 ", "é1", "1"] {
            assert_eq!(from_texts(&[wrong]), Err(ErrorCode::Einval), "{wrong:?}");
        }
    }

    /// Any permissions.
    pub fn permissions() -> impl Strategy<Value = Permissions> {
        let entry = (any::<u16>(), any::<bool>(), any::<bool>())
            .prop_map(|(domid, read, write)| (DomId(domid), Access { read, write }));
        (entry.clone(), prop::collection::vec(entry, 0..5))
            .prop_map(|((owner, default), others)| Permissions { owner, default, others })
    }

    proptest! {
        #[test]
        fn text_and_back(permissions in permissions()) {
            let texts = to_texts(&permissions);
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            prop_assert_eq!(from_texts(&texts), Ok(permissions));
        }
    }
}
