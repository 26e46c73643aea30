//! Checks the paper's numbers against its text, and its configurations against the daemon's configuration file.

use super::*;
use crate::repro::server::{Machine, Setup as _};

fn find(figure: Figure, config: &str, direction: Direction) -> Bar {
    let here =
        |bar: &Bar| bar.figure == figure && bar.config == config && bar.direction == direction;
    bars().into_iter().find(here).unwrap()
}

/// The ratio in whole per cent.
fn percent(figure: Figure, config: &str, direction: Direction, to: &str) -> f64 {
    (100.0 * ratio(&find(figure, config, direction), to).unwrap()).round()
}

#[test]
fn every_configuration_has_a_nic_and_one_more_port() {
    for bar in bars() {
        let Feasibility::Measure(server) = bar.feasibility else { continue };
        let Some(text) = server.toml("/run".as_ref(), &Machine::EXAMPLE) else { continue };
        let config: toml::Table = toml::from_str(&text).unwrap();
        let tables = |kind: &str| match config.get(kind) {
            Some(tables) => tables.as_array().unwrap().clone(),
            None => Vec::new(),
        };
        let (guests, uplinks) = (tables("guest"), tables("uplink"));
        assert_eq!(guests.len() + uplinks.len(), 2, "{text}");
        assert_eq!(uplinks[0]["large_receive"].as_bool(), Some(false));
        // Only the pages of the copy channel stay mapped.
        let pages = |guest: &toml::Value, key: &str| guest[key].as_integer().unwrap();
        let none = |guest: &toml::Value| {
            (pages(guest, "persistent_grants") > 0) == (pages(guest, "copy_pool") > 0)
        };
        assert!(guests.iter().all(none), "{text}");
        let mut ports = guests.iter().chain(&uplinks);
        let huge = ports.all(|port| port["huge_pages"].as_bool() == Some(true));
        assert_eq!(huge, server.huge_pages(), "{text}");
    }
}

#[test]
fn the_numbers_give_the_ratios_that_the_text_gives() {
    use Direction::{Rx, Tx};
    // Table 1 prints its percentages.
    assert_eq!(percent(Figure::Table1, "Xen-driver", Rx, LINUX), 69.0);
    assert_eq!(percent(Figure::Table1, XEN_GUEST, Rx, LINUX), 33.0);
    assert_eq!(percent(Figure::Table1, XEN_GUEST, Tx, LINUX), 20.0);
    // "by a factor of 4.4", "by 35%"
    assert_eq!(percent(Figure::Three, "Xen-guest-opt", Tx, XEN_GUEST), 441.0);
    assert_eq!(percent(Figure::Four, "Xen-driver-opt", Rx, "Xen-driver"), 135.0);
    // "by 272%", "15.7%", "2.5%": the text is less exact than the paper's numbers.
    assert_eq!(percent(Figure::Five, "high", Tx, "none"), 373.0);
    assert_eq!(percent(Figure::Five, "high-ioc", Tx, "high"), 116.0);
    assert_eq!(percent(Figure::Five, "high-ioc-sp", Tx, "high-ioc"), 102.0);
    // "nearly twice"
    assert_eq!(percent(Figure::Seven, "high/none", Tx, GUEST_NONE), 195.0);
    // "17%", "13%", "within 7%"
    assert_eq!(percent(Figure::Eleven, "Driver-MTU", Rx, DRIVER_NONE), 117.0);
    assert_eq!(percent(Figure::Eleven, "Driver-MTU-SP", Rx, "Driver-MTU"), 113.0);
    assert_eq!(percent(Figure::Eleven, "Driver-MTU-SP-GP", Rx, LINUX), 93.0);
    assert_eq!(percent(Figure::Thirteen, "Guest-copy", Rx, GUEST_NONE), 118.0);
    assert_eq!(ratio(&find(Figure::Five, "sp", Tx), "none"), None);
}

#[test]
fn names_are_unique_and_every_figure_has_an_unoptimised_bar() {
    let bars = bars();
    for (index, bar) in bars.iter().enumerate() {
        let same = |other: &Bar| {
            (other.figure, other.direction, other.config) == (bar.figure, bar.direction, bar.config)
        };
        assert!(!bars[..index].iter().any(same), "{bar:?}");
        let none = |other: &&Bar| other.figure == bar.figure && other.config == bar.figure.none();
        let nones = bars.iter().filter(none).filter(|none| none.direction == bar.direction);
        let expected = usize::from(bar.figure != Figure::Nine);
        assert_eq!(nones.count(), expected, "{bar:?}");
        assert!(
            bar.mbps.is_some()
                || bar.says.is_some()
                || bar.figure.shows_costs()
                || bar.figure == Figure::Nine,
            "{bar:?}"
        );
    }
    for figure in Figure::value_variants() {
        assert!(bars.iter().any(|bar| bar.figure == *figure), "{figure:?}");
        let name = figure.to_possible_value().unwrap();
        assert_eq!(name.get_name(), figure.name());
    }
}

#[test]
fn figures_share_measurements_of_the_same_configuration() {
    use Direction::{Rx, Tx};
    for [one, other] in [
        [find(Figure::Five, "none", Tx), find(Figure::Seven, GUEST_NONE, Tx)],
        [find(Figure::Five, "high-ioc-sp", Tx), find(Figure::Three, "Xen-guest-opt", Tx)],
        [find(Figure::Six, "high", Tx), find(Figure::Five, "high", Tx)],
        [find(Figure::Thirteen, GUEST_NONE, Rx), find(Figure::Table1, XEN_GUEST, Rx)],
        [find(Figure::Eleven, LINUX, Rx), find(Figure::Four, LINUX, Rx)],
    ] {
        assert_eq!((one.feasibility, one.program), (other.feasibility, other.program), "{one:?}");
    }
}
