//! Guests that copy an uplink's frames out of pages that pvnet grants to them.

use lab::Progress;
use serde_json::Value;

use super::backend::{self, Backend, RunningBackend};
use super::cell::{Frontend, RunningFrontend};
use super::check::{self, Transfer};
use super::step::{self, Step};
use super::{BACKEND_ADDRESS, BOOT_TIMEOUT, COMMAND_TIMEOUT};
use crate::Result;
use crate::host::{Domu, DomuConfig, Host, Shell};

/// Progress steps of [`guest_copy`].
pub const GUEST_COPY_STEPS: usize = ALL.len() + 1;

/// MiB of the files.
const FILE: u32 = 16;
const FILE_BYTES: f64 = FILE as f64 * 1_048_576.0;
/// Bytes of a file that a page holds at most.
const PAGE: f64 = 4096.0;
/// The part of the frames that may take the ordinary way: they come before a queue has shown that it gets only the guest's frames.
const ORDINARY_MAX: f64 = 0.05;
/// The pages of a pool.
const POOL: u64 = 200;

/// The uplink has queues for three guests.
const CONFIGURATION: &str = r#"
set -e
ip link del pvnet0
cat >/lab/pvnet.toml <<'END'
[daemon]
platform = "xen"
meter = true

[xen]
guest_copy_pages = 200

[[uplink]]
name = "host"
tap = "pvnet0"
persistent = true
addresses = ["10.0.0.1/24"]
queues = "per-guest"
guest_queues = 3

[[guest]]
name = "*"
rx = "guest-copy"
END
# Room for three pools: more guests than that come and go.
echo 700 >/sys/module/xen_gntalloc/parameters/limit
"#;

/// The backend, and the guest that stays.
struct Setup<'a> {
    host: &'a Host,
    backend: RunningBackend,
    guest: Receiver,
}

/// A guest with a frontend.
struct Receiver {
    domain: Domu,
    frontend: RunningFrontend,
    address: String,
}

