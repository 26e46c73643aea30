//! The store, over xenstored's socket and over the kernel's device.

use std::time::{Duration, Instant};

use xenstore::{Access, Client, Permissions, Store, StoreError, WatchEvent};

use crate::{Checks, Here, MOMENT, Outcome, PATIENCE, ensure, equal, readable};

const ROOT: &str = "/pvnet-loopback";

pub fn check(here: &Here, checks: &mut Checks) {
    let connections = [
        ("the socket", xen::store::connect as fn() -> _),
        ("the device", xen::store::connect_by_device),
    ];
    for (name, connect) in connections {
        let client = connect()
            .map_err(|error| error.to_string())
            .and_then(|stream| Client::new(stream).map_err(|error| error.to_string()));
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                checks.check(&format!("{name} opens"), Err(error.into()));
                continue;
            }
        };
        // Remains of an earlier run.
        let _ = client.remove(None, ROOT);
        let mut check = |what: &str, outcome| checks.check(&format!("{name}: {what}"), outcome);
        check("keys are written, listed, read and removed", keys(&client, here));
        check("permissions are kept", permissions(&client, here));
        check("a value of 4,000 bytes and a directory of 300 keys", large(&client));
        check("a transaction is seen as a whole", transaction(&client, here));
        check("a transaction that was overtaken is told so", overtaken(&client, here));
        check("a watch fires at once, then for each change, then no more", watch(&client, here));
        check("eight threads ask at the same time", threads(&client));
        let _ = client.remove(None, ROOT);
    }
}

fn path(key: &str) -> String {
    format!("{ROOT}/{key}")
}

fn keys(client: &Client, here: &Here) -> Outcome {
    client.write(None, &path("a/b"), "one")?;
    equal(here.store.read(None, &path("a/b"))?, "one".to_owned())?;
    equal(client.directory(None, &path("a"))?, vec!["b".to_owned()])?;
    equal(client.read(None, "domid")?, here.domid.to_string())?;
    client.remove(None, &path("a"))?;
    let gone = path("a/b");
    equal(client.read(None, &gone), Err(StoreError::NotFound(gone)))
}

fn permissions(client: &Client, here: &Here) -> Outcome {
    client.mkdir(None, &path("p"))?;
    let others = vec![(hypervisor::DomId(7), Access::READ)];
    let permissions = Permissions { owner: here.domid, default: Access::NONE, others };
    client.set_permissions(None, &path("p"), &permissions)?;
    equal(client.permissions(None, &path("p"))?, permissions)
}

fn large(client: &Client) -> Outcome {
    let value = "x".repeat(4000);
    client.write(None, &path("l"), &value)?;
    ensure(client.read(None, &path("l"))? == value, "another value")?;
    for n in 0..300 {
        client.write(None, &path(&format!("d/a-key-with-a-long-name-{n}")), "")?;
    }
    equal(client.directory(None, &path("d"))?.len(), 300)
}

fn transaction(client: &Client, here: &Here) -> Outcome {
    let (one, two) = (path("t/1"), path("t/2"));
    let tx = client.begin()?;
    client.write(Some(tx), &one, "x")?;
    client.write(Some(tx), &two, "y")?;
    equal(client.read(Some(tx), &one)?, "x".to_owned())?;
    ensure(here.store.read(None, &one).is_err(), "it is seen too early")?;
    client.end(tx, true)?;
    equal((here.store.read(None, &one)?, here.store.read(None, &two)?), ("x".into(), "y".into()))?;
    let tx = client.begin()?;
    client.write(Some(tx), &one, "z")?;
    client.end(tx, false)?;
    equal(client.read(None, &one)?, "x".to_owned())
}

fn overtaken(client: &Client, here: &Here) -> Outcome {
    let key = path("o");
    client.write(None, &key, "1")?;
    let tx = client.begin()?;
    client.read(Some(tx), &key)?;
    client.write(Some(tx), &key, "2")?;
    here.store.write(None, &key, "3")?;
    equal(client.end(tx, true), Err(StoreError::Conflict))?;
    equal(client.read(None, &key)?, "3".to_owned())
}

fn next(client: &Client) -> Result<WatchEvent, Box<dyn std::error::Error>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = client.event()? {
            return Ok(event);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        ensure(readable(&client.event_fd(), left), "no event")?;
    }
}

fn watch(client: &Client, here: &Here) -> Outcome {
    let event = |key: &str| WatchEvent { path: path(key), token: "token".to_owned() };
    client.watch(&path("w"), "token")?;
    equal(next(client)?, event("w"))?;
    ensure(!readable(&client.event_fd(), Duration::ZERO), "a second event at once")?;
    here.store.write(None, &path("w/key"), "1")?;
    equal(next(client)?, event("w/key"))?;
    client.write(None, &path("w/own"), "1")?;
    equal(next(client)?, event("w/own"))?;
    client.unwatch(&path("w"), "token")?;
    here.store.write(None, &path("w/key"), "2")?;
    ensure(!readable(&client.event_fd(), MOMENT), "an event after the end of the watch")
}

fn threads(client: &Client) -> Outcome {
    let ask = |thread: u32| -> Result<(), StoreError> {
        for n in 0..20 {
            let (key, value) = (path(&format!("m/{thread}")), n.to_string());
            client.write(None, &key, &value)?;
            if client.read(None, &key)? != value {
                return Err(StoreError::Invalid(key));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || ask(n))).collect();
        for thread in threads {
            thread.join().map_err(|_| "panicked")??;
        }
        Ok(())
    })
}
