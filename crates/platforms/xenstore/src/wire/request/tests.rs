//! Requests are written and read back; malformed ones are refused.

use proptest::prelude::*;

use super::super::permissions::tests::permissions;
use super::*;

/// A message of any type and payload, as a hostile peer would send it.
fn raw(kind: u32, payload: &[u8]) -> Message {
    let mut bytes = Vec::new();
    for word in [kind, 1, 0, u32::try_from(payload.len()).unwrap()] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    let mut decoder = super::super::Decoder::new();
    decoder.push(&bytes);
    decoder.next_message().unwrap().unwrap()
}

#[test]
fn write_carries_octets_after_the_path() {
    let request = Request::Write { path: "a", value: b"\0\xff" };
    let message = request.message(9, 4).unwrap();
    assert_eq!(message.payload(), b"a\0\0\xff");
    assert_eq!((message.req_id(), message.tx_id()), (9, 4));
    assert_eq!(Request::parse(&message), Ok(request));
}

#[test]
fn strings_with_nul_are_not_sent() {
    for request in [Request::Read { path: "a\0b" }, Request::Watch { path: "a", token: "t\0" }] {
        assert_eq!(request.message(1, 0), Err(WireError::Nul));
    }
}

#[test]
fn replies_and_unknown_types_are_no_requests() {
    for kind in [0, 15, 16, 20, 23, u32::MAX] {
        assert_eq!(Request::parse(&raw(kind, b"a\0")), Err(ErrorCode::Enosys));
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let wrong: [(Kind, &[u8]); 14] = [
        (Kind::Read, b""),
        (Kind::Read, b"a"),
        (Kind::Read, b"a\0b\0"),
        (Kind::Write, b"a"),
        (Kind::Write, b"\xff\0value"),
        (Kind::Watch, b"a\0"),
        (Kind::Watch, b"a\0token\x001\0"),
        (Kind::SetPerms, b"a\0"),
        (Kind::SetPerms, b""),
        (Kind::TransactionEnd, b"t\0"),
        (Kind::Introduce, b"1\x002\0"),
        (Kind::Release, b"70000\0"),
        (Kind::SetTarget, b"1\0"),
        (Kind::DirectoryPart, b"a\0-1\0"),
    ];
    for (kind, payload) in wrong {
        let message = raw(kind.number(), payload);
        let parsed = Request::parse(&message);
        assert_eq!(parsed, Err(ErrorCode::Einval), "{kind:?} {payload:?}");
    }
}

#[test]
fn an_empty_reserved_string_after_the_token_is_accepted() {
    let message = raw(Kind::Watch.number(), b"a\0t\0\0");
    let (path, token) = ("a", "t");
    assert_eq!(Request::parse(&message), Ok(Request::Watch { path, token }));
}

/// What a [`Request`] borrows.
#[derive(Debug)]
struct Parts {
    path: String,
    token: String,
    value: Vec<u8>,
    permissions: Permissions,
    ids: [u16; 2],
    offset: usize,
    commit: bool,
}

impl Parts {
    fn requests(&self) -> [Request<'_>; 19] {
        let (path, token) = (self.path.as_str(), self.token.as_str());
        let [domid, target] = self.ids.map(DomId);
        [
            Request::Directory { path },
            Request::DirectoryPart { path, offset: self.offset },
            Request::Read { path },
            Request::GetPerms { path },
            Request::SetPerms { path, permissions: self.permissions.clone() },
            Request::Write { path, value: &self.value },
            Request::Mkdir { path },
            Request::Rm { path },
            Request::Watch { path, token },
            Request::Unwatch { path, token },
            Request::ResetWatches,
            Request::TransactionStart,
            Request::TransactionEnd { commit: self.commit },
            Request::Introduce { domid, mfn: path, evtchn: token },
            Request::Release { domid },
            Request::GetDomainPath { domid },
            Request::IsDomainIntroduced { domid },
            Request::Resume { domid },
            Request::SetTarget { domid, target },
        ]
    }
}

prop_compose! {
    fn parts()(
        path in "[^\0]{0,20}",
        token in "[^\0]{0,20}",
        value in prop::collection::vec(any::<u8>(), 0..40),
        permissions in permissions(),
        ids in any::<[u16; 2]>(),
        offset in any::<usize>(),
        commit in any::<bool>(),
    ) -> Parts {
        Parts { path, token, value, permissions, ids, offset, commit }
    }
}

proptest! {
    #[test]
    fn every_request_and_back(parts in parts(), req_id in any::<u32>(), tx_id in any::<u32>()) {
        for request in parts.requests() {
            let message = request.message(req_id, tx_id).unwrap();
            prop_assert_eq!(message.kind(), Some(request.kind()));
            prop_assert_eq!(Request::parse(&message), Ok(request));
        }
    }

    /// A request that parses means the same when it is written again.
    #[test]
    fn garbage_is_refused_or_understood(
        kind in 0u32..24,
        payload in prop::collection::vec(
            prop_oneof![Just(0u8), any::<u8>(), prop::sample::select(b"TFnrwb019/a".to_vec())],
            0..24,
        ),
    ) {
        let message = raw(kind, &payload);
        if let Ok(request) = Request::parse(&message) {
            let again = request.message(message.req_id(), message.tx_id()).unwrap();
            prop_assert_eq!(Request::parse(&again), Ok(request));
        }
    }
}
