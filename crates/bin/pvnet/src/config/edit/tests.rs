use proptest::prelude::*;

use super::*;
use crate::config::port_settings::keys_of;
use crate::config::{Mirror, Port, Uplink};

const TEXT: &str = r#"# pvnet of this host.

[daemon]
workers = 2 # as many as CPUs

# Guests of the first floor.

# The web server.
[[guest]]
name = "red" # was blue
# Asked for by Ann.
limit = { egress = { mbps = 8 } } # since May
mac = "02:00:00:00:00:01"

# Two interfaces.
[[guest]]
name = "two"
[[guest.vif]]
mac = "02:00:00:00:00:02"
[[guest.vif]]
mac = "02:00:00:00:00:03"
limit.ingress.mbps = 9

[[uplink]]
name = "up"
tap = "up0"
# The end.
"#;

/// Two guests, one of them with two interfaces, and an uplink.
const CONFIG: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
                      [[guest]]\nname = \"two\"\n[[guest.vif]]\nmac = \"02:00:00:00:00:02\"\n\
                      [[guest.vif]]\nmac = \"02:00:00:00:00:03\"\n\
                      [[uplink]]\nname = \"up\"\ntap = \"up0\"\n";

/// A file's text after a change.
fn edited(text: &str, change: &Change) -> Result<String, String> {
    keeps_its_form(text)?;
    edit(text, change, &[]).map(|edited| edited.text)
}

fn changed(change: &Change) -> Result<Config, String> {
    edit(CONFIG, change, &[]).map(|edited| edited.config)
}

fn setting(name: &str, set: &[(&str, &str)], unset: &[&str]) -> Change {
    let text = |text: &&str| (*text).to_owned();
    let set = set.iter().map(|(key, value)| (text(key), text(value))).collect();
    Change::Set { name: name.to_owned(), set, unset: unset.iter().map(text).collect() }
}

fn deleting(name: &str) -> Change {
    Change::Delete { name: name.to_owned() }
}

fn adding(toml: &str) -> Change {
    Change::Add { toml: toml.to_owned() }
}

#[test]
fn values_change_where_they_are() {
    let change = setting("red", &[("limit.egress.mbps", "100"), ("guard", "mac")], &[]);
    let expected = TEXT
        .replace("mbps = 8 } } # since", "mbps = 100 } } # since")
        .replace("00:01\"\n", "00:01\"\nguard = \"mac\"\n");
    assert_eq!(edited(TEXT, &change).unwrap(), expected);
    let change = setting("two.1", &[("limit.ingress.mbps", "7"), ("limit.egress.mbps", "6")], &[]);
    let expected = TEXT.replace(
        "limit.ingress.mbps = 9\n",
        "limit.ingress.mbps = 7\nlimit.egress = { mbps = 6 }\n",
    );
    assert_eq!(edited(TEXT, &change).unwrap(), expected);
    let change = setting("two", &[("limit.egress.mbps", "6")], &[]);
    let expected = TEXT.replace("00:02\"\n", "00:02\"\nlimit = { egress = { mbps = 6 } }\n");
    assert_eq!(edited(TEXT, &change).unwrap(), expected);
}

#[test]
fn what_goes_takes_only_its_own_comments() {
    let expected =
        TEXT.replace("# Asked for by Ann.\nlimit = { egress = { mbps = 8 } } # since May\n", "");
    assert_eq!(edited(TEXT, &setting("red", &[], &["limit"])).unwrap(), expected);
    let own = TEXT.find("# The web server.").unwrap()..TEXT.find("# Two interfaces.").unwrap();
    let mut expected = TEXT.to_owned();
    expected.replace_range(own, "");
    assert_eq!(edited(TEXT, &deleting("red")).unwrap(), expected);
    let own = TEXT.find("[[uplink]]").unwrap()..TEXT.find("# The end").unwrap();
    let mut expected = TEXT.to_owned();
    expected.replace_range(own, "");
    let found = edited(TEXT, &deleting("up")).unwrap();
    assert_eq!(found.replace("\n\n#", "\n#"), expected.replace("\n\n#", "\n#"));
    // A table that is one of several, and the last.
    let found = edited(TEXT, &deleting("two")).unwrap();
    assert!(!found.contains("Two") && !found.contains("00:03") && found.contains("[[uplink]]"));
}

