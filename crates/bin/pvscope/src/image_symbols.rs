//! The symbols of the images that a machine boots.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scope_recorder::SkbLayout;
use scope_symbols::{Btf, Symbols};
use xenlab::{Images, read_boot_image};

use crate::command_line::CommandLine;
use crate::error::{Error, Result};

/// The symbols of a machine's images.
#[derive(Default)]
pub struct ImageSymbols {
    /// The kernel's, and those of its modules if they come from a running kernel.
    pub kernel: Vec<Arc<Symbols>>,
    /// Where the kernel has the fields of frames, if its image tells.
    pub skb: Option<SkbLayout>,
    pub xen: Option<Hypervisor>,
}

/// The symbols of Xen, and the functions that the plugin looks for.
pub struct Hypervisor {
    pub symbols: Arc<Symbols>,
    /// The address of `context_switch`.
    pub switch: u64,
    /// The addresses of `switch_cr3_cr4`, which switches to another address space. Xen before 4.12 has no such function.
    pub new_space: Option<Range<u64>>,
}

/// Files with symbols, instead of the images that QEMU loads.
#[derive(Clone, Copy, Default)]
pub struct SymbolFiles<'a> {
    pub kernel: Option<&'a Path>,
    /// The hypervisor's.
    pub xen: Option<&'a Path>,
}

impl ImageSymbols {
    pub fn of_lab(images: &Images, has_xen: bool) -> Result<Self> {
        let (kernel, skb) = kernel(&images.kernel())?;
        let xen = has_xen.then(|| hypervisor(&images.xen())).transpose()?;
        Ok(Self { kernel, skb, xen })
    }

    /// The symbols of the given files, and of the images in a command line. Also returns notes on images without symbols.
    pub fn of_command_line(
        files: SymbolFiles<'_>,
        command_line: &CommandLine,
    ) -> Result<(Self, Vec<String>)> {
        let (kernel, skb) = files.kernel.map(kernel).transpose()?.unwrap_or_default();
        let mut symbols = Self { kernel, skb, xen: files.xen.map(hypervisor).transpose()? };
        let mut notes = Vec::new();
        if symbols.kernel.is_empty() {
            let why = symbols.guess(command_line);
            let why = why.map(|error| format!("{error}; ")).unwrap_or_default();
            if symbols.kernel.is_empty() {
                notes.push(format!("{why}{NO_KERNEL}"));
            }
        } else if symbols.xen.is_none() {
            symbols.xen = command_line.kernel().and_then(|image| hypervisor(&image).ok());
        }
        Ok((symbols, notes))
    }

    /// Reads the symbols of what QEMU loads: Linux, or a hypervisor with Linux as its first module. Returns why there are none
    /// for the kernel.
    fn guess(&mut self, command_line: &CommandLine) -> Option<Error> {
        let image = command_line.kernel()?;
        let why = match kernel(&image) {
            Ok(symbols) => {
                (self.kernel, self.skb) = symbols;
                return None;
            }
            Err(why) => why,
        };
        if self.xen.is_none() {
            self.xen = hypervisor(&image).ok();
        }
        if self.xen.is_none() {
            return Some(why);
        }
        match kernel(&command_line.first_module()?) {
            Ok(symbols) => (self.kernel, self.skb) = symbols,
            Err(why) => return Some(why),
        }
        None
    }
}

const NO_KERNEL: &str = "the kernel's functions are counted as unknown: give --kernel-symbols FILE, with an uncompressed vmlinux, \
                         a bzImage, or the text of the guest's /proc/kallsyms, read as root";

/// The symbols of Linux, and the layout of its frames.
type Kernel = (Vec<Arc<Symbols>>, Option<SkbLayout>);

