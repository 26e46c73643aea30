//! Frames between two interfaces of this domain, through the whole driver domain.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::{Config, Datapath, Port};
use hypervisor::{Counted, Meter, Metered};
use machine::toolstack;
use netback::{GrantReuse, Offered, RxChannel, TxChannel, Vif, VifChange};
use netfront::{Frontend, FrontendQueue, Received};
use offload::{Checksum, Features};
use shm::Iovec;
use wire::ethernet::MacAddr;
use xen::{Xen, XenGuest};

use crate::checks::{Checks, Loopback, Outcome, TIMEOUT, ensure, equal};

type Host = Metered<Xen>;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
/// The interface whose frontend lists the multicast groups that it wants; [`traffic`] sends unicast frames only.
const LISTING: u8 = 1;
/// Frames in one page, in three, and in sixteen pages and the header channel: the largest frame.
const SIZES: [usize; 6] = [14, 60, 1514, 9014, 10_000, 65_535];

pub fn check(here: &Loopback, checks: &mut Checks) {
    // Two interfaces grant some 550 pages each.
    let raised = fs::write("/sys/module/xen_gntalloc/parameters/limit", "65536");
    checks.check("gntalloc's limit is raised", raised.map_err(Into::into));
    for variant in VARIANTS {
        let crossed =
            with_interfaces(here, variant, |interfaces, meter| traffic(interfaces, meter, variant));
        checks.check(&format!("frames cross both ways ({variant:?})"), crossed);
    }
    let listed = with_interfaces(here, VARIANTS[0], |interfaces, _| lists(interfaces));
    checks.check("a guest gets the groups that it lists, and no others", listed);
}

