//! Messages about hashes, against a page that the frontend has granted.

use std::sync::Arc;

use proptest::prelude::*;
use ring::LEDGER_LEN;
use wire::netif::ctrl::status::{BUFFER_OVERFLOW, INVALID_PARAMETER, NOT_SUPPORTED, SUCCESS};
use wire::toeplitz::MICROSOFT_KEY;

use super::*;

const QUEUES: u16 = 4;
const TOEPLITZ: CtrlMessage = CtrlMessage::SetHashAlgorithm { algorithm: 1 };

/// Memory that outlives backends, and a backend.
struct World {
    kept: Arc<Region>,
    cell: Arc<SteeringCell>,
    hashing: Hashing,
}

impl World {
    fn new() -> Self {
        Self::of(Arc::new(Region::anonymous(LEDGER_LEN).unwrap()), false)
    }

    fn of(kept: Arc<Region>, resumes: bool) -> Self {
        let cell = Arc::new(SteeringCell::default());
        let region = kept.slice(0..LEDGER_LEN).unwrap();
        let hashing = Hashing::new(region, QUEUES, cell.clone(), resumes).unwrap();
        Self { kept, cell, hashing }
    }

    /// The next backend, which finds live rings or not.
    fn restart(self, resumes: bool) -> Self {
        Self::of(self.kept, resumes)
    }

    /// Sends a message with a page that starts with `page`; none if the grant is no good.
    fn ask(&mut self, message: CtrlMessage, page: Option<&[u8]>) -> (u32, u32) {
        let copy = |_, bytes: &mut [u8]| {
            let Some(page) = page else { return false };
            bytes.copy_from_slice(&page[..bytes.len()]);
            true
        };
        match self.hashing.serve(message, copy) {
            Ok(data) => (SUCCESS, data),
            Err(status) => (status, 0),
        }
    }

    fn set(&mut self, message: CtrlMessage) -> u32 {
        self.ask(message, None).0
    }

    fn map(&mut self, offset: u32, queues: &[u32]) -> u32 {
        let entries = u32::try_from(queues.len()).unwrap();
        let message = CtrlMessage::SetHashMapping { gref: 9, entries, offset };
        self.ask(message, Some(queues.as_bytes())).0
    }

    fn set_key(&mut self, key: &[u8]) -> u32 {
        let len = u32::try_from(key.len()).unwrap();
        self.ask(CtrlMessage::SetHashKey { gref: 9, len }, Some(key)).0
    }

    fn is_on(&self) -> bool {
        self.cell.load().steering().is_some()
    }
}

/// The first of Microsoft's vectors.
fn tcp_frame() -> port::Frame {
    let mut frame = port::Frame::empty();
    let mut bytes = vec![0u8; 54];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34].copy_from_slice(&[
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80,
    ]);
    bytes[34..38].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
    bytes[46] = 0x50;
    frame.set_header(&bytes).unwrap();
    frame
}

#[test]
fn messages_have_the_statuses_of_the_header() {
    let mut world = World::new();
    // Before an algorithm: no kinds, and none of them can be asked for.
    assert_eq!(world.ask(CtrlMessage::GetHashFlags, None), (NOT_SUPPORTED, 0));
    for flags in [0, 1] {
        assert_eq!(world.set(CtrlMessage::SetHashFlags { flags }), INVALID_PARAMETER);
    }
    assert_eq!(world.ask(CtrlMessage::GetHashMappingSize, None), (SUCCESS, 128));
    for algorithm in [2, 256, 257, u32::MAX] {
        assert_eq!(world.set(CtrlMessage::SetHashAlgorithm { algorithm }), INVALID_PARAMETER);
    }
    assert_eq!(world.set(TOEPLITZ), SUCCESS);
    assert_eq!(world.ask(CtrlMessage::GetHashFlags, None), (SUCCESS, 0xf));
    for flags in [0x10, 0x1f, u32::MAX] {
        assert_eq!(world.set(CtrlMessage::SetHashFlags { flags }), INVALID_PARAMETER);
    }
    assert!(!world.is_on());
    assert_eq!(world.set(CtrlMessage::SetHashFlags { flags: 0xf }), SUCCESS);
    assert!(world.is_on());
    // Either of these ends it.
    assert_eq!(world.set(CtrlMessage::SetHashFlags { flags: 0 }), SUCCESS);
    assert!(!world.is_on());
    assert_eq!(world.set(CtrlMessage::SetHashFlags { flags: 2 }), SUCCESS);
    assert!(world.is_on());
    assert_eq!(world.set(CtrlMessage::SetHashAlgorithm { algorithm: 0 }), SUCCESS);
    assert!(!world.is_on());
}

