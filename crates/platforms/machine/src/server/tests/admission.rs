//! Who may join, and what a refusal leaves behind.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_domain_that_could_not_be_created_is_not_destroyed() {
    let daemon = Daemon::start();
    let nodes = daemon.machine.store().connect(DRIVER_DOMAIN);
    nodes.write(None, "/local/domain/0/backend/vif/1/0/state", "4").unwrap();
    // There are not that many addresses.
    let why = daemon.refusal("guest-huge");
    assert!(why.contains("guest memory"), "{why}");
    // The session ends after its refusal.
    let (_guest, _store) = daemon.join("guest-a");
    assert_eq!(daemon.reported(), ["created 2 guest-a"]);
}

#[test]
fn an_applicant_is_known_by_the_kernel_and_by_its_token() {
    let daemon = Daemon::start();
    let token = Token::offered(b"0123456789abcdef");
    let (_guest, _store) = join_with(&daemon.path, "guest-a", Some(&token)).unwrap();
    let (_other, _store) = daemon.join("guest-b");
    let applicants = daemon.toolstack.applicants.lock().unwrap();
    let [first, second] = &applicants[..] else { panic!("{applicants:?}") };
    assert_eq!((first.token.as_ref(), second.token.as_ref()), (Some(&token), None));
    assert_eq!(first.process, std::process::id());
    assert_eq!(first.user, rustix::process::getuid().as_raw());
}

#[test]
fn the_socket_has_the_permissions_that_it_was_given() {
    for mode in [0o600, 0o660, 0o666] {
        let path = fresh_path();
        let _listener = Listener::bind(&path, mode).unwrap();
        let permissions = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode);
    }
}

#[test]
fn silent_connections_of_a_user_are_bounded_and_others_join() {
    let silent = Arc::new(Silent::default());
    let held: Vec<_> = (0..SILENT_MAX).map(|_| silent.count(1000).unwrap()).collect();
    assert!(silent.count(1000).is_none());
    let other = silent.count(1001);
    assert!(other.is_some());
    drop((held, other));
    assert!(silent.count(1000).is_some());
    assert!(silent.0.lock().unwrap().is_empty(), "a user without connections takes no memory");
}

#[test]
fn a_refusal_without_a_hello_reaches_the_guest() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    send(&theirs, &Packet::hello("guest-a", None), &[]).unwrap();
    refuse_unheard(&ours, "not today");
    drop(ours);
    let (answer, _) = receive(&theirs).unwrap().unwrap();
    assert_eq!((answer.code, answer.text().as_str()), (1, "not today"));
}

#[test]
fn event_channels_beyond_the_share_are_refused() {
    let daemon = Daemon::start();
    let (socket, ..) = daemon.raw_guest("guest-a");
    let offer = Packet::new(call::ALLOC_UNBOUND, 0, "");
    let mut ends = Vec::new();
    for port in 1..=8 {
        send(&socket, &offer, &[]).unwrap();
        let (reply, fds) = receive(&socket).unwrap().unwrap();
        assert_eq!((reply.code, reply.arg), (0, port));
        ends.push(fds);
    }
    assert!(call(&socket, &offer).unwrap_err().contains("event channels"));
    // A channel that the guest has closed makes room.
    ends.pop();
    assert_eq!(call(&socket, &offer), Ok(9));
}

