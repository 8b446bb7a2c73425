//! Each trigger fires once, with what it saw in its file, and says why it does not before. Each
//! test is a child: the directory of files is the process's.

#![cfg(not(dormouse_fallback))]

use std::fs::{self, File};
use std::future::Future;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use dormouse::record::Reader;
use dormouse::triggers::{self, TriggerRow};
use dormouse::{Group, probe};
use dormouse_protocol::{FileHead, FileMissing, FilePart, FileReader, ProfilePart, Stat, TasksPart};
use dormouse_testkit::{StopOnDrop, eventually, fork, in_child, skip, spin_for};

/// Runs a body in a child whose files go to a directory of its own.
#[track_caller]
pub(crate) fn with_directory<F: FnOnce(&Path)>(body: F) {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
        body(directory.path());
    });
}

pub(crate) fn row(number: u64) -> TriggerRow {
    let all = triggers::list().unwrap().triggers;
    all.into_iter().find(|row| row.number == number).unwrap()
}

pub(crate) fn add(rule: &str) -> u64 {
    let added = triggers::add(rule).unwrap();
    assert_eq!(added.len(), 1);
    added[0]
}

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) head: FileHead,
    missing: Vec<FileMissing>,
    tasks: usize,
    /// The places of each task.
    places: Vec<Vec<u32>>,
    stat: Option<Stat>,
    samples: u64,
    mappings: bool,
    records: usize,
    record_bytes: usize,
}

fn read(path: &Path) -> Content {
    let mut reader = FileReader::new(File::open(path).unwrap()).unwrap();
    let mut content = Content { head: reader.head().clone(), ..Content::default() };
    while let Some(part) = reader.next().unwrap() {
        match part {
            FilePart::Answer { name: "missing", json, .. } => {
                content.missing.push(serde_json::from_slice(json).unwrap());
            }
            FilePart::Answer { name: "tasks", json, .. } => {
                let part: TasksPart = serde_json::from_slice(json).unwrap();
                content.tasks += part.tasks.task.len();
                content.places.extend(part.tasks.places);
            }
            FilePart::Answer { name: "stat", json, .. } => {
                content.stat = Some(serde_json::from_slice(json).unwrap());
            }
            FilePart::Answer { name: "profile-report", json, .. } => {
                let part: ProfilePart = serde_json::from_slice(json).unwrap();
                content.samples += part.part.coverage.samples;
            }
            FilePart::Answer { name: "mappings", .. } => content.mappings = true,
            // Length, kind, thread id, start number.
            FilePart::Frame(frame) if frame[4] == 2 => {
                content.records += Reader::new(&frame[17..]).map(Result::unwrap).count();
                content.record_bytes += frame[17..].len();
            }
            _ => {}
        }
    }
    content
}

/// Waits for a trigger's file.
pub(crate) fn file_of(number: u64) -> (TriggerRow, Content) {
    eventually(|| row(number).file.is_some());
    let row = row(number);
    let content = read(Path::new(row.file.as_ref().unwrap()));
    assert_eq!(content.head.pid, std::process::id());
    assert_eq!(content.head.seen, row.seen.clone().unwrap());
    assert!(content.mappings && content.stat.is_some());
    (row, content)
}

/// A request of a group that takes `length`.
fn request(group: Group, length: Duration) {
    let mut task = std::pin::pin!(group.instrument(tokio::task::yield_now()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(&mut context).is_pending());
    thread::sleep(length);
    assert!(task.as_mut().poll(&mut context).is_ready());
}

/// A request of a group that never ends, and whose leaf has taken a waker.
fn stuck(group: Group) -> Pin<Box<dyn Future<Output = ()>>> {
    let mut wakers = Vec::new();
    let leaf = std::future::poll_fn(move |cx| {
        wakers.push(cx.waker().clone());
        Poll::Pending
    });
    let mut task = Box::pin(group.instrument(leaf));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    task
}

#[test]
fn a_slow_request_has_a_file_written() {
    with_directory(|directory| {
        let [orders, menu] = ["POST /orders", "GET /menu"].map(Group::new);
        // Longer than a busy machine takes for a short one.
        let number = add("request>500ms in POST *");
        assert_eq!(row(number).why_not, "no request has begun since it was armed");
        let going = stuck(orders);
        assert!(row(number).why_not.starts_with("highest seen "), "{:?}", row(number));
        drop(going);
        request(orders, Duration::from_millis(5));
        let near = row(number);
        assert!(
            near.why_not.starts_with("highest seen ") && near.why_not.ends_with(" of 500 ms"),
            "{near:?}"
        );
        request(menu, Duration::from_millis(600));
        assert!(!row(number).is_writing, "another group's");
        request(orders, Duration::from_millis(600));
        let (fired, content) = file_of(number);
        assert_eq!((fired.fired, fired.rule.as_str()), (1, "request>500ms in POST *"));
        assert_eq!(content.head.rule.as_deref(), Some("request>500ms in POST *"));
        assert!(
            content.head.seen.starts_with("a request of ") && content.head.seen.ends_with(" of POST /orders")
        );
        assert_eq!(content.head.group, Some(orders.id()));
        assert!(content.missing.iter().any(|missing| missing.what == "records"), "{:?}", content.missing);
        let file = fs::metadata(fired.file.unwrap()).unwrap();
        assert_eq!(file.mode() & 0o777, 0o600);
        request(orders, Duration::from_millis(600));
        eventually(|| row(number).passed_over == 1);
        assert!(row(number).why_not.contains("at most each 60 s; seen once more"), "{:?}", row(number));
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "one file, and no part");
        triggers::remove(number).unwrap();
        assert!(triggers::remove(number).unwrap_err().to_string().contains("no trigger"));
    });
}

