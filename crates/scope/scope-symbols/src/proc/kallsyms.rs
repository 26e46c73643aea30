//! `/proc/kallsyms`: the symbols of a running kernel and of its modules.

use std::collections::BTreeMap;

use super::{hex, line_error};
use crate::table::Builder;
use crate::{Error, Symbols};

const FILE: &str = "/proc/kallsyms";
const FORM: &str = "ADDRESS TYPE NAME [MODULE]";
/// The module of lines without one.
const KERNEL: &str = "vmlinux";

struct Symbol<'a> {
    address: u64,
    kind: &'a str,
    name: &'a str,
    module: &'a str,
}

/// The symbols of every module in the text of `/proc/kallsyms`, in the order of the modules' names; those of the kernel
/// itself are called `vmlinux`. Absolute symbols (per-CPU offsets) are listed but cover no address. Sizes are unknown: set
/// each module's range from [`modules`](crate::modules) by [`Symbols::within`].
///
/// # Errors
/// [`Error::Restricted`] if the kernel hid all addresses from the reader, [`Error::Empty`], and [`Error::Line`] for
/// a line of another form.
pub fn kallsyms_text(text: &str) -> Result<Vec<Symbols>, Error> {
    let mut modules: BTreeMap<&str, Builder> = BTreeMap::new();
    let mut restricted = true;
    for (number, text_line) in text.lines().enumerate() {
        let line = parse(text_line).ok_or_else(|| line_error(FILE, number, text_line, FORM))?;
        restricted &= line.address == 0;
        let builder =
            modules.entry(line.module).or_insert_with(|| Builder::new(line.module, text.len()));
        let absolute = matches!(line.kind, "A" | "a");
        builder.push(line.name, line.address, absolute.then_some(0))?;
    }
    match (modules.is_empty(), restricted) {
        (true, _) => Err(Error::Empty { file: FILE }),
        (_, true) => Err(Error::Restricted),
        _ => Ok(modules.into_values().map(|builder| builder.build([])).collect()),
    }
}

fn parse(line: &str) -> Option<Symbol<'_>> {
    let (line, module) = match line.split_once('\t') {
        Some((line, module)) => (line, module.strip_prefix('[')?.strip_suffix(']')?),
        None => (line, KERNEL),
    };
    let mut words = line.splitn(3, ' ');
    let (address, kind, name) = (hex(words.next()?)?, words.next()?, words.next()?);
    (kind.len() == 1 && !name.is_empty()).then_some(Symbol { address, kind, name, module })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000100 t helper\n\
        ffffffffc0a01000 t xenvif_poll\t[xen_netback]\n\
        ffffffffc0a01080 t xenvif_tx_action\t[xen_netback]\n";

    #[test]
    fn symbols_go_to_their_modules() {
        let modules = kallsyms_text(TEXT).expect("kallsyms");
        let names: Vec<_> = modules.iter().map(|module| (module.module(), module.len())).collect();
        assert_eq!(names, [("vmlinux", 3), ("xen_netback", 2)]);
        let found = modules[1].lookup(0xffff_ffff_c0a0_1084).expect("inside");
        assert_eq!((found.name, found.offset), ("xenvif_tx_action", 4));
        assert_eq!(modules[0].lookup(0x10), None, "a per-CPU offset is no address");
    }

    #[test]
    fn hidden_addresses_are_an_error_that_says_what_to_do() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t helper\n";
        let error = kallsyms_text(hidden).expect_err("hidden");
        assert_eq!(error, Error::Restricted);
        assert!(error.to_string().contains("sysctl kernel.kptr_restrict=0"));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = kallsyms_text("ffffffff81000000 T _stext\nnonsense\n").expect_err("nonsense");
        assert!(error.to_string().contains("line 2: \"nonsense\""), "{error}");
        assert_eq!(kallsyms_text("").err(), Some(Error::Empty { file: FILE }));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([0-9a-f]{0,17}[ \t\\[\\]a-zA-Z\n]{0,12}){0,20}") {
            let _ = kallsyms_text(&text);
        }
    }
}
