//! Errands, ends, and ends of the thread that others cause.
#![allow(unsafe_code, reason = "a look at descriptors, and a thread that ends in the midst")]

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::sync::mpsc;

use dormouse_testkit::{eventually, fork, in_child};

use super::*;

static STEPS: AtomicU32 = AtomicU32::new(0);
static STARVED_STEPS: AtomicU32 = AtomicU32::new(0);

/// Numbers that have begun.
#[derive(Debug, Default)]
struct Numbers {
    there: BTreeSet<u32>,
}

impl Duty for Numbers {
    type Id = u32;

    fn is_empty(&self) -> bool {
        self.there.is_empty()
    }

    fn step(&mut self) -> Duration {
        STEPS.fetch_add(1, Ordering::Relaxed);
        Duration::MAX
    }

    fn step_without_memory(&mut self) {
        STARVED_STEPS.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&mut self, id: u32) {
        self.there.remove(&id);
    }
}

static KEEPER: Keeper<Numbers> = Keeper::new(Phase::Profiles, "dormouse-test", 256 * 1024, STEP);
/// More than the memory that a process has left over from before a limit.
const STEP: usize = 64 << 20;

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name == "dormouse-test\n").count()
}

fn begin(number: u32) {
    KEEPER.begin(move |duty| duty.there.insert(number).then_some(()).ok_or(())).unwrap().unwrap();
}

/// Ends the keeper's thread alone, as a filter would.
fn kill() {
    // SAFETY: ends one thread, which is never joined.
    let killed = KEEPER.ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
    assert!(matches!(killed, Err(KeeperError::Killed)), "{killed:?}");
}

#[test]
fn an_abort_of_the_thread_says_why() {
    in_child(|| {
        let (mut reader, writer) = io::pipe().unwrap();
        let child = fork(|| {
            // SAFETY: the child's own standard error and core file.
            unsafe {
                libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO);
                libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            }
            let _ = KEEPER.ask(|_| std::alloc::handle_alloc_error(Layout::new::<[u8; 24]>()));
        });
        drop(writer);
        assert!(!child.success());
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(said.contains("memory allocation of 24 bytes failed"), "{said:?}");
    });
}

#[test]
fn a_wake_without_memory_is_no_lost_step() {
    in_child(|| {
        begin(1);
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the child's own limit: no mapping is new from now on.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let starves = || {
            let before = STARVED_STEPS.load(Ordering::Relaxed);
            KEEPER.wake();
            eventually(|| STARVED_STEPS.load(Ordering::Relaxed) > before);
            STEPS.load(Ordering::Relaxed)
        };
        // A step may have begun before the limit; none begins after the first that starved.
        let steps = starves();
        assert_eq!(starves(), steps, "there is no memory for it");
        // Each asker gets its own reason, whatever the others get.
        for _ in 0..100 {
            let refused = KEEPER.ask(|_| ());
            assert!(matches!(refused, Err(KeeperError::NoMemory)), "{refused:?}");
        }
        KEEPER.end(1);
        // An end takes no memory.
        eventually(|| threads() == 0);
    });
}

#[test]
fn a_pipe_that_the_host_closes_ends() {
    in_child(|| {
        let (mut reader, writer) = io::pipe().unwrap();
        let (until, mut end) = io::pipe().unwrap();
        let writer = writer.into_raw_fd();
        std::thread::scope(|scope| {
            let child = scope.spawn(|| {
                fork(|| {
                    // SAFETY: the child's own descriptors.
                    unsafe {
                        libc::dup2(writer, libc::STDERR_FILENO);
                        libc::close(writer);
                    }
                    begin(1);
                    let steps = STEPS.load(Ordering::Relaxed);
                    io::stderr().write_all(b"b").unwrap();
                    // As a host that goes to the background.
                    let null = fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
                    // SAFETY: the same.
                    assert!(unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) } >= 0);
                    // Until the parent has seen the end.
                    assert!((&until).read(&mut [0]).is_ok_and(|length| length == 1));
                    assert!(threads() == 1 && STEPS.load(Ordering::Relaxed) <= steps + 1);
                })
            });
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            // SAFETY: the parent's copy, which is not used any more.
            unsafe {
                libc::close(writer);
                libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            }
            eventually(|| matches!(reader.read(&mut byte), Ok(0)));
            end.write_all(b"e").unwrap();
            let child = child.join().unwrap();
            assert!(child.success(), "{child}");
        });
    });
}

