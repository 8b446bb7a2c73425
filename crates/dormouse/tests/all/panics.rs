//! A rule on panics has a file of a process that ends by its panic, sees panics in tasks behind any
//! hook, and says if it sees no others. Each test is a child: hooks and files are the process's.

#![cfg(not(dormouse_fallback))]

use std::fs;
use std::future::Future as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse::triggers::{self, TriggerRow};
use dormouse_testkit::{eventually, fork, in_child};

/// The most that a thread waits for its file.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs a body in a child whose files go to a directory of its own.
#[track_caller]
fn with_directory<F: FnOnce(&Path)>(body: F) {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
        body(directory.path());
    });
}

fn row(number: u64) -> TriggerRow {
    let all = triggers::list().unwrap().triggers;
    all.into_iter().find(|row| row.number == number).unwrap()
}

fn add(rule: &str) -> u64 {
    triggers::add(rule).unwrap()[0]
}

/// How many whole files there are.
fn files(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".dormouse")).count()
}

/// The answer of the agent there to an operation.
fn ask(socket: &Path, op: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, r#"{{"v":1,"id":1,"op":"hello","client":"test"}}"#).unwrap();
    writeln!(stream, r#"{{"v":1,"id":2,"op":{op}}}"#).unwrap();
    BufReader::new(stream).lines().nth(1).unwrap().unwrap()
}

fn doctor(socket: &Path) -> String {
    ask(socket, r#""doctor""#)
}

/// How often this thread has slept so far.
fn sleeps() -> i64 {
    // SAFETY: zeros are a usage, and the call fills it.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

/// A panic of this thread, which goes on.
fn panics_once() {
    catch_unwind(|| panic!("on purpose")).unwrap_err();
}

/// Processes of one thread that arm the rule and then end by a panic. Each has a file, unless the
/// disk or the processors were too busy for the time that the thread may wait: then another one
/// tries.
fn each_has_a_file(dies: fn()) {
    with_directory(|directory| {
        let (mut in_time, mut there, mut n) = (0, 0, 0);
        eventually(|| {
            n += 1;
            let before = files(directory);
            let child = fork(|| {
                // SAFETY: forbids the child's core file.
                unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
                // The message takes longer than the file.
                set_hook(Box::new(|_| {}));
                add("panic");
                let begun = Instant::now();
                let late = directory.join(format!("late-{n}"));
                LATE.set((begun, late)).unwrap();
                dies();
            });
            assert!(!child.success(), "{child}");
            there += files(directory) - before;
            in_time += usize::from(!directory.join(format!("late-{n}")).exists());
            in_time >= 3
        });
        assert!(there >= in_time, "{there} files of {in_time}");
    });
}

/// When the child's panic began, and a file that says that the time was used up.
static LATE: OnceLock<(Instant, PathBuf)> = OnceLock::new();

/// The hook of dormouse's has returned.
fn note_late() {
    static FIRST: Once = Once::new();
    let (begun, late) = LATE.get().unwrap();
    let mut is_late = false;
    FIRST.call_once(|| is_late = begun.elapsed() >= PATIENCE);
    if is_late {
        fs::write(late, "").unwrap();
    }
}

/// Sets a hook that calls the one before it, and then `then`.
fn chain(then: fn()) {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        before(info);
        then();
    }));
}

#[test]
fn a_panic_that_ends_all_has_a_file() {
    each_has_a_file(|| {
        chain(note_late);
        panic!("on the first thread")
    });
}

#[test]
fn a_hook_that_aborts_leaves_a_file() {
    each_has_a_file(|| {
        chain(|| {
            note_late();
            std::process::abort()
        });
        let in_thread = Group::new("job").spawn_thread(|| panic!("of a thread")).unwrap();
        let _ = in_thread.join();
    });
}

#[test]
fn a_panic_while_unwinding_has_a_file() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("second")
        }
    }
    each_has_a_file(|| {
        chain(note_late);
        let _bad = Bad;
        panic!("first")
    });
}

