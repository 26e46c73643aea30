//! Replies: what the store answers, where it is more than a string.

use super::{ErrorCode, Kind, Message, WireError, text};
use crate::store::{PAYLOAD_MAX, WatchEvent};

/// The payload of a successful reply without data.
pub const OK: &[u8] = b"OK\0";

/// A watch event as a message.
///
/// # Errors
/// [`WireError::TooLong`] if path and token do not fit together.
pub fn watch_event(event: &WatchEvent) -> Result<Message, WireError> {
    let payload = text::join([event.path.as_str(), event.token.as_str()])?;
    // It belongs to no request: both ids are 0.
    Message::new(Kind::WatchEvent, 0, 0, payload)
}

/// The event in the payload of a [`Kind::WatchEvent`] message.
///
/// # Errors
/// [`ErrorCode::Einval`] if it does not hold a path and a token.
pub fn parse_watch_event(payload: &[u8]) -> Result<WatchEvent, ErrorCode> {
    match text::split(payload)?[..] {
        [path, token, ..] => Ok(WatchEvent { path: path.to_owned(), token: token.to_owned() }),
        _ => Err(ErrorCode::Einval),
    }
}

/// A part of a list of children that is too long for one message (DIRECTORY_PART).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPart {
    /// Changes with the node; parts of different generations do not fit together.
    pub generation: u64,
    /// Whole names of the list from the asked offset on.
    pub names: Vec<String>,
    /// Whether the list ends with this part.
    pub last: bool,
}

impl DirectoryPart {
    /// The part from byte `offset` of the list on (each name and its NUL).
    ///
    /// If no name starts there, the list has changed since the reader's last part. The part then
    /// starts at the next name, and the generation tells the reader of the change.
    #[must_use]
    pub fn cut(generation: u64, names: &[String], offset: usize) -> Self {
        let mut start = 0;
        let is_before = |name: &&String| {
            let before = start < offset;
            start += name.len() + 1;
            before
        };
        let skipped = names.iter().take_while(is_before).count();
        // Less the generation's NUL and the empty string that ends the list.
        let mut room = PAYLOAD_MAX - generation.to_string().len() - 2;
        let fits = |name: &&String| {
            let left = room.checked_sub(name.len() + 1);
            room = left.unwrap_or(0);
            left.is_some()
        };
        let part: Vec<String> = names[skipped..].iter().take_while(fits).cloned().collect();
        let last = skipped + part.len() == names.len();
        Self { generation, names: part, last }
    }

    /// How many bytes of the list this part covers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.names.iter().map(|name| name.len() + 1).sum()
    }

    /// The payload that carries it: the generation, the names, an empty string at the end.
    ///
    /// # Errors
    /// [`WireError::Nul`] if a name holds one.
    pub fn payload(&self) -> Result<Vec<u8>, WireError> {
        let generation = self.generation.to_string();
        let names = self.names.iter().map(String::as_str);
        let end = self.last.then_some("");
        text::join(std::iter::once(generation.as_str()).chain(names).chain(end))
    }

    /// Reads a part from its payload.
    ///
    /// # Errors
    /// [`ErrorCode::Einval`] if it is malformed, or holds no name and does not end the list: a
    /// reader would ask for ever.
    pub fn parse(payload: &[u8]) -> Result<Self, ErrorCode> {
        let texts = text::split(payload)?;
        let (generation, names) = texts.split_first().ok_or(ErrorCode::Einval)?;
        let (last, names) = match names {
            [names @ .., ""] => (true, names),
            [] => return Err(ErrorCode::Einval),
            names => (false, names),
        };
        Ok(Self {
            generation: text::number(generation)?,
            names: names.iter().map(|&name| name.to_owned()).collect(),
            last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn watch_events_belong_to_no_request() {
        let event = WatchEvent { path: "device/vif".into(), token: "t".into() };
        let message = watch_event(&event).unwrap();
        assert_eq!((message.req_id(), message.tx_id()), (0, 0));
        assert_eq!(message.payload(), b"device/vif\0t\0");
        assert_eq!(parse_watch_event(message.payload()), Ok(event));
        assert_eq!(parse_watch_event(b"only\0"), Err(ErrorCode::Einval));
    }

    #[test]
    fn a_part_starts_with_a_whole_name() {
        let names = ["ab".to_owned(), "c".to_owned()];
        let cut = |offset| DirectoryPart::cut(1, &names, offset);
        assert_eq!(cut(0).names, ["ab", "c"]);
        for offset in 1..=3 {
            assert_eq!(cut(offset).names, ["c"], "{offset}");
        }
        for end in [4, 5, 6, usize::MAX] {
            let part = cut(end);
            assert!(part.names.is_empty() && part.last, "{end}");
        }
        assert_eq!(cut(5).payload(), Ok(b"1\0\0".to_vec()));
    }

    #[test]
    fn an_endless_list_is_refused() {
        assert_eq!(DirectoryPart::parse(b"1\0"), Err(ErrorCode::Einval));
        assert_eq!(DirectoryPart::parse(b""), Err(ErrorCode::Einval));
    }

    proptest! {
        #[test]
        fn parts_make_the_whole_list(
            generation in any::<u64>(),
            names in prop::collection::vec("[a-z]{1,60}", 0..300),
        ) {
            let mut whole = Vec::new();
            let mut offset = 0;
            loop {
                let part = DirectoryPart::cut(generation, &names, offset);
                let payload = part.payload().unwrap();
                prop_assert!(payload.len() <= PAYLOAD_MAX);
                prop_assert_eq!(DirectoryPart::parse(&payload), Ok(part.clone()));
                offset += part.bytes();
                whole.extend(part.names);
                if part.last {
                    break;
                }
            }
            prop_assert_eq!(whole, names);
        }

        #[test]
        fn garbage_never_panics(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = DirectoryPart::parse(&payload).map(|part| part.bytes());
            let _ = parse_watch_event(&payload);
        }
    }
}
