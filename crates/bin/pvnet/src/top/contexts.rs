//! The contexts of cards in an interval.

use control_socket::{ContextState, ContextStatus, Status, Traffic};
use report::human;

use super::layout::{TableColumn, table};
use super::view::{Column, Listed};

/// One context in an interval.
#[derive(Debug)]
pub struct ContextRates {
    /// Its card.
    pub nic: String,
    /// Its number on the card.
    pub context: u8,
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

impl ContextRates {
    /// Descriptors per hypercall; none where hypercalls put none on a ring.
    pub fn per_call(&self) -> Option<f64> {
        (self.descriptors > 0).then(|| self.descriptors as f64 / self.calls as f64)
    }
}

impl Listed for ContextRates {
    fn name(&self) -> &str {
        &self.guest
    }

    fn words(&self) -> Vec<String> {
        let Self { nic, guest, protection, state, .. } = self;
        vec![nic.clone(), guest.clone(), protection.clone(), state.to_string()]
    }

    fn amount(&self, column: Column) -> u64 {
        match column {
            Column::Name | Column::Cpu | Column::Time | Column::Cost => 0,
            Column::Rate => self.tx.frames + self.rx.frames,
            Column::Bytes => self.tx.bytes + self.rx.bytes,
            Column::Drops => self.drops,
        }
    }
}

/// A table of at most `width` characters in a line, for intervals of `seconds`; empty without a context.
pub fn text(contexts: &[&ContextRates], seconds: f64, width: Option<usize>) -> String {
    if contexts.is_empty() {
        return String::new();
    }
    let rate = |n: u64| human(n as f64 / seconds);
    let megabits = |n: u64| human(n as f64 * 8.0 / 1e6 / seconds);
    let column = |header, is_left, rank, cell: &dyn Fn(&ContextRates) -> String| TableColumn {
        header,
        is_left,
        cells: contexts.iter().map(|context| cell(context)).collect(),
        rank,
    };
    let per_call =
        |context: &ContextRates| context.per_call().map_or_else(|| "–".to_owned(), human);
    let columns = vec![
        column("card", true, 0, &|context| context.nic.clone()),
        column("context", false, 5, &|context| context.context.to_string()),
        column("guest", true, 0, &|context| context.guest.clone()),
        column("protection", true, 9, &|context| context.protection.clone()),
        column("state", true, 3, &|context| context.state.to_string()),
        column("frames/s sent", false, 1, &|context| rate(context.tx.frames)),
        column("Mb/s sent", false, 4, &|context| megabits(context.tx.bytes)),
        column("frames/s got", false, 1, &|context| rate(context.rx.frames)),
        column("Mb/s got", false, 4, &|context| megabits(context.rx.bytes)),
        column("drops/s", false, 2, &|context| rate(context.drops)),
        column("interrupts/s", false, 7, &|context| rate(context.interrupts)),
        column("descriptors/call", false, 8, &per_call),
        column("references", false, 6, &|context| context.references.to_string()),
    ];
    format!("{}\n", table(columns, width))
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
        let listed: Vec<_> = contexts.iter().collect();
        let text = |width| text(&listed, 2.0, width);
        let narrow = text(Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        for part in ["card0", "red", "1,000", "10.0"] {
            assert!(narrow.contains(part), "{part:?} is not in\n{narrow}");
        }
        let text = text(None);
        for part in ["card0", "red", "1,000", "8.00", "30.0", "16.0", "512"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert_eq!(context.per_call(), Some(16.0));
        // Assigned again meanwhile.
        let again = between(&status(4), &status(1));
        assert_eq!(again[0].tx.frames, 1000);
        assert!(between(&Status::default(), &Status::default()).is_empty());
        assert!(super::text(&[], 1.0, None).is_empty());
    }
}
