//! Who is compared, and what rows call it.

use std::path::PathBuf;

use super::back_end::BackEnd;
use super::front_end::RingLayout;
use super::open_vswitch::OpenVswitch;
use crate::bench::pps::Cpus;
use crate::error::Result;

/// A program that carries frames between two guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This program.
    Pvnet,
    /// Another build of it.
    Other(PathBuf),
    /// DPDK's testpmd, which forwards what it does not read.
    Testpmd,
    /// Open vSwitch with DPDK, which learns addresses.
    OpenVswitch,
}

impl Contender {
    /// This program, another build if one is given, and the rivals that are installed, unless it is `alone`.
    pub fn all(other: Option<&PathBuf>, alone: bool) -> Vec<Self> {
        let mut all = vec![Self::Pvnet];
        all.extend(other.cloned().map(Self::Other));
        if !alone && lab::command("dpdk-testpmd").is_ok() {
            all.push(Self::Testpmd);
        }
        if !alone && OpenVswitch::is_there() {
            all.push(Self::OpenVswitch);
        }
        all
    }

    /// Starts it on the first CPU. `lines` are further ones of pvnet's `[daemon]`.
    pub fn start(&self, cpus: &Cpus, lines: &[String]) -> Result<BackEnd> {
        cpus.enter(0)?;
        match self {
            Self::Pvnet => BackEnd::pvnet(None, lines),
            Self::Other(program) => BackEnd::pvnet(Some(program), lines),
            Self::Testpmd => BackEnd::testpmd(cpus.number(0)),
            Self::OpenVswitch => BackEnd::open_vswitch(cpus.number(0)),
        }
    }

    /// Its name in rows, with this layout of its rings.
    pub fn name(&self, layout: RingLayout) -> &'static str {
        match (self, layout) {
            (Self::Pvnet, RingLayout::Split) => "pvnet-split",
            (Self::Pvnet, RingLayout::Packed) => "pvnet-packed",
            (Self::Other(_), RingLayout::Split) => "other-split",
            (Self::Other(_), RingLayout::Packed) => "other-packed",
            (Self::Testpmd, RingLayout::Split) => "testpmd-split",
            (Self::Testpmd, RingLayout::Packed) => "testpmd-packed",
            (Self::OpenVswitch, RingLayout::Split) => "ovs-split",
            (Self::OpenVswitch, RingLayout::Packed) => "ovs-packed",
        }
    }
}
