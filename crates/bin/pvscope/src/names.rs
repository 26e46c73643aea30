//! Giving the code that ran its names.
//!
//! ```text
//!  hypervisor ── Xen's own table
//!  kernel ────── the image's own table, and what the guest's /proc/kallsyms says of modules
//!  programs ──── /proc/PID/maps of the guest, and the files that are mapped
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use scope_result::{Block, Domain, Function, Mode, Recording};
use scope_symbols::{AddressSpace, Maps, Named, Process, Program, Symbols};

/// What a machine printed about itself: [`Told::parse`].
#[derive(Debug, Default)]
pub struct Told {
    /// For each domain.
    domains: BTreeMap<u16, Domained>,
}

/// What one domain told.
#[derive(Debug, Default)]
struct Domained {
    kallsyms: String,
    modules: String,
    processes: Vec<(u32, String, String)>,
}

impl Told {
    /// Whether nothing was told.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The one domain that told something, if it was one.
    pub fn only(&self) -> Option<u16> {
        let mut domains = self.domains.keys();
        domains.next().copied().filter(|_| domains.next().is_none())
    }

    /// Whether a kernel hid its addresses from who told them.
    pub fn hides(&self) -> bool {
        let hides = |told: &Domained| {
            let symbols = scope_symbols::kallsyms_text(&told.kallsyms);
            matches!(symbols, Err(scope_symbols::Error::Restricted))
        };
        self.domains.values().any(hides)
    }

    /// Reads what scripts print: sections that begin with a line `@NAME ARGUMENTS`.
    pub fn parse(text: &str) -> Self {
        let mut told = Self::default();
        let mut domain = None;
        let mut section = Section::Other;
        for line in text.lines().map(|line| line.trim_end_matches('\r')) {
            if let Some(head) = line.strip_prefix('@') {
                let mut words = head.split(' ');
                let name = words.next().unwrap_or_default();
                if name == "domain" {
                    domain = words.next().and_then(|number| number.parse::<u16>().ok());
                }
                section = Section::new(name, &mut words);
                if let (Some(domain), Section::Process(pid, name)) = (domain, &section) {
                    let process = (*pid, name.clone(), String::new());
                    told.domains.entry(domain).or_default().processes.push(process);
                }
                continue;
            }
            let Some(domained) = domain.map(|domain| told.domains.entry(domain).or_default())
            else {
                continue;
            };
            let text = match section {
                Section::Kallsyms => &mut domained.kallsyms,
                Section::Modules => &mut domained.modules,
                Section::Process(..) => match domained.processes.last_mut() {
                    Some((.., maps)) => maps,
                    None => continue,
                },
                Section::Other => continue,
            };
            text.push_str(line);
            text.push('\n');
        }
        told
    }
}

enum Section {
    Kallsyms,
    Modules,
    Process(u32, String),
    Other,
}

impl Section {
    fn new<'a>(name: &str, words: &mut impl Iterator<Item = &'a str>) -> Self {
        match name {
            "kallsyms" => Self::Kallsyms,
            "modules" => Self::Modules,
            "process" => {
                let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
                Self::Process(pid, words.next().unwrap_or_default().to_owned())
            }
            _ => Self::Other,
        }
    }
}

/// Where Xen keeps pages that it writes code into for each processor, by which system calls come in: the end of its
/// gigabyte. Its table has no name for them; its source calls them stubs.
const STUBS: Range<u64> = 0xffff_82d0_7fff_0000..0xffff_82d0_8000_0000;

/// All names of a machine.
pub struct Names {
    hypervisor: AddressSpace,
    kernels: BTreeMap<u16, AddressSpace>,
    programs: BTreeMap<u16, Vec<AddressSpace>>,
    /// The kernel's own, where nothing is known of modules.
    kernel: AddressSpace,
}

impl Names {
    /// Of the images' tables, what the domains told, and the programs that `open` answers with: it is asked for a
    /// domain's number and a path there.
    pub fn new(
        hypervisor: Option<&Arc<Symbols>>,
        kernel: &[Arc<Symbols>],
        told: &Told,
        mut open: impl FnMut(u16, &str) -> Option<Arc<Program>>,
    ) -> Self {
        let space = |symbols: &[Arc<Symbols>], by: u64| {
            let mut space = AddressSpace::new();
            symbols.iter().for_each(|symbols| space.add_moved(symbols, by));
            space
        };
        let kernels = told.domains.iter().map(|(domain, told)| {
            let symbols = symbols(&told.kallsyms);
            let mut space = space(kernel, moved(kernel, &symbols));
            let modules = modules(&told.modules, symbols);
            modules.iter().for_each(|symbols| space.add(symbols));
            (*domain, space)
        });
        let spaces = told.domains.iter().map(|(domain, told)| {
            let spaces = told.processes.iter().filter_map(|(pid, name, maps)| {
                let maps = Maps::parse(maps).ok()?;
                let process = Process { pid: *pid, name: name.clone(), maps };
                Some(process.space(|path| open(*domain, &path.to_string_lossy())))
            });
            (*domain, spaces.collect())
        });
        Self {
            hypervisor: space(hypervisor.map_or(&[], std::slice::from_ref), 0),
            kernels: kernels.collect(),
            programs: spaces.collect(),
            kernel: space(kernel, 0),
        }
    }

