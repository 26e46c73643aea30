//! The real images of the lab, where its cache holds them (`make lab-xen` fills it); skipped elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scope_symbols::{Symbols, linux_image, vdso, xen_image};

/// Where Xen's code starts in Debian's image.
const XEN_TEXT: u64 = 0xffff_82d0_4020_0000;

/// The lab's cache: in the folder that this test was built into, or in the repository's `target`.
fn caches() -> Vec<PathBuf> {
    let test = std::env::current_exe().unwrap_or_default();
    let built = test.ancestors().nth(3).map(Path::to_owned).unwrap_or_default();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
    [built, repository].map(|target| target.join("xenlab/bookworm")).into()
}

/// The lab's `name`, or nothing, said on standard error.
fn cached(name: &str) -> Option<Vec<u8>> {
    let folders =
        caches().into_iter().filter_map(|cache| fs::read_dir(cache).ok()).flatten().flatten();
    let image = folders.map(|folder| folder.path().join(name)).find_map(|path| fs::read(path).ok());
    if image.is_none() {
        eprintln!("skipped: the lab's cache has no {name}; `make lab-xen` makes one");
    }
    image
}

fn start(symbols: &Symbols, name: &str) -> Option<u64> {
    symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.start)
}

/// Runs `load`, and asserts that it takes less than 5 s even without optimisation.
fn timed(load: impl FnOnce() -> Symbols) -> Symbols {
    let began = Instant::now();
    let symbols = load();
    let took = began.elapsed();
    eprintln!("{}: {} symbols in {took:?}", symbols.module(), symbols.len());
    assert!(took < Duration::from_secs(5), "{took:?}");
    symbols
}

#[test]
fn xen_names_itself() {
    let Some(image) = cached("xen") else { return };
    let xen = timed(|| xen_image(&image).expect("Xen's table"));
    assert!(xen.len() > 5000, "{} symbols", xen.len());
    assert_eq!(start(&xen, "_stext"), Some(XEN_TEXT));
    for name in ["context_switch", "do_grant_table_op", "do_event_channel_op"] {
        let start = start(&xen, name).unwrap_or_else(|| panic!("no {name}"));
        let found = xen.lookup(start + 7).expect("inside");
        assert_eq!((found.name, found.offset), (name, 7));
    }
    assert_eq!(xen.lookup(0x1000), None);
    assert!(xen.lookup(XEN_TEXT + 0x10_0000).is_some(), "in the midst of its code");
}

#[test]
fn linux_names_itself() {
    let Some(image) = cached("vmlinux") else { return };
    let linux = timed(|| linux_image(&image).expect("kallsyms"));
    assert!(linux.len() > 50_000, "{} symbols", linux.len());
    assert_eq!(start(&linux, "_stext"), Some(0xffff_ffff_8100_0000));
    for name in ["schedule", "netif_receive_skb"] {
        let start = start(&linux, name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(linux.lookup(start + 3).map(|symbol| symbol.name), Some(name));
    }
    assert_eq!(linux.lookup(0x1000), None, "a per-CPU offset is no address");
}

#[test]
fn linux_has_a_library_for_every_process() {
    let Some(image) = cached("vmlinux") else { return };
    let vdso = vdso(&image).expect("a vDSO");
    let symbols = vdso.symbols();
    assert_eq!(symbols.module(), "[vdso]");
    let clock = start(symbols, "clock_gettime").expect("exported");
    assert_eq!(symbols.lookup(clock + 9).map(|symbol| symbol.name), Some("clock_gettime"));
    assert_eq!(vdso.address_of(clock), Some(clock), "addresses are offsets");
}

#[test]
fn what_is_no_kernel_has_no_vdso() {
    assert!(vdso(&[0; 9000]).is_none());
    assert!(vdso(b"\x7fELF").is_none());
}
