//! The life of a packet: instructions from function to function (Figures 7 to 10), and the code of a switch with its misses (Figures 3
//! and 4).

use std::collections::BTreeMap;
use std::ops::Range;

use scope_result::{Domain, Mode};

use crate::packet::flow::{Flow, Visit};
use crate::repro::listing;
use crate::repro::measure::WorkloadRecording;
use crate::repro::plot::{Plot, Section};
use crate::repro::rules::{PaperClaim, chadha07 as rules};
use crate::summary::{function_name, plain};

/// A function's first instruction, in a domain.
#[derive(Clone, Copy)]
struct Place {
    /// The names that the function has had; compilers put some functions into others.
    functions: &'static [&'static str],
    domain: Where,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Guest,
    Dom0,
    Anywhere,
}

const fn guest(functions: &'static [&'static str]) -> Place {
    Place { functions, domain: Where::Guest }
}

const fn dom0(functions: &'static [&'static str]) -> Place {
    Place { functions, domain: Where::Dom0 }
}

const fn anywhere(functions: &'static [&'static str]) -> Place {
    Place { functions, domain: Where::Anywhere }
}

/// From where to where instructions are counted.
#[derive(Clone, Copy)]
struct Path {
    from: Place,
    to: Place,
    /// Whether the first of several starts counts, else the last.
    first: bool,
    /// Whether only instructions of the domain in which it starts are counted.
    own: bool,
    /// Whether leaving the hypervisor ends it.
    hypervisor: bool,
}

const fn path(from: Place, to: Place) -> Path {
    Path { from, to, first: false, own: true, hypervisor: false }
}

const UPCALL: Place =
    dom0(&["xen_pv_evtchn_do_upcall", "__xen_evtchn_do_upcall", "xen_evtchn_do_upcall"]);
const MAP: Place =
    anywhere(&["map_grant_ref", "create_grant_pv_mapping", "create_grant_host_mapping"]);
const UNMAP: Place =
    anywhere(&["unmap_common", "gnttab_unmap_grant_ref", "replace_grant_pv_mapping"]);
const SWITCH: Place = anywhere(&["context_switch"]);
const TIMER: &[&str] = &["apic_timer_interrupt", "smp_apic_timer_interrupt"];
/// Linux takes pages from its allocator, as it does where the paper shows `cache_grow`.
const ALLOCATION: Place = guest(&["get_page_from_freelist"]);
const CLAIM: Place = guest(&["gnttab_claim_grant_reference"]);

const WRITE: Path = path(guest(&["tcp_sendmsg"]), guest(&["release_sock"]));
const TO_GRANT: Path = path(guest(&["__tcp_transmit_skb", "tcp_transmit_skb"]), CLAIM);
const TO_WAKE: Path = path(CLAIM, anywhere(&["vcpu_wake"]));
const TO_SWITCH: Path =
    Path { first: true, own: false, hypervisor: true, ..path(anywhere(TIMER), SWITCH) };
const TO_UPCALL: Path = Path { own: false, ..path(SWITCH, UPCALL) };
const TO_MAP: Path = path(UPCALL, MAP);
const TO_BRIDGE: Path = path(MAP, dom0(&["__br_forward", "br_forward", "br_flood"]));
const FROM_UNMAP: Path = Path { first: true, ..path(UNMAP, anywhere(&["evtchn_send"])) };

impl Place {
    fn is(&self, flow: &Flow<'_>, visit: &Visit<'_>) -> bool {
        let in_domain = match self.domain {
            Where::Anywhere => true,
            Where::Dom0 => flow.domain(visit) == Some(&Domain::Xen(0)),
            Where::Guest => matches!(flow.domain(visit), Some(Domain::Xen(1..))),
        };
        in_domain
            && visit.entered
            && flow
                .function(visit.block)
                .is_some_and(|function| self.functions.contains(&plain(&function.name)))
    }
}