#[test]
fn the_guard_of_a_main_task_waits_too() {
    each_has_a_file(|| {
        // The host's hook has replaced ours, so the panic is seen as it unwinds the task.
        set_hook(Box::new(|_| {}));
        let ended = catch_unwind(|| Group::new("main").scope(|| panic!("of the first thread")));
        note_late();
        resume_unwind(ended.unwrap_err());
    });
}

#[test]
fn tasks_see_panics_behind_a_hosts_hook() {
    with_directory(|_| {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let number = add("panic every 1h");
        assert_eq!(row(number).why_not, "no panic was seen");
        set_hook(Box::new(|_| _ = CALLS.fetch_add(1, Ordering::Relaxed)));
        assert!(row(number).why_not.contains("replaced dormouse's"), "{:?}", row(number));
        // Outside of tasks nobody sees it.
        panics_once();
        let before = row(number);
        assert!(before.fired == 0 && before.why_not.contains("panics outside of tasks are not seen"));

        let group = Group::new("fragile");
        group.spawn_thread(|| panic!("of a thread")).unwrap().join().unwrap_err();
        eventually(|| row(number).file.is_some());
        let fired = row(number);
        assert!(fired.seen.unwrap().ends_with(" of fragile"));
        assert!(fired.why_not.contains("replaced dormouse's"), "{}", fired.why_not);

        // A future, a run, a destructor, a guard, and several in each other: each panic is one.
        let mut future = Box::pin(group.instrument(async { panic!("of a poll") }));
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        catch_unwind(AssertUnwindSafe(&mut poll)).unwrap_err();
        catch_unwind(|| group.task().run(|| panic!("of a run"))).unwrap_err();
        catch_unwind(|| {
            let _entered = group.enter();
            panic!("under a guard")
        })
        .unwrap_err();
        catch_unwind(|| group.scope(|| Group::new("inner").scope(|| panic!("of two tasks")))).unwrap_err();
        group.scope(|| {
            catch_unwind(|| group.scope(|| panic!("inside"))).unwrap_err();
            catch_unwind(|| group.scope(|| panic!("inside again"))).unwrap_err();
        });
        eventually(|| row(number).passed_over >= 6);
        assert_eq!(row(number).passed_over, 6);
        assert_eq!(CALLS.load(Ordering::Relaxed), 8, "the host's hook");

        // The next rule, as the next `init`, puts ours first again.
        add("panic every 2h");
        assert!(!row(number).why_not.contains("replaced"), "{:?}", row(number));
        panics_once();
        eventually(|| row(number).passed_over == 7);
        assert_eq!(CALLS.load(Ordering::Relaxed), 9, "the host's hook");
    });
}

#[test]
fn a_panic_that_the_hook_saw_is_one() {
    with_directory(|_| {
        // Too deep for a task of its own, and tasks around it.
        fn nest(depth: usize) {
            match depth {
                0 => panic!("deep inside"),
                _ => Group::new("nested").scope(|| nest(depth - 1)),
            }
        }
        // Dropped by a thread that unwinds, but not unwound.
        struct Enters;
        impl Drop for Enters {
            fn drop(&mut self) {
                drop(Group::new("destructor").enter());
            }
        }
        set_hook(Box::new(|_| {}));
        let number = add("panic every 1h");
        chain(|| {});
        for depth in [0, 1, 2, 31, 32, 33, 40] {
            catch_unwind(|| nest(depth)).unwrap_err();
        }
        catch_unwind(|| {
            Group::new("outer").scope(|| {
                let _enters = Enters;
                panic!("with a destructor")
            })
        })
        .unwrap_err();
        eventually(|| row(number).fired + row(number).passed_over == 8);
        assert!(!row(number).why_not.contains("replaced"), "{:?}", row(number));
    });
}

#[test]
fn a_panic_that_is_passed_on_is_one() {
    with_directory(|_| {
        set_hook(Box::new(|_| {}));
        let number = add("panic every 1h");
        let [first, second] = ["first", "second"].map(Group::new);
        for n in 1..=3 {
            let ended = first.spawn_thread(|| panic!("of a thread")).unwrap().join().unwrap_err();
            // On another thread, in a task of its own.
            catch_unwind(AssertUnwindSafe(|| second.scope(|| resume_unwind(ended)))).unwrap_err();
            eventually(|| row(number).fired + row(number).passed_over >= n);
        }
        // The lookout has come to this one, and so to all before it.
        panics_once();
        eventually(|| row(number).fired + row(number).passed_over >= 4);
        let row = row(number);
        assert_eq!(row.fired + row.passed_over, 4, "{row:?}");
        assert!(!row.why_not.contains("replaced"), "{row:?}");
    });
}