#[test]
fn a_living_request_fires_once_with_its_place() {
    with_directory(|_| {
        let number = add("request>200ms every 1s");
        let _task = stuck(Group::new("stuck"));
        let (_, content) = file_of(number);
        assert!(content.tasks >= 1 && content.head.seen.contains("of stuck"), "{content:?}");
        assert!(content.places.len() == 1 && content.places[0].len() == 1, "{content:?}");
        // A second one is another request.
        let _other = stuck(Group::new("stuck"));
        eventually(|| row(number).fired == 2);
        assert_eq!(row(number).passed_over, 0, "each once: {:?}", row(number));
    });
}

#[test]
fn idle_requests_of_others_hide_none() {
    with_directory(|_| {
        let group = Group::new("POST /orders");
        // They are there before the one that matters, and one look takes fewer.
        let waiting = dormouse::waits::Waiting::start().unwrap();
        let idle: Vec<_> = (0..1500).map(|_| stuck(Group::new("GET /stream"))).collect();
        let number = add("request>100ms in POST *");
        let other = add("request>1s in nothing");
        let going = stuck(group);
        let (row, _) = file_of(number);
        assert!(row.seen.unwrap().ends_with(" of POST /orders"));
        assert_eq!(self::row(other).fired, 0);
        drop((idle, going, waiting));
    });
}

#[test]
fn each_living_request_is_counted_once() {
    with_directory(|_| {
        let number = add("request>50ms in stuck,ends every 1h");
        let _first = stuck(Group::new("stuck"));
        file_of(number);
        let mut more: Vec<_> = (0..4).map(|_| stuck(Group::new("stuck"))).collect();
        eventually(|| row(number).passed_over == 4);
        // They end after they were seen, and another one is seen after that.
        more.truncate(2);
        request(Group::new("ends"), Duration::from_millis(60));
        eventually(|| row(number).passed_over == 5);
        // Other looks follow.
        let other = add("request>1s in other");
        let _other = stuck(Group::new("other"));
        file_of(other);
        assert_eq!(row(number).passed_over, 5);
    });
}

#[test]
fn a_long_poll_has_a_file_written() {
    with_directory(|_| {
        let number = add("long-poll>30ms");
        assert!(row(number).why_not.contains("no poll of 30 ms"), "{:?}", row(number));
        // The first scan takes long, and a busy machine has the next ones late.
        eventually(|| {
            let poll = Group::new("hog").instrument(async { spin_for(Duration::from_millis(300)) });
            let mut task = std::pin::pin!(poll);
            assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            row(number).fired > 0
        });
        let (_, content) = file_of(number);
        assert!(content.head.seen.starts_with("a poll of "), "{:?}", content.head);
    });
}

#[test]
fn cpu_over_its_level_has_a_file_written() {
    with_directory(|_| {
        let group = Group::new("hog");
        // A level that a thread is over on the busiest machine.
        let numbers =
            triggers::add("cpu>2% for 2s in hog; cpu>2% for 2s; cpu>900% for 1s; cpu>5% for 1s in idle")
                .unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = StopOnDrop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    group.scope(|| spin_for(Duration::from_millis(5)));
                }
            });
            let (_, content) = file_of(numbers[0]);
            assert!(
                content.head.seen.starts_with("over 2 % of a CPU for ")
                    && content.head.seen.ends_with(" of hog")
            );
            let (_, content) = file_of(numbers[1]);
            assert!(content.head.seen.ends_with(" of the process"));
            assert!(content.samples > 0, "{content:?}");
        });
        let never = row(numbers[2]);
        assert!(never.fired == 0 && never.why_not.ends_with(" % of 900 %"), "{never:?}");
        assert!(
            row(numbers[3]).why_not.contains("no group matches `idle`: there are hog"),
            "{:?}",
            row(numbers[3])
        );
    });
}

