//! The contexts of cards in an interval.

use control_socket::{ContextState, ContextStatus, Status, Traffic};
use report::{Table, human};
use serde_json::{Value, json};

/// One context in an interval.
#[derive(Debug)]
pub struct ContextRates {
    /// Its card.
    pub nic: String,
    /// Its number on the card.
    pub context: u8,
    /// Its guest.
    pub guest: String,
    /// How it is protected.
    pub protection: String,
    /// Its state at the end.
    pub state: ContextState,
    /// References to the guest's pages at the end.
    pub references: u64,
    /// Frames that the guest sent.
    pub tx: Traffic,
    /// Frames that it received.
    pub rx: Traffic,
    /// Dropped frames.
    pub drops: u64,
    /// Virtual interrupts.
    pub interrupts: u64,
    /// Hypercalls.
    pub calls: u64,
    /// Descriptors that they put on a ring.
    pub descriptors: u64,
}

/// All contexts between two readings.
pub fn between(before: &Status, after: &Status) -> Vec<ContextRates> {
    let find = |nic: &str, context: u8| {
        let nic = before.nics.iter().find(|other| other.name == nic)?;
        nic.contexts.iter().find(|other| other.context == context)
    };
    let of_nic = after
        .nics
        .iter()
        .flat_map(|nic| nic.contexts.iter().map(move |context| (nic.name.as_str(), context)));
    of_nic.map(|(nic, context)| rates(nic, find(nic, context.context), context)).collect()
}

fn rates(nic: &str, before: Option<&ContextStatus>, after: &ContextStatus) -> ContextRates {
    // Counters begin again with each assignment.
    let same = |other: &&ContextStatus| {
        other.tx.frames <= after.tx.frames
            && other.rx.frames <= after.rx.frames
            && other.calls <= after.calls
    };
    let before = before.filter(same);
    let since =
        |field: fn(&ContextStatus) -> u64| field(after).saturating_sub(before.map_or(0, field));
    ContextRates {
        nic: nic.to_owned(),
        context: after.context,
        guest: after.guest.clone(),
        protection: after.protection.clone(),
        state: after.state,
        references: after.references,
        tx: Traffic { frames: since(|c| c.tx.frames), bytes: since(|c| c.tx.bytes) },
        rx: Traffic { frames: since(|c| c.rx.frames), bytes: since(|c| c.rx.bytes) },
        drops: since(ContextStatus::dropped),
        interrupts: since(|c| c.interrupts),
        calls: since(|c| c.calls),
        descriptors: since(|c| c.descriptors),
    }
}

/// A table, for intervals of so many seconds; empty without a context.
pub fn text(contexts: &[ContextRates], seconds: f64) -> String {
    if contexts.is_empty() {
        return String::new();
    }
    let mut table = Table::new()
        .left("card")
        .right("context")
        .left("guest")
        .left("protection")
        .left("state")
        .right("frames/s sent")
        .right("Mb/s sent")
        .right("frames/s got")
        .right("Mb/s got")
        .right("drops/s")
        .right("interrupts/s")
        .right("descriptors/call")
        .right("references");
    let rate = |n: u64| human(n as f64 / seconds);
    let megabits = |n: u64| human(n as f64 * 8.0 / 1e6 / seconds);
    for context in contexts {
        table.row([
            context.nic.clone(),
            context.context.to_string(),
            context.guest.clone(),
            context.protection.clone(),
            context.state.to_string(),
            rate(context.tx.frames),
            megabits(context.tx.bytes),
            rate(context.rx.frames),
            megabits(context.rx.bytes),
            rate(context.drops),
            rate(context.interrupts),
            per_call(context).map_or_else(|| "–".to_owned(), human),
            context.references.to_string(),
        ]);
    }
    format!("{table}\n")
}

fn per_call(context: &ContextRates) -> Option<f64> {
    (context.descriptors > 0).then(|| context.descriptors as f64 / context.calls as f64)
}

/// One object for each context.
pub fn json(contexts: &[ContextRates], seconds: f64) -> Vec<Value> {
    let rate = |n: u64| n as f64 / seconds;
    let traffic = |traffic: Traffic| {
        json!({
            "frames_per_second": rate(traffic.frames),
            "bits_per_second": rate(traffic.bytes) * 8.0,
        })
    };
    let object = |context: &ContextRates| {
        json!({
            "nic": context.nic,
            "context": context.context,
            "guest": context.guest,
            "protection": context.protection,
            "state": context.state,
            "references": context.references,
            "tx": traffic(context.tx),
            "rx": traffic(context.rx),
            "drops_per_second": rate(context.drops),
            "interrupts_per_second": rate(context.interrupts),
            "calls_per_second": rate(context.calls),
            "descriptors_per_call": per_call(context),
        })
    };
    contexts.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::nic;

    fn status(n: u64) -> Status {
        Status { nics: vec![nic(n)], ..Status::default() }
    }

    #[test]
    fn contexts_have_rates() {
        let contexts = between(&status(2), &status(4));
        let [context] = &contexts[..] else { panic!("{contexts:?}") };
        assert_eq!((context.tx.frames, context.rx.frames, context.drops), (2000, 1000, 20));
        let text = text(&contexts, 2.0);
        for part in ["card0", "red", "1,000", "8.00", "30.0", "16.0", "512"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let json = &json(&contexts, 2.0)[0];
        assert_eq!(json["tx"]["frames_per_second"], 1000.0);
        assert_eq!(json["descriptors_per_call"], 16.0);
        // Assigned again meanwhile.
        let again = between(&status(4), &status(1));
        assert_eq!(again[0].tx.frames, 1000);
        assert!(super::text(&between(&Status::default(), &Status::default()), 1.0).is_empty());
    }
}
