//! Recordings of several ports to files with a limit.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use capture::{CAPTURES_MAX, CapturePoint, EXTENSION, Files, Options, Recording, StartError};
use common::{Port, number, packets, start, tcp_frame};

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("recording-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn recordings(&self) -> Vec<String> {
        self.files().into_iter().filter(|name| name.ends_with(EXTENSION)).collect()
    }

    fn numbers(&self, file: &str) -> Vec<u16> {
        let bytes = fs::read(self.0.join(file)).unwrap();
        packets(&bytes).iter().map(|packet| number(&packet.bytes)).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Records a frame of this number.
fn record_one(files: Files, number: u16) {
    let (point, recording) = (CapturePoint::new("red"), recording(&["red"]));
    point.record(&recording);
    Port::wrapped(&point).carry([tcp_frame(number, 10)]);
    write(&recording, files);
}

/// Writes what the recording has by now.
fn write(recording: &Recording, files: Files) {
    recording.run(files, &mut || true);
}

fn files(folder: &Folder, most_bytes: u64, most_files: usize) -> Files {
    Files::new(&folder.0, "span", most_bytes, most_files)
}

fn recording(ports: &[&str]) -> Recording {
    let ports: Vec<_> = ports.iter().map(|port| (*port).to_owned()).collect();
    Recording::new(&ports, &Options::default()).unwrap()
}

#[test]
fn each_port_is_an_interface() {
    let folder = Folder::new("interfaces");
    let [red, blue, other] = ["red", "blue", "other"].map(CapturePoint::new);
    let recording = recording(&["red", "blue"]);
    [&red, &blue, &other].iter().for_each(|point| point.record(&recording));
    let [mut of_red, mut of_blue, mut of_other] = [&red, &blue, &other].map(Port::wrapped);
    of_red.carry([tcp_frame(1, 10)]);
    of_blue.carry([tcp_frame(2, 10), tcp_frame(3, 10)]);
    of_other.carry([tcp_frame(4, 10)]);
    blue.end_recording(&recording);
    of_blue.carry([tcp_frame(5, 10)]);
    write(&recording, files(&folder, 1 << 20, 2));
    assert_eq!(folder.files(), ["span.00001.pcapng"]);
    let file = folder.0.join("span.00001.pcapng");
    let found = packets(&fs::read(&file).unwrap());
    let found: Vec<_> = found.iter().map(|one| (one.interface, number(&one.bytes))).collect();
    assert_eq!(found, [(0, 1), (1, 2), (1, 3)]);
    let (totals, place) = (recording.totals(), recording.place());
    assert_eq!((totals.written, totals.lost), (3, 0));
    assert_eq!(place.path.as_deref(), Some(&*file));
    assert_eq!((place.bytes, place.error), (fs::metadata(&file).unwrap().len(), None));
}

#[test]
fn files_have_a_limit_and_so_has_their_number() {
    const LIMIT: u64 = 4096;
    let folder = Folder::new("limit");
    fs::write(folder.0.join("span.pcapng"), "another's").unwrap();
    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    let mut port = Port::wrapped(&point);
    (0..40).for_each(|number| port.carry([tcp_frame(number, 500)]));
    write(&recording, files(&folder, LIMIT, 3));
    let found = folder.files();
    assert_eq!(found.len(), 4, "{found:?}");
    let [.., last] = &*found else { panic!() };
    assert_eq!(last, "span.pcapng");
    let newest: Vec<_> = found[..3].iter().flat_map(|file| folder.numbers(file)).collect();
    let first = 40 - u16::try_from(newest.len()).unwrap();
    assert!(newest.iter().copied().eq(first..40), "{newest:?}");
    for file in &found[..3] {
        assert!(fs::metadata(folder.0.join(file)).unwrap().len() <= LIMIT);
    }
    // The next daemon goes on behind them.
    port.carry([tcp_frame(40, 500)]);
    write(&recording, files(&folder, LIMIT, 3));
    let after = folder.files();
    assert_eq!(after[..2], found[1..3]);
    assert_eq!(folder.numbers(&after[2]), [40]);
}

#[test]
fn a_frame_longer_than_a_file_is_recorded() {
    let folder = Folder::new("long");
    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    Port::wrapped(&point).carry([tcp_frame(1, 900), tcp_frame(2, 900)]);
    write(&recording, files(&folder, 100, 9));
    let found: Vec<_> = folder.files().iter().flat_map(|file| folder.numbers(file)).collect();
    assert_eq!(found, [1, 2]);
}

#[test]
fn what_cannot_be_written_is_lost_and_said() {
    let folder = Folder::new("error");
    let missing = Folder(folder.0.join("missing"));
    let mut files = files(&missing, 1 << 20, 2);
    std::mem::forget(missing);
    files.open_first().unwrap_err();
    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    Port::wrapped(&point).carry([tcp_frame(1, 10)]);
    write(&recording, files);
    assert_eq!((recording.totals().written, recording.totals().lost), (0, 1));
    assert!(recording.place().error.is_some());
}

/// A link of that name may lead to a file of the daemon's user.
#[test]
fn a_link_is_not_followed() {
    let folder = Folder::new("link");
    let other = folder.0.join("other");
    fs::write(&other, "another's").unwrap();
    std::os::unix::fs::symlink(&other, folder.0.join("span.00001.pcapng")).unwrap();
    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    Port::wrapped(&point).carry([tcp_frame(1, 10)]);
    write(&recording, files(&folder, 1 << 20, 9));
    assert_eq!(folder.numbers("span.00002.pcapng"), [1]);
    assert_eq!(fs::read(&other).unwrap(), b"another's");
}

/// What an operator has copied, under a name with a date, is neither removed nor counted.
#[test]
fn files_that_are_named_otherwise_stay() {
    let folder = Folder::new("copies");
    let copies =
        ["span.20240101.pcapng", "span.0000009.pcapng", "span.18446744073709551615.pcapng"];
    copies.iter().for_each(|name| fs::write(folder.0.join(name), "a copy").unwrap());
    for number in 1..=2 {
        record_one(files(&folder, 1 << 20, 1), number);
    }
    assert_eq!(folder.files().len(), copies.len() + 1);
    assert_eq!(folder.numbers("span.00002.pcapng"), [2]);
}

#[test]
fn recordings_leave_captures_their_places() {
    let point = CapturePoint::new("red");
    let recordings: Vec<_> = (0..CAPTURES_MAX).map(|_| recording(&["red"])).collect();
    recordings.iter().for_each(|one| point.record(one));
    let captures: Vec<_> = (0..CAPTURES_MAX).map(|_| start(&point, &Options::default())).collect();
    let more = point.start(&Options::default());
    assert!(matches!(more, Err(StartError::TooMany(_))));
    drop(captures);
    assert!(point.is_active());
    recordings.iter().for_each(|one| point.end_recording(one));
    assert!(!point.is_active());
}

/// A file without packets would take the place of one with some.
#[test]
fn a_recording_without_packets_leaves_no_file() {
    let folder = Folder::new("empty");
    record_one(files(&folder, 1 << 20, 1), 1);
    let recording = recording(&["red"]);
    write(&recording, files(&folder, 1 << 20, 1));
    assert_eq!(folder.files(), ["span.00001.pcapng"]);
    assert_eq!(recording.place().path, None);
}

#[test]
fn a_full_disk_takes_no_older_file() {
    if !lab::able(&["unshare", "mount"]) {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(program).args(["--exact", "on_a_small_disk", "--ignored"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a_full_disk_takes_no_older_file runs it where it may mount"]
fn on_a_small_disk() {
    const FILE: u64 = 16 << 10;
    const FILES: usize = 3;
    const PAUSE: Duration = Duration::from_millis(20);
    let folder = Folder::new("disk");
    let mount = ["-t", "tmpfs", "-o", "size=256k", "none"];
    assert!(Command::new("mount").args(mount).arg(&folder.0).status().unwrap().success());
    let disk = Disk(folder.0.join("filler"));

    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    let mut port = Port::wrapped(&point);
    let mut next = 0;
    let mut carry = |count, len| {
        (next..next + count).for_each(|number| port.carry([tcp_frame(number, len)]));
        next += count;
    };
    carry(200, 500);
    let (mut looks, mut before) = (0, Vec::new());
    let mut script = || {
        looks += 1;
        match looks {
            2 => {
                before = folder.recordings();
                assert_eq!(before.len(), FILES);
                disk.fill();
                carry(100, 500);
            }
            // Each look is 5 ms: it was tried again by now, several times.
            3..40 => {
                // More than the rest of a page that the file has already.
                carry(1, 5000);
                let error = recording.place().error.unwrap();
                assert!(error.contains("until there is room"), "{error}");
                assert_eq!(folder.recordings(), before);
            }
            40 => disk.free(),
            41..60 => carry(1, 500),
            _ => assert_eq!(recording.place().error, None),
        }
        looks == 61
    };
    recording.run(files(&folder, FILE, FILES).pausing(PAUSE), &mut script);
    let totals = recording.totals();
    assert_eq!(totals.written + totals.lost, u64::from(next));
    assert!(totals.lost >= 100, "{totals:?}");
    let kept = folder.recordings();
    assert!(kept.len() <= FILES, "{kept:?}");
    let numbers: Vec<_> = kept.iter().flat_map(|file| folder.numbers(file)).collect();
    assert!(numbers.is_sorted() && numbers.contains(&199) && numbers.contains(&(next - 1)));
    assert!(Command::new("umount").arg(&folder.0).status().unwrap().success());
}

/// What fills a disk.
struct Disk(PathBuf);

impl Disk {
    fn fill(&self) {
        let written =
            std::io::copy(&mut std::io::repeat(1), &mut fs::File::create(&self.0).unwrap());
        assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        fs::remove_file(&self.0).unwrap();
    }
}
