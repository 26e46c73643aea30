//! The symbols of the images that a machine boots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use scope_symbols::Symbols;
use xenlab::{Images, read_boot_image};

use crate::error::{Error, Result};
use crate::line::Line;
use crate::workload::Workload;

/// The images' own symbols.
#[derive(Default)]
pub struct Tables {
    /// The kernel's, and its modules' where they are known from a running one.
    pub kernel: Vec<Arc<Symbols>>,
    /// The hypervisor's, and its function that switches domains.
    pub xen: Option<(Arc<Symbols>, u64)>,
}

/// Where names are to come from, instead of the images that QEMU loads.
#[derive(Clone, Copy, Default)]
pub struct Given<'a> {
    /// The kernel's.
    pub kernel: Option<&'a Path>,
    /// The hypervisor's.
    pub xen: Option<&'a Path>,
}

impl Tables {
    /// Of the lab's images.
    pub fn of_lab(images: &Images, workload: Workload) -> Result<Self> {
        let kernel = kernel(&images.kernel())?;
        let xen = workload.has_xen().then(|| hypervisor(&images.xen())).transpose()?;
        Ok(Self { kernel, xen })
    }

    /// Of files that were given, and of the images in a command line; second is what to know of those
    /// that have none.
    ///
    /// # Errors
    /// If a file that was given has none.
    pub fn of_line(given: Given<'_>, line: &Line) -> Result<(Self, Vec<String>)> {
        let mut tables = Self {
            kernel: given.kernel.map(kernel).transpose()?.unwrap_or_default(),
            xen: given.xen.map(hypervisor).transpose()?,
        };
        let mut notes = Vec::new();
        if tables.kernel.is_empty() {
            let why = tables.guess(line);
            let why = why.map(|error| format!("{error}; ")).unwrap_or_default();
            if tables.kernel.is_empty() {
                notes.push(format!("{why}{NO_KERNEL}"));
            }
        } else if tables.xen.is_none() {
            tables.xen = line.kernel().and_then(|image| hypervisor(&image).ok());
        }
        Ok((tables, notes))
    }

    /// From what QEMU loads: Linux, or a hypervisor with Linux as its first module. Answers why there are
    /// no kernel's.
    fn guess(&mut self, line: &Line) -> Option<Error> {
        let image = line.kernel()?;
        let why = match kernel(&image) {
            Ok(symbols) => {
                self.kernel = symbols;
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
        match kernel(&line.first_module()?) {
            Ok(symbols) => self.kernel = symbols,
            Err(why) => return Some(why),
        }
        None
    }
}

const NO_KERNEL: &str = "the kernel's functions are counted as unknown: give --kernel-symbols FILE, an uncompressed vmlinux, a \
                         bzImage, or what /proc/kallsyms says in the guest, as root";

/// Linux's: of an image, or as its `/proc/kallsyms` has them.
fn kernel(path: &Path) -> Result<Vec<Arc<Symbols>>> {
    let bytes = read_boot_image(path)?;
    let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
    let symbols = match text {
        Some(text) => scope_symbols::kallsyms_text(text),
        None => scope_symbols::linux_image(&bytes).map(|symbols| vec![symbols]),
    };
    let symbols = symbols.map_err(wrong(path))?;
    Ok(symbols.into_iter().map(Arc::new).collect())
}

/// Xen's, and its function that switches domains.
fn hypervisor(path: &Path) -> Result<(Arc<Symbols>, u64)> {
    let xen = scope_symbols::xen_image(&read_boot_image(path)?).map_err(wrong(path))?;
    let switch = xen.iter().find(|symbol| symbol.name == "context_switch");
    let switch = switch.map(|symbol| symbol.start).ok_or_else(|| {
        Error::Usage(format!("{}: this Xen has no function context_switch", path.display()))
    })?;
    Ok((Arc::new(xen), switch))
}

fn wrong(path: &Path) -> impl FnOnce(scope_symbols::Error) -> Error {
    let path: PathBuf = path.to_owned();
    move |cause| Error::Symbols { path, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &[u8]) -> (xenlab::TempDir, PathBuf) {
        let folder = xenlab::TempDir::new().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn line(kernel: &Path) -> Line {
        Line::new(vec!["-kernel".to_owned(), kernel.display().to_string()]).unwrap()
    }

    /// An ELF file for 64 bits of x86, of nothing but its head.
    const ELF: &[u8] = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\x40\0\x38\0\0\0\0\0\0\0\0\0\xff";

    #[test]
    fn a_running_kernels_list_gives_names() {
        let (_folder, path) = file("kallsyms", b"ffffffff81000000 T _stext\n");
        let given = Given { kernel: Some(&path), xen: None };
        let (tables, notes) = Tables::of_line(given, &Line::default()).unwrap();
        assert_eq!((tables.kernel.len(), notes.len()), (1, 0));
        assert!(tables.xen.is_none());
    }

    #[test]
    fn an_image_without_symbols_is_an_error_if_it_was_given_and_else_a_note() {
        let (_folder, path) = file("vmlinux", ELF);
        for (given, remedy) in [
            (Given { kernel: Some(&path), xen: None }, "/proc/kallsyms"),
            (Given { kernel: None, xen: Some(&path) }, "give the image that boots"),
        ] {
            let error = Tables::of_line(given, &Line::default()).err().unwrap().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("no symbol table") && error.contains(remedy), "{error}");
        }
        let (tables, notes) = Tables::of_line(Given::default(), &line(&path)).unwrap();
        assert!(tables.kernel.is_empty() && tables.xen.is_none());
        assert!(notes[0].contains("no symbol table"), "{notes:?}");
        assert!(notes[0].contains("--kernel-symbols"), "{notes:?}");
    }

    #[test]
    fn without_any_image_the_note_says_what_to_give() {
        let (_, notes) = Tables::of_line(Given::default(), &Line::default()).unwrap();
        assert!(notes[0].starts_with("the kernel's functions are counted as unknown"), "{notes:?}");
        let missing = Given { kernel: Some(Path::new("/no/such/vmlinux")), xen: None };
        let error = Tables::of_line(missing, &Line::default()).err().unwrap().to_string();
        assert!(error.starts_with("/no/such/vmlinux: "), "{error}");
    }
}
