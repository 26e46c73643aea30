//! Costs by process: what its program executes, and what its kernel and the hypervisor execute for it.

use std::collections::BTreeMap;

use ::report::{Table, human};
use scope_model::{Costs, Counters};
use scope_result::{CallNode, Mode};

use crate::call_graph::CallGraph;
use crate::summary::{Who, who};

#[derive(Debug, Default)]
pub struct ProcessCost {
    /// The program, if its name is known.
    pub program: Option<String>,
    /// By the kind of code.
    pub modes: BTreeMap<Mode, Counters>,
}

/// A process: its domain, and the root of its page tables. None for what interrupts do, and what no program was seen to call.
pub type Process = (Who, Option<u64>);

/// The costs of every process.
pub fn costs(graph: &CallGraph<'_>) -> BTreeMap<Process, ProcessCost> {
    let recording = graph.recording;
    let mut owners: Vec<Option<u64>> = vec![None; recording.calls.len()];
    let mut costs = BTreeMap::<Process, ProcessCost>::new();
    let mut programs = BTreeMap::<Process, BTreeMap<&str, u64>>::new();
    for (number, node) in graph.nodes() {
        let part = graph.part(number);
        let own = (part.mode == Mode::User).then_some(node.space);
        owners[number] = own.or(owners[node.parent as usize]);
        let process = (domain(graph, node), owners[number]);
        let cost = costs.entry(process.clone()).or_default();
        *cost.modes.entry(part.mode).or_default() += &node.counters;
        if own.is_some() {
            let module = part.function.module.as_str();
            let sums = programs.entry(process).or_default();
            *sums.entry(module).or_default() += node.counters.instructions;
        }
    }
    for (process, modules) in programs {
        // Every process has libraries; the program is the rest, unless it did nothing itself.
        let named = modules.iter().filter(|(name, _)| !name.is_empty() && !name.starts_with('['));
        let most = named.max_by_key(|(name, instructions)| {
            let is_common = name.starts_with("libc.") || name.starts_with("ld-");
            (!name.contains(".so"), !is_common, **instructions)
        });
        if let Some(cost) = costs.get_mut(&process) {
            cost.program = most.map(|(module, _)| (*module).to_owned());
        }
    }
    costs
}

/// The domain that runs, also when the hypervisor works for it.
fn domain(graph: &CallGraph<'_>, node: &CallNode) -> Who {
    who(graph.recording.domains.get(usize::from(node.domain)), Mode::Kernel)
}

/// A table of processes, the most expensive first.
pub fn table(graph: &CallGraph<'_>, cycles: &Costs, top: usize) -> Table {
    let frames = graph.recording.work.frames.max(1) as f64;
    let all = cycles.cycles(graph.total()).max(f64::MIN_POSITIVE);
    let sum = |cost: &ProcessCost| cost.modes.values().map(|mode| cycles.cycles(mode)).sum::<f64>();
    let mut rows: Vec<_> = costs(graph).into_iter().collect();
    rows.sort_by(|(_, one), (_, other)| sum(other).total_cmp(&sum(one)));
    let table = Table::new().left("domain").left("process").right("% of cycles");
    let table = ["user", "kernel", "hypervisor"].into_iter().fold(table, |table, mode| {
        table.right(format!("{mode}: cycles")).right(format!("{mode}: instructions"))
    });
    rows.into_iter().take(top).fold(table, |mut table, ((who, space), cost)| {
        let process = match (&cost.program, space) {
            (Some(program), Some(space)) => format!("{program} {space:#x}"),
            (None, Some(space)) => format!("unknown {space:#x}"),
            (_, None) => "interrupts, and kernel threads".to_owned(),
        };
        let share = format!("{:.1}", 100.0 * sum(&cost) / all);
        let modes = [Mode::User, Mode::Kernel, Mode::Hypervisor].into_iter().flat_map(|mode| {
            let counters = cost.modes.get(&mode).copied().unwrap_or_default();
            [cycles.cycles(&counters), counters.instructions as f64]
        });
        let counts = modes.map(|count| human(count / frames));
        table.row([who.to_string(), process, share].into_iter().chain(counts));
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_graph::tests::recording;
    use crate::filter::EventFilter;

    #[test]
    fn what_a_kernel_does_for_a_process_is_the_processs() {
        let mut recording = recording();
        recording.functions[1].module = "iperf3".to_owned();
        recording.functions[2].module = "libc.so.6".to_owned();
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let costs = costs(&graph);
        let machine = || Who::Domain("machine".to_owned());
        let of = |space| {
            let cost = &costs[&(machine(), space)];
            let modes = cost.modes.iter().map(|(mode, sum)| (*mode, sum.instructions));
            (cost.program.clone(), modes.collect::<Vec<_>>())
        };
        let own = (Some("iperf3".to_owned()), vec![(Mode::Kernel, 3120), (Mode::User, 11)]);
        assert_eq!(of(Some(0x5000)), own);
        assert_eq!(of(None), (None, vec![(Mode::Kernel, 10_500)]));
        assert_eq!(costs.len(), 2);
        assert_eq!(table(&graph, &Costs::default(), 9).rows().len(), 2);
    }
}