impl Path {
    /// The visits of each time that it was gone.
    fn walks(&self, flow: &Flow<'_>) -> Vec<Range<usize>> {
        let mut walks = Vec::new();
        let mut since: Option<usize> = None;
        for (place, visit) in flow.visits.iter().enumerate() {
            if self.hypervisor && visit.mode() != Mode::Hypervisor {
                since = None;
            }
            if self.to.is(flow, visit)
                && let Some(since) = since.take()
            {
                walks.push(since..place);
            }
            if self.from.is(flow, visit) && !(self.first && since.is_some()) {
                since = Some(place);
            }
        }
        walks
    }

    /// The visits of a walk that are counted.
    fn own<'a, 'f>(
        &self,
        flow: &'f Flow<'a>,
        walk: Range<usize>,
    ) -> impl Iterator<Item = &'f Visit<'a>> {
        let (own, domain) = (self.own, flow.visits[walk.start].domain());
        flow.visits[walk].iter().filter(move |visit| !own || visit.domain() == domain)
    }

    /// Instructions of a walk.
    fn count(&self, flow: &Flow<'_>, walk: Range<usize>) -> u64 {
        self.own(flow, walk).map(|visit| visit.tally().instructions).sum()
    }

    /// Instructions of each time that it was gone.
    fn counts(&self, flow: &Flow<'_>) -> Vec<u64> {
        self.walks(flow).into_iter().map(|walk| self.count(flow, walk)).collect()
    }

    /// The same, and whether the way led past a place.
    fn counts_by(&self, flow: &Flow<'_>, past: Place) -> Vec<(u64, bool)> {
        let passes =
            |walk: Range<usize>| flow.visits[walk].iter().any(|visit| past.is(flow, visit));
        let walks = self.walks(flow).into_iter();
        walks.map(|walk| (self.count(flow, walk.clone()), passes(walk))).collect()
    }

    /// Instructions of the middle one of all walks by function, the most first; those of little weight together.
    fn by_function(&self, flow: &Flow<'_>) -> Vec<(String, u64)> {
        /// As many functions have a name in a chart.
        const SHOWN: usize = 30;
        let mut walks = self.walks(flow);
        walks.sort_by_cached_key(|walk| self.count(flow, walk.clone()));
        let Some(middle) = walks.get(walks.len().saturating_sub(1) / 2) else { return Vec::new() };
        let mut sums = BTreeMap::<String, u64>::new();
        for visit in self.own(flow, middle.clone()) {
            let function = flow.function(visit.block).cloned().unwrap_or_default();
            let (_, function) = function_name(&function);
            let name = format!("{} ({})", plain(&function), flow.who(visit));
            *sums.entry(name).or_default() += visit.tally().instructions;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let rest = sums.split_off(sums.len().min(SHOWN));
        if !rest.is_empty() {
            let name = format!("{} others", rest.len());
            sums.push((name, rest.iter().map(|(_, count)| count).sum()));
        }
        sums
    }
}

/// The middle one, and the first and the last tenth, of numbers.
fn quantiles(mut counts: Vec<u64>) -> Option<[u64; 3]> {
    counts.sort_unstable();
    let at = |tenths: usize| counts.get(counts.len().saturating_sub(1) * tenths / 10).copied();
    Some([at(5)?, at(1)?, at(9)?])
}

/// Figures 7 to 10: instructions from function to function.
pub fn life_of_a_packet(tcp: &WorkloadRecording, udp: &WorkloadRecording) -> Section {
    let flows = [tcp, udp].map(|named| Flow::new(&named.recording));
    let [of_tcp, of_udp] = &flows;
    let counted = |rule: &PaperClaim, path: &Path, flow: &Flow<'_>| {
        let counts = path.counts(flow);
        let times = counts.len();
        let found = quantiles(counts);
        let claim = rule.judge(found.map(|[median, ..]| median as f64));
        claim.differs(found.map_or_else(
            || "The flow has no such path.".to_owned(),
            |[_, low, high]| {
                format!("{times} times in the flow; eight of ten took {low} to {high}.")
            },
        ))
    };
    let judged = [
        (rules::WRITE, WRITE, of_tcp),
        (rules::TO_GRANT, TO_GRANT, of_tcp),
        (rules::TO_WAKE, TO_WAKE, of_tcp),
        (rules::TO_SWITCH, TO_SWITCH, of_tcp),
        (rules::TO_UPCALL, TO_UPCALL, of_tcp),
        (rules::TO_MAP, TO_MAP, of_udp),
        (rules::TO_BRIDGE, TO_BRIDGE, of_udp),
        (rules::FROM_UNMAP, FROM_UNMAP, of_udp),
    ];
    let mut claims: Vec<_> =
        judged.iter().map(|(rule, path, flow)| counted(rule, path, flow)).collect();
    let plots = judged.iter().map(|(rule, path, flow)| functions(rule, path, flow)).collect();
    if let Some(write) = claims.first_mut() {
        write.differs += &by_allocation(&WRITE.counts_by(of_tcp, ALLOCATION));
    }
    let causes = switches(of_tcp);
    let all: usize = causes.iter().sum();
    let share = (all > 0).then(|| causes[TIMERS] as f64 / all as f64);
    let causes = CAUSES.iter().zip(causes).map(|((what, _), count)| format!("{count} by {what}"));
    claims.push(rules::TIMER_SWITCHES.judge(share).differs(format!(
        "Xen was entered {} before the {all} switches of the flow.",
        causes.collect::<Vec<_>>().join(", ")
    )));
    let listing = around_switch(of_tcp);
    Section::new("Figures 3, 4 and 7 to 10: the life of a packet", claims, plots).listing(listing)
}

