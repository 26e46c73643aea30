//! Recordings of several ports to files with a limit.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{Port, number, packets, start, tcp_frame};
use capture::{
    CAPTURES_MAX, CapturePoint, EXTENSION, Files, Options, Recording, RecordingStatus, StartError,
};
use lab::TempDir;

/// A folder of recordings.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn recordings(&self) -> Vec<String> {
        self.files().into_iter().filter(|name| name.ends_with(EXTENSION)).collect()
    }

    fn numbers(&self, file: &str) -> Vec<u16> {
        let bytes = fs::read(self.0.path().join(file)).unwrap();
        packets(&bytes).iter().map(|packet| number(&packet.bytes)).collect()
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
    Files::new(folder.0.path(), "span", most_bytes, most_files)
}

fn recording(ports: &[&str]) -> Recording {
    let ports: Vec<_> = ports.iter().map(|port| (*port).to_owned()).collect();
    Recording::new(&ports, &Options::default()).unwrap()
}

#[test]
fn each_port_is_an_interface() {
    let folder = Folder::new();
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
    let file = folder.0.path().join("span.00001.pcapng");
    let found = packets(&fs::read(&file).unwrap());
    let found: Vec<_> = found.iter().map(|one| (one.interface, number(&one.bytes))).collect();
    assert_eq!(found, [(0, 1), (1, 2), (1, 3)]);
    let (totals, status) = (recording.totals(), recording.status());
    assert_eq!((totals.written, totals.lost), (3, 0));
    assert_eq!(status.path.as_deref(), file.to_str());
    assert_eq!((status.bytes, status.error), (fs::metadata(&file).unwrap().len(), None));
}

#[test]
fn files_have_a_limit_and_so_has_their_number() {
    const LIMIT: u64 = 4096;
    let folder = Folder::new();
    fs::write(folder.0.path().join("span.pcapng"), "another's").unwrap();
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
        assert!(fs::metadata(folder.0.path().join(file)).unwrap().len() <= LIMIT);
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
    let folder = Folder::new();
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
    let folder = Folder::new();
    let mut files = Files::new(&folder.0.path().join("missing"), "span", 1 << 20, 2);
    files.open_first().unwrap_err();
    let point = CapturePoint::new("red");
    let recording = recording(&["red"]);
    point.record(&recording);
    Port::wrapped(&point).carry([tcp_frame(1, 10)]);
    write(&recording, files);
    assert_eq!((recording.totals().written, recording.totals().lost), (0, 1));
    assert!(recording.status().error.is_some());
}

/// A link with the name of the next file could point to a file of the daemon's user.
#[test]
fn a_link_is_not_followed() {
    let folder = Folder::new();
    let other = folder.0.path().join("other");
    fs::write(&other, "another's").unwrap();
    std::os::unix::fs::symlink(&other, folder.0.path().join("span.00001.pcapng")).unwrap();
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
    let folder = Folder::new();
    let copies =
        ["span.20240101.pcapng", "span.0000009.pcapng", "span.18446744073709551615.pcapng"];
    copies.iter().for_each(|name| fs::write(folder.0.path().join(name), "a copy").unwrap());
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
    let folder = Folder::new();
    record_one(files(&folder, 1 << 20, 1), 1);
    let recording = recording(&["red"]);
    write(&recording, files(&folder, 1 << 20, 1));
    assert_eq!(folder.files(), ["span.00001.pcapng"]);
    assert_eq!(recording.status().path, None);
}

/// Another writer of that name begins while the first one runs, as at a reload.
#[test]
fn a_writer_removes_neither_its_file_nor_a_later_one() {
    let folder = Folder::new();
    let (point, recording) = (CapturePoint::new("red"), recording(&["red"]));
    point.record(&recording);
    let mut port = Port::wrapped(&point);
    let mut polls = 0;
    recording.run(files(&folder, 1 << 20, 1), &mut || {
        polls += 1;
        if polls == 1 {
            files(&folder, 1 << 20, 1).open_first().unwrap();
            port.carry([tcp_frame(1, 10)]);
        }
        polls == 3
    });
    assert_eq!(folder.files(), ["span.00001.pcapng", "span.00002.pcapng"]);
    assert_eq!(folder.numbers("span.00001.pcapng"), [1]);
}