#[test]
fn a_key_is_copied_whole_or_the_earlier_one_stays() {
    let mut world = World::new();
    world.set(TOEPLITZ);
    world.set(CtrlMessage::SetHashFlags { flags: 2 });
    let frame = tcp_frame();
    let hash = |world: &World| world.cell.load().steering().unwrap().hash(&frame).unwrap();
    assert_eq!(hash(&world).value, 0, "the key is empty at first");
    assert_eq!(world.set_key(&MICROSOFT_KEY), SUCCESS);
    assert_eq!(hash(&world), port::FlowHash { input: HashInput::Ipv4Tcp, value: 0x51cc_c178 });
    for len in [41, 4096, 4097, 65_536 + 40, u32::MAX] {
        let message = CtrlMessage::SetHashKey { gref: 9, len };
        assert_eq!(world.set(message), BUFFER_OVERFLOW, "{len}");
    }
    let refused = CtrlMessage::SetHashKey { gref: 9, len: 40 };
    assert_eq!(world.ask(refused, None).0, INVALID_PARAMETER);
    assert_eq!(hash(&world).value, 0x51cc_c178);
    // A shorter key ends with zeros: nothing of the earlier one is left.
    assert_eq!(world.set_key(&MICROSOFT_KEY[..4]), SUCCESS);
    let mut short = [0; KEY_LEN];
    short[..4].copy_from_slice(&MICROSOFT_KEY[..4]);
    let flow = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
    assert_eq!(hash(&world).value, Table::new(&short).hash(&flow));
    // An empty one needs no page.
    assert_eq!(world.set(CtrlMessage::SetHashKey { gref: 9, len: 0 }), SUCCESS);
    assert_eq!(hash(&world).value, 0);
}

#[test]
fn a_table_is_written_in_its_bounds_or_stays() {
    let mut world = World::new();
    for entries in [129, 65_536, u32::MAX] {
        assert_eq!(world.set(CtrlMessage::SetHashMappingSize { entries }), INVALID_PARAMETER);
    }
    assert_eq!(world.map(0, &[0]), INVALID_PARAMETER, "there is no table yet");
    assert_eq!(world.set(CtrlMessage::SetHashMappingSize { entries: 8 }), SUCCESS);
    assert_eq!(world.map(0, &[0, 1, 2, 3]), SUCCESS);
    assert_eq!(world.map(4, &[3, 2, 1, 0]), SUCCESS);
    let table = [0, 1, 2, 3, 3, 2, 1, 0];
    assert_eq!(world.hashing.settings.mapping(), table);
    for offset in [5, 8, 9, 124] {
        assert_eq!(world.map(offset, &[1, 1, 1, 1]), INVALID_PARAMETER, "{offset}");
    }
    // Beyond any table, and where the sum wraps (XSA-270).
    for (offset, entries) in [(128, 1), (0, 129), (u32::MAX, 2), (8, u32::MAX - 7), (4, 1024)] {
        let message = CtrlMessage::SetHashMapping { gref: 9, entries, offset };
        assert_eq!(world.set(message), BUFFER_OVERFLOW, "{offset} {entries}");
    }
    // One queue that is not there, at the end: nothing is written.
    for queue in [4, 0x1_0000, 0x1_0001, u32::MAX] {
        assert_eq!(world.map(0, &[2, 2, 2, queue]), INVALID_PARAMETER, "{queue}");
    }
    let no_page = CtrlMessage::SetHashMapping { gref: 9, entries: 2, offset: 0 };
    assert_eq!(world.set(no_page), INVALID_PARAMETER);
    assert_eq!(world.set(CtrlMessage::SetHashMapping { gref: 9, entries: 0, offset: 8 }), SUCCESS);
    assert_eq!(world.hashing.settings.mapping(), table);
    // A new table is all zeros.
    assert_eq!(world.set(CtrlMessage::SetHashMappingSize { entries: 3 }), SUCCESS);
    assert_eq!(world.hashing.settings.mapping(), [0, 0, 0]);
}