/// The functions of which a path consists.
fn functions(rule: &PaperClaim, path: &Path, flow: &Flow<'_>) -> Plot {
    let (names, counts): (Vec<String>, Vec<u64>) = path.by_function(flow).into_iter().unzip();
    let title = format!("{}: {}, by function", rule.source, rule.what);
    let plot = Plot::new(title, "function", "instructions").steps(names).bars();
    plot.values("instructions", counts.into_iter().map(|count| count as f64))
}

/// How long the ways that allocate pages are, and the others.
fn by_allocation(counts: &[(u64, bool)]) -> String {
    let some = |allocates: bool| {
        let found = counts.iter().filter(|(_, passed)| *passed == allocates);
        let found: Vec<u64> = found.map(|(count, _)| *count).collect();
        let times = found.len();
        quantiles(found).map(|[median, ..]| format!("{times} with a median of {median}"))
    };
    let [with, without] =
        [true, false].map(|allocates| some(allocates).unwrap_or("none".to_owned()));
    format!(
        " Those that take pages from the allocator (get_page_from_freelist): {with}; others: {without}."
    )
}

/// What can lead to a switch, by functions that run before it, and the place of the timer's interrupt.
const CAUSES: [(&str, &[&str]); 5] = [
    ("the timer's interrupt", TIMER),
    ("a domain that blocks or yields (do_sched_op)", &["do_sched_op"]),
    ("an event to another domain (evtchn_send)", &["evtchn_send"]),
    ("another interrupt", &["do_IRQ"]),
    ("something else", &[]),
];
const TIMERS: usize = 0;

/// How many switches each of [`CAUSES`] led to: the last one since the hypervisor was entered.
fn switches(flow: &Flow<'_>) -> [usize; CAUSES.len()] {
    let mut counts = [0; CAUSES.len()];
    let mut cause = CAUSES.len() - 1;
    for visit in &flow.visits {
        if visit.mode() != Mode::Hypervisor {
            cause = CAUSES.len() - 1;
            continue;
        }
        let found = CAUSES.iter().position(|(_, functions)| anywhere(functions).is(flow, visit));
        cause = found.unwrap_or(cause);
        if SWITCH.is(flow, visit) {
            counts[cause] += 1;
            cause = CAUSES.len() - 1;
        }
    }
    counts
}

/// Figures 3 and 4: the code from before a switch to dom0 up to its upcall, of the middle switch.
fn around_switch(flow: &Flow<'_>) -> Option<listing::Listing> {
    /// Instructions before the switch.
    const BEFORE: u64 = 300;
    let places: Vec<(usize, usize)> = {
        let mut switch = None;
        let visits = flow.visits.iter().enumerate();
        let found = visits.filter_map(|(place, visit)| {
            if SWITCH.is(flow, visit) {
                switch = Some(place);
            }
            UPCALL.is(flow, visit).then(|| switch.take().map(|switch| (switch, place)))?
        });
        found.collect()
    };
    let (switch, upcall) = *places.get(places.len() / 2)?;
    let at = flow.visits[switch].at;
    let from = flow.visits.partition_point(|visit| visit.at < at.saturating_sub(BEFORE));
    Some(listing::of("Around a VM switch to dom0", flow, from..upcall + 1, at))
}

