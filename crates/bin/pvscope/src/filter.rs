//! The options that select a part of a recording.

use clap::Args;

use scope_result::{CallKind, CallNode, Mode, Recording};

use crate::summary::{Part, Who, function_name, mode_name, plain};

/// Which parts of a recording to show.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which code")]
pub struct FilterArgs {
    /// Only what this domain executes: dom0, "domU 1", Xen, idle or machine.
    #[arg(long, value_name = "WHO")]
    domain: Option<String>,
    /// Only this kind of code: hypervisor, kernel or user.
    #[arg(long, value_name = "KIND")]
    code: Option<String>,
    /// Only this module, such as vmlinux or xen_netback.
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// Only functions whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    function: Option<String>,
}

impl FilterArgs {
    /// Whether these options select a part.
    pub fn selects(&self, part: &Part) -> bool {
        let (module, name) = function_name(&part.function);
        self.selects_owner(&part.who, part.mode)
            && is(self.module.as_ref(), &module)
            && self.function.as_ref().is_none_or(|text| name.contains(text))
    }

    /// Whether they select code of this kind of who works, in some module and function.
    pub fn selects_owner(&self, who: &Who, mode: Mode) -> bool {
        is(self.domain.as_ref(), &who.to_string()) && is(self.code.as_ref(), mode_name(mode))
    }

    /// Whether they select everything.
    pub fn is_empty(&self) -> bool {
        [&self.domain, &self.code, &self.module, &self.function].iter().all(|one| one.is_none())
    }
}

fn is(wanted: Option<&String>, own: &str) -> bool {
    wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(own))
}

/// Which part of the execution to show, by what it happens in. It needs a call graph.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which part of the execution")]
pub struct EventFilter {
    /// Only what happens inside this: interrupt, trap (system calls, hypercalls and exceptions), or a function of this name, with
    /// all that it calls. It needs a recording with a call graph.
    #[arg(long, value_name = "EVENT|FUNCTION")]
    within: Option<String>,
}

impl EventFilter {
    /// Only what happens inside an event or a function.
    #[cfg(test)]
    pub fn within(what: &str) -> Self {
        Self { within: Some(what.to_owned()) }
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.within.is_none()
    }

    /// Whether it selects a node of the call graph and all that it calls.
    pub fn begins(&self, recording: &Recording, node: &CallNode) -> bool {
        match self.within.as_deref() {
            None => true,
            Some("interrupt") => node.kind == CallKind::Interrupt,
            Some("trap") => node.kind == CallKind::Trap,
            Some(name) => {
                let block = recording.blocks.get(node.block as usize);
                let function =
                    block.and_then(|block| recording.functions.get(block.function as usize));
                function.is_some_and(|function| plain(&function.name) == name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use scope_result::Function;

    use super::*;

    #[test]
    fn every_option_has_to_match() {
        let part = Part {
            who: Who::Domain("domU 1".to_owned()),
            mode: Mode::Kernel,
            function: Function { module: "vmlinux".to_owned(), name: "tcp_ack".to_owned() },
        };
        let some = |text: &str| Some(text.to_owned());
        let filter = FilterArgs {
            domain: some("DOMU 1"),
            code: some("kernel"),
            module: some("vmlinux"),
            function: some("ack"),
        };
        assert!(filter.selects(&part) && FilterArgs::default().selects(&part));
        assert!(FilterArgs::default().is_empty() && !filter.is_empty());
        for other in [
            FilterArgs { domain: some("dom0"), ..filter.clone() },
            FilterArgs { code: some("user"), ..filter.clone() },
            FilterArgs { module: some("xen"), ..filter.clone() },
            FilterArgs { function: some("syn"), ..filter.clone() },
        ] {
            assert!(!other.selects(&part), "{other:?}");
        }
    }
}
