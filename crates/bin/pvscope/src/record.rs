//! The options of every recording, and the plugin's argument.

use std::path::{Path, PathBuf};

use clap::Args;
use scope_model::{Config, Policy};
use scope_recorder::{FrameEntry, SkbLayout};
use scope_result::Recording;

use crate::command_line::escaped;
use crate::entries::known_functions;
use crate::error::{Error, Result};
use crate::image_symbols::ImageSymbols;
use crate::model_args::{ModelArgs, plugin_words, policy};
use crate::probes;
use crate::programs::built;

/// Options of every recording.
#[derive(Args)]
pub struct RecordArgs {
    /// The file of the recording.
    #[arg(long, short, value_name = "FILE", default_value = "out/scope.pvs")]
    out: PathBuf,
    /// Model the processor's own caches, TLBs and policy only, without other sizes and policies: faster.
    #[arg(long)]
    single: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Count the TLB misses of each function, and their cycles, under this policy. The processor's own is real; a report has the
    /// totals of all policies.
    #[arg(long, value_name = "POLICY", default_value = "real", value_parser = policy, conflicts_with = "single")]
    tlb_policy: Policy,
    /// Keep the order of N blocks of code, for `pvscope packet`.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    flow: u32,
    /// Compare every hit of the model's TLBs with QEMU's own translation, and report how many were stale.
    #[arg(long)]
    check: bool,
    /// Record the call graph too: who calls whom, and what each chain of calls costs.
    #[arg(long, conflicts_with = "check")]
    call_graph: bool,
    /// Hide flushes of one kind from the model, so that --check finds stale entries.
    #[arg(long, value_name = "KIND", requires = "check", alias = "deaf-to", value_parser = ["cr3", "invlpg"])]
    ignore_flush: Option<String>,
    /// The time limit of each phase, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// The plugin [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// The offset of the domain pointer in `struct vcpu` of Xen 4.17 to 4.20, in bytes. With another offset the recording reports
/// switches to unknown domains only.
const VCPU_DOMAIN: u64 = 0x10;
/// Instructions before the flow begins: the programs that mark and wait start first.
const FLOW_AFTER: u64 = 4_000_000;

/// Functions of Linux that get every frame of a driver.
const FRAME_FUNCTIONS: [(&str, FrameEntry); 3] = [
    ("dev_hard_start_xmit", FrameEntry::Sends),
    ("netif_receive_skb", FrameEntry::Receives),
    ("napi_gro_receive", FrameEntry::ReceivesSecond),
];

/// The words of the plugin's argument for counting frames; none if the kernel's image does not tell where it has their fields.
fn frame_words(symbols: &ImageSymbols) -> String {
    let Some(SkbLayout { len, data, dev, name }) = symbols.skb else { return String::new() };
    let functions = FRAME_FUNCTIONS.iter().filter_map(|(function, entry)| {
        let range = symbols.kernel.iter().find_map(|symbols| symbols.range_of(function))?;
        let (name, _) = FrameEntry::NAMES.iter().find(|(_, known)| known == entry)?;
        Some(format!(",frame={:#x}-{name}", range.start))
    });
    format!(",skb={len:#x}-{data:#x}-{dev:#x}-{name:#x}{}", functions.collect::<String>())
}

/// The words of the plugin's argument for the call graph. Writes the list of functions beside `raw`.
pub fn call_words(raw: &Path, symbols: &ImageSymbols) -> Result<String> {
    let path = raw.with_extension("functions");
    std::fs::write(&path, known_functions(symbols).to_bytes()).map_err(Error::path(&path))?;
    Ok(format!(",calls=on,functions={}", escaped(&path.display().to_string())))
}

impl RecordArgs {
    /// The options of a gate's recordings: the preset's own caches only, and no flow.
    pub fn of_gate(plugin: Option<PathBuf>, limit: u64, quiet: bool) -> Self {
        Self {
            out: PathBuf::new(),
            single: true,
            model: ModelArgs::default(),
            tlb_policy: Policy::Real,
            flow: 0,
            call_graph: false,
            check: false,
            ignore_flush: None,
            limit,
            plugin,
            quiet,
        }
    }

    /// The options that change counts, as they are given on the command line. The sizes of the model are in each recording.
    pub fn options(&self) -> Vec<String> {
        let ignored = self.ignore_flush.iter().map(|kind| format!("--ignore-flush {kind}"));
        self.check.then(|| "--check".to_owned()).into_iter().chain(ignored).collect()
    }

    pub fn plugin(&self) -> Result<PathBuf> {
        built(self.plugin.as_ref(), "libscope_plugin.so")
    }

    /// Writes the recording.
    pub fn save(&self, recording: &Recording) -> Result<()> {
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
        }
        Ok(scope_result::write(&self.out, recording)?)
    }

    pub fn print_path(&self) -> Result<()> {
        crate::report::show(&format!("{}\n", self.out.display()))
    }

    /// Whether to show no progress.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The time limit of each phase, in seconds.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The value of QEMU's option `-plugin`. The plugin writes to `raw`. The first `low` bytes of memory lie below the device
    /// hole; all of them if none.
    pub fn plugin_argument(
        &self,
        plugin: &Path,
        raw: &Path,
        symbols: &ImageSymbols,
        low: Option<u64>,
    ) -> Result<String> {
        let (single, policy) = (self.single, self.tlb_policy);
        let config = Config { single, policy, ..self.model.config()? };
        let on = |on: bool| if on { "on" } else { "off" };
        let ignored = |kind: &str| on(self.ignore_flush.as_deref() == Some(kind));
        let switch = symbols.xen.as_ref().map(|xen| {
            let new_space = xen.new_space.as_ref();
            let new_space =
                new_space.map(|range| format!(",new_space={:#x}-{:#x}", range.start, range.end));
            format!(
                ",switch={:#x},vcpu_domain={VCPU_DOMAIN:#x}{}",
                xen.switch,
                new_space.unwrap_or_default()
            )
        });
        let frames = frame_words(symbols);
        let calls = if self.call_graph { call_words(raw, symbols)? } else { String::new() };
        let low = low.map(|low| format!(",low_memory={low:#x}"));
        let file = |path: &Path| escaped(&path.display().to_string());
        Ok(format!(
            "{},out={}{}{}{frames}{}{calls},{},flow={},flow_after={FLOW_AFTER},check={},ignore_cr3={},ignore_invlpg={}",
            file(plugin),
            file(raw),
            switch.unwrap_or_default(),
            low.unwrap_or_default(),
            probes::words(symbols),
            plugin_words(&config),
            self.flow,
            on(self.check),
            ignored("cr3"),
            ignored("invlpg"),
        ))
    }
}