#[cfg(test)]
mod tests {
    use scope_result::{Block, Function, Recording, Step};

    use super::*;

    /// A flow of blocks of 100 instructions: each step is a function's number and a domain.
    fn recording(steps: &[(u32, u8)]) -> Recording {
        let names =
            ["", "apic_timer_interrupt", "context_switch", "xen_pv_evtchn_do_upcall", "other"];
        let block = |function: u32| {
            let base = if function < 3 { 0xffff_82d0_4000_0000 } else { 0xffff_ffff_8100_0000_u64 };
            let block = Block::at(base + u64::from(function) * 4096);
            Block { instructions: 100, function, ..block }
        };
        Recording {
            functions: names.map(|name| Function::new("m", name)).into(),
            domains: vec![Domain::Xen(0), Domain::Xen(1)],
            blocks: (0..5).map(block).collect(),
            flow: steps
                .iter()
                .map(|(block, domain)| Step { block: *block, domain: *domain, ..Step::default() })
                .collect(),
            ..Recording::default()
        }
    }

    #[test]
    fn a_path_is_counted_from_function_to_function() {
        let steps =
            [(1, 1), (2, 1), (3, 0), (4, 0), (1, 0), (4, 0), (2, 1), (4, 1), (3, 1), (3, 0)];
        let recording = recording(&steps);
        let flow = Flow::new(&recording);
        // The second timer's interrupt returns to a kernel before the next switch.
        assert_eq!(TO_SWITCH.counts(&flow), [100]);
        // An upcall of the guest is not dom0's.
        assert_eq!(TO_UPCALL.counts(&flow), [100, 300]);
        assert_eq!(switches(&flow), [1, 0, 0, 0, 1]);
    }

    #[test]
    fn the_middle_walk_is_divided_by_function() {
        let steps = [
            (2, 1),
            (4, 1),
            (4, 1),
            (3, 0),
            (2, 1),
            (3, 0),
            (2, 1),
            (4, 0),
            (4, 0),
            (4, 0),
            (3, 0),
        ];
        let recording = recording(&steps);
        let flow = Flow::new(&recording);
        assert_eq!(TO_UPCALL.counts(&flow), [300, 100, 400]);
        let expected =
            [("other (domU 1)".to_owned(), 200), ("context_switch (Xen)".to_owned(), 100)];
        assert_eq!(TO_UPCALL.by_function(&flow), expected);
        // What another domain does is not the path's own.
        let own = path(SWITCH, UPCALL).by_function(&flow);
        assert_eq!(own, [("context_switch (Xen)".to_owned(), 100)]);
    }

    #[test]
    fn only_the_instructions_of_the_domain_that_starts_are_its_own() {
        let recording = recording(&[(3, 0), (4, 1), (4, 0), (2, 0)]);
        let flow = Flow::new(&recording);
        assert_eq!(path(UPCALL, SWITCH).counts(&flow), [200]);
        assert_eq!(Path { own: false, ..path(UPCALL, SWITCH) }.counts(&flow), [300]);
    }

    #[test]
    fn ways_past_a_place_are_distinguished_from_others() {
        let recording = recording(&[(3, 0), (4, 0), (2, 0), (3, 0), (2, 0)]);
        let counts = path(UPCALL, SWITCH).counts_by(&Flow::new(&recording), dom0(&["other"]));
        assert_eq!(counts, [(200, true), (100, false)]);
        let text = by_allocation(&counts);
        assert!(text.contains("1 with a median of 200; others: 1 with a median of 100"), "{text}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(quantiles(vec![3, 1, 2]), Some([2, 1, 2]));
        assert_eq!(quantiles(Vec::new()), None);
    }
}
