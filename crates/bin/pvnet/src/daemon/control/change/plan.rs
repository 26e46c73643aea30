//! What is done about the differences between what runs and a configuration.

use std::collections::BTreeMap;

use control_socket::{ChangeAction, ChangeStep, TableKind};

use crate::config::{Difference, Effort, What};
use crate::daemon::ports::Agreed;

/// The ports whose settings are agreed with a front-end now, by table and name: of a guest's interface, by that of the guest too.
#[derive(Debug, Default)]
pub(super) struct Connected(pub(super) BTreeMap<(TableKind, String), Agreed>);

/// The steps from what runs to a configuration. With `reconnect`, connections are cut and devices are opened again where that is
/// needed; without, such keys wait.
pub(super) fn plan(
    differences: &[Difference],
    connected: &Connected,
    reconnect: bool,
) -> Vec<ChangeStep> {
    let mut steps = Vec::new();
    for Difference { table, name, what } in differences {
        let mut push = |action, keys: Vec<&str>, reason: Option<&str>| {
            steps.push(ChangeStep {
                table: *table,
                name: name.clone(),
                action,
                keys: keys.into_iter().map(str::to_owned).collect(),
                reason: reason.map(str::to_owned),
                reverts_command: false,
            });
        };
        let keys = match what {
            What::Added => {
                push(ChangeAction::Add, Vec::new(), None);
                continue;
            }
            What::Removed => {
                push(ChangeAction::Remove, Vec::new(), None);
                continue;
            }
            What::Fixed(effort) => {
                push(ChangeAction::Refuse, Vec::new(), effort.reason());
                continue;
            }
            What::Changed(keys) => keys,
        };
        let refused = keys.iter().find_map(|(_, effort)| effort.reason());
        let with = |wanted: &dyn Fn(Effort) -> bool| -> Vec<&str> {
            keys.iter().filter(|(_, effort)| wanted(*effort)).map(|(key, _)| *key).collect()
        };
        if let Some(reason) = refused {
            let is_at_start = |effort: Effort| effort.reason().is_some();
            push(ChangeAction::Refuse, with(&is_at_start), Some(reason));
            // The other keys of a table without ports can change.
            if !table.is_port() {
                let others = with(&|effort| !is_at_start(effort));
                if !others.is_empty() {
                    push(ChangeAction::Change, others, None);
                }
            }
            continue;
        }
        let agreed = connected.0.get(&(*table, name.clone()));
        let is_easy = |effort: Effort| {
            effort == Effort::InPlace || (effort == Effort::Connection && agreed.is_none())
        };
        let (easy, hard) = (with(&is_easy), with(&|effort| !is_easy(effort)));
        if !easy.is_empty() {
            push(ChangeAction::Change, easy, None);
        }
        if hard.is_empty() {
            continue;
        }
        match agreed {
            Some(Agreed::ByToolstack) => push(
                ChangeAction::Wait,
                hard,
                Some("until the toolstack detaches and attaches the interface (xl network-detach)"),
            ),
            _ if reconnect => push(ChangeAction::Reconnect, hard, None),
            _ if keys.iter().any(|(_, effort)| *effort == Effort::Device) => push(
                ChangeAction::Wait,
                hard,
                Some("its device or socket must be opened again: --reconnect does it now"),
            ),
            _ => push(
                ChangeAction::Wait,
                hard,
                Some(
                    "agreed with its front-end until that connects again: --reconnect cuts the connection now",
                ),
            ),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, differences};

    const RED: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n";
    const UP: &str = "[[uplink]]\nname = \"up\"\ntap = \"up0\"\n";
    const VM: &str = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/vm\"\n\
                      mac = \"02:00:00:00:00:09\"\n";
    const CARD: &str = "[[nic]]\nname = \"card0\"\nwire = { tap = \"wire0\" }\n";

    /// The steps in words. With `reconnect`, those that need a new connection get one.
    fn steps(old: &str, new: &str, connected: &[&str], reconnect: bool) -> Vec<String> {
        let both = |name: &&str| {
            [TableKind::Guest, TableKind::Port].map(|table| (table, (*name).to_owned()))
        };
        let ports = connected.iter().flat_map(both);
        let connected = Connected(ports.map(|port| (port, Agreed::ByDaemon)).collect());
        let [old, new] = [old, new].map(|text| Config::parse(text).unwrap());
        let steps = plan(&differences(&old, &new), &connected, reconnect);
        let line = |step: &ChangeStep| {
            let ChangeStep { table, name, action, keys, .. } = step;
            format!("{action} {table} {name} {}", keys.join(" ")).trim_end().to_owned()
        };
        steps.iter().map(line).collect()
    }

    #[test]
    fn what_is_the_same_is_not_touched() {
        let all = [RED, UP, VM, CARD].concat();
        assert!(steps(&all, &all, &["red", "vm"], true).is_empty());
        // A default that is written out is no change.
        let written = format!("{RED}tx = \"header\"\nmemory_mib = 64\n");
        assert!(steps(RED, &written, &["red"], true).is_empty());
    }

    #[test]
    fn ports_come_and_go() {
        let all = [RED, UP, VM].concat();
        let added = steps("", &all, &[], false);
        assert_eq!(added, ["added guest red", "added uplink up", "added port vm"]);
        let removed = steps(&all, "", &["red"], false);
        assert_eq!(removed, ["removed guest red", "removed uplink up", "removed port vm"]);
    }

    #[test]
    fn limits_and_guards_change_in_place() {
        for (old, keys) in [
            (
                RED,
                "limit.egress = { mbps = 8 }\nguard = \"off\"\nenabled = false\ncoalesce_us = 9\nmulticast_router = true\n",
            ),
            (
                VM,
                "limit.egress = { mbps = 8 }\nguard = \"off\"\nmemory_mib = 64\nflood_copies_per_second = 9\n",
            ),
            (UP, "enabled = false\ncoalesce_us = 9\nmulticast_router = \"auto\"\n"),
        ] {
            let found = steps(old, &format!("{old}{keys}"), &["red", "vm"], false);
            let [step] = &found[..] else { panic!("{found:?}") };
            assert!(step.starts_with("changed "), "{step}");
            assert_eq!(step.split(' ').count(), 3 + keys.lines().count(), "{step}");
        }
    }

    #[test]
    fn what_was_agreed_waits_for_the_next_connection() {
        for (old, keys, name) in
            [(RED, "queues = 2\n", "guest red"), (VM, "packed = true\n", "port vm")]
        {
            let new = format!("{old}{keys}limit.egress = {{ mbps = 8 }}\n");
            let key = keys.split(' ').next().unwrap();
            let connected = &name.split(' ').skip(1).collect::<Vec<_>>();
            let both =
                |what: &str| vec![format!("changed {name} limit"), format!("{what} {name} {key}")];
            assert_eq!(steps(old, &new, connected, false), both("waits"));
            assert_eq!(steps(old, &new, connected, true), both("reconnected"));
            let [step] = &steps(old, &new, &[], false)[..] else { panic!() };
            assert!(step.starts_with("changed"), "nobody is connected: {step}");
        }
        let device = format!("{VM}attach = \"device\"\nmtu = 1442\n");
        assert_eq!(steps(VM, &device, &[], false), ["waits port vm attach mtu"]);
        assert_eq!(steps(VM, &device, &[], true), ["reconnected port vm attach mtu"]);
        let device = format!("{RED}attach = \"device\"\n");
        assert_eq!(steps(RED, &device, &["red"], false), ["waits guest red attach"]);
        assert_eq!(steps(RED, &device, &[], false), ["changed guest red attach"]);
        let other = UP.replace("up0", "up1");
        assert_eq!(steps(UP, &other, &[], false), ["waits uplink up tap"]);
        assert_eq!(steps(UP, &other, &[], true), ["reconnected uplink up tap"]);
    }

    #[test]
    fn an_interface_of_a_toolstack_waits_for_the_toolstack() {
        let red = (TableKind::Guest, "red".to_owned());
        let connected = Connected([(red, Agreed::ByToolstack)].into());
        let new = format!("{RED}queues = 2\n");
        let [old, new] = [RED, &new].map(|text| Config::parse(text).unwrap());
        let steps = plan(&differences(&old, &new), &connected, true);
        let [step] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(step.action, ChangeAction::Wait);
        assert!(step.reason.as_ref().is_some_and(|why| why.contains("network-detach")), "{step}");
    }

    #[test]
    fn what_is_set_up_at_the_start_is_refused() {
        let daemon = |text: &str| format!("[daemon]\n{text}");
        let new = daemon("workers = 3\ncapture = false\n");
        let found = steps(&daemon("workers = 2\n"), &new, &[], true);
        assert_eq!(found, ["refused daemon  workers", "changed daemon  capture"]);
        assert_eq!(steps("", CARD, &[], true), ["refused nic card0"]);
        let context = format!("{RED}nic = \"card0\"\n");
        let found = steps(&format!("{CARD}{RED}"), &format!("{CARD}{context}"), &[], true);
        assert_eq!(found, ["refused guest red vif context"]);
        let found = steps(CARD, &format!("{CARD}{context}"), &[], true);
        assert_eq!(found, ["refused guest red"]);
        let attach = "[xen]\nattach = \"device\"\n";
        assert_eq!(steps("", attach, &[], true), ["refused xen  attach"]);
        let switch =
            "[switch]\nage_seconds = 9\nflood_copies_per_second = 9\nmulticast = \"snoop\"\n";
        let changed = "changed switch  flood_copies_per_second multicast";
        assert_eq!(steps("", switch, &[], true), ["refused switch  age_seconds", changed]);
    }
}