    /// Names every block of a recording. What nobody knows keeps the name of nothing.
    pub fn give(&self, recording: &mut Recording) {
        let owners = self.owners(recording);
        let mut functions = vec![Function::default()];
        let mut known: HashMap<Function, u32> = HashMap::from([(Function::default(), 0)]);
        for block in &mut recording.blocks {
            let function = self.name(block, &recording.domains, &owners);
            block.function = *known.entry(function.clone()).or_insert_with(|| {
                functions.push(function);
                u32::try_from(functions.len() - 1).unwrap_or(0)
            });
        }
        recording.functions = functions;
    }

    fn name(
        &self,
        block: &Block,
        domains: &[Domain],
        owners: &HashMap<(u8, u64), &AddressSpace>,
    ) -> Function {
        let space = match Mode::of(block.address) {
            Mode::Hypervisor => Some(&self.hypervisor),
            Mode::Kernel => Some(self.kernel_of(domains.get(usize::from(block.home)))),
            Mode::User => owners.get(&(block.home, block.space)).copied(),
        };
        match space.map_or(Named::Unknown, |space| space.name(block.address)) {
            Named::Function { module, function, .. } => {
                Function { module: module.to_owned(), name: function.to_owned() }
            }
            Named::Module { module, .. } => {
                Function { module: module.to_owned(), name: String::new() }
            }
            Named::Unknown if STUBS.contains(&block.address) => {
                Function { module: "xen".to_owned(), name: "stubs".to_owned() }
            }
            Named::Unknown => Function::default(),
        }
    }

    fn kernel_of(&self, domain: Option<&Domain>) -> &AddressSpace {
        let number = match domain {
            Some(Domain::Xen(number)) => Some(*number),
            Some(Domain::Machine) => Some(0),
            _ => None,
        };
        number.and_then(|number| self.kernels.get(&number)).unwrap_or(&self.kernel)
    }

    /// Which program each address space is: the one that has names for nearly all that ran there.
    fn owners(&self, recording: &Recording) -> HashMap<(u8, u64), &AddressSpace> {
        let mut ran: HashMap<(u8, u64), Vec<&Block>> = HashMap::new();
        for block in &recording.blocks {
            if Mode::of(block.address) == Mode::User {
                ran.entry((block.home, block.space)).or_default().push(block);
            }
        }
        let owner = |(home, space): (u8, u64), blocks: &[&Block]| {
            let number = match recording.domains.get(usize::from(home))? {
                Domain::Xen(number) => *number,
                Domain::Machine => 0,
                Domain::Idle | Domain::Unknown => return None,
            };
            let covered = |program: &AddressSpace| {
                let named = |block: &&&Block| program.name(block.address) != Named::Unknown;
                blocks.iter().filter(named).map(|block| block.total().instructions).sum::<u64>()
            };
            let all: u64 = blocks.iter().map(|block| block.total().instructions).sum();
            let programs = self.programs.get(&number)?;
            let best = programs.iter().map(|program| (covered(program), program));
            let (most, program) = best.max_by_key(|(covered, _)| *covered)?;
            (most * 10 >= all * 9).then_some(((home, space), program))
        };
        ran.iter().filter_map(|(place, blocks)| owner(*place, blocks)).collect()
    }
}

/// The symbols in what a domain told of its kernel. A console has lines of others as well, which are left out.
fn symbols(kallsyms: &str) -> Vec<Symbols> {
    let whole = scope_symbols::kallsyms_text(kallsyms);
    let sound = |line: &&str| {
        !matches!(scope_symbols::kallsyms_text(line), Err(scope_symbols::Error::Line { .. }))
    };
    let retry = |_| {
        let lines: Vec<&str> = kallsyms.lines().filter(sound).collect();
        scope_symbols::kallsyms_text(&lines.join("\n"))
    };
    whole.or_else(retry).unwrap_or_default()
}

/// How far a kernel lies above where its image says: what it told is compared with the image.
fn moved(image: &[Arc<Symbols>], told: &[Symbols]) -> u64 {
    fn start<'a>(mut symbols: impl Iterator<Item = &'a Symbols>) -> Option<u64> {
        let kernel = symbols.find(|symbols| symbols.module() == KERNEL)?;
        kernel.iter().find(|symbol| symbol.name == "_stext").map(|symbol| symbol.start)
    }
    let both = start(told.iter()).zip(start(image.iter().map(AsRef::as_ref)));
    both.map_or(0, |(told, image)| told.saturating_sub(image))
}

/// What a kernel itself is called, beside its modules.
const KERNEL: &str = "vmlinux";

