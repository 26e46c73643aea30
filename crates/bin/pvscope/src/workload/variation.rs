//! Changes of a ready-made workload, for experiments.

use clap::Args;

use crate::error::{Error, Result};

/// What an experiment changes. Nothing by default.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "A ready-made workload, changed for an experiment")]
pub struct Variation {
    /// More words of Xen's command line, such as sched=credit.
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    pub xen_append: String,
    /// A line of the guest's configuration (xl.cfg), such as tsc_mode="native".
    #[arg(long, value_name = "LINE", default_value = "", hide_default_value = true)]
    pub guest_config: String,
    /// More options of iperf3, which makes TCP's traffic: "-w 16K" limits both windows, "-b 5M -l 1K" sends single segments.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub iperf: String,
    /// Microseconds for which a sender of UDP sleeps after each datagram.
    #[arg(long, value_name = "N")]
    pub pause: Option<u32>,
    /// A line of the script of dom0, or of a machine without Xen, before traffic starts: "while :; do :; done &" keeps it busy.
    #[arg(long, value_name = "LINE", default_value = "", hide_default_value = true)]
    pub script: String,
    /// A line of the guest's script, before it sends.
    #[arg(long, value_name = "LINE", default_value = "", hide_default_value = true)]
    pub guest_script: String,
}

impl Variation {
    /// Returns an error if anything is changed.
    pub fn refuse(&self) -> Result<()> {
        let what = "--xen-append, --guest-config, --iperf, --pause, --script and --guest-script are for ready-made workloads";
        if *self == Self::default() { Ok(()) } else { Err(Error::Usage(what.to_owned())) }
    }

    /// What is changed by words: the option, what it changes, and the words.
    fn words(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        let words = [
            ("--xen-append", "Xen", &self.xen_append),
            ("--guest-config", "the guest", &self.guest_config),
            ("--iperf", "iperf3", &self.iperf),
            ("--script", "script", &self.script),
            ("--guest-script", "the guest's script", &self.guest_script),
        ];
        words.into_iter().filter(|(.., words)| !words.is_empty())
    }

    /// The options of what is changed, as on the command line.
    pub fn options(&self) -> Vec<String> {
        let pause = self.pause.map(|pause| format!("--pause {pause}"));
        self.words().map(|(option, _, words)| format!("{option} {words}")).chain(pause).collect()
    }

    /// A workload's description, `about`, with the changes.
    pub fn describe(&self, about: &str) -> String {
        let pause = self.pause.map(|pause| format!("; pauses of {pause} µs"));
        let words = self.words().map(|(_, what, words)| format!("; {what}: {words}"));
        std::iter::once(about.to_owned()).chain(words).chain(pause).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    fn error(variation: &Variation, workload: &str) -> Option<String> {
        let checked = Workload::named(workload).unwrap().check(variation);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn a_change_that_a_workload_lacks_is_refused() {
        let iperf = Variation { iperf: "-w 16K".to_owned(), ..Variation::default() };
        let pause = Variation { pause: Some(2000), ..Variation::default() };
        let xen = Variation { xen_append: "sched=credit".to_owned(), ..Variation::default() };
        let guest = Variation { guest_config: "x=1".to_owned(), ..Variation::default() };
        let line = Variation { guest_script: "true".to_owned(), ..Variation::default() };
        for (variation, has, lacks) in [
            (&iperf, "rx-stock-basic", "tx-udp"),
            (&iperf, "virtio", "tx-sendfile"),
            (&pause, "tx-udp", "tx-stock"),
            (&xen, "virtio-dom0", "virtio"),
            (&guest, "tx-udp", "virtio-dom0"),
            (&line, "tx-udp", "loopback"),
        ] {
            assert_eq!(error(variation, has), None, "{has}");
            assert!(error(variation, lacks).is_some_and(|error| error.contains(lacks)), "{lacks}");
        }
    }

    #[test]
    fn network_cards_send_at_the_same_instruction_in_each_run() {
        for workload in Workload::ALL {
            let batch = workload.batch(200, None, &Variation::default()).unwrap();
            let cards = batch.devices.iter().filter(|word| word.starts_with("virtio-net-pci"));
            for card in cards {
                let is_exact = card.contains(",tx=timer,ioeventfd=off,");
                assert!(is_exact, "{}: {card}", workload.name);
            }
        }
    }

    #[test]
    fn a_change_is_in_the_description_and_in_the_script() {
        let workload = Workload::named("rx-stock-basic").unwrap();
        let none = Variation::default();
        assert_eq!(none.describe(&workload.describe()), workload.describe());
        let some = Variation { iperf: "-w 16K".to_owned(), ..none.clone() };
        assert!(some.describe(&workload.describe()).contains("-w 16K"));
        assert_eq!(some.options(), ["--iperf -w 16K"]);
        assert!(none.options().is_empty());
        let script = |variation| workload.batch(200, None, variation).unwrap().script;
        assert!(script(&some).contains("iperf3 -c 10.0.0.2  -w 16K -t 86400"), "{}", script(&some));
        assert!(script(&none).contains("iperf3 -c 10.0.0.2  -t 86400"), "{}", script(&none));
        let [script, guest_script] = ["busy in dom0", "busy in the guest"].map(str::to_owned);
        let lines = Variation { script, guest_script, ..none.clone() };
        for workload in Workload::ALL {
            let [plain, changed] =
                [&none, &lines].map(|variation| workload.batch(200, None, variation).unwrap());
            let (line, rest) = ("busy in dom0\n", &plain.script);
            assert_eq!(changed.script.replacen(line, "", 1), *rest, "{}", workload.name);
            let before = changed.script.find(line).unwrap();
            assert!(before < changed.script.find("mark-begin").unwrap(), "{}", workload.name);
            let line = "busy in the guest\n";
            assert_eq!(changed.guest_script.replacen(line, "", 1), plain.guest_script);
            assert_eq!(changed.guest_script.contains(line), workload.check(&lines).is_ok());
        }
    }
}
