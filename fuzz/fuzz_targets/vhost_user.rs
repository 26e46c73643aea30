//! Whatever a front-end sends: its session ends sooner or later, without a panic, and what was started is stopped.
//!
//! Input: messages, each a request (1 byte), flags (1 byte), and a payload of a length (1 byte) and bytes. A memfd comes with
//! those that have the first flag set, and an eventfd with those that have the second one. Run with `cargo fuzz run --features libfuzzer --sanitizer none vhost_user`.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hypervisor::Meter;
use libfuzzer_sys::fuzz_target;
use offload::Features;
use port::Queue;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost_user::{Device, DeviceOptions, Session};

/// Counts what is served.
#[derive(Default)]
struct Served(AtomicUsize);

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        assert!(!queues.is_empty());
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "started twice");
    }

    fn stop(&self, _: &str) {
        assert_eq!(self.0.fetch_sub(1, Ordering::Relaxed), 1, "stopped twice");
    }
}

fuzz_target!(|input: &[u8]| {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    ours.set_nonblocking(true).unwrap();
    let served = Arc::<Served>::default();
    let options =
        DeviceOptions { queues: 2, packed: true, offloads: Features::ALL, guest_offloads: true };
    let session = Session::new(options, served.clone(), Arc::new(Meter::default())).unwrap();
    let session = std::thread::spawn(move || session.run(theirs));
    let file = shm::create_memfd("fuzz", 64, shm::PageSize::Small).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let mut rest = input;
    while let [request, flags, len, more @ ..] = rest {
        let len = usize::from(*len).min(more.len());
        let (payload, later) = more.split_at(len);
        rest = later;
        let size = u32::try_from(len).unwrap();
        let header = [u32::from(request % 48), 1 | u32::from(flags & 8), size];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [if flags & 1 != 0 { file.as_fd() } else { event.as_fd() }];
        if flags & 3 != 0 {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let header = header.map(u32::to_le_bytes).concat();
        let parts = [IoSlice::new(&header)];
        if sendmsg(&ours, &parts, &mut ancillary, SendFlags::NOSIGNAL).is_err() {
            break;
        }
        if len > 0 && rustix::net::send(&ours, payload, SendFlags::NOSIGNAL).is_err() {
            break;
        }
    }
    drop(ours);
    session.join().unwrap();
    assert_eq!(served.0.load(Ordering::Relaxed), 0, "served after the end");
});
