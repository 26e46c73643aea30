//! The sections of a program that layouts put elsewhere, in the file that pvscope writes for the plugin.

use std::fmt::Write as _;

use scope_model::Section;

/// A section, and where it lies in the program that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSection {
    /// The virtual address of its first byte.
    pub start: u64,
    /// What layouts have to know of it.
    pub section: Section,
}

/// The sections of one program, and the entries of the kernel for what is not the program's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// Functions, in the order of their addresses, none within another.
    pub code: Vec<PlacedSection>,
    /// Segments of data in whole pages, in the order of their addresses.
    pub data: Vec<PlacedSection>,
    /// The addresses at which interrupts enter the kernel.
    pub interrupts: Vec<u64>,
    /// The addresses at which exceptions do.
    pub exceptions: Vec<u64>,
}

impl LayoutPlan {
    /// The lines of a file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (kind, sections) in [("code", &self.code), ("data", &self.data)] {
            for PlacedSection { start, section: Section { seed, bytes, align } } in sections {
                let _ = writeln!(text, "{kind} {start:x} {bytes:x} {align:x} {seed:x}");
            }
        }
        for (kind, addresses) in [("interrupt", &self.interrupts), ("exception", &self.exceptions)]
        {
            for address in addresses {
                let _ = writeln!(text, "{kind} {address:x}");
            }
        }
        text
    }

    /// Reads the lines of a file.
    ///
    /// # Errors
    /// In words, with the line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for line in text.lines() {
            plan.add(line).ok_or_else(|| format!("this is no line of a layout plan: {line:?}"))?;
        }
        plan.code.sort_by_key(|placed| placed.start);
        plan.data.sort_by_key(|placed| placed.start);
        Ok(plan)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        let numbers: Result<Vec<u64>, _> =
            rest.split(' ').map(|word| u64::from_str_radix(word, 16)).collect();
        match (kind, &numbers.ok()?[..]) {
            ("code" | "data", &[start, bytes, align, seed]) => {
                let sections = if kind == "code" { &mut self.code } else { &mut self.data };
                sections.push(PlacedSection { start, section: Section { seed, bytes, align } });
            }
            ("interrupt", [address]) => self.interrupts.push(*address),
            ("exception", [address]) => self.exceptions.push(*address),
            _ => return None,
        }
        Some(())
    }
}

/// The number of the section that an address lies in, and the bytes from its start.
pub fn find(sections: &[PlacedSection], address: u64) -> Option<(usize, u64)> {
    let number = sections.partition_point(|placed| placed.start <= address).checked_sub(1)?;
    let PlacedSection { start, section } = sections.get(number)?;
    let offset = address - start;
    (offset < section.bytes).then_some((number, offset))
}

/// Leaves out sections that begin within an earlier one: an address has one section.
pub fn disjoint(mut sections: Vec<PlacedSection>) -> Vec<PlacedSection> {
    sections.sort_by_key(|placed| placed.start);
    let mut end = 0;
    sections.retain(|PlacedSection { start, section }| {
        let is_after = *start >= end;
        end = if is_after { start + section.bytes } else { end };
        is_after
    });
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let placed = |start, bytes| PlacedSection {
            start,
            section: Section { seed: start, bytes, align: 16 },
        };
        let plan = LayoutPlan {
            code: vec![placed(0x1000, 0x30), placed(0x1040, 0x100)],
            data: vec![placed(0x4000, 0x1000)],
            interrupts: vec![0xffff_ffff_8100_0000],
            exceptions: vec![7],
        };
        assert_eq!(LayoutPlan::parse(&plan.text()), Ok(plan.clone()));
        assert_eq!(find(&plan.code, 0x102f), Some((0, 0x2f)));
        assert_eq!(find(&plan.code, 0x1030), None);
        assert_eq!(find(&plan.code, 0x1050), Some((1, 0x10)));
        assert_eq!(find(&plan.code, 0xfff), None);
        for wrong in ["code 1 2 3", "interrupt x", "stack 1"] {
            assert!(LayoutPlan::parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