#[test]
fn a_guest_of_sealed_memory_makes_no_holes_and_is_served_only_when_it_is_sealed() {
    use rustix::fs::{FallocateFlags, fallocate};
    let daemon = Daemon::start();
    let (socket, welcome, fds) = daemon.raw_guest("guest-sealed");
    assert_eq!(welcome.flags, crate::proto::memory::SEALED);
    let peer = daemon.peer(DomId(u16::try_from(welcome.arg).unwrap()));
    let len = SIZE.pages * PAGE_SIZE;
    let memory = Region::map(&fds[0], 0, len).unwrap();
    // A page is granted, and the guest can still make holes.
    memory.write(8 * 8, [1u16, 0]).unwrap();
    memory.write(8 * 8 + 4, 3u32).unwrap();
    memory.write(3 * PAGE_SIZE, 42u8).unwrap();
    let punch = || {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fds[0], flags, 4 * PAGE_SIZE as u64, PAGE_SIZE as u64)
    };
    assert!(punch().is_ok());
    assert!(daemon.machine.map(&peer, &[GrantRef(8)]).is_err());
    assert!(daemon.machine.aperture(&peer, 1).is_err());

    assert_eq!(call(&socket, &Packet::new(call::MAPPED, 0, "")), Ok(0));
    assert!(punch().is_err());
    assert!(Region::map(&fds[0], 0, len).is_err());
    let mapping = daemon.machine.map(&peer, &[GrantRef(8)]).unwrap();
    assert_eq!(mapping.read(0), Ok(42u8));
    mapping.write(1, 43u8).unwrap();
    assert_eq!(memory.read(3 * PAGE_SIZE + 1), Ok(43u8));
    let mut request = Packet::new(call::DECREASE_RESERVATION, 8, "");
    request.pages[0] = 1;
    assert!(call(&socket, &request).is_err(), "there is no balloon either");
    assert_eq!(peer.pages_out(), 0);
    // The library makes this call for its users.
    let (guest, _store) = daemon.join("guest-sealed");
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    let peer = daemon.peer(guest.domid());
    assert!(daemon.machine.map(&peer, &grefs).is_ok());
}

#[test]
fn a_guest_of_secret_memory_makes_no_holes_and_cards_map_it_later() {
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    if shm::create_secret_file(SIZE.pages)
        .and_then(|fd| Region::map(fd, 0, SIZE.pages * PAGE_SIZE))
        .is_err()
    {
        eprintln!("skipped: no secret memory here");
        return;
    }
    let daemon = Daemon::start();
    let (socket, welcome, fds) = daemon.raw_guest("guest-secret");
    let peer = daemon.peer(DomId(u16::try_from(welcome.arg).unwrap()));
    let len = SIZE.pages * PAGE_SIZE;
    let memory = Region::map(&fds[0], 0, len).unwrap();
    memory.write(4 * PAGE_SIZE, 42u8).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (start, page) = (4 * PAGE_SIZE as u64, PAGE_SIZE as u64);
    assert!(fallocate(&fds[0], flags, start, page).is_err());
    assert!(ftruncate(&fds[0], start).is_err());
    let mut request = Packet::new(call::DECREASE_RESERVATION, 8, "");
    request.pages[0] = 1;
    assert!(call(&socket, &request).is_err(), "there is no balloon either");
    assert_eq!((peer.pages_out(), peer.memory_in_use()), (0, None));
    // A card that starts now.
    let card = Region::map(peer.memory_file(), 0, len).unwrap();
    assert_eq!(card.read(4 * PAGE_SIZE), Ok(42u8));
    card.write(4 * PAGE_SIZE, 43u8).unwrap();
    assert_eq!(memory.read(4 * PAGE_SIZE), Ok(43u8));
    // Grants are mapped as ever.
    let (guest, _store) = daemon.join("guest-secret");
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    assert!(daemon.machine.map(&daemon.peer(guest.domid()), &grefs).is_ok());
}

#[test]
fn a_guest_that_prevents_the_seal_is_not_served() {
    let daemon = Daemon::start();
    let (socket, welcome, fds) = daemon.raw_guest("guest-sealed");
    let peer = daemon.peer(DomId(u16::try_from(welcome.arg).unwrap()));
    rustix::fs::fcntl_add_seals(&fds[0], rustix::fs::SealFlags::SEAL).unwrap();
    assert!(call(&socket, &Packet::new(call::MAPPED, 0, "")).is_err());
    assert!(daemon.machine.aperture(&peer, 1).is_err());
}
