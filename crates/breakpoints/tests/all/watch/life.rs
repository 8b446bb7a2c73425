//! Lives that end while a watch looks: of processes, threads, memory and watches.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use dormouse_breakpoints::{Access, WatchSpec, WatchState, held};
use dormouse_testkit::{Child, eventually, fork, skip};

use super::support::{VALUE, in_child, obstacle, of, of_value, write, write_to};

#[test]
fn a_forked_child_is_not_watched() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        write(1);
        let child = fork(|| {
            write(2);
            thread::spawn(|| write(3)).join().unwrap();
            let report = watch.report();
            assert_eq!((report.state, report.hits, report.delivered), (WatchState::Over, 1, 1), "{report:?}");
            assert!(watch.is_over() && held().is_empty());
            // The child may watch by itself.
            let own = of_value().arm().unwrap();
            write(4);
            assert_eq!(own.report().hits, 1);
        });
        assert!(child.success(), "{child}");
        write(5);
        let report = watch.report();
        assert_eq!((report.hits, report.delivered, report.state), (2, 2, WatchState::Armed));
        // The child holds no register of its parent's.
        drop(watch);
        let three: Vec<_> = (0..3).map(|_| of_value().arm().unwrap()).collect();
        assert_eq!(three.len(), 3);
    });
}

#[test]
fn children_that_run_meanwhile_keep_no_register() {
    in_child(|| {
        let watches: Vec<_> = (0..3).map(|_| of_value().arm().unwrap()).collect();
        // SAFETY: the child sleeps until it is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                thread::park();
            }
        }
        drop(watches);
        let again: Vec<_> = (0..3).map(|_| of_value().arm().unwrap()).collect();
        assert_eq!(again.len(), 3);
        // SAFETY: the child of above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        dormouse_testkit::join(child);
    });
}

/// Runs this test in a new program of this process, which finds `stage` in its environment.
fn execute_again(stage: &str) -> ! {
    let mut again = Command::new("/proc/self/exe");
    panic!("{}", again.args(std::env::args_os().skip(1)).env(STAGE, stage).exec())
}

const STAGE: &str = "DORMOUSE_TEST_EXECUTED";

#[test]
fn a_program_that_is_executed_is_not_watched() {
    Child::new().run(|| {
        let address = VALUE.as_ptr().addr().to_string();
        match std::env::var(STAGE).as_deref() {
            // The kernel chooses addresses when it executes a program: with this they stay.
            // SAFETY: a setting of this process alone.
            Err(_) => match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
                -1 => skip(std::io::Error::last_os_error()),
                _ => execute_again("fixed"),
            },
            Ok("fixed") => {
                if let Some(obstacle) = obstacle() {
                    return skip(obstacle);
                }
                let watch = of_value().arm().unwrap();
                write(1);
                assert_eq!(watch.report().hits, 1);
                execute_again(&address);
            }
            Ok(watched) => {
                assert_eq!(watched, address, "the variable has moved");
                // SAFETY: asks for this process's own action.
                let action = unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
                assert_eq!(action, libc::SIG_DFL, "a hit would not end the process");
                write(2);
            }
        }
    });
}

#[test]
fn hits_of_ended_threads_stay() {
    in_child(|| {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let old = thread::spawn(move || {
            begun.recv().unwrap();
            write(1);
            // Inherits from a thread that ends before it.
            thread::spawn(|| {
                write(2);
                thread::yield_now();
                write(3);
            })
        });
        let watch = of_value().arm().unwrap();
        begin.send(()).unwrap();
        old.join().unwrap().join().unwrap();
        assert_eq!(watch.report().hits, 3);
        assert_eq!(watch.close().delivered, 3);
    });
}

#[test]
fn a_panic_in_the_writer_loses_nothing() {
    in_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let watch = of_value().arm().unwrap();
        let panicked = thread::spawn(|| {
            struct Last;
            impl Drop for Last {
                fn drop(&mut self) {
                    write(2);
                }
            }
            let _last = Last;
            write(1);
            panic!("in the writer");
        });
        assert!(panicked.join().is_err());
        assert_eq!((watch.report().hits, watch.report().delivered), (2, 2));
    });
}

