//! Whatever a back-end answers: the driver does not panic, has as many queues as it asked for at most, and is done when the back-end
//! closes its socket.
//!
//! Input: what the driver asks for (1 byte), then what the back-end sends. Run with `cargo fuzz run --features libfuzzer --sanitizer none virtio_user`.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use offload::Features;
use port::Doorbell;
use virtio_user::Options;

/// Fits into a socket's buffer.
const LEN: usize = 8192;

fuzz_target!(|input: &[u8]| {
    let [wanted, said @ ..] = input else { return };
    let offloads = if wanted & 8 == 0 { Features::ALL } else { Features::NONE };
    let options = Options {
        queues: 1 + u16::from(wanted & 3),
        packed: wanted & 4 == 0,
        sends: offloads,
        receives: offloads,
    };
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&said[..said.len().min(LEN)]).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    let stop = Doorbell::new().unwrap();
    let connected = virtio_user::connect(ours, &options, &Arc::default(), stop.as_fd());
    let Ok((mut session, queues)) = connected else { return };
    let agreed = session.agreed().queues;
    assert!((1..=options.queues).contains(&agreed) && queues.len() == usize::from(agreed));
    // It has closed its side.
    let _ = session.wait(stop.as_fd());
});
