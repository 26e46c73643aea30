//! The user's QEMU command line: what it says, and what a recording needs in addition.

use std::path::PathBuf;

use xenlab::CLOCK;

use crate::error::{Error, Result};

/// QEMU's default size of memory.
const MEMORY: u64 = 128 << 20;
const GIB: u64 = 1 << 30;

/// Options that only say what the machine is, or what is loaded into it at its start.
const WITHIN: [&str; 28] = [
    "M",
    "machine",
    "accel",
    "cpu",
    "smp",
    "m",
    "object",
    "global",
    "kernel",
    "initrd",
    "append",
    "name",
    "nodefaults",
    "no-user-config",
    "nographic",
    "display",
    "vga",
    "no-reboot",
    "serial",
    "chardev",
    "monitor",
    "device",
    "netdev",
    "icount",
    "seed",
    "rtc",
    "L",
    "no-shutdown",
];

/// The arguments of QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine(Vec<String>);

impl CommandLine {
    /// Accepts the arguments, unless they make recording impossible.
    pub fn new(arguments: Vec<String>) -> Result<Self> {
        let command_line = Self(arguments);
        match command_line.problem() {
            Some(problem) => Err(Error::Usage(problem.to_owned())),
            None => Ok(command_line),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        let mut accelerators = self.values(&["accel"]).chain(self.machine_values("accel"));
        let hardware = accelerators.any(|value| !matches!(first(value), "tcg" | "accel=tcg"));
        if hardware || self.has("enable-kvm") {
            Some(
                "a plugin sees only what QEMU itself executes: leave out -enable-kvm and every -accel except tcg",
            )
        } else if self.has("daemonize") {
            Some("pvscope could not notice the end of QEMU: leave out -daemonize")
        } else if self.has("readconfig") {
            Some("pvscope does not read the file of -readconfig: give its contents as options")
        } else {
            None
        }
    }

    /// The arguments as given.
    pub fn arguments(&self) -> &[String] {
        &self.0
    }

    /// The arguments to add: a clock that counts instructions, unless there is an `-icount`, and memory that the plugin can
    /// read, unless there is a memory backend.
    pub fn missing(&self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        if !self.has("icount") {
            let missing = CLOCK.iter().filter(|[option, _]| !self.has(&option[1..]));
            words.extend(missing.flatten().map(|word| (*word).to_owned()));
        }
        let of_nodes = self.values(&["numa"]).any(|value| value.contains("memdev="));
        if !of_nodes && self.machine_values("memory-backend").next().is_none() {
            let size = self.memory()?;
            let backend = format!("memory-backend-memfd,id=pvscope-ram,size={size},share=on");
            words.extend(["-object".to_owned(), backend]);
            words.extend(["-machine".to_owned(), "memory-backend=pvscope-ram".to_owned()]);
        }
        Ok(words)
    }

    /// The bytes of the machine's memory.
    pub fn memory(&self) -> Result<u64> {
        // QEMU's default unit is the megabyte, and it rounds up.
        const ALIGN: u64 = 8192;
        let sizes = self.values(&["m"]).filter_map(|value| {
            let implied = Some(first(value)).filter(|word| !word.contains('='));
            implied.or_else(|| value.split(',').find_map(|word| word.strip_prefix("size=")))
        });
        let Some(text) = sizes.last() else { return Ok(MEMORY) };
        let size = size(text, 1 << 20).map(|size| size.next_multiple_of(ALIGN));
        size.ok_or_else(|| Error::Usage(format!("-m {text}: not a size of memory")))
    }

    /// The bytes of memory below the device hole; none if all memory lies there (`hw/i386/pc_piix.c`, `pc_q35.c` and
    /// `microvm.c` of QEMU 10).
    pub fn low_memory(&self) -> Result<Option<u64>> {
        let memory = self.memory()?;
        let most = self.machine_values("max-ram-below-4g").last();
        let most = most.and_then(|value| size(value, 1)).filter(|most| *most > 0);
        let machine = self.machine();
        let low = if machine == "q35" || machine.starts_with("pc-q35") {
            let low = if memory >= 0xb000_0000 { 2 * GIB } else { 0xb000_0000 };
            most.map_or(low, |most| low.min(most))
        } else if machine == "microvm" {
            3 * GIB
        } else {
            let most = most.unwrap_or(0xe000_0000);
            if memory >= most { most.min(3 * GIB) } else { most }
        };
        Ok((memory > low).then_some(low))
    }

    /// The kernel that QEMU loads.
    pub fn kernel(&self) -> Option<PathBuf> {
        self.values(&["kernel"]).last().map(PathBuf::from)
    }

    /// The file of the first module, which is dom0's kernel if QEMU loads a hypervisor. The option is
    /// `FILE ARGUMENTS,FILE ARGUMENTS`, with commas inside doubled.
    pub fn first_module(&self) -> Option<PathBuf> {
        let modules = self.values(&["initrd"]).last()?;
        let first = first(&modules.replace(",,", "\0")).replace('\0', ",");
        first.split(' ').next().map(PathBuf::from)
    }

    /// What QEMU loads for the machine: names and files.
    pub fn images(&self) -> Vec<(&'static str, PathBuf)> {
        let initrd = self.values(&["initrd"]).last().into_iter();
        // A hypervisor gets modules: `FILE ARGUMENTS,FILE ARGUMENTS`.
        let modules = initrd.flat_map(|value| {
            let whole = PathBuf::from(value.replace(",,", ","));
            if whole.is_file() {
                return vec![whole];
            }
            let parts = value.replace(",,", "\0");
            let files = parts.split(',').filter_map(|part| part.split(' ').next());
            files.map(|file| PathBuf::from(file.replace('\0', ","))).collect()
        });
        let kernel = self.kernel().map(|path| ("kernel", path));
        // As `-device loader,file=FILE`.
        let devices = self.values(&["device"]).flat_map(|value| value.split(','));
        let devices =
            devices.filter_map(|part| Some(("device", PathBuf::from(part.split_once('=')?.1))));
        let all = kernel.into_iter().chain(modules.map(|path| ("initrd", path))).chain(devices);
        all.filter(|(_, path)| path.is_file()).collect()
    }

    /// Why there can be no snapshot of the machine: what an option connects it to is not in a snapshot, or is not known to be.
    pub fn outside(&self) -> Option<String> {
        let given = self.0.iter().filter_map(|word| name(word));
        let mut others = given.filter(|option| !WITHIN.contains(option));
        let unknown = others.next().map(|option| format!("-{option}"));
        let network = self.values(&["netdev"]).find(|value| first(value) != "hubport");
        let network = network.map(|value| format!("-netdev {value}"));
        let is_open = |value: &&str| {
            !(value.starts_with("file:")
                || matches!(*value, "null" | "none" | "stdio" | "mon:stdio"))
        };
        let serial = self.values(&["serial"]).find(is_open).map(|value| format!("-serial {value}"));
        let devices = self
            .values(&["chardev"])
            .find(|value| !matches!(first(value), "file" | "null" | "stdio"));
        let devices = devices.map(|value| format!("-chardev {value}"));
        let what = unknown.or(network).or(serial).or(devices)?;
        Some(format!("{what} may connect the machine with something whose state a snapshot lacks"))
    }

    /// The files that consoles write to.
    pub fn consoles(&self) -> Vec<PathBuf> {
        let serial = self.values(&["serial"]).filter_map(|value| value.strip_prefix("file:"));
        let devices = self.values(&["chardev"]).filter(|value| first(value) == "file");
        let devices = devices
            .filter_map(|value| value.split(',').find_map(|word| word.strip_prefix("path=")));
        serial.map(first).chain(devices).map(PathBuf::from).collect()
    }

    /// Whether a console writes to QEMU's own output.
    pub fn prints(&self) -> bool {
        self.has("nographic")
            || self.values(&["serial", "chardev"]).any(|value| value.contains("stdio"))
    }

    fn machine(&self) -> &str {
        let named = |value| {
            let word = first(value);
            word.strip_prefix("type=").or_else(|| Some(word).filter(|word| !word.contains('=')))
        };
        self.values(&["machine", "M"]).filter_map(named).last().unwrap_or("pc")
    }

    /// The values of a key in the machine options. The last one counts.
    fn machine_values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let words = self.values(&["machine", "M"]).flat_map(|value| value.split(','));
        words.filter_map(move |word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn has(&self, option: &str) -> bool {
        self.0.iter().any(|word| name(word) == Some(option))
    }

    /// The values of options of these names.
    fn values<'a>(&'a self, options: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.0.windows(2).filter_map(move |pair| {
            let [option, value] = pair else { return None };
            name(option).filter(|name| options.contains(name)).map(|_| value.as_str())
        })
    }
}

/// The name of an option, which begins with one or two dashes.
fn name(word: &str) -> Option<&str> {
    let name = word.strip_prefix('-')?;
    Some(name.strip_prefix('-').unwrap_or(name))
}

/// The text before the first comma.
fn first(value: &str) -> &str {
    value.split(',').next().unwrap_or_default()
}

/// Parses a size as QEMU does: a number, perhaps with a fraction, and a letter for the unit.
fn size(text: &str, unit: u64) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, letter) if letter.is_ascii_alphabetic() => {
            let power = "bkmgtpe".find(letter.to_ascii_lowercase())?;
            (&text[..at], 1 << (10 * power))
        }
        _ => (text, unit),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    let fraction = match fraction {
        "" => 0,
        // More digits than nine would overflow below.
        digits if digits.len() <= 9 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
            u64::try_from(digits.parse::<u128>().ok()? * u128::from(unit) / scale).ok()?
        }
        _ => return None,
    };
    whole.checked_mul(unit)?.checked_add(fraction)
}