/// The channels of a run.
#[derive(Clone, Copy, Debug)]
struct Variant {
    tx: TxChannel,
    header_channel: bool,
    persistent_grants: bool,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.tx)?;
        for (on, what) in
            [(self.header_channel, "header pages"), (self.persistent_grants, "persistent grants")]
        {
            if on {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

const VARIANTS: [Variant; 5] = [
    Variant { tx: TxChannel::Header, header_channel: true, persistent_grants: true },
    Variant { tx: TxChannel::Header, header_channel: true, persistent_grants: false },
    Variant { tx: TxChannel::Header, header_channel: false, persistent_grants: true },
    Variant { tx: TxChannel::Header, header_channel: false, persistent_grants: false },
    Variant { tx: TxChannel::Remap, header_channel: false, persistent_grants: false },
];

/// Both ends of an interface.
struct Interface {
    vif: Vif<Host>,
    port: Arc<Port>,
    frontend: Frontend<XenGuest>,
    queue: FrontendQueue<XenGuest>,
}

fn connect(
    here: &Loopback,
    host: &Host,
    datapath: &Datapath,
    index: u8,
    variant: Variant,
) -> Result<Interface, Box<dyn Error>> {
    let mac = MACS[usize::from(index)].map(|byte| format!("{byte:02x}")).join(":");
    let backend = toolstack::backend_path(here.domid, index.into());
    let device = toolstack::device_path(index.into());
    toolstack::create_vif(&*here.store, here.domid, index.into(), &mac)?;
    let Variant { tx, header_channel, persistent_grants } = variant;
    let offered = Offered {
        max_queues: 1,
        features: Features::ALL,
        guest_offloads: true,
        split_event_channels: true,
        tx,
        rx: RxChannel::Copy,
        persistent_grants: 512,
        reuse: GrantReuse::Agreed,
        multicast_control: true,
        coalescing: None,
        completion_delay: None,
    };
    let ledgers = Arc::new(netback::Anonymous::default());
    let mut vif = Vif::adopt(host.clone(), here.store.clone(), &backend, offered, ledgers)?;
    let config = netfront::Config {
        header_channel,
        persistent_grants,
        multicast_control: index == LISTING,
        ..netfront::Config::default()
    };
    let guest = here.guest.clone();
    // A second connection to the store, over the other transport, as another process would have it.
    let stream = xen::store::connect_by_device()?;
    let store = Arc::new(xenstore::Client::new(stream)?);
    let frontend = std::thread::spawn(move || Frontend::connect(&guest, store, &device, &config));
    let port = attach(&mut vif, datapath, index)?;
    let (frontend, queues) = frontend.join().map_err(|_| "the frontend panicked")??;
    let queue = queues.into_iter().next().ok_or("no queue")?;
    Ok(Interface { vif, port, frontend, queue })
}

fn attach(
    vif: &mut Vif<Host>,
    datapath: &Datapath,
    index: u8,
) -> Result<Arc<Port>, Box<dyn Error>> {
    let mut connected = None;
    until("the frontend connects", || {
        if let VifChange::Connect(connection) = vif.frontend_changed()? {
            connected = Some(connection);
        }
        Ok(connected.is_some())
    })?;
    let (queues, tasks) = connected.ok_or("not connected")?.into_port();
    let port = datapath.attach(&format!("vif0.{index}"), queues, tasks);
    vif.connected()?;
    Ok(port)
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool, Box<dyn Error>>) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while !done()? {
        ensure(Instant::now() < deadline, format!("{what}: not in time"))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn frame(to: usize, from: usize, len: usize, n: usize) -> Vec<u8> {
    let mut bytes = [&MACS[to][..], &MACS[from], &[0x88, 0xb5]].concat();
    bytes.extend((bytes.len()..len).map(|at| (at * 7 + n).to_le_bytes()[0]));
    bytes
}

fn send(queue: &mut FrontendQueue<XenGuest>, bytes: &[u8]) -> Result<bool, Box<dyn Error>> {
    queue.tx.reclaim()?;
    if !queue.tx.has_room() {
        return Ok(false);
    }
    let mut rest = bytes;
    for place in queue.tx.buffers() {
        let (part, after) = rest.split_at(place.len.min(rest.len()));
        place.region.copy_in(place.offset, part)?;
        rest = after;
    }
    queue.tx.send(u16::try_from(bytes.len())?, Checksum::Unknown, None)?;
    queue.tx.publish();
    Ok(true)
}

fn receive(queue: &mut FrontendQueue<XenGuest>) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    let mut frame = Received::default();
    if !queue.rx.receive(&mut frame)? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    for fragment in queue.rx.fragments(&frame) {
        if let Iovec::Shared { region, offset, len } = fragment {
            let mut part = vec![0; len];
            region.copy_out(offset, &mut part)?;
            bytes.extend(part);
        }
    }
    queue.rx.publish();
    Ok(Some(bytes))
}

/// Sends frames in one direction, and compares what arrives.
fn carry(interfaces: &mut [Interface; 2], to: usize, sizes: &[usize]) -> Outcome {
    let from = 1 - to;
    let sent: Vec<_> = sizes.iter().enumerate().map(|(n, len)| frame(to, from, *len, n)).collect();
    let (mut put, mut got) = (0, 0);
    until("every frame", || {
        while put < sent.len() && send(&mut interfaces[from].queue, &sent[put])? {
            put += 1;
        }
        while let Some(bytes) = receive(&mut interfaces[to].queue)? {
            ensure(bytes == sent[got], format!("frame {got} of {} bytes differs", sizes[got]))?;
            got += 1;
        }
        Ok(got == sent.len())
    })
}

/// Runs a check with two interfaces, which are gone afterwards.
fn with_interfaces(
    here: &Loopback,
    variant: Variant,
    check: impl FnOnce(&mut [Interface; 2], &Meter) -> Outcome,
) -> Outcome {
    let host = Metered::new(here.xen.clone());
    let failures = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = failures.clone();
    let sink = move |failure: datapath::Failure| {
        heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(failure.reason);
    };
    let datapath = Datapath::start(&Config::default(), Box::new(sink))?;
    let link = |index| connect(here, &host, &datapath, index, variant);
    let mut interfaces = [link(0)?, link(1)?];
    let outcome = check(&mut interfaces, host.meter());
    for (index, mut interface) in interfaces.into_iter().enumerate() {
        datapath.detach(interface.port.id());
        interface.vif.disconnected()?;
        ensure(!interface.frontend.is_open()?, "the frontend did not notice the end")?;
        let index = u32::try_from(index)?;
        let device = format!("/local/domain/{}/{}", here.domid, toolstack::device_path(index));
        here.store.remove(None, &device)?;
        here.store.remove(None, &toolstack::backend_path(here.domid, index))?;
    }
    let failures = failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    equal(&**failures, &[] as &[String])?;
    outcome
}

/// The list of groups over the ring: the frames of a group come only while it is listed.
fn lists(interfaces: &mut [Interface; 2]) -> Outcome {
    let all = [1, 2, 3].map(|n| [1, 0, 0x5e, 1, 1, n]);
    equal(reached(interfaces, &all)?, vec![])?;
    list(interfaces, &[(all[0], true), (all[2], true)])?;
    equal(reached(interfaces, &all)?, vec![all[0], all[2]])?;
    list(interfaces, &[(all[0], false)])?;
    equal(reached(interfaces, &all)?, all[2..].to_vec())?;
    let dropped = interfaces[1].port.counters().snapshot().dropped(port::DropReason::NotWanted);
    equal(dropped, 3 + 1 + 2)
}

/// Changes the list of the second interface, and waits for the answers.
fn list(interfaces: &mut [Interface; 2], changes: &[([u8; 6], bool)]) -> Outcome {
    let tx = &mut interfaces[1].queue.tx;
    for (group, is_wanted) in changes {
        tx.list_group(MacAddr(*group), *is_wanted)?;
    }
    tx.publish();
    let mut answers = 0;
    until("the answers", || {
        answers += tx.reclaim()?;
        Ok(answers == 2 * changes.len())
    })?;
    equal(tx.take_errors(), 0)
}

/// Sends a frame to each group, and then a broadcast. Returns the groups whose frames the second interface gets.
fn reached(
    interfaces: &mut [Interface; 2],
    groups: &[[u8; 6]],
) -> Result<Vec<[u8; 6]>, Box<dyn Error>> {
    const ALL: [u8; 6] = [0xff; 6];
    for to in groups.iter().chain([&ALL]) {
        let bytes = [&to[..], &MACS[0], &[0x88, 0xb5], &[0; 46]].concat();
        until("room on the ring", || send(&mut interfaces[0].queue, &bytes))?;
    }
    let mut got: Vec<[u8; 6]> = Vec::new();
    until("the broadcast", || {
        while let Some(bytes) = receive(&mut interfaces[1].queue)? {
            got.push(bytes[..6].try_into()?);
        }
        Ok(got.last() == Some(&ALL))
    })?;
    got.pop();
    Ok(got)
}

fn traffic(interfaces: &mut [Interface; 2], meter: &Meter, variant: Variant) -> Outcome {
    // The switch learns both addresses.
    carry(interfaces, 0, &[60])?;
    carry(interfaces, 1, &[60])?;
    for to in [0, 1, 0] {
        carry(interfaces, to, &SIZES)?;
    }
    const FRAMES: usize = 2000;
    meter.switch(true);
    let began = Instant::now();
    carry(interfaces, 1, &[1514; FRAMES])?;
    let spent = began.elapsed();
    meter.switch(false);
    let per_frame = |what| format!("{:.2}", meter.count(what) as f64 / FRAMES as f64);
    println!(
        "      1514-byte frames, {variant}: {} hypercalls, {} maps, {} copies in {} batches per frame; {spent:?} for {FRAMES}",
        per_frame(Counted::Hypercalls),
        per_frame(Counted::Maps),
        per_frame(Counted::Copies),
        per_frame(Counted::CopyBatches),
    );
    equal(interfaces[0].queue.tx.take_errors() + interfaces[1].queue.tx.take_errors(), 0)
}
