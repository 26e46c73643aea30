//! Metrics of multicast groups and mirrors.

use std::fmt;

use control_socket::{MirrorStatus, MulticastStatus};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use super::{family, gauge, plain};

pub(super) fn mirrors(
    mirrors: &[MirrorStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let frames = mirrors.iter().flat_map(|MirrorStatus { name, copied, lost, .. }| {
        [("copied", *copied), ("lost", *lost)]
            .map(|(what, count)| ([("mirror", &**name), ("what", what)], ConstCounter::new(count)))
    });
    let help = "Frames that a mirror has copied, or lost because its target was behind";
    family(encoder, "pvnet_mirror_frames", help, frames)
}

pub(super) fn multicast(
    known: &MulticastStatus,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let MulticastStatus { groups, members, pruned, refused } = *known;
    let help = "Multicast groups with members, per VLAN";
    plain(encoder, "pvnet_multicast_groups", help, &gauge(groups as u64))?;
    plain(
        encoder,
        "pvnet_multicast_members",
        "Members of multicast groups",
        &gauge(members as u64),
    )?;
    let help = "Ports that miss groups which they have not joined; 0 before a querier has asked them twice";
    plain(encoder, "pvnet_multicast_pruned_ports", help, &gauge(pruned as u64))?;
    let help = "Joins beyond a limit, whose ports got all groups from then on";
    plain(encoder, "pvnet_multicast_refused_joins", help, &ConstCounter::new(refused))
}
