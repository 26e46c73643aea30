//! `pvnet-lab xen queues`: how many queues guests get, depending on the virtual CPUs of both ends.

use crate::scenario::{self, Backend, GUEST_VCPUS, Negotiation};
use crate::{Host, Options, Result};
use document::Document;
use report::{Machine, Table};
use schemars::JsonSchema;
use serde::Serialize;

use super::args::LabArgs;

/// The backends in dom0: the kernel's, and pvnet.
const BACKENDS: [Backend; 2] = [Backend::Stock, Backend::Pvnet];
/// The virtual CPUs of dom0.
const DOM0_VCPUS: [u32; 2] = [1, 2];

/// The JSON document.
#[derive(JsonSchema, Serialize)]
pub struct QueuesDocument<'a> {
    bench: &'static str,
    machine: Machine,
    rows: &'a [Negotiation],
}

impl<'a> QueuesDocument<'a> {
    fn new(rows: &'a [Negotiation]) -> Self {
        Self { bench: "xen queues", machine: Machine::detect(), rows }
    }
}

impl Document for QueuesDocument<'_> {
    const SCHEMA: &'static str = "lab-queues/1";
}

/// The hosts that are booted: a backend, and dom0's virtual CPUs.
fn hosts() -> impl Iterator<Item = (Backend, u32)> {
    BACKENDS.into_iter().flat_map(|backend| DOM0_VCPUS.map(|vcpus| (backend, vcpus)))
}

/// Boots a host for each backend and number of dom0's CPUs. Returns whether all guests got as many queues as expected.
pub fn run(args: &LabArgs) -> Result<bool> {
    let options = args.options()?;
    let images = args.boot.build.images()?;
    let steps = hosts().count() * (1 + GUEST_VCPUS.len());
    let progress = args.progress(steps);
    let mut rows = Vec::new();
    for (backend, dom0_vcpus) in hosts() {
        progress.step(format!("{}: boot Xen and dom0 with {dom0_vcpus} CPUs", backend.name()));
        let host = Host::boot(&images, &Options { dom0_vcpus, ..options.clone() })?;
        rows.extend(scenario::queues(&host, backend, dom0_vcpus, &progress)?);
    }
    progress.finish();
    scenario::print(&table(&rows))?;
    scenario::write_json(args.json.as_deref(), &QueuesDocument::new(&rows))?;
    Ok(rows.iter().all(Negotiation::passed))
}

fn table(rows: &[Negotiation]) -> Table {
    let table = Table::new().left("backend").right("dom0's CPUs").right("guest's CPUs");
    let table = table.right("offered").right("queues").right("expected").right("ping").left("");
    rows.iter().fold(table, |mut table, row| {
        let [received, sent] = row.ping;
        table.row([
            row.backend.to_owned(),
            row.dom0_vcpus.to_string(),
            row.guest_vcpus.to_string(),
            row.offered.to_string(),
            row.queues.to_string(),
            row.expected().to_string(),
            format!("{received}/{sent}"),
            if row.passed() { "passed" } else { "FAILED" }.to_owned(),
        ]);
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_backends_meet_every_number_of_cpus() {
        let hosts: Vec<_> = hosts().map(|(backend, vcpus)| (backend.name(), vcpus)).collect();
        assert_eq!(hosts, [("stock", 1), ("stock", 2), ("pvnet", 1), ("pvnet", 2)]);
    }

    #[test]
    fn a_row_says_whether_it_passed() {
        let passed = Negotiation {
            backend: "stock",
            dom0_vcpus: 2,
            guest_vcpus: 4,
            offered: 2,
            queues: 2,
            ping: [5, 5],
        };
        let failed = Negotiation { queues: 1, ..passed.clone() };
        let rows = [passed, failed];
        document::checked(&QueuesDocument::new(&rows));
        let table = table(&rows);
        assert_eq!(table.rows()[0], ["stock", "2", "4", "2", "2", "2", "5/5", "passed"]);
        assert_eq!(table.rows()[1].last().map(String::as_str), Some("FAILED"));
    }
}
