//! The protections, by their names in rows.

use std::time::Duration;

use clap::ValueEnum;
use contexts::{IommuMode, Protection};

named::named! {
    /// A protection of a card's contexts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub enum Kind {
        /// Guests write descriptors, and nobody checks them.
        None => "none",
        /// The hypervisor checks and writes descriptors.
        Hypervisor => "hypervisor",
        /// All of the guest's pages are mapped.
        IommuStatic => "iommu-static",
        /// Each buffer is mapped, and unmapped at once.
        IommuStrict => "iommu-strict",
        /// Each buffer is mapped, and unmapped together with others.
        IommuDeferred => "iommu-deferred",
    }
}

/// The daemon's values for a deferred unmapping.
const DEFERRED: IommuMode = IommuMode::Deferred { pages: 128, after: Duration::from_millis(10) };

impl Kind {
    /// For the hypervisor's part.
    pub const fn protection(self) -> Protection {
        match self {
            Self::None => Protection::None,
            Self::Hypervisor => Protection::Hypervisor,
            Self::IommuStatic => Protection::Iommu(IommuMode::Static),
            Self::IommuStrict => Protection::Iommu(IommuMode::Strict),
            Self::IommuDeferred => Protection::Iommu(DEFERRED),
        }
    }

    /// The row of this protection among those of `case`. The first has no addition, so the others are compared with it.
    pub fn row(self, case: &str) -> String {
        match self {
            Self::None => case.to_owned(),
            other => format!("{case}+{}", other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_are_compared_with_none() {
        let names = Kind::ALL.map(|kind| kind.row("wire-64"));
        assert_eq!(names[0], "wire-64");
        assert!(names[1..].iter().all(|name| name.starts_with("wire-64+")), "{names:?}");
        let asked = Kind::value_variants().iter().map(|kind| kind.to_possible_value().unwrap());
        assert!(asked.zip(Kind::ALL).all(|(value, kind)| value.get_name() == kind.name()));
    }
}