#[test]
fn a_field_has_a_file_written_with_records() {
    with_directory(|_| {
        fn brew(cups: u32, tea: &str) {
            probe!("brew.step", cups, tea);
        }
        let recorder = dormouse::recorder::start("brew.*", 1 << 20).unwrap();
        let numbers =
            triggers::add("brew.step.cups>100; brew.step.tea==\"Earl Grey\"; brew.step.cups<=1").unwrap();
        assert!(row(numbers[0]).why_not.contains("no record of brew.step.cups yet"), "{:?}", row(numbers[0]));
        (2..=42).for_each(|cups| brew(cups, "green"));
        eventually(|| row(numbers[0]).why_not == "highest seen 42 of 100");
        eventually(|| row(numbers[2]).why_not == "lowest seen 2 of 1");
        eventually(|| row(numbers[1]).why_not == "41 records, none with \"Earl Grey\"");
        brew(101, "green");
        let (_, content) = file_of(numbers[0]);
        assert!(content.head.seen.starts_with("brew.step.cups is 101 in thread"), "{:?}", content.head);
        assert_eq!(content.records, 42);
        brew(7, "Earl Grey");
        let (_, content) = file_of(numbers[1]);
        assert_eq!(content.records, 43);
        drop(recorder);
        let wrong = triggers::add("brew.step.cup>1").unwrap_err().to_string();
        assert!(wrong.contains("no probe has a field `brew.step.cup`, near: brew.step.cups"), "{wrong}");
    });
}

#[test]
fn a_panic_has_a_file_written() {
    with_directory(|_| {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        std::panic::set_hook(Box::new(|_| _ = CALLS.fetch_add(1, Ordering::Relaxed)));
        let number = add("panic every 1s");
        assert_eq!(row(number).why_not, "no panic was seen");
        let group = Group::new("fragile");
        let panics = move || thread::spawn(move || group.scope(|| panic!("on purpose"))).join().unwrap_err();
        panics();
        let (_, content) = file_of(number);
        assert!(
            content.head.seen.starts_with("a panic in thread") && content.head.seen.ends_with(" of fragile")
        );
        assert_eq!(CALLS.load(Ordering::Relaxed), 1, "the host's hook");
        assert!(content.missing.iter().any(|missing| missing.what == "profile-report"));
        triggers::remove(number).unwrap();
        panics();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2, "the host's hook");
        assert!(triggers::list().unwrap().triggers.is_empty());
    });
}

#[test]
fn a_command_has_a_file_written_at_once() {
    with_directory(|_| {
        let numbers = [triggers::save().unwrap(), triggers::save().unwrap()];
        for number in numbers {
            let (row, content) = file_of(number);
            assert_eq!((row.rule.as_str(), content.head.rule), ("command", None));
        }
        let list = triggers::list().unwrap();
        assert!(list.used_bytes.unwrap() > 0 && list.fault.is_none() && list.budget_bytes == 64 << 20);
    });
}

