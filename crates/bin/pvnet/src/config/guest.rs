//! `[[guest]]`: a guest and its interfaces.

use std::path::PathBuf;

use serde::Deserialize;

use super::context::Context;
use super::vif::Vif;

/// `[[guest]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// The only user whose process can be this guest.
    pub uid: Option<u32>,
    /// The file with the secret that its process must show.
    pub token_file: Option<PathBuf>,
    /// MiB of memory.
    pub memory_mib: usize,
    /// Whether it can give memory back. Its memory is not sealed then.
    pub balloon: bool,
    /// Whether its memory has 2 MiB pages.
    pub huge_pages: bool,
    /// Whether pages that break up 2 MiB pages are kept together in a few blocks.
    pub group_pages: bool,
    /// Pages for the receive buffers of all its virtual interfaces together; 0 if each queue has its own.
    pub copy_pool: usize,
    /// Its virtual interfaces.
    #[serde(rename = "vif")]
    pub vifs: Vec<Vif>,
    /// Its contexts of cards, which are interfaces too.
    #[serde(rename = "context")]
    pub contexts: Vec<Context>,
}

impl Default for Guest {
    /// A guest with one vif. The name is empty: every guest needs one.
    fn default() -> Self {
        Self {
            name: String::new(),
            uid: None,
            token_file: None,
            memory_mib: 64,
            balloon: false,
            huge_pages: false,
            group_pages: true,
            copy_pool: 0,
            vifs: vec![Vif::default()],
            contexts: Vec::new(),
        }
    }
}

/// The most pages of a copy pool: the rings of 16 queues, without a default guest's last references.
const COPY_POOL_MAX: usize = 4096;
/// The most interfaces of one guest.
const INTERFACES_MAX: usize = 8;

impl Guest {
    /// Checks what TOML cannot express. On Xen the toolstack may know the guest's addresses.
    pub(super) fn check(&self, is_xen: bool) -> Result<(), String> {
        if !(4..=65_536).contains(&self.memory_mib) {
            return Err("memory_mib is not 4 to 65536".into());
        }
        if self.copy_pool > COPY_POOL_MAX {
            return Err(format!("copy_pool is not 0 to {COPY_POOL_MAX}"));
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

/// What is wrong with the tables. A key that a guest's table does not know may be meant for its interface, whose keys can be there too.
pub(super) fn said(error: &toml::de::Error) -> String {
    let mut said = error.to_string().trim_end().to_owned();
    let message = error.message();
    // No other table has this key.
    if message.starts_with("unknown field") && message.contains("`token_file`") {
        let of_vif = Vif::KEYS.join(", ");
        let of_context = Context::KEYS.iter().filter(|key| !Vif::KEYS.contains(key));
        let of_context: Vec<_> = of_context.copied().collect();
        said += &format!(
            "\nA guest with one interface may have its interface's keys: {of_vif}; or a context's: {}",
            of_context.join(", ")
        );
    }
    said
}

/// The name of the port of a guest's vif: the guest's, with the vif's number from the second vif on.
pub fn vif_name(guest: &str, handle: u32) -> String {
    match handle {
        0 => guest.to_owned(),
        handle => format!("{guest}.{handle}"),
    }
}
