//! Folded stacks for tools that draw flame graphs: who works, the module, the function.

use std::fmt::Write as _;

use crate::summary::{Part, Summary, function_name};

/// A line `who;module;function cycles` for each function, the most expensive first.
pub fn text(summary: &Summary<'_>) -> String {
    let mut text = String::new();
    for (part, counters) in summary.by(Part::clone) {
        let (module, name) = function_name(&part.function);
        // These two letters have a meaning in the format.
        let plain = |name: &str| name.replace([';', '\n'], " ");
        let (who, module, name) = (plain(&part.who.to_string()), plain(&module), plain(&name));
        let cycles = summary.cycles(&counters);
        if cycles >= 0.5 {
            let _ = writeln!(text, "{who};{module};{name} {cycles:.0}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use scope_model::Costs;

    use super::*;
    use crate::export::tests::recording;

    #[test]
    fn a_function_has_a_line() {
        let recording = recording();
        let costs = Costs { instruction: 1.0, ..Costs::default() };
        let summary = Summary::new(&recording, costs);
        let expected =
            "dom0;vmlinux;tcp \"ack\" 100\nXen;xen;do_iret 10\ndomU 1;unknown;unknown 1\n";
        assert_eq!(text(&summary), expected);
        let of_xen = summary.only(|part| part.function.module == "xen");
        assert_eq!(text(&of_xen), "Xen;xen;do_iret 10\n");
    }
}