/// The new writer's first file is older than the files that the old writer makes until it ends.
#[test]
fn a_writer_in_whose_place_another_comes_leaves_it_its_first_file() {
    let folder = Folder::new();
    let (point, old) = (CapturePoint::new("red"), recording(&["red"]));
    point.record(&old);
    let mut port = Port::wrapped(&point);
    let keeps = Arc::<AtomicBool>::default();
    let mut next = files(&folder, 1 << 20, 1);
    let (mut polls, mut first) = (0, String::new());
    // Each file has room for one packet.
    old.run(files(&folder, 1, 1).keeping(keeps.clone()), &mut || {
        port.carry([tcp_frame(polls, 10)]);
        polls += 1;
        if polls == 2 {
            keeps.store(true, Ordering::Release);
            next.open_first().unwrap();
            first = folder.files().pop().unwrap();
        }
        polls == 4
    });
    let left = folder.files();
    assert!(left.contains(&first) && left.last() > Some(&first), "{first} of {left:?}");
    // The new writer removes surplus files once it has packets.
    let new = recording(&["red"]);
    point.record(&new);
    port.carry([tcp_frame(9, 10)]);
    write(&new, next);
    assert_eq!(folder.numbers(&first), [9]);
    assert_eq!(folder.files().first(), Some(&first), "older ones have gone");
}

/// The operator who asked for the recording may have given up meanwhile.
#[test]
fn a_first_file_takes_no_older_ones_place_before_it_has_packets() {
    let folder = Folder::new();
    (1..=3).for_each(|number| record_one(files(&folder, 1 << 20, 3), number));
    let before = folder.files();
    let mut fewer = files(&folder, 1 << 20, 1);
    fewer.open_first().unwrap();
    assert_eq!(folder.files().len(), 4);
    write(&recording(&["red"]), fewer);
    assert_eq!(folder.files(), before);
}

