//! A guest whose interfaces share one set of receive buffers (Menon et al. 2006, §4.2).

use std::sync::Arc;

use hypervisor::Counted;
use machine::{DRIVER_DOMAIN, toolstack};
use netback::{Anonymous, Vif};
use netfront::{Config, CopyPool, Frontend};
use xenstore::Store;

use crate::common::{A, ALL, Host, await_any, frame, receive, send, wait_for, wait_until};

const MACS: [&str; 2] = ["02:00:00:00:00:b0", "02:00:00:00:00:b1"];

/// Two interfaces of one guest, whose buffers are 64 pages in all.
#[test]
fn frames_to_all_interfaces_arrive_in_one_set_of_pages_without_a_grant_operation() {
    let host = Host::new(1, 1);
    let mut a = host.guest("02:00:00:00:00:0a", Config::default());
    let (domain, inside, vif) = host.domain(MACS[0]);
    let id = domain.id();
    toolstack::create_vif(&*host.store, id, 1, MACS[1]).unwrap();
    let ledgers = Arc::<Anonymous>::default();
    let (path, store) = (toolstack::backend_path(id, 1), host.store.clone());
    let second = Vif::adopt(host.platform.clone(), store, &path, host.offered, ledgers).unwrap();
    let pool = Arc::new(CopyPool::new(&inside, DRIVER_DOMAIN, 64, 2).unwrap());
    let mut interfaces = Vec::new();
    for (handle, mut vif) in [vif, second].into_iter().enumerate() {
        let (guest, pool) = (inside.clone(), pool.clone());
        let store: Arc<dyn Store> = Arc::new(host.machine.store().connect(id));
        let connecting = std::thread::spawn(move || {
            let device = toolstack::device_path(u32::try_from(handle).unwrap());
            let pool = Some(&*pool);
            Frontend::connect_with(&guest, store, &device, &Config::default(), pool).unwrap()
        });
        let connection = host.connect(&mut vif);
        let (queues, tasks) = connection.into_port();
        let port = host.datapath.attach(&format!("vif{id}.{handle}"), queues, tasks);
        let (mut frontend, queues) = connecting.join().unwrap();
        frontend.keep_mapped().unwrap();
        interfaces.push((frontend, queues, vif, port));
    }
    let grefs: Vec<_> =
        interfaces.iter().flat_map(|(_, queues, ..)| queues[0].rx.grefs()).collect();
    assert_eq!(grefs.len(), 64, "all receive buffers of the guest");
    // The switch learns where they are.
    for (n, (_, queues, ..)) in interfaces.iter_mut().enumerate() {
        let mac = [2, 0, 0, 0, 0, 0xb0 + u8::try_from(n).unwrap()];
        wait_until("room", || send(&mut queues[0], &frame(ALL, mac, 60, 0)));
        await_any(&mut a);
    }
    for (_, queues, ..) in &mut interfaces {
        while receive(&mut queues[0]).is_some() {}
    }
    let count = |what| host.platform.meter().count(what);
    host.platform.meter().switch(true);
    // Far more than there are pages, and frames of several pages.
    for n in 0..600u32 {
        let to = n as usize % 2;
        let mac = [2, 0, 0, 0, 0, 0xb0 + u8::try_from(to).unwrap()];
        let bytes = frame(mac, A, 60 + (n * 37 % 9000) as usize, n);
        wait_until("room", || send(&mut a.queues[0], &bytes));
        let (_, queues, ..) = &mut interfaces[to];
        let got =
            wait_for("the frame", || receive(&mut queues[0]).filter(|bytes| bytes[..6] == mac));
        assert!(got == bytes, "frame {n} differs");
    }
    host.platform.meter().switch(false);
    assert_eq!(count(Counted::Hypercalls), count(Counted::Notifications));
    assert_eq!(count(Counted::GrantMisses), 0);
}