#[test]
fn new_ports_come_after_those_of_their_kind() {
    let green = "[[guest]]\nname = \"green\"\nmac = \"02:00:00:00:00:09\"\n";
    let found = edited(TEXT, &adding(green)).unwrap();
    let new = format!("\n{green}");
    assert_eq!(found, TEXT.replace("\n[[uplink]]", &format!("{new}\n[[uplink]]")));
    let text = "[[mirror]]\nname = \"span\"\nfrom = [\"red\"]\nto = \"up\"\n";
    let found = edited(TEXT, &adding(text)).unwrap();
    assert_eq!(found, TEXT.replace("# The end.\n", &format!("\n{text}# The end.\n")));
    assert_eq!(edited(&found, &Change::DeleteMirror { name: "span".to_owned() }).unwrap(), TEXT);
    assert_eq!(
        edited("", &adding(text)).unwrap_err(),
        Config::parse(text).unwrap().check().unwrap_err()
    );
    let (file, more) =
        ("uplink = [{ name = \"a\", tap = \"a\" }]\n", "[[uplink]]\nname = \"b\"\ntap = \"b\"\n");
    let found = edited(file, &adding(more)).unwrap();
    assert_eq!(Config::parse(&found).unwrap().uplinks.len(), 2);
    assert!(found.starts_with("uplink = [{ name = \"a\", tap = \"a\" }"), "{found}");
}

#[test]
fn a_guest_of_a_xen_host_gets_the_settings_of_every_guest() {
    let text = "[daemon]\nplatform = \"xen\"\n# All.\n[[guest]]\nname = \"*\"\nqueues = 2\n";
    let served = ["web".to_owned()];
    let change = |name: &str| setting(name, &[("limit.egress.mbps", "8")], &[]);
    let found = edit(text, &change("web"), &served).unwrap();
    let web = "\n[[guest]]\nname = \"web\"\nqueues = 2\nlimit = { egress = { mbps = 8 } }\n";
    assert_eq!(found.text, format!("{text}{web}"));
    let vif = |name: &str| found.config.guest(name).unwrap().vifs.remove(0);
    let web = vif("web");
    assert_eq!((web.queues, web.settings.limit.egress.is_unlimited()), (Some(2), false));
    assert!(vif("other").settings.limit.egress.is_unlimited());
    assert!(edit(&found.text, &change("db"), &served).is_err());
}

