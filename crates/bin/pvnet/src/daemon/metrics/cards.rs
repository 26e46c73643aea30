//! The metrics of cards and their contexts.

use std::fmt;

use control_socket::{ContextState, ContextStatus, NicStatus, PortState};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A metric of every card or context: its name, its help, and its field of the status.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

const CARD_GAUGES: [Metric<NicStatus>; 1] =
    [("pvnet_nic_up", "Whether the card's process is there", |nic| {
        u64::from(nic.state == PortState::Up)
    })];

const CARD_COUNTERS: [Metric<NicStatus>; 3] = [
    ("pvnet_nic_attachments", "Processes that came to be the card", |nic| nic.attachments),
    ("pvnet_nic_faults", "Protection faults that the card's process has reported", |nic| {
        nic.faults
    }),
    ("pvnet_nic_vectors", "Interrupt vectors that the card's process has sent", |nic| nic.vectors),
];

const CONTEXT_GAUGES: [Metric<ContextStatus>; 2] = [
    ("pvnet_context_up", "Whether the card serves the context", |context| {
        u64::from(context.state == ContextState::Up)
    }),
    ("pvnet_context_references", "References to the guest's pages", |context| context.references),
];

const CONTEXT_COUNTERS: [Metric<ContextStatus>; 11] = [
    ("pvnet_context_tx_frames", "Frames that the guest sent", |context| context.tx.frames),
    ("pvnet_context_tx_bytes", "Bytes that the guest sent", |context| context.tx.bytes),
    ("pvnet_context_rx_frames", "Frames that the guest received", |context| context.rx.frames),
    ("pvnet_context_rx_bytes", "Bytes that the guest received", |context| context.rx.bytes),
    ("pvnet_context_events", "Mailbox events", |context| context.events),
    ("pvnet_context_vectored", "Times that the card put it into a vector", |context| {
        context.vectored
    }),
    ("pvnet_context_interrupts", "Virtual interrupts", |context| context.interrupts),
    ("pvnet_context_hypercalls", "Hypercalls", |context| context.calls),
    ("pvnet_context_descriptors", "Descriptors that hypercalls put on a ring", |context| {
        context.descriptors
    }),
    ("pvnet_context_mapped_pages", "Pages that hypercalls mapped", |context| context.mapped),
    ("pvnet_context_refused_hypercalls", "Hypercalls that were refused", |context| context.refused),
];

/// Encodes all cards and their contexts; nothing if there is no card.
pub(super) fn encode(
    nics: &[NicStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    if nics.is_empty() {
        return Ok(());
    }
    let (counter, gauge) =
        (ConstCounter::new(0u64).metric_type(), ConstGauge::new(0i64).metric_type());
    let as_gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    for (name, help, value) in CARD_GAUGES {
        let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
        for nic in nics {
            let labels = [("nic", nic.name.as_str())];
            as_gauge(value(nic)).encode(family.encode_family(&labels)?)?;
        }
    }
    for (name, help, value) in CARD_COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for nic in nics {
            let labels = [("nic", nic.name.as_str())];
            ConstCounter::new(value(nic)).encode(family.encode_family(&labels)?)?;
        }
    }
    for (name, help, value) in CONTEXT_GAUGES {
        let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
        for (labels, context) in contexts(nics) {
            as_gauge(value(context)).encode(family.encode_family(&labels)?)?;
        }
    }
    for (name, help, value) in CONTEXT_COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for (labels, context) in contexts(nics) {
            ConstCounter::new(value(context)).encode(family.encode_family(&labels)?)?;
        }
    }
    let (name, help) = ("pvnet_context_dropped_frames", "Dropped frames, by reason");
    let mut family = encoder.encode_descriptor(name, help, None, counter)?;
    for (labels, context) in contexts(nics) {
        for (reason, count) in &context.drops {
            let reason = ("reason", reason.clone());
            let labels: Vec<_> = labels.iter().cloned().chain([reason]).collect();
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// All contexts with their labels.
fn contexts(
    nics: &[NicStatus],
) -> impl Iterator<Item = ([(&'static str, String); 3], &ContextStatus)> {
    nics.iter().flat_map(move |nic| {
        let name = nic.name.clone();
        nic.contexts.iter().map(move |context| {
            let labels = [
                ("nic", name.clone()),
                ("context", context.context.to_string()),
                ("guest", context.guest.clone()),
            ];
            (labels, context)
        })
    })
}

#[cfg(test)]
mod tests {
    use control_socket::Status;

    use super::super::render;
    use crate::status::tests::nic;

    #[test]
    fn a_card_and_its_contexts_become_metrics() {
        let text = render(Status { nics: vec![nic(2)], ..Status::default() }).unwrap();
        let of = "{nic=\"card0\",context=\"1\",guest=\"red\"";
        for line in [
            "pvnet_nic_up{nic=\"card0\"} 1".to_owned(),
            "pvnet_nic_faults_total{nic=\"card0\"} 1".to_owned(),
            format!("pvnet_context_up{of}}} 1"),
            format!("pvnet_context_references{of}}} 512"),
            format!("pvnet_context_tx_frames_total{of}}} 2000"),
            format!("pvnet_context_descriptors_total{of}}} 3200"),
            format!("pvnet_context_dropped_frames_total{of},reason=\"no_descriptors\"}} 20"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(!render(Status::default()).unwrap().contains("pvnet_nic"));
    }
}