type StepFn = fn(&mut Setup<'_>) -> Result<(String, bool)>;

/// The steps, in order.
const ALL: [(&str, StepFn); 6] = [
    ("a guest connects, and is granted a pool", connected),
    ("a file into the guest, which copies it; and one out of it", file),
    ("kill -9 and a restart in the middle of a file", kill),
    ("after the restart the guest copies again", file_after_restart),
    ("a guest is destroyed in the middle of a file", destroy),
    ("a guest with the kernel's frontend gets copies", stock),
];

/// Runs all steps on a freshly booted host with the program `pvnet`. `backend` says whether pvnet runs in dom0 or in a driver
/// domain. Stops at the first step that fails to run.
pub fn guest_copy(host: &Host, backend: Backend, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start pvnet, and a guest");
    let mut setup = Setup::begin(host, backend)?;
    step::run_all(&ALL, progress, |act| {
        act(&mut setup).map_err(|error| backend::explain(error, &setup.backend))
    })
}

/// Counters while a file comes into a guest.
struct Counts {
    /// Frames from the uplink's queues for guests that were read into a pool; `ordinary` counts those read into
    /// pvnet's buffers.
    pooled: f64,
    ordinary: f64,
    /// Pages that were granted with a frame.
    granted: f64,
    /// Bytes that pvnet, or the hypervisor for it, copied to and from guests.
    backend_bytes: f64,
    /// Hypercalls of pvnet.
    hypercalls: f64,
}

impl Counts {
    fn of(status: &Value) -> Self {
        let counted = |name: &str| status["meter"]["counts"][name].as_f64().unwrap_or(0.0);
        let ports = status["ports"].as_array().into_iter().flatten();
        let queues = ports.flat_map(|port| port["guest_queues"].as_array().into_iter().flatten());
        let (mut pooled, mut ordinary) = (0.0, 0.0);
        for queue in queues {
            pooled += queue["direct"].as_f64().unwrap_or(0.0);
            let copied = queue["copied"].as_object().into_iter().flatten();
            ordinary += copied.filter_map(|(_, count)| count.as_f64()).sum::<f64>();
        }
        Self {
            pooled,
            ordinary,
            granted: counted("buffers_granted"),
            backend_bytes: counted("copied_bytes"),
            hypercalls: counted("hypercalls"),
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            pooled: self.pooled - before.pooled,
            ordinary: self.ordinary - before.ordinary,
            granted: self.granted - before.granted,
            backend_bytes: self.backend_bytes - before.backend_bytes,
            hypercalls: self.hypercalls - before.hypercalls,
        }
    }
}

impl<'a> Setup<'a> {
    fn begin(host: &'a Host, backend: Backend) -> Result<Self> {
        let backend = backend.start_changed(host, CONFIGURATION)?;
        let guest = create(host, &backend, 2, Frontend::Pvnet)?;
        Ok(Self { host, backend, guest })
    }

    /// The shell of pvnet's domain.
    fn shell(&self) -> &Shell {
        self.backend.shell()
    }

    fn status(&self) -> Result<Value> {
        check::status(self.shell())
    }

    /// The pages of a guest's pool; none if it has no pool.
    fn pool(&self, guest: &Receiver) -> Result<Option<u64>> {
        let (status, name) = (self.status()?, self.backend.port_name(&guest.domain));
        Ok(check::port(&status, &name).and_then(|port| port["guest_copy"]["pool_pages"].as_u64()))
    }

    /// Whether a guest has a queue of the uplink.
    fn has_queue(&self, guest: &Receiver) -> Result<bool> {
        let (status, name) = (self.status()?, self.backend.port_name(&guest.domain));
        let ports = status["ports"].as_array().into_iter().flatten();
        let mut queues =
            ports.flat_map(|port| port["guest_queues"].as_array().into_iter().flatten());
        Ok(queues.any(|queue| queue["guest"] == name))
    }

    /// Sends a file into a guest. Returns whether it arrived unchanged, and the counters' increase.
    fn file_into(&self, guest: &Receiver) -> Result<(bool, Counts)> {
        let before = Counts::of(&self.status()?);
        let shell = guest.domain.shell();
        let same = check::same_file(self.shell(), shell, &guest.address, FILE)?;
        Ok((same, Counts::of(&self.status()?).since(&before)))
    }

    /// Sends a file into the guest, which copies it.
    fn copied_file(&self) -> Result<(String, bool)> {
        let before = self.guest.copied()?;
        let (same, counts) = self.file_into(&self.guest)?;
        let after = self.guest.copied()?;
        let [copies, hypercalls] = [after[0] - before[0], after[1] - before[1]];
        let Counts { pooled, ordinary, granted, backend_bytes, hypercalls: of_backend } = counts;
        let seen = format!(
            "{}; {pooled} frames through the pool, {ordinary} not; pvnet copied {:.2} of the file's bytes in \
             {of_backend} hypercalls; the guest copied {copies} of {granted} pages in {hypercalls} hypercalls",
            if same { "the same" } else { "CORRUPTED" },
            backend_bytes / FILE_BYTES,
        );
        let passed = same
            && copies >= FILE_BYTES / PAGE
            && copies <= granted
            && hypercalls > 0.0
            && hypercalls <= copies
            && ordinary <= ORDINARY_MAX * pooled
            && backend_bytes <= ORDINARY_MAX * FILE_BYTES;
        Ok((seen, passed))
    }
}

impl Receiver {
    /// The copies that were made for it, and its hypercalls for them, by its frontend's report.
    fn copied(&self) -> Result<[f64; 2]> {
        let process = self.frontend.process();
        let file = process.map(crate::Job::file).unwrap_or_default();
        let report = check::frontend_report(self.domain.shell(), &file)?;
        let queue = &report["interfaces"][0]["queues"][0];
        Ok(["copies", "copy_hypercalls"].map(|key| queue[key].as_f64().unwrap_or(0.0)))
    }
}

/// Boots a guest whose address and MAC end with `number`.
fn create(
    host: &Host,
    backend: &RunningBackend,
    number: u8,
    frontend: Frontend,
) -> Result<Receiver> {
    let address = format!("10.0.0.{number}");
    let vif = backend.vif_with(&format!("00:16:3e:00:00:{number:02x}"));
    let config = DomuConfig::new(format!("guest{number}")).vif(vif);
    let domain = host.create(&DomuConfig { memory_mib: 192, ..config }, BOOT_TIMEOUT)?;
    let frontend = frontend.start_at(&domain, &address)?;
    Ok(Receiver { domain, frontend, address })
}

fn connected(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (pool, has_queue) = (setup.pool(&setup.guest)?, setup.has_queue(&setup.guest)?);
    let ping = check::ping(setup.shell(), &setup.guest.address, 5)?;
    let seen = format!(
        "a pool of {} pages, {} queue, {} of {} echoes",
        pool.unwrap_or(0),
        if has_queue { "a" } else { "NO" },
        ping.received,
        ping.sent
    );
    Ok((seen, pool == Some(POOL) && has_queue && ping.received == ping.sent))
}

fn file(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (seen, passed) = setup.copied_file()?;
    let guest = setup.guest.domain.shell();
    let out = check::same_file(guest, setup.shell(), BACKEND_ADDRESS, FILE)?;
    let verdict = if out { "the same" } else { "CORRUPTED" };
    Ok((format!("{seen}; out of it: {verdict}"), passed && out))
}

fn kill(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let guest = setup.guest.domain.shell();
    let transfer = Transfer::begin(setup.shell(), guest, &setup.guest.address)?;
    setup.backend.kill()?;
    setup.backend.restart()?;
    let same = transfer.finish()?;
    let pool = setup.pool(&setup.guest)?;
    let verdict = if same { "the same" } else { "CORRUPTED" };
    let seen = format!("{verdict}; a pool of {} pages", pool.unwrap_or(0));
    Ok((seen, same && pool == Some(POOL)))
}

fn file_after_restart(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    setup.copied_file()
}

fn destroy(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let mut passed = true;
    // These guests need more grants and queues than there are, unless those of destroyed guests come back.
    for number in 3..6 {
        let guest = create(setup.host, &setup.backend, number, Frontend::Pvnet)?;
        passed &= setup.pool(&guest)? == Some(POOL) && setup.has_queue(&guest)?;
        let name = setup.backend.port_name(&guest.domain);
        let transfer = Transfer::begin(setup.shell(), guest.domain.shell(), &guest.address)?;
        guest.domain.destroy()?;
        transfer.stop()?;
        let gone = format!("! pvnet status | grep -wF {name}");
        setup.shell().until("the end of the guest", &gone, COMMAND_TIMEOUT)?;
    }
    let zombie = setup.host.run("xl list", COMMAND_TIMEOUT)?.contains("(null)");
    let (same, _) = setup.file_into(&setup.guest)?;
    let verdict = if same { "the same" } else { "CORRUPTED" };
    let left = if zombie { "A ZOMBIE IS LEFT" } else { "nothing is left" };
    Ok((
        format!("3 guests, {left}; a file for the other guest: {verdict}"),
        passed && !zombie && same,
    ))
}

fn stock(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let guest = create(setup.host, &setup.backend, 9, Frontend::Stock)?;
    let pool = setup.pool(&guest)?;
    let (into, counts) = setup.file_into(&guest)?;
    let out = check::same_file(guest.domain.shell(), setup.shell(), BACKEND_ADDRESS, FILE)?;
    let copied = counts.backend_bytes / FILE_BYTES;
    let verdict = if into && out { "the same" } else { "CORRUPTED" };
    let seen = format!("{verdict} both ways; pvnet copied {copied:.2} of the file's bytes");
    Ok((seen, into && out && pool.is_none() && copied >= 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_meter_and_the_uplinks_queues() {
        let status = serde_json::json!({
            "meter": { "counts": { "buffers_granted": 40, "copied_bytes": 900, "hypercalls": 7 } },
            "ports": [
                { "name": "guest2" },
                { "name": "host", "guest_queues": [
                    { "queue": 1, "guest": "guest2", "direct": 30, "copied": { "unproven": 1, "no_buffers": 2 } },
                    { "queue": 2, "direct": 0 },
                ] },
            ],
        });
        let counts = Counts::of(&status).since(&Counts::of(&Value::Null));
        assert_eq!((counts.pooled, counts.ordinary), (30.0, 3.0));
        assert_eq!((counts.granted, counts.backend_bytes, counts.hypercalls), (40.0, 900.0, 7.0));
    }

    #[test]
    fn every_step_has_its_name() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|(what, _)| what).collect();
        assert_eq!(names.len() + 1, GUEST_COPY_STEPS);
    }
}