#[test]
fn a_command_leaves_the_hosts_hook_alone() {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    static LATER: AtomicU32 = AtomicU32::new(0);
    with_directory(|directory| {
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", directory) };
        set_hook(Box::new(|_| _ = FIRST.fetch_add(1, Ordering::Relaxed)));
        let agent = dormouse::init().unwrap();
        panics_once();
        assert_eq!(FIRST.load(Ordering::Relaxed), 1, "the hook of `init` calls the host's");
        let arm = || ask(agent.path(), r#""trigger-add","rules":"panic""#);
        // That of `init` sees panics outside of tasks.
        let armed = arm();
        assert!(armed.contains("no panic was seen"), "{armed}");
        assert!(doctor(agent.path()).contains("dormouse's hook is set"));
        // A hook that the host sets later stays the first.
        set_hook(Box::new(|_| _ = LATER.fetch_add(1, Ordering::Relaxed)));
        let armed = arm();
        assert!(armed.contains("has replaced dormouse's"), "{armed}");
        assert!(doctor(agent.path()).contains("has replaced dormouse's"));
        panics_once();
        let group = Group::new("fragile");
        group.spawn_thread(|| panic!("of a thread")).unwrap().join().unwrap_err();
        eventually(|| triggers::list().unwrap().triggers.iter().any(|row| row.seen.is_some()));
        let all = triggers::list().unwrap().triggers;
        let seen = all.iter().find_map(|row| row.seen.clone()).unwrap();
        assert!(seen.ends_with(" of fragile"), "{seen}");
        let calls = [&FIRST, &LATER].map(|calls| calls.load(Ordering::Relaxed));
        assert_eq!(calls, [1, 2], "of the hook that was there, and of the later one");
    });
}

#[test]
fn only_the_first_panic_waits() {
    with_directory(|directory| {
        set_hook(Box::new(|_| {}));
        let number = add("panic every 1h");
        let begun = Instant::now();
        panics_once();
        assert!(files(directory) == 1 || begun.elapsed() >= PATIENCE, "it waits for its file");
        eventually(|| row(number).file.is_some());
        let before = sleeps();
        (0..50).for_each(|_| panics_once());
        assert!(sleeps() - before < 25, "{}", sleeps() - before);
        // Without the rule, nobody: here, and in a child that has none of its parent's.
        triggers::remove(number).unwrap();
        add("panic every 1h");
        let child = fork(|| {
            let before = sleeps();
            (0..50).for_each(|_| panics_once());
            assert!(sleeps() - before < 25, "{}", sleeps() - before);
        });
        assert!(child.success(), "{child}");
    });
}

#[test]
fn a_panic_does_not_wait_for_another_file() {
    with_directory(|directory| {
        // The other file takes a second of profile. If a busy machine takes longer for a panic,
        // another one tries.
        eventually(|| {
            let number = add("panic");
            let other = triggers::save().unwrap();
            eventually(|| row(other).is_writing);
            panics_once();
            eventually(|| row(number).file.is_some());
            let is_first = row(other).file.is_none();
            eventually(|| row(other).file.is_some());
            triggers::remove(number).unwrap();
            is_first
        });
        assert!(files(directory) >= 2);
    });
}

#[test]
fn doctor_says_that_a_hook_is_gone() {
    with_directory(|directory| {
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", directory) };
        let agent = dormouse::init().unwrap();
        assert!(!doctor(agent.path()).contains("\"panics\""));
        add("panic");
        assert!(doctor(agent.path()).contains("dormouse's hook is set"));
        set_hook(Box::new(|_| {}));
        let said = doctor(agent.path());
        assert!(said.contains("has replaced dormouse's") && said.contains("call dormouse::init()"), "{said}");
        dormouse::init().unwrap();
        assert!(doctor(agent.path()).contains("dormouse's hook is set"));
    });
}
