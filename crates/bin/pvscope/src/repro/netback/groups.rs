//! What functions work for, so that a difference of two sides can be read: rough, by their modules and names.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::cost::{FunctionCost, Share};
use crate::summary::plain;

/// Modules whose functions belong together.
const MODULES: [(&str, &str); 8] = [
    ("pvnet", "pvnet"),
    ("xen_netback", "xen_netback"),
    ("bridge", "bridge"),
    ("tun", "taps"),
    ("xen_evtchn", EVENTS),
    ("xen_gntdev", PINNING),
    ("virtio_net", "the card's driver"),
    ("virtio_ring", "the card's driver"),
];

const CALLS: &str = "system calls: entry, exit, checks";
const PINNING: &str = "gntdev: pages are pinned";
const GRANTS: &str = "Xen: grants and copies";
const COPIES: &str = "dom0's kernel: copies";
const EVENTS: &str = "events, wake-ups, scheduling";

/// The beginnings of names, of Xen and of dom0's kernel. The first that fits counts.
const XEN: [(&str, &[&str]); 3] = [
    (
        CALLS,
        &[
            "toggle_guest",
            "lstar_enter",
            "iret_exit_to_guest",
            "restore_all_guest",
            "do_iret",
            "do_stack_switch",
            "switch_to_kernel",
        ],
    ),
    (
        GRANTS,
        &[
            "gnttab",
            "do_grant_table",
            "unmap_common",
            "map_grant",
            "memcpy",
            "acquire_grant",
            "release_grant",
            "_spin_lock",
            "_read_",
            "get_page",
            "put_page",
            "copy_",
            "__copy",
            "page_get",
            "mod_l1",
            "do_mmu",
            "guest_get_eff",
            "clear_page",
        ],
    ),
    (
        EVENTS,
        &[
            "evtchn",
            "do_event",
            "send_guest",
            "vcpu_",
            "csched",
            "schedule",
            "sched_",
            "context_switch",
            "do_softirq",
            "do_poll",
            "timer",
            "runq",
            "do_IRQ",
        ],
    ),
];
const KERNEL: [(&str, &[&str]); 4] = [
    (
        CALLS,
        &[
            "entry_SYSCALL",
            "do_syscall",
            "syscall_",
            "x64_sys",
            "__x64_sys",
            "xen_iret",
            "exit_to_user",
            "xen_hypercall",
            "__seccomp",
            "seccomp",
            "security_",
            "apparmor_",
            "aa_",
            "__fget",
            "__fdget",
            "fput",
            "rw_verify",
            "vfs_",
            "ksys_",
            "import_iovec",
            "do_iter",
            "do_readv",
            "do_writev",
        ],
    ),
    (
        PINNING,
        &[
            "internal_get_user_pages",
            "get_user_pages",
            "pin_user",
            "gup_",
            "mfn_to_pfn",
            "xen_p",
            "__raw_callee_save_xen",
            "try_grab",
            "try_get_folio",
            "mod_node_page",
            "unpin_user",
            "follow_page",
            "gnttab_batch",
        ],
    ),
    (
        COPIES,
        &[
            "copy_user",
            "memcpy",
            "__memcpy",
            "_copy_",
            "copy_page",
            "skb_copy",
            "memmove",
            "csum_partial",
        ],
    ),
    (
        EVENTS,
        &[
            "evtchn",
            "xen_evtchn",
            "__schedule",
            "schedule",
            "sched",
            "try_to_wake",
            "wake_",
            "__wake",
            "ep_",
            "do_epoll",
            "eventfd",
            "enqueue_",
            "dequeue_",
            "pick_",
            "update_",
            "futex",
            "hrtimer",
            "ktime",
            "finish_task",
            "__switch",
            "irq_",
            "handle_irq",
            "__do_softirq",
            "tick_",
        ],
    ),
];

/// What a function works for.
fn group(function: &FunctionCost) -> &'static str {
    let is = |share: Share| function.who == share.name();
    if is(Share::Guest) {
        return "guests";
    }
    let module = MODULES.iter().find(|(module, _)| *module == function.module);
    if let Some((_, group)) = module {
        return group;
    }
    let name = plain(&function.function);
    let named = |rules: &[(&'static str, &[&str])], rest| {
        let fits = |names: &&[&str]| names.iter().any(|start| name.starts_with(start));
        rules.iter().find(|(_, names)| fits(names)).map_or(rest, |(group, _)| *group)
    };
    if is(Share::Xen) {
        named(&XEN, "Xen: the rest")
    } else if is(Share::Dom0Kernel) {
        named(&KERNEL, "dom0's kernel: its stack, memory, the rest")
    } else {
        "other programs of dom0"
    }
}

/// The model cycles for a unit of functions that work for the same, on both sides.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Group {
    /// What they work for.
    pub name: String,
    /// Those of netback's side.
    pub netback: f64,
    /// Those of pvnet's.
    pub pvnet: f64,
}

impl Group {
    /// All groups of both sides; none where one has no functions.
    pub fn all(netback: &[FunctionCost], pvnet: &[FunctionCost]) -> Vec<Self> {
        if netback.is_empty() || pvnet.is_empty() {
            return Vec::new();
        }
        let mut all = BTreeMap::<&str, (f64, f64)>::new();
        netback.iter().for_each(|of| all.entry(group(of)).or_default().0 += of.cycles);
        pvnet.iter().for_each(|of| all.entry(group(of)).or_default().1 += of.cycles);
        let group =
            |(name, (netback, pvnet)): (&str, _)| Self { name: name.to_owned(), netback, pvnet };
        let mut all: Vec<Self> = all.into_iter().map(group).collect();
        all.sort_by(|a, b| (b.pvnet - b.netback).total_cmp(&(a.pvnet - a.netback)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_grouped_by_who_works_then_module_then_name() {
        let group = |share: Share, module: &str, function: &str| {
            super::group(&FunctionCost {
                who: share.name().to_owned(),
                module: module.to_owned(),
                function: function.to_owned(),
                cycles: 1.0,
                instructions: 1.0,
            })
        };
        assert_eq!(group(Share::Guest, "vmlinux", "memcpy"), "guests");
        assert_eq!(group(Share::Dom0Kernel, "vmlinux", "memcpy_orig"), COPIES);
        assert_eq!(group(Share::Xen, "xen", "memcpy"), GRANTS);
        assert_eq!(
            group(Share::Xen, "xen", "common/grant_table.c#unmap_common.constprop.0"),
            GRANTS
        );
        assert_eq!(group(Share::Dom0Kernel, "xen_netback", "xenvif_rx_skb"), "xen_netback");
        assert_eq!(group(Share::Dom0Kernel, "xen_gntdev", "gntdev_ioctl"), PINNING);
        assert_eq!(group(Share::Dom0Programs, "libc.so.6", "unknown"), "other programs of dom0");
        assert!(group(Share::Dom0Kernel, "vmlinux", "tcp_ack").ends_with("the rest"));
    }
}
