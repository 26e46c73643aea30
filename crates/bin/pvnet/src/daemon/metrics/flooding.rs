//! Metrics of multicast groups and mirrors.

use std::fmt;

use control_socket::{MirrorStatus, MulticastStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

pub(super) fn mirrors(
    mirrors: &[MirrorStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Frames that a mirror has copied, or lost because its target was behind";
    let mut family = encoder.encode_descriptor("pvnet_mirror_frames", help, None, kind)?;
    for MirrorStatus { name, copied, lost, .. } in mirrors {
        for (what, count) in [("copied", *copied), ("lost", *lost)] {
            let labels = [("mirror", &**name), ("what", what)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

pub(super) fn multicast(
    known: &MulticastStatus,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let MulticastStatus { groups, members, pruned, refused } = *known;
    for (name, help, count) in [
        ("pvnet_multicast_groups", "Multicast groups with members, per VLAN", groups),
        ("pvnet_multicast_members", "Members of multicast groups", members),
        (
            "pvnet_multicast_pruned_ports",
            "Ports that miss groups which they have not joined; 0 before a querier has asked them twice",
            pruned,
        ),
    ] {
        let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    let refused = ConstCounter::new(refused);
    let (name, kind) = ("pvnet_multicast_refused_joins", refused.metric_type());
    let help = "Joins beyond a limit, whose ports got all groups from then on";
    refused.encode(encoder.encode_descriptor(name, help, None, kind)?)
}
