//! A NIC's rules that put the frames for an address into a receive queue, managed with ethtool. Others may have rules there too:
//! those are never changed.

use wire::ethernet::MacAddr;

/// Runs ethtool with these arguments. Returns what it printed.
type Ethtool = Box<dyn Fn(&[&str]) -> Result<String, String> + Send + Sync>;

/// A rule of ours. It is removed on drop.
pub struct SteeringRule {
    ethtool: Ethtool,
    device: String,
    number: u32,
    mac: MacAddr,
    queue: u32,
}

impl SteeringRule {
    /// Adds it. Not every NIC can do it. None if the NIC has another's rule with the same effect.
    pub fn add(
        ethtool: impl Fn(&[&str]) -> Result<String, String> + Send + Sync + 'static,
        device: &str,
        mac: MacAddr,
        queue: u32,
    ) -> Result<Option<Self>, String> {
        let before = rules(&ethtool(&["-n", device])?);
        if let Some(Rule { number, queue: other, .. }) =
            before.iter().find(|rule| rule.destination == Some(mac))
        {
            return match other {
                Some(other) if *other == queue => Ok(None),
                _ => Err(format!(
                    "another's rule {number} of {device} says where frames for {mac} go; if nobody needs it, remove it: \
                     ethtool -N {device} delete {number}"
                )),
            };
        }
        let (to, into) = (mac.to_string(), queue.to_string());
        let rule = ["-N", device, "flow-type", "ether", "dst", &to, "action", &into];
        let said = ethtool(&rule)?;
        // "Added rule with ID 1023"
        let number = said.split_whitespace().next_back().and_then(|number| number.parse().ok());
        let number =
            number.ok_or_else(|| format!("ethtool does not say which rule it added: {said}"))?;
        let (ethtool, device) = (Box::new(ethtool), device.to_owned());
        Ok(Some(Self { ethtool, device, number, mac, queue }))
    }
}

impl Drop for SteeringRule {
    fn drop(&mut self) {
        let Self { ethtool, device, number, mac, queue } = self;
        // It fails if the NIC or its namespace is gone, and the rule with it.
        let Ok(listed) = ethtool(&["-n", device]) else { return };
        // Somebody may have removed it, and got its number for another one.
        let ours = Rule { number: *number, destination: Some(*mac), queue: Some(*queue) };
        if rules(&listed).contains(&ours) {
            let _ = ethtool(&["-N", device, "delete", &number.to_string()]);
        }
    }
}

/// A rule of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    number: u32,
    /// The one address that it is for.
    destination: Option<MacAddr>,
    /// The receive queue that it puts frames into; none if it drops them or does something else.
    queue: Option<u32>,
}

