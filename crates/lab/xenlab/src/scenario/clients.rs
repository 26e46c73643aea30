//! Frontends with the habits of real ones. Each has an interface of the kernel's netback and one of pvnet in the same boot; pvnet
//! is compared with netback.

mod habits;
mod program;
mod stock;
mod testbed;

use lab::Progress;

use crate::Result;
use crate::host::Host;

use super::step::{self, Step};
use super::{backend, check};
pub use program::{SECTION, drop_icmp};
pub use testbed::ClientReport;
use testbed::Testbed;

/// Progress steps of [`clients`].
pub const CLIENT_STEPS: usize = ALL.len() + 1;

type StepFn = fn(&mut Testbed<'_>) -> Result<(String, bool)>;

/// The steps, in order.
const ALL: [(&str, StepFn); 7] = [
    ("receive buffers whose second half is the guest's, as Unikraft's", habits::half_pages),
    ("18 and 32 receive buffers, as iPXE's and OpenBSD's", habits::few_buffers),
    ("64 receive buffers, posted every 20 ms", habits::slow_buffers),
    ("TSO without a checksum to complete", habits::tso_without_csum_blank),
    ("a slot of no bytes in each packet", habits::empty_fragments),
    ("an XDP program in the kernel's frontend", stock::xdp),
    ("a guest that gets neither GSO nor unfinished checksums", stock::no_offloads),
];

/// Runs all steps on a freshly booted host with the programs `pvnet` and `client`. Stops at the first step that fails to run.
pub fn clients(host: &Host, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start netback and pvnet, and two guests");
    let mut testbed = Testbed::begin(host)?;
    step::run_all(&ALL, progress, |act| {
        let (seen, passed) =
            act(&mut testbed).map_err(|error| backend::explain(error, &testbed.pvnet))?;
        for guest in [&testbed.client, &testbed.stock] {
            if let Some(harm) = check::harm(guest.shell())? {
                return Ok((format!("{seen}; {harm}"), false));
            }
        }
        Ok((seen, passed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_name() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|(what, _)| what).collect();
        assert_eq!(names.len() + 1, CLIENT_STEPS);
    }
}