/// The symbols of Linux: of an image, or in the text of `/proc/kallsyms`.
fn kernel(path: &Path) -> Result<Kernel> {
    let bytes = read_boot_image(path)?;
    let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
    let symbols = match text {
        Some(text) => scope_symbols::kallsyms_text(text),
        None => scope_symbols::linux_image(&bytes).map(|symbols| vec![symbols]),
    };
    let symbols = symbols.map_err(wrong(path))?;
    let skb = Btf::of_kernel(&bytes).as_ref().and_then(skb_layout);
    Ok((symbols.into_iter().map(Arc::new).collect(), skb))
}

fn skb_layout(btf: &Btf<'_>) -> Option<SkbLayout> {
    let field = |name| btf.offset_of("sk_buff", name).map(u64::from);
    Some(SkbLayout {
        len: field("len")?,
        data: field("data")?,
        dev: field("dev")?,
        name: btf.offset_of("net_device", "name")?.into(),
    })
}

/// The symbols of Xen.
fn hypervisor(path: &Path) -> Result<Hypervisor> {
    let xen = scope_symbols::xen_image(&read_boot_image(path)?).map_err(wrong(path))?;
    let switch = xen.range_of("context_switch").ok_or_else(|| {
        Error::Usage(format!("{}: this Xen has no function context_switch", path.display()))
    })?;
    let new_space = xen.range_of("switch_cr3_cr4");
    Ok(Hypervisor { symbols: Arc::new(xen), switch: switch.start, new_space })
}

fn wrong(path: &Path) -> impl FnOnce(scope_symbols::Error) -> Error {
    let path: PathBuf = path.to_owned();
    move |cause| Error::Symbols { path, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &[u8]) -> (lab::TempDir, PathBuf) {
        let folder = lab::TempDir::new().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn line(kernel: &Path) -> CommandLine {
        CommandLine::new(vec!["-kernel".to_owned(), kernel.display().to_string()]).unwrap()
    }

    /// An ELF file for x86-64 with nothing but a header.
    const ELF: &[u8] = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\x40\0\x38\0\0\0\0\0\0\0\0\0\xff";

    #[test]
    fn a_running_kernels_list_gives_names() {
        let (_folder, path) = file("kallsyms", b"ffffffff81000000 T _stext\n");
        let given = SymbolFiles { kernel: Some(&path), xen: None };
        let (symbols, notes) =
            ImageSymbols::of_command_line(given, &CommandLine::default()).unwrap();
        assert_eq!((symbols.kernel.len(), notes.len()), (1, 0));
        assert!(symbols.xen.is_none());
    }

    #[test]
    fn a_given_image_without_symbols_is_an_error_and_another_one_a_note() {
        let (_folder, path) = file("vmlinux", ELF);
        for (given, remedy) in [
            (SymbolFiles { kernel: Some(&path), xen: None }, "/proc/kallsyms"),
            (SymbolFiles { kernel: None, xen: Some(&path) }, "give the image that boots"),
        ] {
            let error = ImageSymbols::of_command_line(given, &CommandLine::default())
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("no symbol table") && error.contains(remedy), "{error}");
        }
        let (symbols, notes) =
            ImageSymbols::of_command_line(SymbolFiles::default(), &line(&path)).unwrap();
        assert!(symbols.kernel.is_empty() && symbols.xen.is_none());
        assert!(notes[0].contains("no symbol table"), "{notes:?}");
        assert!(notes[0].contains("--kernel-symbols"), "{notes:?}");
    }

    #[test]
    fn without_an_image_the_note_says_what_to_give() {
        let (_, notes) =
            ImageSymbols::of_command_line(SymbolFiles::default(), &CommandLine::default()).unwrap();
        assert!(notes[0].starts_with("the kernel's functions are counted as unknown"), "{notes:?}");
        let missing = SymbolFiles { kernel: Some(Path::new("/no/such/vmlinux")), xen: None };
        let error = ImageSymbols::of_command_line(missing, &CommandLine::default())
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("/no/such/vmlinux: "), "{error}");
    }
}
