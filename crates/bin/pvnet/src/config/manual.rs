//! The manual page `pvnet.toml(5)`, of the commented examples and of what is known of each key.
//!
//! The examples have the words: a heading opens a table, a line `key = value` or `#key = value` is a key, and a line `# text` is said of
//! what follows it. A test holds the examples to have a line for every key.

use std::fmt::Write as _;

use control_socket::TableKind;

use super::nic::Context;
use super::table::{Effort, Table as _};

/// The page's file.
pub const FILE: &str = "pvnet.toml.5";

const EXAMPLE: &str = include_str!("../../../../../examples/pvnet.toml");
const XEN: &str = include_str!("../../../../../examples/xen.toml");

/// Some keys in a row, and what is said of them.
#[derive(Default)]
struct KeyRow<'a> {
    text: Vec<&'a str>,
    keys: Vec<&'a str>,
}

/// A table of an example.
struct Section<'a> {
    heading: &'a str,
    /// What is said of the table itself.
    text: Vec<&'a str>,
    entries: Vec<KeyRow<'a>>,
}

/// The tables of an example.
fn sections(example: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    let mut said = Vec::new();
    for line in example.lines() {
        let code = line.strip_prefix('#').unwrap_or(line);
        if line.is_empty() {
            // What stands alone is said of the whole file.
            said.clear();
        } else if code.starts_with('[') {
            let text = std::mem::take(&mut said);
            sections.push(Section { heading: code, text, entries: Vec::new() });
        } else if let Some(text) = code.strip_prefix(' ').filter(|_| line.starts_with('#')) {
            said.push(text);
        } else if let Some(section) = sections.last_mut() {
            let text = std::mem::take(&mut said);
            match section.entries.last_mut() {
                Some(entry) if text.is_empty() => entry.keys.push(code),
                _ => section.entries.push(KeyRow { text, keys: vec![code] }),
            }
        }
    }
    sections
}

/// The key of a line, without its part: `limit.ingress = …` is `limit`.
fn key(line: &str) -> &str {
    line.split([' ', '=', '.']).next().unwrap_or_default()
}

/// What it takes to change a key of a table.
fn effort(heading: &str, key: &str) -> Option<Effort> {
    match heading.trim_matches(['[', ']']) {
        "guest.context" => Context::key(key),
        name => super::effort(TableKind::named(name.split('.').next()?)?, key),
    }
}

/// When `pvnet reload` applies a change.
fn when(effort: Effort) -> &'static str {
    match effort {
        Effort::InPlace => "at once",
        Effort::Connection => "when its other side connects again",
        Effort::Device => "by opening the port again",
        Effort::Restart(_) => "when the daemon starts again",
    }
}

/// A text for roff: no line of it is a request, and its hyphens can be copied.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// The page.
pub fn page() -> String {
    let mut page = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut page);
    page
}

fn write(page: &mut String) -> std::fmt::Result {
    writeln!(page, ".TH pvnet.toml 5 \"\" \"pvnet {}\"", env!("CARGO_PKG_VERSION"))?;
    page.push_str(START);
    let xen = sections(XEN).into_iter().filter(|section| section.heading == "[xen]");
    let mut known: Vec<&str> = Vec::new();
    let sections = sections(EXAMPLE);
    for Section { heading, text, entries } in sections.iter().chain(&xen.collect::<Vec<_>>()) {
        let again = known.contains(heading);
        known.push(heading);
        writeln!(page, "{} \"{}\"", if again { ".SS" } else { ".SH" }, roff(heading))?;
        for line in text {
            writeln!(page, "{}", roff(line))?;
        }
        for KeyRow { text, keys } in entries {
            page.push_str(".TP\n");
            for (number, line) in keys.iter().enumerate() {
                if number > 0 {
                    page.push_str(".TQ\n");
                }
                writeln!(page, ".B {}", roff(line))?;
            }
            for line in text {
                writeln!(page, "{}", roff(line))?;
            }
            let mut efforts: Vec<_> =
                keys.iter().filter_map(|line| effort(heading, key(line))).map(when).collect();
            efforts.dedup();
            match efforts[..] {
                [] => {}
                [one] => writeln!(page, "A change is applied {one}.")?,
                _ => {
                    for line in keys {
                        if let Some(effort) = effort(heading, key(line)) {
                            let when = when(effort);
                            writeln!(page, "A change of {} is applied {when}.", roff(key(line)))?;
                        }
                    }
                }
            }
        }
    }
    page.push_str(END);
    Ok(())
}

