//! The plan of measurements. Each is made once, even if several figures show it.

use shm::{PageSize, Region, create_memfd};

use super::config::ServerKind;
use super::paper::{Bar, Feasibility, Figure, Program, bars};
use crate::repro::rounds;
use crate::repro::transfer::Direction;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The server.
    pub server: ServerKind,
    /// The direction of the stream.
    pub direction: Direction,
    /// How it is sent.
    pub program: Program,
    /// The rate that it does not exceed, in Mb/s; none if it sends as fast as it can.
    pub pace: Option<u32>,
}

/// A bar and its measurement.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The paper's bar.
    pub bar: Bar,
    /// The measurement, or why there is none.
    pub key: Result<Key, String>,
    /// How the measurement differs from the bar.
    pub note: Option<String>,
}

/// The bars of `figures` whose configuration is among `configs`. An empty list means all. An error in
/// `superpages` says why this machine has none.
pub fn plan(figures: &[Figure], configs: &[String], superpages: Result<(), &str>) -> Vec<Planned> {
    let wanted = |bar: &Bar| {
        (figures.is_empty() || figures.contains(&bar.figure))
            && (configs.is_empty() || configs.iter().any(|config| is_called(bar, config)))
    };
    bars().into_iter().filter(wanted).map(|bar| resolve(bar, superpages)).collect()
}

/// Whether a bar has this name. The paper writes both `none` and `Guest-none`.
fn is_called(bar: &Bar, config: &str) -> bool {
    let bare = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.strip_prefix("guest-").map(str::to_owned).unwrap_or(name)
    };
    bare(bar.config) == bare(config)
}

fn resolve(bar: Bar, superpages: Result<(), &str>) -> Planned {
    let Bar { direction, program, pace, .. } = bar;
    let key = |server| Key { server, direction, program, pace };
    let (key, note) = match (bar.feasibility, superpages) {
        (Feasibility::Impossible(why), _) => (Err(why.to_owned()), None),
        (Feasibility::Measure(server), Err(why)) if server.huge_pages() => {
            // Without superpages, "all optimisations" can be measured, and superpages alone cannot.
            match bar.config.contains("-opt") {
                true => (Ok(key(server.small_pages())), Some(format!("without superpages: {why}"))),
                false => (Err(why.to_owned()), None),
            }
        }
        (Feasibility::Measure(server), _) => (Ok(key(server)), None),
    };
    Planned { bar, key, note }
}

/// Everything to measure, each once.
pub fn keys(plan: &[Planned]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for key in plan.iter().filter_map(|planned| planned.key.as_ref().ok()) {
        if !keys.contains(key) {
            keys.push(*key);
        }
    }
    keys
}

impl rounds::Key for Key {
    type Server = ServerKind;

    fn server(self) -> ServerKind {
        self.server
    }
}

/// Allocates a superpage as guests do. The error says why this machine has none.
pub fn superpages() -> Result<(), String> {
    let bytes = PageSize::Huge.bytes();
    let taken = create_memfd("pvnet-probe", bytes / PageSize::Small.bytes(), PageSize::Huge)
        .and_then(|fd| Region::map_aligned(&fd, 0, bytes))
        .and_then(|region| region.populate_huge(0..bytes));
    taken.map_err(|error| {
        format!(
            "the kernel gives shared memory no 2 MiB pages ({error}): \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled must not be deny, and memory must \
             be free in blocks of 2 MiB"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_is_made_once() {
        let all = plan(&[], &[], Ok(()));
        let keys = keys(&all);
        // Figures 5 and 7: 9. Figure 10: 6. Figures 11 and 13, with one Linux: 8. Figure 3: two driver domains and
        // Linux, and these once more, paced.
        assert_eq!(keys.len(), 9 + 6 + 8 + 3 + 3);
        // `Guest-copy` and `none` are the same server, also with superpages.
        assert_eq!(rounds::starts(&keys), 9 + 3 + 4 + 1 - 2);
    }

    #[test]
    fn figures_and_configurations_can_be_chosen() {
        let names = |figures: &[Figure], configs: &[&str]| -> Vec<&str> {
            let configs: Vec<String> = configs.iter().map(|&name| name.to_owned()).collect();
            plan(figures, &configs, Ok(())).iter().map(|planned| planned.bar.config).collect()
        };
        assert_eq!(names(&[Figure::Five], &["high", "None"]), ["none", "high"]);
        assert_eq!(
            names(&[Figure::Thirteen], &["copy", "guest-none"]),
            ["Guest-none", "Guest-copy"]
        );
        assert!(names(&[Figure::Five], &["Linux"]).is_empty());
    }

    #[test]
    fn without_superpages_rows_say_so() {
        let reason = "there are none".to_owned();
        let plan = plan(&[Figure::Three, Figure::Five], &[], Err(&reason));
        let find = |config: &str| plan.iter().find(|planned| planned.bar.config == config).unwrap();
        assert_eq!(find("sp").key.as_ref().unwrap_err(), &reason);
        let best = find("Xen-guest-opt");
        assert_eq!(best.key, find("high-ioc").key);
        assert!(best.note.as_ref().unwrap().starts_with("without superpages"));
        assert!(!keys(&plan).iter().any(|key| key.server.huge_pages()));
    }
}
