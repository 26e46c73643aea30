//! The work between the marks: the frames of one interface.

use scope_result::{Domain, FrameCounts, Recording, Work};

/// The work of a recording: the frames that drivers saw of an interface of this domain, or of dom0 or the machine if none is given: of the
/// interface of this name, or of the one with the most payload. Without any, `reported` has the frames and bytes that a guest counted.
pub fn work(
    what: &str,
    recording: &Recording,
    wanted: (Option<Domain>, Option<&str>),
    reported: Option<(u64, u64)>,
) -> Work {
    let what = what.to_owned();
    match counted(recording, wanted) {
        Some((interface, counts)) => Work {
            what,
            frames: counts.frames(),
            bytes: counts.bytes,
            data_frames: counts.data,
            acks: counts.acks,
            payload: counts.payload,
            interface,
        },
        None => {
            let (frames, bytes) = reported.unwrap_or_default();
            Work { what, frames, bytes, ..Work::default() }
        }
    }
}

/// The name of an interface, and its frames in both directions.
fn counted(
    recording: &Recording,
    (domain, interface): (Option<Domain>, Option<&str>),
) -> Option<(String, FrameCounts)> {
    let is_meant = |number: u8| {
        let found = recording.domains.get(usize::from(number)).copied();
        let is_first = matches!(found, Some(Domain::Xen(0) | Domain::Machine));
        domain.map_or(is_first, |domain| found == Some(domain))
    };
    let mut sums = Vec::<(&str, FrameCounts)>::new();
    for frames in recording.frames.iter().filter(|frames| is_meant(frames.domain)) {
        // What the loopback interface sends it receives too.
        if frames.interface == "lo" && !frames.sent {
            continue;
        }
        match sums.iter_mut().find(|(name, _)| *name == frames.interface) {
            Some((_, sum)) => *sum += frames.counts,
            None => sums.push((&frames.interface, frames.counts)),
        }
    }
    let mut of_interest = sums.into_iter().filter(|(name, counts)| {
        counts.frames() > 0 && interface.is_none_or(|wanted| wanted == *name)
    });
    let first = of_interest.next()?;
    let most = of_interest.fold(
        first,
        |most, other| {
            if other.1.payload > most.1.payload { other } else { most }
        },
    );
    Some((most.0.to_owned(), most.1))
}

#[cfg(test)]
mod tests {
    use scope_result::InterfaceFrames;

    use super::*;

    #[test]
    fn frames_are_those_of_one_interface_in_both_directions() {
        let frames = |domain, interface: &str, sent, data, acks| InterfaceFrames {
            domain,
            interface: interface.to_owned(),
            sent,
            counts: FrameCounts { data, acks, others: 0, bytes: 100 * data, payload: 90 * data },
        };
        let recording = Recording {
            domains: vec![Domain::Xen(1), Domain::Xen(0)],
            frames: vec![
                frames(0, "eth0", true, 500, 0),
                frames(1, "vif1.0", true, 0, 9),
                frames(1, "vif1.0", false, 5, 1),
                frames(1, "lo", true, 2, 2),
                frames(1, "lo", false, 7, 7),
            ],
            ..Recording::default()
        };
        let of = |interface| work("w", &recording, interface, Some((1, 2)));
        let most = of((None, None));
        assert_eq!(
            (&*most.interface, most.frames, most.data_frames, most.acks),
            ("vif1.0", 15, 5, 10)
        );
        assert_eq!((most.bytes, most.payload), (500, 450));
        assert_eq!(of((None, Some("lo"))).frames, 4);
        assert_eq!(of((Some(Domain::Xen(1)), Some("eth0"))).frames, 500);
        // The guest's own counters are the last resort.
        let other = of((None, Some("eth0")));
        assert_eq!((other.frames, other.bytes, &*other.interface), (1, 2, ""));
    }
}