/// The rules in the output of `ethtool -n`.
fn rules(listed: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in listed.lines() {
        let Some((key, value)) = line.trim().split_once(": ") else { continue };
        match (key, rules.last_mut()) {
            ("Filter", _) => rules.extend(value.parse().ok().map(|number| Rule {
                number,
                destination: None,
                queue: None,
            })),
            ("Dest MAC addr", Some(rule)) => {
                // Bits of the mask are those that may differ.
                let mac = value.strip_suffix(" mask: 00:00:00:00:00:00");
                rule.destination = mac.and_then(|mac| mac.parse().ok());
            }
            ("Action", Some(rule)) => {
                let queue = value.strip_prefix("Direct to queue ");
                rule.queue = queue.and_then(|queue| queue.parse().ok());
            }
            _ => {}
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const RED: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
    const BLUE: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

    /// A NIC that gives the highest number that is free, as drivers do.
    #[derive(Clone, Default)]
    struct Nic(Arc<Mutex<Vec<Rule>>>);

    impl Nic {
        fn with(rules: &[Rule]) -> Self {
            Self(Arc::new(Mutex::new(rules.to_vec())))
        }

        fn rules(&self) -> Vec<Rule> {
            self.0.lock().unwrap().clone()
        }

        fn list(&self) -> String {
            let rules = self.rules();
            let print = |Rule { number, destination, queue }: &Rule| {
                let mac = destination.unwrap().to_string().to_uppercase();
                let action =
                    queue.map_or("Drop".to_owned(), |queue| format!("Direct to queue {queue}"));
                format!(
                    "Filter: {number}\n\tFlow Type: Raw Ethernet\n\
                     \tSrc MAC addr: 00:00:00:00:00:00 mask: FF:FF:FF:FF:FF:FF\n\
                     \tDest MAC addr: {mac} mask: 00:00:00:00:00:00\n\
                     \tEthertype: 0x0 mask: 0xFFFF\n\tAction: {action}\n\n"
                )
            };
            let printed: String = rules.iter().map(print).collect();
            format!("4 RX rings available\nTotal {} rules\n\n{printed}", rules.len())
        }

        fn ethtool(&self) -> impl Fn(&[&str]) -> Result<String, String> + Send + Sync + 'static {
            let nic = self.clone();
            move |arguments| match *arguments {
                ["-n", "nic0"] => Ok(nic.list()),
                ["-N", "nic0", "flow-type", "ether", "dst", mac, "action", queue] => {
                    let taken = nic.rules();
                    let is_free = |number: &u32| taken.iter().all(|rule| rule.number != *number);
                    let number = (0..1024).rev().find(is_free).unwrap();
                    let (destination, queue) = (mac.parse().ok(), queue.parse().ok());
                    nic.0.lock().unwrap().push(Rule { number, destination, queue });
                    Ok(format!("Added rule with ID {number}\n"))
                }
                ["-N", "nic0", "delete", number] => {
                    nic.0.lock().unwrap().retain(|rule| rule.number.to_string() != number);
                    Ok(String::new())
                }
                _ => Err(format!("{arguments:?}")),
            }
        }
    }

    fn rule(number: u32, mac: MacAddr, queue: Option<u32>) -> Rule {
        Rule { number, destination: Some(mac), queue }
    }

    #[test]
    fn ours_is_added_beside_those_of_others_and_removed_alone() {
        let others = [rule(1023, BLUE, Some(1)), rule(7, BLUE, None)];
        let nic = Nic::with(&others);
        let ours = SteeringRule::add(nic.ethtool(), "nic0", RED, 3).unwrap();
        assert_eq!(nic.rules()[2..], [rule(1022, RED, Some(3))]);
        drop(ours);
        assert_eq!(nic.rules(), others);
    }

    #[test]
    fn anothers_rule_for_the_address_stays_as_it_is() {
        for (queue, message) in
            [(Some(3), None), (Some(2), Some("delete 9")), (None, Some("delete 9"))]
        {
            let others = [rule(9, RED, queue)];
            let nic = Nic::with(&others);
            match SteeringRule::add(nic.ethtool(), "nic0", RED, 3) {
                Ok(ours) => assert!(ours.is_none() && message.is_none(), "{queue:?}"),
                Err(error) => assert!(error.contains(message.unwrap()), "{error}"),
            }
            assert_eq!(nic.rules(), others);
        }
    }

    #[test]
    fn a_rule_that_got_our_number_later_stays() {
        for other in [rule(1023, BLUE, Some(3)), rule(1023, RED, Some(2))] {
            let nic = Nic::default();
            let ours = SteeringRule::add(nic.ethtool(), "nic0", RED, 3).unwrap();
            *nic.0.lock().unwrap() = vec![other];
            drop(ours);
            assert_eq!(nic.rules(), [other]);
        }
    }

    /// As ethtool 6.1 prints them.
    #[test]
    fn only_a_rule_for_one_address_has_a_destination() {
        let listed = "4 RX rings available\nTotal 3 rules\n\n\
            Filter: 63\n\tFlow Type: Raw Ethernet\n\tSrc MAC addr: 00:00:00:00:00:00 mask: FF:FF:FF:FF:FF:FF\n\
            \tDest MAC addr: 00:00:00:00:00:00 mask: FF:FF:FF:FF:FF:FF\n\tEthertype: 0x8100 mask: 0x0\n\
            \tAction: Direct to queue 0\n\n\
            Filter: 64\n\tRule Type: TCP over IPv4\n\tSrc IP addr: 0.0.0.0 mask: 255.255.255.255\n\tAction: Drop\n\n\
            Filter: 65\n\tFlow Type: Raw Ethernet\n\tDest MAC addr: 02:00:00:00:00:0A mask: 00:00:00:00:00:00\n\
            \tAction: Direct to VF 1 queue 2\n\n";
        let none = |number, queue| Rule { number, destination: None, queue };
        assert_eq!(rules(listed), [none(63, Some(0)), none(64, None), rule(65, RED, None)]);
    }
}
