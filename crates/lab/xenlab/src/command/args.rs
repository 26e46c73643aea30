//! Arguments that several commands share.

use std::path::{Path, PathBuf};

use crate::{
    Edition, Error, Host, HostFile, Images, Options, Result, Suite, default_cache, scenario,
};
use clap::Args;
use lab::Progress;

/// The arguments of all labs.
#[derive(Args)]
pub struct LabArgs {
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub boot: BootArgs,
}

/// A program as a file for the host: the given one, or the one of this name beside this program.
pub fn built(given: Option<&PathBuf>, name: &'static str) -> Result<HostFile> {
    let program = given.cloned().or_else(|| scenario::program(name));
    HostFile::new(program.ok_or(Error::NotBuilt(name))?)
}

impl LabArgs {
    /// The program pvnet.
    pub fn pvnet(&self) -> Result<HostFile> {
        built(self.pvnet.as_ref(), "pvnet")
    }

    /// How to boot, with pvnet.
    pub fn options(&self) -> Result<Options> {
        let mut options = self.boot.options()?;
        options.files.push(self.pvnet()?);
        Ok(options)
    }

    /// Progress of a lab with a number of steps.
    pub fn progress(&self, steps: usize) -> Progress {
        Progress::new(steps, self.boot.build.quiet)
    }
}

/// What the images are made of, and where they are kept.
#[derive(Args)]
pub struct BuildArgs {
    /// The Debian release to take packages from [default: this machine's, if it is known].
    #[arg(long, value_name = "NAME")]
    suite: Option<Suite>,
    /// Where images are kept [default: xenlab in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Use images that also contain the toolstack's hotplug scripts, Open vSwitch, nftables and an emulator for HVM guests.
    #[arg(long)]
    network: bool,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How a host boots.
#[derive(Args)]
pub struct BootArgs {
    #[command(flatten)]
    pub build: BuildArgs,
    /// A file to copy into dom0 and the guests; repeatable. Programs go to /usr/local/bin with
    /// the libraries they need, other files to /lab.
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// Give dom0 a network card on QEMU's emulated network, where 10.0.2.2 answers.
    #[arg(long)]
    outside: bool,
    /// Emulate a processor with virtualisation, which PVH and HVM guests need.
    #[arg(long)]
    nested: bool,
    /// Memory of the host, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// Arguments to add to the hypervisor's command line.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    xen: String,
    /// Arguments to add to the command line of dom0's kernel.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    kernel: String,
    /// Write the console's log to this file.
    #[arg(long, value_name = "FILE")]
    keep_log: Option<PathBuf>,
}

impl BuildArgs {
    /// The images, which are made if needed.
    pub fn images(&self) -> Result<Images> {
        self.images_of(if self.network { Edition::Network } else { Edition::Base })
    }

    /// The images of an edition, which are made if needed.
    pub fn images_of(&self, edition: Edition) -> Result<Images> {
        let suite = self.suite.unwrap_or_else(Suite::of_this_machine);
        let cache = self.cache.clone().unwrap_or_else(default_cache);
        Images::prepare_edition(edition, suite, &absolute(&cache)?, self.quiet)
    }
}

impl BootArgs {
    /// How to boot.
    pub fn options(&self) -> Result<Options> {
        Ok(Options {
            memory_mib: self.memory,
            files: self.with.iter().map(HostFile::new).collect::<Result<_>>()?,
            outside: self.outside,
            nested: self.nested,
            xen_arguments: self.xen.clone(),
            kernel_arguments: self.kernel.clone(),
            log: self.keep_log.clone(),
            ..Options::default()
        })
    }

    /// Makes the images if needed, and boots.
    pub fn boot(&self) -> Result<Host> {
        let options = self.options()?;
        let images = self.build.images()?;
        let progress = Progress::new(1, self.build.quiet);
        progress.step("boot Xen and dom0");
        Host::boot(&images, &options)
    }
}

/// An absolute path: tools that get it may run in another folder.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|cause| Error::Path { path: path.to_owned(), cause })
}
