//! `[[guest]]`: a guest and its interfaces.

use std::path::PathBuf;

use super::nic::Context;
use super::table::{CARDS, Effort, table};
use super::vif::Vif;

table! {
    /// `[[guest]]`
    Guest [Effort = Effort::Connection] {
        /// Its name. It is empty by default: every guest needs one.
        name: String = String::new();
        /// The only user whose process can be this guest.
        uid: Option<u32> = None, Effort::InPlace;
        /// The file with the secret that its process must show.
        token_file: Option<PathBuf> = None, Effort::InPlace;
        /// MiB of memory.
        memory_mib: usize = 64;
        /// Whether it can give memory back. Its memory is not sealed then.
        balloon: bool = false;
        /// Whether its memory has 2 MiB pages.
        huge_pages: bool = false;
        /// Whether pages that break up 2 MiB pages are kept together in a few blocks.
        group_pages: bool = true;
        /// Pages for the receive buffers of all its virtual interfaces together; 0 if each queue has its own.
        copy_pool: usize = 0;
        /// Its virtual interfaces.
        #[serde(rename = "vif")]
        vifs: Vec<Vif> = vec![Vif::default()];
        /// Its contexts of cards, which are interfaces too.
        #[serde(rename = "context")]
        contexts: Vec<Context> = Vec::new(), CARDS;
    }
}

/// The name that stands for every guest.
pub const EVERY_GUEST: &str = "*";

/// The most pages of a copy pool: the rings of 16 queues, without a default guest's last references.
const COPY_POOL_MAX: usize = 4096;
/// The most interfaces of one guest.
const INTERFACES_MAX: usize = 8;

impl Guest {
    /// Checks what TOML cannot express. On Xen the toolstack may know the guest's addresses.
    pub(super) fn check(&self, is_xen: bool) -> Result<(), String> {
        if !(4..=65_536).contains(&self.memory_mib) {
            return Err("memory_mib must be 4 to 65536".into());
        }
        if self.copy_pool > COPY_POOL_MAX {
            return Err(format!("copy_pool must be 0 to {COPY_POOL_MAX}"));
        }
        if is_xen {
            self.check_for_xen()?;
        }
        let count = self.vifs.len() + self.contexts.len();
        if !(1..=INTERFACES_MAX).contains(&count) {
            return Err(format!("it has {count} interfaces, not 1 to {INTERFACES_MAX}"));
        }
        for (handle, vif) in (0..).zip(&self.vifs) {
            let of_vif = |reason| match self.vifs.len() {
                1 => reason,
                _ => format!("vif {handle}: {reason}"),
            };
            vif.check(is_xen).map_err(of_vif)?;
        }
        for (number, context) in self.contexts.iter().enumerate() {
            context.check().map_err(|reason| format!("context {number}: {reason}"))?;
        }
        Ok(())
    }

    /// Refuses options that platform `xen` does not have.
    fn check_for_xen(&self) -> Result<(), String> {
        if self.copy_pool > 0 {
            return Err(
                "copy_pool is for platform \"machine\" only; on Xen a domain's frontends are \
                        separate programs"
                    .into(),
            );
        }
        if self.uid.is_some() || self.token_file.is_some() {
            return Err("uid and token_file are not for Xen, where no process joins".into());
        }
        if !self.contexts.is_empty() {
            return Err("contexts of cards are for platform \"machine\" only".into());
        }
        if self.vifs.len() > 1 {
            return Err("on Xen each interface has a [[guest]] under its own name: the vifname, \
                        or web and web.1 for those of a domain web"
                .into());
        }
        Ok(())
    }

    /// The names of its vifs' ports, by handle.
    pub fn vif_names(&self) -> impl Iterator<Item = String> {
        (0..).zip(&self.vifs).map(|(handle, _)| vif_name(&self.name, handle))
    }
}

/// The name of the port of a guest's vif: the guest's, with the vif's number from the second vif on.
pub fn vif_name(guest: &str, handle: u32) -> String {
    match handle {
        0 => guest.to_owned(),
        handle => format!("{guest}.{handle}"),
    }
}