/// Makes records of 100 bytes that take up almost as many in a file, and none twice.
fn noise(records: u64) {
    static STATE: AtomicU64 = AtomicU64::new(1);
    fn made(text: &str) {
        probe!("noise.made", text);
    }
    let mut letter = |_| {
        let state = STATE.load(Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        STATE.store(state, Relaxed);
        char::from(b'!' + (state >> 33) as u8 % 90)
    };
    (0..records).for_each(|_| made(&(0..100).map(&mut letter).collect::<String>()));
}

#[test]
fn the_oldest_file_goes_and_foreign_ones_stay() {
    with_directory(|directory| {
        let target = directory.join("target");
        fs::write(&target, "the host's").unwrap();
        fs::write(directory.join("not-ours.dormouse"), "the host's, too").unwrap();
        symlink(&target, directory.join("link.dormouse")).unwrap();
        fs::create_dir(directory.join("folder.dormouse")).unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DISK", "64KiB") };
        let _recorder = dormouse::recorder::start("noise.*", 1 << 20).unwrap();
        noise(150);
        eventually(|| dormouse::recorder::stat().is_some_and(|stat| stat.held >= 15_000));
        let save = || file_of(triggers::save().unwrap()).0.file.unwrap();
        let first = save();
        // As another process has written it before.
        let others = first.replace(&format!("-{}-", std::process::id()), "-1-");
        assert!(others != first && fs::copy(&first, &others).is_ok());
        File::open(&others).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let mut last = first.clone();
        eventually(|| {
            last = save();
            assert!(triggers::list().unwrap().used_bytes.unwrap() <= 64 << 10);
            assert!(!Path::new(&others).exists() || Path::new(&first).exists(), "the oldest goes first");
            !Path::new(&first).exists()
        });
        assert!(Path::new(&last).exists());
        assert_eq!(fs::read_to_string(&target).unwrap(), "the host's");
        assert_eq!(fs::read_to_string(directory.join("not-ours.dormouse")).unwrap(), "the host's, too");
        assert!(directory.join("link.dormouse").is_symlink() && directory.join("folder.dormouse").is_dir());
        let mut parts = fs::read_dir(directory).unwrap().flatten();
        assert!(!parts.any(|entry| entry.file_name().to_string_lossy().ends_with(".part")));
    });
}

#[test]
fn a_file_has_as_many_records_as_fit() {
    with_directory(|_| {
        const BUDGET: usize = 256 * 1024;
        fn step(text: &str) {
            probe!("step.made", text);
        }
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DISK", BUDGET.to_string()) };
        let recorder = dormouse::recorder::start("step.*", 4 << 20).unwrap();
        let text = "x".repeat(100);
        eventually(|| {
            (0..200).for_each(|_| step(&text));
            dormouse::recorder::stat().is_some_and(|stat| stat.held >= 4 * BUDGET)
        });
        let (_, content) = file_of(triggers::save().unwrap());
        let all = dormouse::recorder::stat().unwrap().records;
        let missing = content.missing.iter().find(|missing| missing.what == "records").unwrap();
        let left_out: u64 = missing.why.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(content.records as u64 + left_out, all, "{missing:?}");
        let each = content.record_bytes / content.records;
        let fitting = BUDGET / 8 * 3;
        assert!((fitting - each + 1..=fitting).contains(&content.record_bytes), "{}", content.record_bytes);
        drop(recorder);
    });
}

#[test]
fn a_full_recorder_has_a_file() {
    with_directory(|_| {
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DISK", "256KiB") };
        let recorder = dormouse::recorder::start("noise.*", 4 << 20).unwrap();
        eventually(|| {
            noise(200);
            dormouse::recorder::stat().is_some_and(|stat| stat.held >= 256 * 1024)
        });
        let (_, content) = file_of(triggers::save().unwrap());
        assert!(content.records > 0 && content.missing.iter().any(|missing| missing.what == "records"));
        drop(recorder);
    });
}

#[test]
fn a_directory_that_will_not_do_is_told() {
    with_directory(|directory| {
        let told = |part: &str| {
            let why = triggers::add("panic").unwrap_err().to_string();
            assert!(why.contains(part) && why.contains("`panic` cannot be armed"), "{why}");
        };
        let number = add("panic every 1s");
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
        told("is open to others");
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        // Gone, and a link in its place.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::remove_dir(directory).unwrap();
        symlink(elsewhere.path(), directory).unwrap();
        told("is no directory");
        let _ = thread::spawn(|| panic!("on purpose")).join();
        eventually(|| row(number).why_not.contains("no file: "));
        assert!(row(number).why_not.contains("is no directory"), "{:?}", row(number));
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "the link was followed");
        fs::remove_file(directory).unwrap();
        // It is made again.
        eventually(|| {
            let _ = thread::spawn(|| panic!("on purpose")).join();
            row(number).file.is_some()
        });
    });
}

#[test]
fn a_full_disk_is_told() {
    with_directory(|directory| {
        // SAFETY: a call with strings that are constants and a path.
        let mounted = unsafe {
            let path = std::ffi::CString::new(directory.to_str().unwrap()).unwrap();
            let fs = c"tmpfs".as_ptr();
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(fs, path.as_ptr(), fs, 0, c"size=16k,mode=700".as_ptr().cast()) == 0
        };
        if !mounted {
            return skip("no file system can be mounted here");
        }
        // Until nothing more fits.
        fs::write(directory.join("big"), vec![1; 64 << 10]).unwrap_err();
        let number = triggers::save().unwrap();
        eventually(|| row(number).why_not.contains("No space left"));
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "no part is left");
        fs::remove_file(directory.join("big")).unwrap();
    });
}

#[test]
fn a_forked_child_has_no_triggers() {
    with_directory(|_| {
        let number = add("request>50ms every 1s; ");
        let child = fork(|| {
            assert!(triggers::list().unwrap().triggers.is_empty());
            request(Group::new("child"), Duration::from_millis(80));
            let own = add("panic");
            assert_eq!(triggers::list().unwrap().triggers.len(), 1);
            let _ = thread::spawn(|| panic!("on purpose")).join();
            file_of(own);
        });
        assert!(child.success(), "{child}");
        assert_eq!(row(number).fired, 0);
        request(Group::new("parent"), Duration::from_millis(80));
        // In the midst of a file.
        eventually(|| row(number).is_writing);
        let child = fork(|| assert!(triggers::list().unwrap().triggers.is_empty()));
        assert!(child.success(), "{child}");
        file_of(number);
    });
}