/// Runs an ignored test of this file in a mount namespace of its own.
fn run_where_it_may_mount(test: &str) {
    lab::requires!("unshare", "mount");
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    let test = format!("recording::{test}");
    command.arg("--mount").arg(program).args(["--exact", &test, "--ignored"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_full_disk_takes_no_file_beyond_the_one_in_whose_place_the_next_comes() {
    run_where_it_may_mount("on_a_small_disk");
    run_where_it_may_mount("on_a_disk_that_others_fill");
}

#[test]
fn a_disk_may_be_as_large_as_the_recording() {
    run_where_it_may_mount("on_a_disk_for_the_recording");
}

#[test]
fn a_disk_that_hangs_keeps_nobody_from_the_place() {
    run_where_it_may_mount("on_a_disk_that_hangs");
}

const FILE: u64 = 16 << 10;
const FILES: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);

fn files_on_disk(folder: &Folder) -> Files {
    files(folder, FILE, FILES).pausing(PAUSE)
}

#[test]
#[ignore = "a_disk_may_be_as_large_as_the_recording runs it where it may mount"]
fn on_a_disk_for_the_recording() {
    let folder = Folder::new();
    let _disk = Disk::mount(&folder, FILE * FILES as u64);
    let (point, recording) = (CapturePoint::new("red"), recording(&["red"]));
    point.record(&recording);
    let mut port = Port::wrapped(&point);
    let mut next = 0;
    recording.run(files_on_disk(&folder), &mut || {
        port.carry((next..next + 10).map(|number| tcp_frame(number, 500)));
        next += 10;
        next == 400
    });
    let (totals, error) = (recording.totals(), recording.status().error);
    assert_eq!((totals.written, totals.lost, error), (400, 0, None));
    let kept = folder.recordings();
    assert_eq!(kept.len(), FILES);
    let numbers: Vec<_> = kept.iter().flat_map(|file| folder.numbers(file)).collect();
    let first = 400 - u16::try_from(numbers.len()).unwrap();
    assert!(numbers.iter().copied().eq(first..400), "{numbers:?}");
}

/// Removing a file makes no room here: its copy keeps the blocks.
#[test]
#[ignore = "a_full_disk_takes_no_file_beyond_the_one_in_whose_place_the_next_comes runs it where it may mount"]
fn on_a_disk_that_others_fill() {
    let folder = Folder::new();
    let disk = Disk::mount(&folder, 256 << 10);
    (1..=3).for_each(|number| record_one(files_on_disk(&folder), number));
    let before = folder.recordings();
    for file in &before {
        fs::hard_link(folder.0.path().join(file), folder.0.path().join(format!("{file}.copy")))
            .unwrap();
    }
    disk.fill();
    let (point, recording) = (CapturePoint::new("red"), recording(&["red"]));
    point.record(&recording);
    let mut port = Port::wrapped(&point);
    let mut polls = 0;
    // `stop` is asked every 5 ms: the writer tries again several times.
    recording.run(files_on_disk(&folder), &mut || {
        port.carry([tcp_frame(9, 5000)]);
        polls += 1;
        polls == 40
    });
    let totals = recording.totals();
    assert_eq!((totals.written, totals.lost), (0, 40));
    assert_eq!(folder.recordings(), before[1..]);
}

#[test]
#[ignore = "a_disk_that_hangs_keeps_nobody_from_the_place runs it where it may mount"]
fn on_a_disk_that_hangs() {
    let folder = Folder::new();
    let (recording, stop) = (recording(&["red"]), Arc::new(AtomicBool::new(false)));
    let (files, writer, stops) = (files_on_disk(&folder), recording.clone(), stop.clone());
    let thread = thread::spawn(move || writer.run(files, &mut || stops.load(Ordering::Relaxed)));
    while recording.status().path.is_none() {
        thread::sleep(PAUSE);
    }
    let Some(disk) = lab::needed(lab::HungDisk::over(folder.0.path())) else { return };
    stop.store(true, Ordering::Relaxed);
    // Its file has no packets, so it is removed.
    let (answer, answers) = mpsc::channel();
    thread::spawn(move || {
        while recording.status().path.is_some() {
            thread::sleep(PAUSE);
        }
        // Now the writer waits for the disk.
        thread::sleep(PAUSE);
        answer.send(recording.status()).unwrap();
    });
    assert_eq!(answers.recv_timeout(Duration::from_secs(5)), Ok(RecordingStatus::default()));
    assert!(!thread.is_finished());
    drop(disk);
    thread.join().unwrap();
}

#[test]
#[ignore = "a_full_disk_takes_no_file_beyond_the_one_in_whose_place_the_next_comes runs it where it may mount"]
fn on_a_small_disk() {
    let folder = Folder::new();
    let disk = Disk::mount(&folder, 256 << 10);

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
    let (mut polls, mut before) = (0, Vec::new());
    let mut script = || {
        polls += 1;
        match polls {
            2 => {
                before = folder.recordings();
                assert_eq!(before.len(), FILES);
                disk.fill();
                carry(100, 500);
            }
            // `stop` is asked every 5 ms: the writer has tried again several times by now.
            3..40 => {
                // More than the rest of a page that the file has already.
                carry(1, 5000);
                let error = recording.status().error.unwrap();
                assert!(error.contains("until there is room"), "{error}");
                assert_eq!(folder.recordings(), before);
            }
            40 => disk.free(),
            41..60 => carry(1, 500),
            _ => assert_eq!(recording.status().error, None),
        }
        polls == 61
    };
    recording.run(files_on_disk(&folder), &mut script);
    let totals = recording.totals();
    assert_eq!(totals.written + totals.lost, u64::from(next));
    assert!(totals.lost >= 100, "{totals:?}");
    let kept = folder.recordings();
    assert!(kept.len() <= FILES, "{kept:?}");
    let numbers: Vec<_> = kept.iter().flat_map(|file| folder.numbers(file)).collect();
    assert!(numbers.is_sorted() && numbers.contains(&199) && numbers.contains(&(next - 1)));
}

/// A small disk over a folder.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Folder, bytes: u64) -> Self {
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder.0.path());
        assert!(mount.status().unwrap().success());
        Self(folder.0.path().to_owned())
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.filler()).unwrap();
        let written = std::io::copy(&mut std::io::repeat(1), &mut filler);
        assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}
