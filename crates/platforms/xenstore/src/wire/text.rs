//! Strings in a payload: each ends in a NUL.

use super::{ErrorCode, WireError};

/// Joins strings, each with its NUL.
///
/// # Errors
/// [`WireError::Nul`] if a string holds a NUL: the rest would be taken for another string.
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<u8>, WireError> {
    let mut payload = Vec::new();
    for text in texts {
        if text.contains('\0') {
            return Err(WireError::Nul);
        }
        payload.extend_from_slice(text.as_bytes());
        payload.push(0);
    }
    Ok(payload)
}

/// Splits a payload into its strings. An empty payload holds no string.
///
/// # Errors
/// [`ErrorCode::Einval`] if the last has no NUL or one is not UTF-8.
pub fn split(payload: &[u8]) -> Result<Vec<&str>, ErrorCode> {
    let text = str::from_utf8(payload).map_err(|_| ErrorCode::Einval)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let text = text.strip_suffix('\0').ok_or(ErrorCode::Einval)?;
    Ok(text.split('\0').collect())
}

/// A payload that is one string.
///
/// # Errors
/// [`ErrorCode::Einval`] if it is anything else.
pub fn single(payload: &[u8]) -> Result<&str, ErrorCode> {
    match split(payload)?[..] {
        [text] => Ok(text),
        _ => Err(ErrorCode::Einval),
    }
}

/// An unsigned decimal number: digits only, where Rust's own parser would take a sign too.
///
/// # Errors
/// [`ErrorCode::Einval`] if it is no number or does not fit.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, ErrorCode> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ErrorCode::Einval);
    }
    text.parse().map_err(|_| ErrorCode::Einval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_in_nul() {
        assert_eq!(join(["a", "", "b"]), Ok(b"a\0\0b\0".to_vec()));
        assert_eq!(split(b"a\0\0b\0"), Ok(vec!["a", "", "b"]));
        assert_eq!(split(b""), Ok(vec![]));
        assert_eq!(split(b"\0"), Ok(vec![""]));
        assert_eq!(join(["a\0b"]), Err(WireError::Nul));
    }

    #[test]
    fn malformed_strings_are_refused() {
        assert_eq!(split(b"a\0b"), Err(ErrorCode::Einval));
        assert_eq!(split(b"\xff\0"), Err(ErrorCode::Einval));
        assert_eq!(single(b"a\0b\0"), Err(ErrorCode::Einval));
        assert_eq!(single(b""), Err(ErrorCode::Einval));
    }

    #[test]
    fn numbers_are_digits() {
        assert_eq!(number("65535"), Ok(65535u16));
        for wrong in ["", "65536", "-1", "+1", " 1", "0x1"] {
            assert_eq!(number::<u16>(wrong), Err(ErrorCode::Einval), "{wrong:?}");
        }
    }
}