/// The symbols of a domain's modules, bounded by where each lies.
fn modules(modules: &str, symbols: Vec<Symbols>) -> Vec<Arc<Symbols>> {
    let lines = modules.lines().filter(|line| scope_symbols::modules(line).is_ok());
    let lines: Vec<&str> = lines.collect();
    let ranges = scope_symbols::modules(&lines.join("\n")).unwrap_or_default();
    let bounded = symbols.into_iter().filter(|symbols| symbols.module() != KERNEL).map(|symbols| {
        let own = ranges.iter().filter(|module| module.name == symbols.module());
        let own: Vec<_> = own.map(|module| module.range.clone()).collect();
        Arc::new(if own.is_empty() { symbols } else { symbols.within(own) })
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use scope_model::Counters;

    use super::*;

    #[test]
    fn sections_go_to_the_domain_that_they_are_of() {
        let text = "noise\n@domain 0\n@modules\nbridge 1 0 - Live 0xffffffffc0000000\n@kallsyms\n\
            ffffffffc0000010 t br_forward\t[bridge]\n@process 7 iperf3\n\
            00400000-00401000 r-xp 00000000 00:00 1 /usr/bin/iperf3\n@log\nboot\n@domain 1\n@process 9 init\n@end\n";
        let told = Told::parse(text);
        assert_eq!(told.domains.keys().copied().collect::<Vec<_>>(), [0, 1]);
        let zero = &told.domains[&0];
        assert!(zero.kallsyms.contains("br_forward") && zero.modules.starts_with("bridge"));
        assert_eq!(zero.processes.len(), 1);
        assert!(zero.processes[0].2.contains("/usr/bin/iperf3"));
        assert_eq!(told.domains[&1].processes[0].1, "init");
    }

    #[test]
    fn lines_of_others_on_a_console_cost_no_names() {
        let clean = "ffffffffc0000010 t br_forward\t[bridge]\nffffffff81200000 T _stext\n";
        let noisy = format!("{clean}[  12.5] eth0: link up\n");
        for text in [clean, &noisy] {
            let symbols = symbols(text);
            assert_eq!(symbols.len(), 2, "{text}");
            let image = symbols_at(0xffff_ffff_8100_0000);
            assert_eq!(moved(&image, &symbols), 0x20_0000);
            let list = "bridge 4096 0 - Live 0xffffffffc0000000\n[  12.5] eth0: link up\n";
            let bridge = modules(list, symbols);
            let range = bridge[0].ranges().remove(0);
            assert_eq!((range.start, range.end), (0xffff_ffff_c000_0000, 0xffff_ffff_c000_1000));
        }
        assert_eq!(moved(&symbols_at(0xffff_ffff_8100_0000), &[]), 0);
        let hidden = "@domain 0\n@kallsyms\n0000000000000000 t br_forward\t[bridge]\n";
        assert!(Told::parse(hidden).hides());
    }

    fn symbols_at(start: u64) -> Vec<Arc<Symbols>> {
        symbols(&format!("{start:016x} T _stext\n")).into_iter().map(Arc::new).collect()
    }

    #[test]
    fn programs_are_those_of_their_domain() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let program = Arc::new(Program::parse("tool", own).expect("ELF"));
        let path = std::env::current_exe().expect("a path").display().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let of = |domain| format!("@domain {domain}\n@process 7 tool\n{maps}");
        let function: fn(&str) -> Told = Told::parse;
        let address = function as usize as u64;
        let block = |home| Block {
            address,
            bytes: 1,
            instructions: 1,
            space: 5,
            home,
            function: 0,
            counters: vec![(home, Counters { instructions: 1, ..Counters::default() })],
        };
        let mut recording = Recording {
            domains: vec![Domain::Xen(0), Domain::Xen(1)],
            blocks: vec![block(0), block(1)],
            ..Recording::default()
        };
        let of_guests =
            |domain, asked: &str| (domain == 1 && asked == path).then(|| Arc::clone(&program));
        let told = Told::parse(&[of(0), of(1)].concat());
        Names::new(None, &[], &told, of_guests).give(&mut recording);
        let name = |block: &Block| recording.functions[block.function as usize].clone();
        let [in_dom0, in_guest] = [0, 1].map(|n| name(&recording.blocks[n]));
        assert!(path.ends_with(&in_dom0.module) && in_dom0.name.is_empty(), "{in_dom0:?}");
        assert_eq!(in_guest.module, "tool");
        assert!(in_guest.name.contains("Told"), "{in_guest:?}");
    }

    #[test]
    fn what_nobody_knows_is_kept_without_a_name() {
        let block = |address, function| Block {
            address,
            bytes: 1,
            instructions: 1,
            space: 0,
            home: 0,
            function,
            counters: Vec::new(),
        };
        let mut recording = Recording {
            domains: vec![Domain::Xen(0)],
            blocks: vec![block(0xffff_82d0_4000_0000, 9), block(0x40_0000, 9)],
            ..Recording::default()
        };
        let mut stubs =
            Recording { blocks: vec![block(0xffff_82d0_7fff_e000, 9)], ..recording.clone() };
        Names::new(None, &[], &Told::default(), |_, _| None).give(&mut stubs);
        assert_eq!(stubs.functions[1].name, "stubs");
        Names::new(None, &[], &Told::default(), |_, _| None).give(&mut recording);
        assert_eq!(recording.functions, [Function::default()]);
        assert!(recording.blocks.iter().all(|block| block.function == 0));
    }
}