#[test]
fn settings_outlive_a_backend_and_not_a_frontend() {
    let mut world = World::new();
    world.set(TOEPLITZ);
    world.set_key(&MICROSOFT_KEY);
    world.set(CtrlMessage::SetHashMappingSize { entries: 4 });
    world.map(0, &[3, 1, 2, 0]);
    world.set(CtrlMessage::SetHashFlags { flags: 2 });
    let settings = world.hashing.settings;
    let mut world = world.restart(true);
    assert!(world.is_on());
    assert_eq!(world.hashing.settings, settings);
    // What was kept is changed from here on.
    world.map(0, &[1]);
    let changed = world.hashing.settings;
    let world = world.restart(true);
    assert_eq!(world.hashing.settings, changed);
    // A frontend that connects anew starts without, also after one more restart.
    let world = world.restart(false);
    assert!(!world.is_on());
    let world = world.restart(true);
    assert_eq!(world.hashing.settings, Settings::DEFAULT);
}

#[test]
fn a_backend_that_is_killed_while_it_writes_leaves_the_earlier_settings() {
    let mut world = World::new();
    world.set(TOEPLITZ);
    let valid: u64 = world.kept.read(0).unwrap();
    let before = world.hashing.settings;
    world.set(CtrlMessage::SetHashFlags { flags: 2 });
    assert_ne!(world.kept.read::<u64>(0).unwrap(), valid);
    // All of the new settings is written, but for their number.
    world.kept.write(0, valid).unwrap();
    let world = world.restart(true);
    assert_eq!(world.hashing.settings, before);
    // Nonsense is no settings.
    world.kept.write(0, 7u64).unwrap();
    assert_eq!(world.restart(true).hashing.settings, Settings::DEFAULT);
}

fn any_message() -> impl Strategy<Value = CtrlMessage> {
    let number = || prop_oneof![0u32..6, 0u32..140, any::<u32>()];
    (0u32..7, number(), number(), number()).prop_map(|(kind, a, b, c)| match kind {
        0 => CtrlMessage::GetHashFlags,
        1 => CtrlMessage::SetHashFlags { flags: a },
        2 => CtrlMessage::SetHashKey { gref: a, len: b },
        3 => CtrlMessage::GetHashMappingSize,
        4 => CtrlMessage::SetHashMappingSize { entries: a },
        5 => CtrlMessage::SetHashMapping { gref: a, entries: b, offset: c },
        _ => CtrlMessage::SetHashAlgorithm { algorithm: a },
    })
}

proptest! {
    #[test]
    fn whatever_is_sent_frames_go_to_queues_that_are_there(
        messages in prop::collection::vec((any_message(), any::<bool>()), 0..40),
        page in prop::collection::vec(0u32..5, 128),
    ) {
        let mut world = World::new();
        for (message, is_granted) in messages {
            let before = world.hashing.settings;
            let page = is_granted.then(|| page.as_bytes());
            let (answer, _) = world.ask(message, page);
            prop_assert!(answer == SUCCESS || world.hashing.settings == before);
            prop_assert!(world.hashing.settings.is_valid(QUEUES));
            if let Some(steering) = world.cell.load().steering() {
                let queue = steering.queue_of(steering.hash(&tcp_frame()), QUEUES.into());
                prop_assert!(queue < QUEUES.into());
            }
        }
        let settings = world.hashing.settings;
        prop_assert_eq!(world.restart(true).hashing.settings, settings);
    }
}
