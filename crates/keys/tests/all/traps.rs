//! SIGTRAP: late traps, traps that are not ours, and handlers of others before and after ours.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_keys::{Batch, Error, Protocol, static_key, unlikely};
use dormouse_sys::signals::SYNCHRONOUS;
use dormouse_sys::trap::{self, Disposition, Verdict};
use dormouse_testkit::{fork, in_child, skip};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

static_key! {
    static KEY: "traps.key" = false;
}

#[inline(never)]
extern "C" fn site() -> bool {
    unlikely!(KEY)
}

/// Has our handler installed, by a batch.
fn install_ours() {
    Batch::new().enable(&KEY).protocol(Protocol::INT3).apply().unwrap();
    assert!(site());
    assert_eq!(trap::disposition().unwrap(), Disposition::Ours);
}

/// The last sight of a handler: description, number of calls, address, and whether SIGUSR1,
/// SIGTRAP and a real-time signal were blocked.
static CODE: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
static RIP: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU32 = AtomicU32::new(0);

fn note_call() {
    // SAFETY: reads this thread's mask into a local set.
    let blocks = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        let signals = [libc::SIGUSR1, libc::SIGTRAP, libc::SIGRTMAX()];
        signals.map(|signal| libc::sigismember(&raw const mask, signal) as u32)
    };
    BLOCKED.store(blocks[0] | blocks[1] << 1 | blocks[2] << 2, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    assert_eq!(signal, libc::SIGTRAP);
    // SAFETY: what the kernel passes to a handler with SA_SIGINFO.
    unsafe {
        CODE.store((*info).si_code, Ordering::Relaxed);
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        RIP.store(registers[libc::REG_RIP as usize] as u64, Ordering::Relaxed);
    }
    note_call();
}

extern "C" fn without_info(signal: libc::c_int) {
    assert_eq!(signal, libc::SIGTRAP);
    note_call();
}

/// Runs into an `int3` of its own the first time.
extern "C" fn nesting(_: libc::c_int) {
    note_call();
    if CALLS.load(Ordering::Relaxed) == 1 {
        breakpoint();
    }
}

/// An action for SIGTRAP whose mask has SIGUSR1.
fn handle(handler: usize, flags: libc::c_int) {
    // SAFETY: the handlers above do what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
    }
}

type Sigaction =
    unsafe extern "C" fn(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// The act of another thread of the host, right behind a reading of the handler of SIGTRAP, once:
/// installs this handler with these flags.
static MEANWHILE: (AtomicUsize, AtomicI32) = (AtomicUsize::new(0), AtomicI32::new(0));

/// In place of the C library's, for the whole of this binary.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: libc::c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    // SAFETY: the C library's own is the next of that name; what the caller passed is passed on.
    let result = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
        std::mem::transmute::<*mut c_void, Sigaction>(next)(signal, new, old)
    };
    if signal == libc::SIGTRAP && new.is_null() {
        let handler = MEANWHILE.0.swap(0, Ordering::Relaxed);
        if handler != 0 {
            handle(handler, MEANWHILE.1.load(Ordering::Relaxed));
        }
    }
    result
}

/// Somebody else's `int3`; says where it goes on.
#[inline(never)]
fn breakpoint() -> u64 {
    let after: u64;
    // SAFETY: whoever has the signal goes on behind it.
    unsafe { std::arch::asm!("lea {after}, [rip + 2f]", "int3", "2:", after = out(reg) after) };
    after
}

/// The two-byte form, whose last byte is no `int3`.
#[inline(never)]
fn long_breakpoint() -> u64 {
    let after: u64;
    // SAFETY: as above.
    unsafe { std::arch::asm!("lea {after}, [rip + 2f]", ".byte 0xcd, 3", "2:", after = out(reg) after) };
    after
}

const SI_KERNEL: libc::c_int = 0x80;

/// Two of the kernel's frames do not fit into std's alternate stacks.
#[test]
fn other_signals_wait_for_the_handler() {
    in_child(|| {
        let is_alone = || {
            let ours = present();
            // SAFETY: a whole set.
            let waits = |signal| unsafe { libc::sigismember(&raw const ours.sa_mask, signal) == 1 };
            for signal in 1..=64 {
                // The kernel lets nobody block two.
                let is_open = SYNCHRONOUS.contains(&signal) && signal != libc::SIGTRAP
                    || [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
                assert_eq!(waits(signal), !is_open, "{signal}");
            }
            assert_eq!(ours.sa_flags & libc::SA_NODEFER, 0);
        };
        let without_handler = fork(|| {
            install_ours();
            is_alone();
        });
        assert!(without_handler.success(), "{without_handler}");
        handle(with_info as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
        install_ours();
        is_alone();
    });
}

/// The action of SIGTRAP.
fn present() -> libc::sigaction {
    // SAFETY: a fresh place, which the call fills.
    unsafe {
        let mut there: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, std::ptr::null(), &raw mut there), 0);
        there
    }
}

