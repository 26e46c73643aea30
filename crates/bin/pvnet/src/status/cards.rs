//! Cards and their contexts in `pvnet status`.

use control_socket::{ContextStatus, NicStatus};
use report::{Table, human};

/// Prints a line for each card and a table of all contexts; nothing without a card.
pub(super) fn print(nics: &[NicStatus]) -> std::io::Result<()> {
    if nics.is_empty() {
        return Ok(());
    }
    println!();
    nics.iter().for_each(|nic| println!("{}", card(nic)));
    table(nics).print()?;
    for nic in nics {
        for context in &nic.contexts {
            if let Some(reason) = &context.reason {
                println!("{} of {}: {reason}", context.guest, nic.name);
            }
        }
        for fault in nic.newest_faults.iter().rev().take(FAULTS_SHOWN) {
            println!("{}: fault of {}: {}", nic.name, fault.guest, fault.reason);
        }
    }
    Ok(())
}

/// The newest faults that are shown; JSON has more.
const FAULTS_SHOWN: usize = 5;

fn card(nic: &NicStatus) -> String {
    let rate = match nic.rate_mbps {
        0 => "without a rate".to_owned(),
        rate => format!("of {rate} Mb/s"),
    };
    let NicStatus { name, state, wire, attachments, vectors, faults, .. } = nic;
    format!(
        "card {name}: {state}, wire {wire} {rate}, started {attachments} times, {vectors} interrupt \
         vectors, {faults} faults"
    )
}

fn table(nics: &[NicStatus]) -> Table {
    let mut table = Table::new()
        .left("card")
        .right("context")
        .left("guest")
        .left("mac")
        .left("protection")
        .left("state")
        .right("frames sent")
        .right("bytes sent")
        .right("frames got")
        .right("bytes got")
        .right("interrupts")
        .right("references")
        .right("descriptors/call")
        .left("drops");
    for nic in nics {
        for context in &nic.contexts {
            table.row(row(nic, context));
        }
    }
    table
}

fn row(nic: &NicStatus, context: &ContextStatus) -> [String; 14] {
    let drops = context.drops.iter().map(|(reason, count)| format!("{reason} {count}"));
    [
        nic.name.clone(),
        context.context.to_string(),
        context.guest.clone(),
        context.mac.clone(),
        context.protection.clone(),
        context.state.to_string(),
        context.tx.frames.to_string(),
        context.tx.bytes.to_string(),
        context.rx.frames.to_string(),
        context.rx.bytes.to_string(),
        context.interrupts.to_string(),
        context.references.to_string(),
        context.descriptors_per_call().map_or_else(|| "–".to_owned(), human),
        drops.collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use control_socket::{ContextState, FaultStatus, PortState, Traffic};

    use super::*;

    /// A card with a context that has sent `n` thousand frames.
    pub fn nic(n: u64) -> NicStatus {
        let context = ContextStatus {
            context: 1,
            guest: "red".to_owned(),
            domain: Some(5),
            memory: None,
            mac: "02:00:00:00:00:01".to_owned(),
            protection: "hypervisor".to_owned(),
            state: ContextState::Up,
            reason: None,
            generation: 1,
            references: 512,
            pending: [3, 255],
            tx: Traffic { frames: 1000 * n, bytes: 1_000_000 * n },
            rx: Traffic { frames: 500 * n, bytes: 500_000 * n },
            drops: [("no_descriptors".to_owned(), 10 * n)].into(),
            events: 7 * n,
            vectored: 40 * n,
            interrupts: 30 * n,
            calls: 100 * n,
            descriptors: 1600 * n,
            mapped: 0,
            refused: 0,
        };
        NicStatus {
            name: "card0".to_owned(),
            state: PortState::Up,
            process: Some(77),
            wire: "w0".to_owned(),
            rate_mbps: 1000,
            attachments: 2,
            vectors: 50 * n,
            faults: 1,
            newest_faults: vec![FaultStatus {
                context: 1,
                guest: "red".to_owned(),
                reason: "wrong sequence number (tx 7: 0xff)".to_owned(),
            }],
            contexts: vec![context],
        }
    }

    #[test]
    fn a_card_is_a_line_and_its_contexts_are_rows() {
        let nic = nic(1);
        assert_eq!(
            card(&nic),
            "card card0: up, wire w0 of 1000 Mb/s, started 2 times, 50 interrupt vectors, 1 faults"
        );
        let text = table(&[nic]).to_string();
        for part in ["hypervisor", "red", "up", "512", "16.0", "no_descriptors 10"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
