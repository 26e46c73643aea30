//! The metrics of cards and their contexts.

use std::fmt;

use control_socket::{ContextState, ContextStatus, NicStatus, PortState};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use super::{family, gauge};

/// A counter of every card or context: its name, its help, and its field of the status.
type Counter<T> = (&'static str, &'static str, fn(&T) -> u64);

const CARDS: [Counter<NicStatus>; 3] = [
    ("pvnet_nic_attachments", "Processes that came to be the card", |nic| nic.attachments),
    ("pvnet_nic_faults", "Protection faults that the card's process has reported", |nic| {
        nic.faults
    }),
    ("pvnet_nic_vectors", "Interrupt vectors that the card's process has sent", |nic| nic.vectors),
];

const CONTEXTS: [Counter<ContextStatus>; 11] = [
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
pub(super) fn encode(nics: &[NicStatus], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if nics.is_empty() {
        return Ok(());
    }
    let cards = || nics.iter().map(|nic| ([("nic", &*nic.name)], nic));
    let up = cards().map(|(labels, nic)| (labels, gauge((nic.state == PortState::Up).into())));
    family(encoder, "pvnet_nic_up", "Whether the card's process is there", up)?;
    for (name, help, value) in CARDS {
        let counts = cards().map(|(labels, nic)| (labels, ConstCounter::new(value(nic))));
        family(encoder, name, help, counts)?;
    }
    let contexts = || nics.iter().flat_map(contexts);
    let is_up = |context: &ContextStatus| gauge((context.state == ContextState::Up).into());
    let up = contexts().map(|(labels, context)| (labels, is_up(context)));
    family(encoder, "pvnet_context_up", "Whether the card serves the context", up)?;
    let references = contexts().map(|(labels, context)| (labels, gauge(context.references)));
    family(encoder, "pvnet_context_references", "References to the guest's pages", references)?;
    for (name, help, value) in CONTEXTS {
        let counts = contexts().map(|(labels, one)| (labels, ConstCounter::new(value(one))));
        family(encoder, name, help, counts)?;
    }
    let drops = contexts().flat_map(|(labels, context)| {
        context.drops.iter().map(move |(reason, count)| {
            let reason = ("reason", reason.clone());
            let labels: Vec<_> = labels.iter().cloned().chain([reason]).collect();
            (labels, ConstCounter::new(*count))
        })
    });
    family(encoder, "pvnet_context_dropped_frames", "Dropped frames, by reason", drops)
}

/// A card's contexts with their labels.
fn contexts(
    nic: &NicStatus,
) -> impl Iterator<Item = ([(&'static str, String); 3], &ContextStatus)> {
    nic.contexts.iter().map(|context| {
        let (name, guest) = (nic.name.clone(), context.guest.clone());
        ([("nic", name), ("context", context.context.to_string()), ("guest", guest)], context)
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