#[test]
fn a_foreign_trap_goes_to_the_earlier_handler() {
    in_child(|| {
        handle(with_info as *const () as usize, libc::SA_SIGINFO);
        install_ours();
        for breakpoint in [breakpoint, long_breakpoint] {
            let after = breakpoint();
            assert_eq!(RIP.load(Ordering::Relaxed), after);
            assert_eq!(CODE.load(Ordering::Relaxed), SI_KERNEL);
            assert_eq!(BLOCKED.load(Ordering::Relaxed), 3, "its mask, and the signal itself");
        }
        // SAFETY: no preconditions.
        unsafe { libc::raise(libc::SIGTRAP) };
        assert_eq!(CODE.load(Ordering::Relaxed), libc::SI_TKILL);
        assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_handler_without_information_is_called_as_such() {
    in_child(|| {
        handle(without_info as *const () as usize, 0);
        install_ours();
        breakpoint();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_handler_may_nest_if_it_asked() {
    in_child(|| {
        let nest = |flags: libc::c_int| {
            fork(move || {
                handle(nesting as *const () as usize, flags);
                install_ours();
                breakpoint();
                assert_eq!(CALLS.load(Ordering::Relaxed), 2);
                assert_eq!(BLOCKED.load(Ordering::Relaxed), 1, "its mask, and not the signal itself");
            })
        };
        assert!(nest(libc::SA_NODEFER).success());
        // Else the signal is blocked, and the kernel ends a thread that traps all the same.
        assert_eq!(nest(0).signal(), Some(libc::SIGTRAP));
    });
}

#[test]
fn a_handler_for_one_time_runs_once() {
    in_child(|| {
        let calls = |count: u32| {
            fork(move || {
                handle(without_info as *const () as usize, libc::SA_RESETHAND);
                install_ours();
                for _ in 0..count {
                    breakpoint();
                }
                assert_eq!(CALLS.load(Ordering::Relaxed), count);
            })
        };
        assert!(calls(1).success());
        assert_eq!(calls(2).signal(), Some(libc::SIGTRAP));
    });
}

#[test]
fn a_handler_that_races_ours_is_called() {
    in_child(|| {
        let meanwhile = |handler: usize, flags: libc::c_int, blocked: u32| {
            let status = fork(move || {
                MEANWHILE.1.store(flags, Ordering::Relaxed);
                MEANWHILE.0.store(handler, Ordering::Relaxed);
                install_ours();
                assert_eq!(MEANWHILE.0.load(Ordering::Relaxed), 0, "it came");
                breakpoint();
                assert_eq!(CALLS.load(Ordering::Relaxed), 1);
                assert_eq!(BLOCKED.load(Ordering::Relaxed), blocked, "its mask, and the signal as it asked");
            });
            assert!(status.success(), "{status}");
        };
        meanwhile(with_info as *const () as usize, libc::SA_SIGINFO, 3);
        meanwhile(without_info as *const () as usize, libc::SA_NODEFER | libc::SA_RESTART, 1);
    });
}

/// Whether the thread that trapped was ended by the handler before ours.
static ENDED: AtomicBool = AtomicBool::new(true);

extern "C-unwind" fn end_thread(_: libc::c_int) {
    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut c_void) -> !;
    }
    // SAFETY: nothing of the thread is waited for but its end.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

extern "C" fn run_into_it(_: *mut c_void) -> *mut c_void {
    breakpoint();
    ENDED.store(false, Ordering::Relaxed);
    std::ptr::null_mut()
}

#[test]
fn a_handler_before_ours_may_end_its_thread() {
    in_child(|| {
        handle(end_thread as *const () as usize, 0);
        install_ours();
        // SAFETY: a thread that is waited for.
        unsafe {
            let mut thread = std::mem::zeroed();
            assert_eq!(
                libc::pthread_create(&raw mut thread, std::ptr::null(), run_into_it, std::ptr::null_mut()),
                0
            );
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        }
        assert!(ENDED.load(Ordering::Relaxed));
    });
}

/// Where the core of a child that has ended by a signal would be, if this machine writes one here.
fn has_core(status: ExitStatus) -> Option<bool> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?;
    (pattern.trim() == "core").then_some(status.core_dumped())
}

#[test]
fn a_foreign_trap_ends_an_unprepared_process() {
    in_child(|| {
        let place = std::env::temp_dir().join(format!("dormouse-traps-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let raise = || {
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGTRAP) };
            0
        };
        let ways: [fn() -> u64; 3] = [breakpoint, long_breakpoint, raise];
        for way in ways {
            let status = fork(|| {
                std::env::set_current_dir(&place).unwrap();
                let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: concerns this process alone.
                let raised = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const all) };
                assert_eq!(raised, 0);
                install_ours();
                way();
            });
            assert_eq!(status.signal(), Some(libc::SIGTRAP));
            match has_core(status) {
                Some(has_core) => assert!(has_core),
                None => skip("this machine writes its cores elsewhere"),
            }
        }
        std::fs::remove_dir_all(&place).unwrap();
    });
}

#[test]
fn an_ignored_signal_is_no_ignored_trap() {
    in_child(|| {
        handle(libc::SIG_IGN, 0);
        install_ours();
        // SAFETY: no preconditions.
        unsafe { libc::raise(libc::SIGTRAP) };
        let trapped = fork(|| {
            breakpoint();
        });
        assert_eq!(trapped.signal(), Some(libc::SIGTRAP));
    });
}

/// Code of this test alone, and how often the resolver was asked about it.
static CODE_PAGE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ASKED: AtomicU32 = AtomicU32::new(0);

/// `int3; ret` in a page of its own.
fn own_code() -> extern "C" fn() {
    // SAFETY: a fresh page, with a whole function.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0).cast::<u8>();
        assert_ne!(page.cast(), libc::MAP_FAILED);
        page.write(trap::INT3);
        page.add(1).write(0xc3);
        CODE_PAGE.store(page, Ordering::Relaxed);
        std::mem::transmute::<*mut u8, extern "C" fn()>(page)
    }
}