const START: &str = r#".SH NAME
pvnet.toml \- configuration of pvnet
.SH SYNOPSIS
.B /etc/pvnet/pvnet.toml
.SH DESCRIPTION
.B pvnet run \-\-config
.I FILE
reads a file in TOML. Each value that this page shows is the default unless its text says otherwise; names, addresses, limits, VLANs and workers are examples. All tables may be missing.
.PP
.B pvnet run \-\-check \-\-config
.I FILE
says what is wrong with a file, and where.
.B pvnet reload
applies a changed file to a running daemon, and names what waits for a restart; below, each key says when a change is applied.
.B pvnet port set
and
.B \-\-set
take the keys of ports, and write a list with commas:
.BR trunk=10,20 .
.B pvnet schema config
prints all keys with their types, as a JSON Schema.
"#;

const END: &str = r#".SH FILES
.TP
.I /etc/pvnet/pvnet.toml
what the packaged unit reads
.TP
.I /usr/share/doc/pvnet/examples/pvnet.toml
all that this page says, as a file with comments
.TP
.I /usr/share/doc/pvnet/examples/xen.toml
one for a Xen host
.TP
.I /usr/share/doc/pvnet/docs
the documents that this page names
.SH SEE ALSO
.BR pvnet\-run (1),
.BR pvnet\-reload (1),
.BR pvnet\-port (1),
.BR pvnet\-doctor (1)
"#;

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;
    use crate::config::keys::keys_in;

    /// The keys that the page has under a heading, each with when a change of it is applied.
    fn shown(heading: &str) -> Vec<String> {
        let sections = sections(EXAMPLE).into_iter().chain(sections(XEN));
        let own = sections.filter(|section| section.heading == heading);
        let entries = own.flat_map(|section| section.entries);
        entries.flat_map(|entry| entry.keys).map(|line| key(line).to_owned()).collect()
    }

    #[test]
    fn the_page_has_every_key_of_every_table() {
        for kind in TableKind::ALL {
            let (one, many) = (format!("[{kind}]"), format!("[[{kind}]]"));
            let heading = if shown(&one).is_empty() { many } else { one };
            let (shown, page) = (shown(&heading), page());
            for (key, _) in keys_in(kind) {
                assert!(shown.iter().any(|other| other == key), "{key} of {heading}");
                assert!(page.contains(&format!(".B {} = ", roff(key))) || key == "limit", "{key}");
            }
            // What is shown is a key, so that each says when a change of it is applied.
            for key in &shown {
                assert!(effort(&heading, key).is_some(), "{key} of {heading}");
            }
        }
    }

    #[test]
    fn a_key_has_its_words_and_its_effort() {
        let page = page();
        let entry = |start: &str| {
            let (_, rest) = page.split_once(start).unwrap_or_else(|| panic!("{start} in\n{page}"));
            rest.split(".TP").next().unwrap_or_default()
        };
        let mtu = entry(".B queues = \\(dqshared\\(dq\n");
        assert!(mtu.contains("Who shares its receive queues"), "{mtu}");
        assert!(entry(".B age_seconds = 300\n").contains("applied when the daemon starts again."));
        assert!(entry(".B enabled = true\n").contains("A change is applied at once."));
        assert!(entry(".B memory_mib = 64\n").contains("when its other side connects again."));
        assert!(entry(".B bridge = \\(dqbr0\\(dq\n").contains("by opening the port again."));
        assert!(page.contains("\n.SH \"[xen]\"\n") && !page.contains("`pvnet run --config"));
    }

    #[test]
    fn the_formatter_has_nothing_to_say() {
        let Some(mut groff) = lab::needed(lab::command("groff")) else { return };
        let groff = groff.args(["-man", "-Tutf8", "-Kutf8", "-ww", "-z"]);
        let mut groff = groff.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(groff.stdin.as_mut().unwrap(), page().as_bytes()).unwrap();
        let output = groff.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // What the page cannot help: an example whose line is longer than the paper.
        let said: Vec<_> = said.lines().filter(|line| !line.contains("can't break line")).collect();
        assert_eq!(said, [""; 0]);
    }
}