#[test]
fn errands_of_many_threads_are_answered() {
    in_child(|| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for errand in 0..100 {
                        assert_eq!(KEEPER.ask(move |_| thread + errand).unwrap(), thread + errand);
                        // So that threads end and begin meanwhile.
                        std::thread::yield_now();
                    }
                });
            }
        });
        eventually(|| threads() == 0);
    });
}

#[test]
fn the_thread_lives_from_begin_to_end() {
    in_child(|| {
        begin(1);
        KEEPER.begin_later(|duty| _ = duty.there.insert(2)).unwrap();
        // In order, though the thread may come to both at once.
        KEEPER.begin_later(|duty| _ = duty.there.insert(3)).unwrap();
        KEEPER.end(3);
        assert_eq!(KEEPER.begin(|_| Err::<(), _>("refused")).unwrap(), Err("refused"));
        assert_eq!(KEEPER.ask(|duty| duty.there.len()).unwrap(), 2);
        KEEPER.end(1);
        assert_eq!(KEEPER.ask(|duty| duty.there.len()).unwrap(), 1);
        assert!(KEEPER.is_there() && threads() == 1);
        KEEPER.end(2);
        eventually(|| threads() == 0 && !KEEPER.is_there());
    });
}

#[test]
fn a_wake_brings_the_next_step() {
    in_child(|| {
        begin(1);
        // It sleeps now, or is about to: nothing but a wake ends that.
        let before = STEPS.load(Ordering::Relaxed);
        eventually(|| {
            KEEPER.wake();
            STEPS.load(Ordering::Relaxed) > before + 2
        });
        KEEPER.end(1);
    });
}

#[test]
fn the_thread_has_stderr_of_the_host_alone() {
    in_child(|| {
        // SAFETY: looks at numbers.
        let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        assert!(is_open(2));
        // Its own standard streams: the host's standard error, and two that lead nowhere.
        assert_eq!(KEEPER.ask(move |_| (0..64).filter(|&number| is_open(number)).count()).unwrap(), 3);
    });
}

#[test]
fn askers_outlive_the_thread() {
    in_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let failed = KEEPER.ask(|_| -> u32 { panic!() });
        assert!(matches!(failed, Err(KeeperError::Ended)), "{failed:?}");
        // An errand that is left until then ends with the thread, too.
        eventually(|| !KEEPER.is_there());
        begin(1);
        kill();
        assert!(!KEEPER.is_there());
        // The activity that had begun is over, and ending it does no harm.
        assert!(KEEPER.ask(|duty| duty.is_empty()).unwrap());
        KEEPER.end(1);
        begin(2);
        assert_eq!(KEEPER.ask(|duty| duty.there.len()).unwrap(), 1);
        KEEPER.end(2);
        eventually(|| threads() == 0);
    });
}

#[test]
fn a_child_has_a_thread_of_its_own() {
    in_child(|| {
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                KEEPER.ask(move |_| {
                    begin.send(()).unwrap();
                    ended.recv().unwrap();
                })
            });
            begun.recv().unwrap();
            let child = fork(|| {
                assert_eq!(threads(), 0);
                // The parent's.
                KEEPER.end(1);
                assert_eq!(KEEPER.ask(|_| 1).unwrap(), 1);
            });
            assert!(child.success(), "{child}");
            end.send(()).unwrap();
        });
    });
}

#[test]
fn errands_that_nobody_awaits_are_not_run() {
    static BUSY: Keeper<Numbers> = Keeper::new(Phase::Profiles, "busy", 256 * 1024, 0);
    in_child(|| {
        let (go_on, waits) = mpsc::channel::<()>();
        BUSY.begin_later(move |numbers| {
            numbers.there.insert(1);
            let _ = waits.recv();
        })
        .unwrap();
        let run = Arc::new(AtomicBool::new(false));
        let by_errand = Arc::clone(&run);
        let late = BUSY.ask_for(Duration::from_millis(1), move |_| by_errand.store(true, Ordering::Relaxed));
        assert!(matches!(late, Err(KeeperError::Busy)), "{late:?}");
        go_on.send(()).unwrap();
        // In order: the errand before this one is over.
        BUSY.ask(|_| ()).unwrap();
        assert!(!run.load(Ordering::Relaxed));
        // One that has begun may go on for as long as it likes.
        let (go_on, waits) = mpsc::channel::<()>();
        let looking = BUSY.ask_for(Duration::from_millis(1), move |_| waits.recv().is_ok());
        assert!(matches!(looking, Err(KeeperError::Busy)), "{looking:?}");
        // It may not have begun after all.
        _ = go_on.send(());
        BUSY.end(1);
    });
}