#[test]
fn a_late_trap_is_tried_again() {
    /// Imitates a round that ends between trap and look-up.
    fn resolve(address: usize) -> Verdict {
        let page = CODE_PAGE.load(Ordering::Relaxed);
        if address != page as usize {
            return Verdict::Foreign;
        }
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: this test's page; `nop`.
        unsafe { page.write_volatile(0x90) };
        Verdict::Late
    }
    in_child(|| {
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_trap_outside_of_rounds_is_foreign() {
    fn resolve(_: usize) -> Verdict {
        ASKED.fetch_add(1, Ordering::Relaxed);
        Verdict::Late
    }
    in_child(|| {
        handle(with_info as *const () as usize, libc::SA_SIGINFO);
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!((ASKED.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed)), (1, 1));
    });
}

#[test]
fn a_trap_between_rounds_meets_the_second() {
    fn resolve(address: usize) -> Verdict {
        if ASKED.fetch_add(1, Ordering::Relaxed) == 0 {
            // Late for the round before; and the next has begun since.
            trap::begin_round();
            return Verdict::Late;
        }
        Verdict::Resume(address + 1)
    }
    in_child(|| {
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!(ASKED.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_batch_that_retries_delays_no_other() {
    static_key! {
        static OTHER: "traps.other" = false;
    }
    in_child(|| {
        assert!(!unlikely!(OTHER));
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // All signals, as the C library does inside of `pthread_create`.
            let all = u64::MAX;
            // SAFETY: blocks signals for this thread.
            let blocked = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all, 0, 8) };
            assert_eq!(blocked, 0);
            tell.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().unwrap();
        // It looks for a tenth of a second. If the other had to wait for it, it would be done once
        // or twice. On a busy machine it may also wait for its processor, but not each time.
        let others = || {
            std::thread::scope(|scope| {
                let looks = scope.spawn(|| {
                    let error = Batch::new().enable(&KEY).protocol(Protocol::INT3).apply().unwrap_err();
                    assert!(matches!(error, Error::TrapsBlocked { .. }), "{error}");
                });
                let mut others = 0;
                while !looks.is_finished() {
                    let batch = Batch::new();
                    let batch = if OTHER.is_enabled() { batch.disable(&OTHER) } else { batch.enable(&OTHER) };
                    batch.apply().unwrap();
                    others += 1;
                }
                others
            })
        };
        assert!((0..20).any(|_| others() > 3));
        drop(end);
    });
}

#[test]
fn int3_is_refused_under_another_handler() {
    in_child(|| {
        let by_int3 = |on: bool| {
            let batch = Batch::new().protocol(Protocol::INT3);
            if on { batch.enable(&KEY).apply() } else { batch.disable(&KEY).apply() }
        };
        install_ours();
        // SAFETY: reads the present action.
        let ours = unsafe {
            let mut ours = std::mem::zeroed();
            libc::sigaction(libc::SIGTRAP, std::ptr::null(), &raw mut ours);
            ours
        };

        let theirs = with_info as *const () as usize;
        handle(theirs, libc::SA_SIGINFO);
        let error = by_int3(false).unwrap_err();
        let text = error.to_string();
        let Error::SignalTaken { handler: Some((address, object)) } = error else { panic!("{error}") };
        let own = std::env::current_exe().unwrap();
        assert_eq!((address, object.as_str()), (theirs, own.file_name().unwrap().to_str().unwrap()));
        assert!(text.contains(&object) && text.contains("flip"), "{text}");
        assert!(KEY.is_enabled() && site());

        handle(libc::SIG_DFL, 0);
        let error = by_int3(false).unwrap_err();
        assert!(matches!(error, Error::SignalTaken { handler: None }), "{error}");
        assert!(site());

        // Flip asks for no signal.
        KEY.disable().unwrap();
        KEY.enable().unwrap();
        // SAFETY: what it was.
        unsafe { libc::sigaction(libc::SIGTRAP, &raw const ours, std::ptr::null_mut()) };
        by_int3(false).unwrap();
        assert!(!site());
    });
}