/// Escapes a value of an option of QEMU, in which commas separate.
pub fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> CommandLine {
        CommandLine::new(text.split_whitespace().map(str::to_owned).collect()).unwrap()
    }

    #[test]
    fn what_is_outside_of_a_machine_is_in_no_snapshot() {
        let outside = |words: &str| line(words).outside();
        let own = "-M q35 -m 1G -kernel k -initrd i -nodefaults -display none -serial null -serial file:r -no-reboot";
        assert_eq!(outside(own), None);
        assert_eq!(
            outside(&format!("{own} -netdev hubport,hubid=0,id=a -device virtio-net-pci,netdev=a")),
            None
        );
        for more in [
            "-drive file=disk",
            "-hda disk",
            "-netdev user,id=a",
            "-nic user",
            "-chardev socket,id=a,path=p",
            "-serial pty",
            "-fsdev local,id=a",
            "-loadvm x",
            "-incoming defer",
            "-snapshot",
        ] {
            let reason = outside(&format!("{own} {more}")).expect(more);
            assert!(reason.contains(more.split(' ').next().unwrap()), "{reason}");
        }
    }

    #[test]
    fn memory_is_read_as_qemu_reads_it() {
        for (text, expected) in [
            ("", 128 << 20),
            ("-m 512", 512 << 20),
            ("-m 2G", 2 * GIB),
            ("-m 1.5g", 3 * GIB / 2),
            ("-m 1000000b", 1_007_616),
            ("-m size=4096M,slots=2", 4 * GIB),
            ("-m 1G -m maxmem=4G,slots=2", GIB),
            ("--m 1G -m 3G", 3 * GIB),
        ] {
            assert_eq!(line(text).memory().unwrap(), expected, "{text}");
        }
        for text in ["-m much", "-m 1x", "-m 1.g.2", "-m 99999999999999999999G", "-m 17179869184G"]
        {
            let message = line(text).memory().unwrap_err().to_string();
            assert!(message.contains("not a size of memory"), "{text}: {message}");
        }
    }

    /// As `info mtree -f` of QEMU 10.0.2 shows it.
    #[test]
    fn the_device_hole_is_where_qemu_puts_it() {
        for (text, expected) in [
            ("", None),
            ("-m 3583M", None),
            ("-m 3584M", Some(0xc000_0000)),
            ("-M pc -m 4G", Some(0xc000_0000)),
            ("-machine pc-i440fx-2.6 -m 4G", Some(0xc000_0000)),
            ("-machine pc,max-ram-below-4g=2G -m 4G", Some(0x8000_0000)),
            ("-machine pc -machine max-ram-below-4g=4G -m 3968M", None),
            ("-machine pc,max-ram-below-4g=3.75G -m 3700M", None),
            ("-machine pc,max-ram-below-4g=1G -m 512M", None),
            ("-machine q35 -m 2815M", None),
            ("-machine q35 -m 2816M", Some(0x8000_0000)),
            ("-machine type=pc-q35-9.0,accel=tcg -m 4G", Some(0x8000_0000)),
            ("-machine q35,max-ram-below-4g=1G -m 2G", Some(0x4000_0000)),
            ("-machine q35,max-ram-below-4g=3G -m 8G", Some(0x8000_0000)),
            ("-machine microvm -m 3G", None),
            ("-machine microvm -m 4G", Some(0xc000_0000)),
        ] {
            assert_eq!(line(text).low_memory().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn missing_arguments_are_added_and_present_ones_stay() {
        let memory = "-object memory-backend-memfd,id=pvscope-ram,size=134217728,share=on \
                      -machine memory-backend=pvscope-ram";
        let clock = "-icount shift=0,sleep=off -seed 1 -rtc base=2026-01-01,clock=vm";
        for (text, expected) in [
            ("", format!("{clock} {memory}")),
            ("-machine q35 -rtc base=utc", format!("-icount shift=0,sleep=off -seed 1 {memory}")),
            ("-icount shift=auto", memory.to_owned()),
            (
                "-machine q35,memory-backend=ram -object memory-backend-memfd,id=ram",
                clock.to_owned(),
            ),
            ("-numa node,memdev=ram -icount 1", String::new()),
        ] {
            assert_eq!(line(text).missing().unwrap().join(" "), expected, "{text}");
        }
    }

    #[test]
    fn command_lines_that_cannot_be_recorded_are_refused_with_a_remedy() {
        for (text, word) in [
            ("-m 1G -enable-kvm", "-enable-kvm"),
            ("-accel kvm", "-accel"),
            ("-accel tcg -machine q35,accel=kvm:tcg", "-accel"),
            ("-daemonize", "-daemonize"),
            ("-readconfig x", "-readconfig"),
        ] {
            let words = text.split_whitespace().map(str::to_owned).collect();
            let message = CommandLine::new(words).unwrap_err().to_string();
            assert!(message.contains("leave out") || message.contains("as options"), "{message}");
            assert!(message.contains(word), "{message}");
        }
        line("-accel tcg,thread=single -machine accel=tcg");
    }

    #[test]
    fn images_and_consoles_are_found() {
        let mut words = line("-kernel xen -serial file:console.log -chardev file,id=a,path=b").0;
        words.extend(["-initrd".to_owned(), "vm,,linux console=hvc0 a=1,,2,root.cpio".to_owned()]);
        let xen = CommandLine::new(words).unwrap();
        assert_eq!(xen.kernel(), Some("xen".into()));
        assert_eq!(xen.first_module(), Some("vm,linux".into()));
        assert_eq!(xen.consoles(), [PathBuf::from("console.log"), PathBuf::from("b")]);
        assert!(!xen.prints() && line("-nographic").prints() && line("-serial mon:stdio").prints());
        assert_eq!(line("").kernel(), None);
        assert_eq!(escaped("/a,b"), "/a,,b");
    }
}
