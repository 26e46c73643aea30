//! The paper's numbers: Willmann, Shafer, Carr, Menon, Rixner, Cox, Zwaenepoel, "Concurrent Direct Network Access for
//! Virtual Machine Monitors", HPCA 2007. One Opteron, two NICs of 1 Gb/s; Table 1 had six.

use schemars::JsonSchema;
use serde::Serialize;

use super::config::{CDNA, Config};
use crate::repro::shares::Shares;
use crate::repro::transfer::Direction;

/// A table or figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Native and a Xen guest.
    Table1,
    /// Transmit.
    Table2,
    /// Receive.
    Table3,
    /// With and without protection.
    Table4,
    /// Transmit by guests.
    Figure3,
    /// Receive by guests.
    Figure4,
}

/// The paper's numbers of one row.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Numbers {
    /// The sum of all NICs.
    pub mbps: f64,
    /// Processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Shares>,
    /// Interrupts per second, of the driver domain and of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts_per_s: Option<[f64; 2]>,
}

impl Part {
    /// All parts, in the paper's order.
    pub const ALL: [Self; 6] =
        [Self::Table1, Self::Table2, Self::Table3, Self::Table4, Self::Figure3, Self::Figure4];

    /// The table's number.
    pub const fn table(self) -> Option<&'static str> {
        match self {
            Self::Table1 => Some("1"),
            Self::Table2 => Some("2"),
            Self::Table3 => Some("3"),
            Self::Table4 => Some("4"),
            Self::Figure3 | Self::Figure4 => None,
        }
    }

    /// The figure's number.
    pub const fn figure(self) -> Option<&'static str> {
        match self {
            Self::Figure3 => Some("3"),
            Self::Figure4 => Some("4"),
            _ => None,
        }
    }

    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Table1 => "Table 1: native Linux and a Xen guest",
            Self::Table2 => "Table 2: transmit, one guest",
            Self::Table3 => "Table 3: receive, one guest",
            Self::Table4 => "Table 4: CDNA with and without protection",
            Self::Figure3 => "Figure 3: transmit, by the number of guests",
            Self::Figure4 => "Figure 4: receive, by the number of guests",
        }
    }

    /// Its rows: configuration, direction and guests.
    pub fn rows(self, guests: &[u8]) -> Vec<(Config, Direction, u8)> {
        use Direction::{Rx, Tx};
        let three = [Config::XenIntel, Config::XenRicenic, CDNA];
        let one = |configs: &[Config], directions: &[Direction]| {
            let of = |direction| configs.iter().map(move |config| (*config, direction, 1));
            directions.iter().copied().flat_map(of).collect()
        };
        let by_guests = |direction| {
            // The paper's NICs are unequal only on transmit.
            let equal = (direction == Tx).then_some(Config::CdnaTso);
            let configs: Vec<Config> = [Config::XenIntel, CDNA].into_iter().chain(equal).collect();
            let of = |guests: &u8| {
                let guests = *guests;
                configs.clone().into_iter().map(move |config| (config, direction, guests))
            };
            guests.iter().flat_map(of).collect()
        };
        match self {
            Self::Table1 => one(&[Config::Native, Config::XenIntel], &[Tx, Rx]),
            Self::Table2 => one(&[&three[..], &[Config::CdnaTso]].concat(), &[Tx]),
            Self::Table3 => one(&three, &[Rx]),
            Self::Table4 => one(&Config::ALL[3..8], &[Tx, Rx]),
            Self::Figure3 => by_guests(Tx),
            Self::Figure4 => by_guests(Rx),
        }
    }
}

const fn numbers(mbps: f64, shares: [f64; 5], interrupts: [f64; 2]) -> Option<Numbers> {
    let [hypervisor, driver, guest_system, guest_user, idle] = shares;
    let share = Shares { hypervisor, driver, guest_system, guest_user, idle };
    Some(Numbers { mbps, share: Some(share), interrupts_per_s: Some(interrupts) })
}