#[test]
fn ports_are_added_with_their_shorthands() {
    let blue = "[[guest]]\nname = \"blue\"\nmac = \"02:00:00:00:00:09\"\nqueues = 2\n";
    let Edited { config, names, .. } = edit(CONFIG, &adding(blue), &[]).unwrap();
    assert_eq!((names, config.guests.len()), (vec!["blue".to_owned()], 3));
    assert_eq!(config.guests[2].vifs[0].queues, Some(2));
    for (text, said) in [
        ("", "nothing to add"),
        ("[[uplink]]\ntap = \"x\"\n", "has no name"),
        ("[[guest]]\nname = 5\n", "is a string, and 5 is none"),
        ("[[uplink]]\nname = \"red\"\ntap = \"x\"\n", "\"red\" is in use"),
        ("[daemon]\nworkers = 2\n", "not daemon"),
        ("[[uplink]]\nname = \"x\"\ncolour = 1\n", "colour"),
        ("[[uplink]]\nname = \"x\"\n", "tap is missing"),
        ("[[uplink]\n", "line 1"),
        ("[[guest]]\nname = \"x\"\nmac = \"02:00:00:00:00:01\"\n", "given twice"),
    ] {
        let error = changed(&adding(text)).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn ports_are_deleted_by_name() {
    let delete = |name: &str| changed(&deleting(name));
    assert_eq!(delete("red").unwrap().guests.len(), 1);
    assert_eq!(delete("two").unwrap().guests.len(), 1);
    assert!(delete("up").unwrap().uplinks.is_empty());
    assert!(delete("two.1").unwrap_err().contains("interface of guest \"two\""));
    let card = format!("{CONFIG}[[nic]]\nname = \"card0\"\nwire.tap = \"w0\"\n");
    for change in [deleting("blue"), setting("blue", &[("enabled", "false")], &[])] {
        let error = edited(&card, &change).unwrap_err();
        assert!(error.contains("(there are: red, two, up)"), "a card is no port: {error}");
    }
}

#[test]
fn mirrors_come_and_go() {
    let add = |name: &str| Change::Add {
        toml: format!("[[mirror]]\nname = \"{name}\"\nfrom = [\"red\"]\nto = \"up\"\n"),
    };
    let delete = |name: &str| Change::DeleteMirror { name: name.to_owned() };
    assert!(edited(CONFIG, &delete("span")).unwrap_err().contains("no mirror"));
    let Edited { text, config, names } = edit(CONFIG, &add("span"), &[]).unwrap();
    assert_eq!((names, config.mirrors.len()), (vec!["span".to_owned()], 1));
    let error = edited(&text, &add("red")).unwrap_err();
    assert!(error.contains("\"red\" is in use"), "{error}");
    let error = edited(&text, &delete("red")).unwrap_err();
    assert!(error.contains("there are: span"), "no port is removed: {error}");
    assert!(edit(&text, &delete("span"), &[]).unwrap().config.mirrors.is_empty());
}

#[test]
fn keys_are_set_where_they_belong() {
    let set =
        |name: &str, set: &[(&str, &str)], unset: &[&str]| changed(&setting(name, set, unset));
    let config = set("two.1", &[("limit.egress.mbps", "8")], &[]).unwrap();
    let limits: Vec<_> =
        config.guests[1].vifs.iter().map(|vif| vif.settings.limit.egress).collect();
    assert_eq!(limits[0].bytes_per_second, None);
    assert_eq!(limits[1].bytes_per_second, Some(1_000_000));
    assert_eq!(set("red", &[("memory_mib", "8")], &[]).unwrap().guests[0].memory_mib, 8);
    assert!(!set("up", &[("enabled", "false")], &[]).unwrap().uplinks[0].settings.enabled);
    assert_eq!(
        set("red", &[("guard", "off"), ("queues", "2")], &["queues"]).unwrap().guests[0].vifs[0]
            .queues,
        None
    );
    for (name, key, value, said) in [
        ("blue", "limit", "{}", "no port \"blue\""),
        ("red", "colour", "1", "`colour`"),
        ("red", "colour", "1", "its interface's keys: mac, addresses"),
        ("red", "name", "x", "keeps its name"),
        ("red", "limit.colour", "1", "colour"),
        ("red", "limit..x", "1", "not a key"),
        ("red", "guard.x", "1", "guard"),
        ("red", "queues", "many", "queues"),
        ("two.1", "memory_mib", "8", "memory_mib is not a key of \"two.1\""),
    ] {
        let error = set(name, &[(key, value)], &[]).unwrap_err();
        assert!(error.contains(said), "{key}: {error}");
    }
    assert!(set("red", &[], &[]).unwrap_err().contains("nothing to set"));
    assert!(set("red", &[], &["queues"]).unwrap_err().contains("not set on \"red\""));
}

#[test]
fn lists_may_be_written_with_commas() {
    for (key, text, written) in [
        ("trunk", "10,20", "[10, 20]"),
        ("trunk", "10", "[10]"),
        ("trunk", "[10]", "[10]"),
        ("guard_addresses", "10.0.0.4, fd00::/64", "[\"10.0.0.4\", \"fd00::/64\"]"),
        ("from", "red,blue", "[\"red\", \"blue\"]"),
        ("to", "a,b", "\"a,b\""),
    ] {
        assert_eq!(value_of(key, text).to_string(), written);
    }
    let set = setting("red", &[("trunk", "10,20"), ("guard_addresses", "10.0.0.4")], &[]);
    let red = changed(&set).unwrap().guests.remove(0).vifs.remove(0).settings;
    assert_eq!((red.trunk, red.guard_addresses.len()), (Some(vec![10, 20]), 1));
}

#[test]
fn all_lists_are_known() {
    let of = |kind, keys: Vec<&'static str>| keys.into_iter().map(move |key| (kind, key));
    let keys = of(TableKind::Guest, keys_of::<Vif>().collect())
        .chain(of(TableKind::Uplink, keys_of::<Uplink>().collect()))
        .chain(of(TableKind::Port, keys_of::<Port>().collect()))
        .chain(of(TableKind::Mirror, Mirror::KEYS.iter().map(|(key, _)| *key).collect()));
    for (kind, key) in keys {
        let takes = |list| Config::parse(&format!("[[{kind}]]\n{key} = {list}\n")).is_ok();
        let takes_a_list = takes("[10]") || takes("[\"10.0.0.4\"]");
        assert_eq!(takes_a_list, LISTS.contains(&key), "{key} of {kind}");
    }
}

#[test]
fn what_cannot_be_written_is_said() {
    for (text, change, said) in [
        (TEXT, setting("nobody", &[("limit", "{}")], &[]), "no port \"nobody\""),
        (TEXT, setting("red", &[("queues", "many")], &[]), "queues"),
        (TEXT, adding("[[uplink]]\nname = \"up\"\ntap = \"x\"\n"), "is in use"),
        ("[[uplink]]\r\nname = \"up\"\r\ntap = \"a\"\r\n", deleting("up"), "by hand"),
        ("[daemon\n", deleting("up"), "line 1"),
    ] {
        let error = edited(text, &change).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// The forms in which a limit may be written.
const LIMITS: [&str; 5] = [
    "",
    "limit = { egress = { mbps = 8 } } # in line",
    "limit.egress.mbps = 8 # dotted",
    "limit.egress = { mbps = 8 }\n# Between.\nenabled = false",
    "  limit  =  { egress={mbps=8}, ingress = { packets = 5 } }",
];

/// A port of a file.
#[derive(Clone, Debug)]
struct Block {
    kind: u8,
    limit: usize,
    /// Whether the limit is a table below the port's.
    below: bool,
    comments: [bool; 3],
}

impl Block {
    fn name(number: usize) -> String {
        format!("p{number}")
    }

    /// Its text, without what stands above it.
    fn text(&self, number: usize) -> String {
        let name = Self::name(number);
        let comment = |which: usize| {
            if self.comments[which] { format!("# c{which} of {name}\n") } else { String::new() }
        };
        let (kind, more) = match self.kind {
            0 => ("guest", format!("mac = '02:00:00:00:00:{number:02x}'\n")),
            1 => ("guest", String::new()),
            2 => ("uplink", format!("tap   = \"tap{number}\"\n")),
            _ => (
                "port",
                format!("kind = \"vhost-user\"\nsocket = \"/s/{number}\"\nguard=\"off\"\n"),
            ),
        };
        let limit = match LIMITS[self.limit] {
            "" => String::new(),
            limit => format!("{limit}\n"),
        };
        let vif = match self.kind {
            1 => format!("[[guest.vif]]\nmac = \"02:00:00:00:01:{number:02x}\"\n"),
            _ => String::new(),
        };
        let below = match (self.below && limit.is_empty(), self.kind) {
            (true, 1) => "[guest.vif.limit]\negress = { mbps = 3 }\n".to_owned(),
            (true, _) => format!("[{kind}.limit]\negress = {{ mbps = 3 }}\n"),
            _ => String::new(),
        };
        format!(
            "{}[[{kind}]] # {name}\n{}name = \"{name}\"\n{more}{vif}{limit}{}{below}",
            comment(0),
            comment(1),
            comment(2),
        )
    }
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let block = (0u8..4, 0..LIMITS.len(), any::<bool>(), any::<[bool; 3]>());
    let block =
        block.prop_map(|(kind, limit, below, comments)| Block { kind, limit, below, comments });
    prop::collection::vec(block, 1..6)
}

/// A command on the port of this number.
fn command(which: u8, number: usize) -> Change {
    let name = Block::name(number);
    match which {
        0 => deleting(&name),
        1 => setting(&name, &[("limit.egress.mbps", "77")], &[]),
        2 => setting(&name, &[("limit", "{ ingress = { packets = 9 } }")], &[]),
        3 => setting(&name, &[("isolated", "true"), ("limit.ingress.mbps", "5")], &[]),
        4 => setting(&name, &[("limit.egress.mbps", "1")], &["limit"]),
        _ => adding("# A new one.\n[[uplink]]\nname = \"new\"\ntap = \"new0\"\n"),
    }
}

proptest! {
    /// All that a command is not about stays: each other port as it is written, in its order, and the remarks between them.
    #[test]
    fn a_command_leaves_all_else_as_it_is(blocks in blocks(), which in 0u8..6, number in 0usize..6) {
        let number = number % blocks.len();
        let mut text = "# Head.\n\n[daemon]\nworkers = 1 # one\n".to_owned();
        for (number, block) in blocks.iter().enumerate() {
            text += &format!("\n# Remark {number}.\n\n{}", block.text(number));
        }
        text += "\n# Tail.\n";
        let change = command(which, number);
        let found = edited(&text, &change);
        prop_assert!(found.is_ok(), "{change:?}: {found:?}\n{text}");
        let found = found.unwrap();
        let mut rest = &found[..];
        for (other, block) in blocks.iter().enumerate() {
            let remark = format!("# Remark {other}.\n");
            let at = rest.find(&remark);
            prop_assert!(at.is_some(), "{remark} is lost or moved:\n{found}\nfrom:\n{text}");
            rest = &rest[at.unwrap() + remark.len()..];
            if other != number || which == 5 {
                let own = block.text(other);
                prop_assert!(rest.trim_start().starts_with(own.trim()), "{own}differs in:\n{found}\nfrom:\n{text}");
            }
        }
        prop_assert!(rest.contains("# Tail.\n"), "{found}");
        prop_assert!(found.starts_with("# Head.\n\n[daemon]\nworkers = 1 # one\n"), "{found}");
        let gone = format!("name = \"{}\"", Block::name(number));
        prop_assert_eq!(found.contains(&gone), which != 0);
    }

    /// No text and no command has a panic for an answer.
    #[test]
    fn any_text_has_an_answer(text in "(\\[\\[guest\\]\\]|name = \"p0\"|\n|#|limit|[a-z.={}\\[\\]\" ]){0,40}", which in 0u8..6) {
        let _ = edited(&text, &command(which, 0));
    }
}