#[test]
fn a_watch_is_dropped_amid_hits() {
    in_child(|| {
        static OVER: AtomicBool = AtomicBool::new(false);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                thread::spawn(|| {
                    while !OVER.load(Ordering::Relaxed) {
                        write(1);
                    }
                })
            })
            .collect();
        for round in 0..60 {
            let watch = of_value().arm().unwrap();
            eventually(|| watch.report().delivered > 10);
            if round % 2 == 0 {
                let last = watch.close();
                assert!(last.hits >= last.delivered, "{last:?}");
                // Signals on their way are waited for.
                assert!(last.lost <= 3, "{last:?}");
            }
        }
        OVER.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// The frames of the handler, and of what is called later, lie where the variable was.
#[test]
fn a_variable_on_a_stack_may_be_left() {
    #[inline(never)]
    fn deep(levels: u64) -> u64 {
        let mut frame = [levels; 64];
        write_to((&raw mut frame[7]).cast(), levels);
        std::hint::black_box(&frame);
        if levels == 0 { 0 } else { deep(levels - 1) + frame[3] }
    }

    #[inline(never)]
    fn watched() -> dormouse_breakpoints::Watch {
        let mut local = 0_u64;
        let at = &raw mut local;
        let watch = WatchSpec::new(at.addr(), 8, Access::ReadWrite).arm().unwrap();
        write_to(at, 1);
        watch
    }

    in_child(|| {
        let watch = watched();
        assert!(watch.report().hits >= 1);
        let begun = Instant::now();
        while begun.elapsed().as_millis() < 200 {
            std::hint::black_box(deep(40));
        }
        drop(watch);
        deep(40);
    });
}

#[test]
fn memory_may_be_freed_and_used_again() {
    in_child(|| {
        let mut memory = vec![0_u64; 1024];
        let at = &raw mut memory[512];
        let watch = WatchSpec::new(at.addr(), 8, Access::Write).rate(u32::MAX).arm().unwrap();
        write_to(at, 1);
        drop(memory);
        for _ in 0..100 {
            std::hint::black_box(vec![7_u64; 1024]);
        }
        assert!(watch.report().hits >= 1);
    });
}

#[test]
fn a_page_may_be_unmapped_amid_hits() {
    in_child(|| {
        let page = 4096;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), page, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let at: *mut u64 = start.cast();
        let watch = WatchSpec::new(at.addr(), 8, Access::Write).rate(u32::MAX).arm().unwrap();
        let spot = AtomicU64::new(at.addr() as u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..2000 {
                    write_to(std::ptr::with_exposed_provenance_mut(spot.load(Ordering::Relaxed) as usize), n);
                }
            });
            // The page is another one with each call, and may be gone for the handler.
            for _ in 0..500 {
                // SAFETY: the mapping of above, in place.
                unsafe { libc::mmap(start, page, rights, flags | libc::MAP_FIXED, -1, 0) };
            }
        });
        assert_eq!(watch.report().hits, 2000);
        // SAFETY: as above; no thread writes any more.
        unsafe { libc::munmap(start, page) };
        let report = watch.close();
        assert_eq!(report.delivered, 2000);
    });
}

#[test]
fn watches_of_the_watches_own_memory_end() {
    in_child(|| {
        // The stack right below this frame, which the handler uses, and a word that the handler
        // reads: the error number of this thread.
        // SAFETY: the C library's place of this thread.
        let error = unsafe { libc::__errno_location() };
        // Only a rest ends the hits that the handler itself makes: two in a second are a storm.
        let spec = WatchSpec::new(error.addr(), 4, Access::ReadWrite).rate(1);
        let other = of(&VALUE).arm().unwrap();
        let watch = spec.arm().unwrap();
        for n in 0..100 {
            write(n);
        }
        // This thread goes on, and so does the other watch.
        eventually(|| other.report().delivered == 100);
        drop(watch);
        write(1);
        assert_eq!(other.report().delivered, 101);
    });
}