const fn rate(mbps: f64) -> Option<Numbers> {
    Some(Numbers { mbps, share: None, interrupts_per_s: None })
}

/// The paper's numbers of a row, if it gives any.
pub fn paper(part: Part, config: Config, direction: Direction, guests: u8) -> Option<Numbers> {
    use Direction::{Rx, Tx};
    match (part, config, direction, guests) {
        (Part::Table1, Config::Native, Tx, 1) => rate(5126.0),
        (Part::Table1, Config::Native, Rx, 1) => rate(3629.0),
        (Part::Table1 | Part::Figure3, Config::XenIntel, Tx, 1) => rate(1602.0),
        (Part::Table1 | Part::Figure4, Config::XenIntel, Rx, 1) => rate(1112.0),
        (Part::Figure3, Config::XenIntel, Tx, 24) => rate(891.0),
        (Part::Figure4, Config::XenIntel, Rx, 24) => rate(558.0),
        (Part::Figure3, CDNA, Tx, 1) => rate(1867.0),
        (Part::Figure4, CDNA, Rx, 1) => rate(1874.0),
        // "Above 1860" in both directions.
        (Part::Figure3 | Part::Figure4, CDNA, _, 24) => rate(1860.0),
        (Part::Table2, Config::XenIntel, Tx, _) => {
            numbers(1602.0, [0.198, 0.365, 0.397, 0.010, 0.030], [7438.0, 7853.0])
        }
        (Part::Table2, Config::XenRicenic, Tx, _) => {
            numbers(1674.0, [0.137, 0.420, 0.395, 0.010, 0.038], [8839.0, 5661.0])
        }
        (Part::Table2 | Part::Table4, CDNA, Tx, _) => {
            numbers(1867.0, [0.102, 0.005, 0.378, 0.007, 0.508], [0.0, 13_659.0])
        }
        (Part::Table4, Config::CdnaNone, Tx, _) => {
            numbers(1867.0, [0.019, 0.004, 0.370, 0.003, 0.604], [0.0, 13_680.0])
        }
        (Part::Table3, Config::XenIntel, Rx, _) => {
            numbers(1112.0, [0.257, 0.373, 0.310, 0.010, 0.050], [11_138.0, 5193.0])
        }
        (Part::Table3, Config::XenRicenic, Rx, _) => {
            numbers(1075.0, [0.306, 0.400, 0.288, 0.006, 0.0], [10_946.0, 5163.0])
        }
        (Part::Table3 | Part::Table4, CDNA, Rx, _) => {
            numbers(1874.0, [0.099, 0.005, 0.480, 0.007, 0.409], [0.0, 7402.0])
        }
        (Part::Table4, Config::CdnaNone, Rx, _) => {
            numbers(1874.0, [0.019, 0.005, 0.472, 0.003, 0.502], [0.0, 7243.0])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_shares_are_all_of_the_time() {
        for part in Part::ALL {
            for (config, direction, guests) in part.rows(&[1, 24]) {
                let share = paper(part, config, direction, guests).and_then(|it| it.share);
                let Some(share) = share else { continue };
                let Shares { hypervisor, driver, guest_system, guest_user, idle } = share;
                let sum = hypervisor + driver + guest_system + guest_user + idle;
                assert!((sum - 1.0).abs() < 0.006, "{part:?} {config:?} {direction:?}: {sum}");
            }
        }
    }

    #[test]
    fn tables_have_one_guest_and_figures_many() {
        let rows = Part::Table4.rows(&[1, 8]);
        assert_eq!(rows.len(), 10);
        assert!(rows.iter().all(|(_, _, guests)| *guests == 1));
        assert_eq!(Part::Figure3.rows(&[1, 8]).len(), 6);
        assert_eq!(Part::Figure4.rows(&[1, 8]).len(), 4);
        assert!(Part::ALL.iter().all(|part| part.table().is_some() != part.figure().is_some()));
    }
}
