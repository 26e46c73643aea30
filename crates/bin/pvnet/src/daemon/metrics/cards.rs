//! The metrics of cards and their contexts.

use std::fmt;

use control_socket::{ContextState, ContextStatus, NicStatus, PortState};
use port::{Metric, whole};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use super::{Labels, family, metrics};

const CARDS: &[Metric<NicStatus>] = &[
    Metric::gauge("pvnet_nic_up", "Whether the card's process is there", |nic| {
        whole((nic.state == PortState::Up).into())
    }),
    Metric::counter("pvnet_nic_attachments", "Processes that came to be the card", |nic| {
        whole(nic.attachments)
    }),
    Metric::counter(
        "pvnet_nic_faults",
        "Protection faults that the card's process has reported",
        |nic| whole(nic.faults),
    ),
    Metric::counter(
        "pvnet_nic_vectors",
        "Interrupt vectors that the card's process has sent",
        |nic| whole(nic.vectors),
    ),
];

const CONTEXTS: &[Metric<ContextStatus>] = &[
    Metric::gauge("pvnet_context_up", "Whether the card serves the context", |context| {
        whole((context.state == ContextState::Up).into())
    }),
    Metric::gauge("pvnet_context_references", "References to the guest's pages", |context| {
        whole(context.references)
    }),
    Metric::counter("pvnet_context_tx_frames", "Frames that the guest sent", |context| {
        whole(context.tx.frames)
    }),
    Metric::counter("pvnet_context_tx_bytes", "Bytes that the guest sent", |context| {
        whole(context.tx.bytes)
    }),
    Metric::counter("pvnet_context_rx_frames", "Frames that the guest received", |context| {
        whole(context.rx.frames)
    }),
    Metric::counter("pvnet_context_rx_bytes", "Bytes that the guest received", |context| {
        whole(context.rx.bytes)
    }),
    Metric::counter("pvnet_context_events", "Mailbox events", |context| whole(context.events)),
    Metric::counter(
        "pvnet_context_vectored",
        "Times that the card put it into a vector",
        |context| whole(context.vectored),
    ),
    Metric::counter("pvnet_context_interrupts", "Virtual interrupts", |context| {
        whole(context.interrupts)
    }),
    Metric::counter("pvnet_context_hypercalls", "Hypercalls", |context| whole(context.calls)),
    Metric::counter(
        "pvnet_context_descriptors",
        "Descriptors that hypercalls put on a ring",
        |context| whole(context.descriptors),
    ),
    Metric::counter("pvnet_context_mapped_pages", "Pages that hypercalls mapped", |context| {
        whole(context.mapped)
    }),
    Metric::counter(
        "pvnet_context_refused_hypercalls",
        "Hypercalls that were refused",
        |context| whole(context.refused),
    ),
];

/// Encodes all cards and their contexts; nothing if there is no card.
pub(super) fn encode(nics: &[NicStatus], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if nics.is_empty() {
        return Ok(());
    }
    let cards: Vec<_> = nics.iter().map(|nic| (vec![("nic", nic.name.clone())], nic)).collect();
    metrics(&cards, CARDS, encoder)?;
    let contexts: Vec<_> = nics.iter().flat_map(contexts).collect();
    metrics(&contexts, CONTEXTS, encoder)?;
    let drops = contexts.iter().flat_map(|(labels, context)| {
        context.drops.iter().map(|(reason, count)| {
            let reason = ("reason", reason.clone());
            let labels: Labels = labels.iter().cloned().chain([reason]).collect();
            (labels, ConstCounter::new(*count))
        })
    });
    family(encoder, "pvnet_context_dropped_frames", "Dropped frames, by reason", drops)
}

/// A card's contexts with their labels.
fn contexts(nic: &NicStatus) -> impl Iterator<Item = (Labels, &ContextStatus)> {
    nic.contexts.iter().map(|context| {
        let labels = vec![
            ("nic", nic.name.clone()),
            ("context", context.context.to_string()),
            ("guest", context.guest.clone()),
        ];
        (labels, context)
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
