//! A switch with two honest machines, and a third one that means harm.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use datapath::{Config, Datapath, Failure, Port};
use port::Queue;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use shm::PageSize;
use vhost_user::Device;
use wire::ethernet::MacAddr;

use crate::common::{FrontEnd, LEN, LINUX, Served, Vm, plain, tcp, tso};

/// The honest machines: `tcp` makes frames from the second one to the first one.
const BLUE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const RED: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const GREEN: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
/// How often a test polls for a frame, with a millisecond between, before it is late. Counted, because a test whose
/// process was frozen has not waited.
const POLLS: usize = 5000;

/// Plugs the rings of a session into the switch, as the daemon does.
struct Plug {
    datapath: Arc<Datapath>,
    mac: MacAddr,
    port: Mutex<Option<Arc<Port>>>,
}

impl Plug {
    fn unplug(&self) {
        let port = self.port.lock().unwrap().take();
        if let Some(port) = port {
            self.datapath.detach(port.id());
        }
    }
}

impl Device for Plug {
    fn start(&self, queues: Vec<Queue>) {
        let port = self.datapath.attach("machine", queues, Vec::new());
        self.datapath.teach(port.id(), self.mac).unwrap();
        *self.port.lock().unwrap() = Some(port);
    }

    fn stop(&self, _: &str) {
        self.unplug();
    }
}

/// Waits for what must come in time.
pub fn wait(what: &str, mut is_there: impl FnMut() -> bool) {
    for _ in 0..POLLS {
        if is_there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not come in time");
}

/// One worker serves all of them.
pub struct Bed {
    datapath: Arc<Datapath>,
    failures: mpsc::Receiver<Failure>,
    red: Vm,
    blue: Vm,
    /// The plug of the third machine.
    green: Option<Arc<Plug>>,
    /// Payload bytes of the next frame.
    next: usize,
    /// Frames that the second machine has sent, and those whose buffers came back.
    sent: u64,
    returned: u64,
}

impl Bed {
    pub fn new() -> Self {
        let (failed, failures) = mpsc::channel();
        let report = move |failure| drop(failed.send(failure));
        let datapath = Datapath::start(&Config::default(), Box::new(report)).unwrap();
        let datapath = Arc::new(datapath);
        let [red, blue] = [RED, BLUE].map(|mac| {
            let file = shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap();
            boot(&datapath, mac, LINUX, file).0
        });
        let mut bed =
            Self { datapath, failures, red, blue, green: None, next: 6, sent: 0, returned: 0 };
        bed.blue.post(128, 1526);
        bed.carries();
        bed
    }

    /// A front-end of the third machine.
    pub fn front(&self) -> FrontEnd {
        plug(&self.datapath, GREEN).0
    }

    /// The third machine, with its rings plugged in.
    pub fn green(&mut self, features: u64) -> Vm {
        self.green_in(features, shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap())
    }

    /// The same in this memory.
    pub fn green_in(&mut self, features: u64, file: OwnedFd) -> Vm {
        let (vm, plug) = boot(&self.datapath, GREEN, features, file);
        self.green = Some(plug);
        vm
    }

    /// Frames of the honest machines come through, each in time, whole, and nothing else does.
    pub fn carries(&mut self) {
        for _ in 0..4 {
            let frame = tcp(self.next);
            self.next = self.next % 1000 + 1;
            self.blue.post(1, 1526);
            self.red.send(&plain(&self.red), &frame, &[12], false);
            self.red.kick();
            let mut came = None;
            wait("a neighbour's frame", || {
                came = self.blue.receive();
                came.is_some()
            });
            assert!(came.unwrap().1 == frame, "another frame than the neighbour's");
            self.sent += 1;
            wait("the neighbour's buffer", || {
                self.take_back();
                self.returned == self.sent
            });
        }
    }

    /// The second machine sends a frame with so many bytes to the third one, and nobody waits for it.
    pub fn send_to_green(&mut self, payload: usize) {
        self.send_all_to_green(&plain(&self.red), &tcp(payload));
    }

    /// The same of a frame with metadata. At most 12 may be on their way at a time, because their buffers are used again.
    pub fn send_all_to_green(&mut self, metadata: &[u8], frame: &[u8]) {
        self.take_back();
        self.sent += 1;
        let frame = [&GREEN.0[..], &frame[6..]].concat();
        self.red.send(metadata, &frame, &[12], false);
        self.red.kick();
    }

    /// The third machine sends a frame to itself, which the switch drops.
    pub fn green_sends(green: &mut Vm) {
        let frame = [&GREEN.0[..], &GREEN.0, &tcp(6)[12..]].concat();
        while green.tx.take().is_some() {}
        green.tx.arm();
        green.send(&plain(green), &frame, &[12], false);
        green.kick();
    }

    fn take_back(&mut self) {
        while self.red.tx.take().is_some() {
            self.returned += 1;
        }
    }

    /// Metadata of a frame of the second machine to be segmented.
    pub fn tso(&self, size: u16) -> Vec<u8> {
        tso(&self.red, size)
    }

    /// Why the third machine's port failed.
    pub fn failure(&mut self) -> String {
        let mut failure = None;
        wait("the failure", || {
            failure = self.failures.try_recv().ok();
            failure.is_some()
        });
        self.green.take().unwrap().unplug();
        self.carries();
        failure.unwrap().reason
    }

    /// No port has failed.
    pub fn is_whole(&mut self) -> bool {
        self.carries();
        self.failures.try_recv().is_err()
    }
}

/// The third machine's chains come back, no frame of it arrives anywhere, and its port stays.
pub fn dropped(bed: &mut Bed, features: u64, send: impl Fn(&mut Vm)) {
    let mut green = bed.green(features);
    for _ in 0..3 {
        send(&mut green);
        green.kick();
        wait("the bad frame's buffer", || green.tx.take().is_some());
        assert!(bed.is_whole());
    }
    green.front.end();
}

fn plug(datapath: &Arc<Datapath>, mac: MacAddr) -> (FrontEnd, Arc<Plug>) {
    let plug = Arc::new(Plug { datapath: datapath.clone(), mac, port: Mutex::default() });
    (FrontEnd::of(1, plug.clone(), Arc::<Served>::default(), Arc::default()), plug)
}

/// Boots a machine, and waits until its rings are plugged in.
fn boot(datapath: &Arc<Datapath>, mac: MacAddr, features: u64, file: OwnedFd) -> (Vm, Arc<Plug>) {
    let (front, plug) = plug(datapath, mac);
    let vm = Vm::boot_with(features, file, front);
    wait("the port", || plug.port.lock().unwrap().is_some());
    (vm, plug)
}

/// Makes the next write to an eventfd wait for ever.
pub fn block(fd: &OwnedFd) {
    let flags = fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK;
    fcntl_setfl(fd, flags).unwrap();
    // Until no worker's write comes between the two.
    while rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
}

/// Lets a write that waits go on.
pub fn unblock(fd: &OwnedFd) {
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK).unwrap();
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
