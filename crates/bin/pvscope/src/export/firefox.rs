//! The format of the Firefox Profiler: domains as processes, and the order of the recorded flow as time.

use std::collections::HashMap;
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp,
};
use scope_result::{Mode, Recording};

use crate::call_graph::{label, part};
use crate::error::{Error, Result};
use crate::packet::flow::{Flow, Visit};
use crate::summary::{Who, function_name, mode_name};

/// The flow of a recording. An instruction takes a nanosecond there, as in the machine's own time.
pub fn json(recording: &Recording) -> Result<String> {
    let flow = Flow::new(recording);
    if flow.visits.is_empty() {
        return Err(Error::Usage(
            "this recording has no flow: `pvscope run --flow N` keeps the order of N blocks"
                .to_owned(),
        ));
    }
    let mut document = Document::new(recording);
    // One sample for each stay in a function, at its end.
    let stays = flow.visits.chunk_by(|_, next| !next.changed);
    stays.for_each(|stay| document.add(&flow, stay));
    serde_json::to_string(&document.profile).map_err(|error| Error::Usage(error.to_string()))
}

struct Document {
    profile: Profile,
    threads: HashMap<Who, ThreadHandle>,
    /// The stacks of nodes of the call graph.
    stacks: HashMap<(ThreadHandle, u32), Option<StackHandle>>,
    kinds: [CategoryHandle; 3],
}

/// Kinds of code with their colors, in the order of their numbers.
const KINDS: [(Mode, CategoryColor); 3] = [
    (Mode::Hypervisor, CategoryColor::Red),
    (Mode::Kernel, CategoryColor::Orange),
    (Mode::User, CategoryColor::Yellow),
];

impl Document {
    fn new(recording: &Recording) -> Self {
        let start = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::ZERO);
        let mut profile =
            Profile::new(&recording.work.what, start, SamplingInterval::from_nanos(1000));
        // All names are here.
        profile.set_symbolicated(true);
        let kinds = KINDS.map(|(mode, color)| profile.add_category(mode_name(mode), color));
        Self { profile, threads: HashMap::new(), stacks: HashMap::new(), kinds }
    }

    fn add(&mut self, flow: &Flow<'_>, stay: &[Visit<'_>]) {
        let (Some(first), Some(last)) = (stay.first(), stay.last()) else { return };
        let thread = self.thread(flow.who(first), first.at);
        let end = last.at + u64::from(last.block.instructions);
        let stack = match self.stacks.get(&(thread, first.node())) {
            Some(stack) => *stack,
            None => self.stack(flow, first, thread),
        };
        let instructions = end - first.at;
        self.profile.add_sample(
            thread,
            Timestamp::from_nanos_since_reference(end),
            stack,
            CpuDelta::from_nanos(instructions),
            i32::try_from(instructions).unwrap_or(i32::MAX),
        );
    }

    /// The stack of a stay that begins with a visit. Stays in one node have the same.
    fn stack(
        &mut self,
        flow: &Flow<'_>,
        visit: &Visit<'_>,
        thread: ThreadHandle,
    ) -> Option<StackHandle> {
        let frames: Vec<FrameInfo> = frames(flow, visit)
            .into_iter()
            .map(|(label, mode)| FrameInfo {
                frame: Frame::Label(self.profile.intern_string(&label)),
                category_pair: self.kinds[mode as usize].into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        let stack = self.profile.intern_stack_frames(thread, frames.into_iter());
        // Without a call graph all visits have node 0.
        if visit.node() > 0 {
            self.stacks.insert((thread, visit.node()), stack);
        }
        stack
    }

    /// The thread of a domain, which is its process too.
    fn thread(&mut self, who: Who, at: u64) -> ThreadHandle {
        let next = u32::try_from(self.threads.len() + 1).unwrap_or(u32::MAX);
        let profile = &mut self.profile;
        let name = who.to_string();
        *self.threads.entry(who).or_insert_with(|| {
            let start = Timestamp::from_nanos_since_reference(at);
            let process = profile.add_process(&name, next, start);
            let thread = profile.add_thread(process, next, start, true);
            profile.set_thread_name(thread, &name);
            thread
        })
    }
}

/// The frames of a stay, the outermost first: the chain of calls; without a call graph the module and the function.
fn frames(flow: &Flow<'_>, visit: &Visit<'_>) -> Vec<(String, Mode)> {
    let recording = flow.recording;
    let mut frames = Vec::new();
    let mut node = visit.node() as usize;
    while let Some(own) = recording.calls.get(node).filter(|_| node > 0) {
        let part = part(recording, own);
        frames.push((label(&part.function), part.mode));
        node = own.parent as usize;
    }
    frames.reverse();
    if frames.is_empty() {
        let function = flow.function(visit.block).cloned().unwrap_or_default();
        let (module, name) = function_name(&function);
        frames.extend([module, name].map(|label| (label, visit.mode())));
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::recording;

    #[test]
    fn domains_are_processes_and_stays_are_samples() {
        let json = json(&recording()).expect("a document");
        let document: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let threads = document["threads"].as_array().expect("threads");
        let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str()).collect();
        assert_eq!(names, [Some("dom0"), Some("Xen"), Some("domU 1")]);
        let samples = threads.iter().map(|thread| thread["samples"]["length"].as_u64());
        assert_eq!(samples.collect::<Vec<_>>(), [Some(2), Some(1), Some(1)]);
        assert!(json.contains("do_iret"));
        let calls = crate::call_graph::tests::recording();
        let flow = calls.calls.iter().zip(0..).skip(1).map(|(node, number)| scope_result::Step {
            block: node.block,
            node: number,
            ..scope_result::Step::default()
        });
        let with_calls = Recording { flow: flow.collect(), ..calls };
        let json = super::json(&with_calls).expect("a document");
        let document: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        // main; write; sys_write; sys_write; copy, and the interrupt's two.
        assert_eq!(document["threads"][0]["stackTable"]["length"], 7, "{document:#}");
        let none = Recording { flow: Vec::new(), ..recording() };
        assert!(super::json(&none).expect_err("no flow").to_string().contains("--flow"));
    }
}
