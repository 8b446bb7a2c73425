//! SIGTRAP: late traps, traps that are not ours, and handlers of others before and after ours.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

mod child;
mod process;

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use child::in_child;
use dormouse_keys::{Batch, Error, Protocol, static_key, unlikely};
use dormouse_sys::trap::{self, Holder, Verdict};
use process::{died_of, fork};

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
    assert_eq!(trap::holder().unwrap(), Holder::Ours);
}

/// What a handler saw last: description, number of calls, address, and whether SIGUSR1 and SIGTRAP were blocked.
static CODE: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
static RIP: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU32 = AtomicU32::new(0);

fn note_call() {
    // SAFETY: reads this thread's mask into a local set.
    let blocks = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        [libc::SIGUSR1, libc::SIGTRAP].map(|signal| libc::sigismember(&raw const mask, signal) as u32)
    };
    BLOCKED.store(blocks[0] | blocks[1] << 1, Ordering::Relaxed);
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

#[test]
fn a_trap_that_is_not_ours_goes_to_the_handler_before_ours_with_what_it_asked_for() {
    in_child("a_trap_that_is_not_ours_goes_to_the_handler_before_ours_with_what_it_asked_for", || {
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
    in_child("a_handler_without_information_is_called_as_such", || {
        handle(without_info as *const () as usize, 0);
        install_ours();
        breakpoint();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_handler_may_be_interrupted_by_its_own_signal_if_it_asked_for_that() {
    in_child("a_handler_may_be_interrupted_by_its_own_signal_if_it_asked_for_that", || {
        let nest = |flags: libc::c_int| {
            fork(move || {
                handle(nesting as *const () as usize, flags);
                install_ours();
                breakpoint();
                assert_eq!(CALLS.load(Ordering::Relaxed), 2);
                assert_eq!(BLOCKED.load(Ordering::Relaxed), 1, "its mask, and not the signal itself");
            })
        };
        assert_eq!(nest(libc::SA_NODEFER), 0);
        // Else the signal is blocked, and the kernel ends a thread that traps all the same.
        assert!(died_of(nest(0), libc::SIGTRAP));
    });
}

#[test]
fn a_handler_for_one_time_has_its_one_time() {
    in_child("a_handler_for_one_time_has_its_one_time", || {
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
        assert_eq!(calls(1), 0);
        assert!(died_of(calls(2), libc::SIGTRAP));
    });
}

/// Where the core of a child that has ended by a signal would be, if this machine writes one here.
fn has_core(status: libc::c_int) -> Option<bool> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?;
    (pattern.trim() == "core").then_some(libc::WCOREDUMP(status))
}

#[test]
fn without_a_handler_before_ours_a_foreign_trap_ends_the_process_by_sigtrap() {
    in_child("without_a_handler_before_ours_a_foreign_trap_ends_the_process_by_sigtrap", || {
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
            assert!(died_of(status, libc::SIGTRAP), "{status:#x}");
            match has_core(status) {
                Some(has_core) => assert!(has_core),
                None => process::skipped("this machine writes its cores elsewhere"),
            }
        }
        std::fs::remove_dir_all(&place).unwrap();
    });
}

#[test]
fn an_ignored_signal_is_ignored_when_sent_and_not_when_it_is_a_trap() {
    in_child("an_ignored_signal_is_ignored_when_sent_and_not_when_it_is_a_trap", || {
        handle(libc::SIG_IGN, 0);
        install_ours();
        // SAFETY: no preconditions.
        unsafe { libc::raise(libc::SIGTRAP) };
        let trapped = fork(|| {
            breakpoint();
        });
        assert!(died_of(trapped, libc::SIGTRAP));
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
fn a_trap_whose_int3_has_gone_before_the_handler_looked_is_tried_again() {
    /// As a round that ends between trap and look-up.
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
    in_child("a_trap_whose_int3_has_gone_before_the_handler_looked_is_tried_again", || {
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_trap_on_a_site_that_no_round_is_at_is_somebody_elses() {
    fn resolve(_: usize) -> Verdict {
        ASKED.fetch_add(1, Ordering::Relaxed);
        Verdict::Late
    }
    in_child("a_trap_on_a_site_that_no_round_is_at_is_somebody_elses", || {
        handle(with_info as *const () as usize, libc::SA_SIGINFO);
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!((ASKED.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed)), (1, 1));
    });
}

#[test]
fn a_trap_between_two_rounds_is_looked_up_in_the_second() {
    fn resolve(address: usize) -> Verdict {
        if ASKED.fetch_add(1, Ordering::Relaxed) == 0 {
            // Late for the round before; and the next has begun since.
            trap::begin_round();
            return Verdict::Late;
        }
        Verdict::Resume(address + 1)
    }
    in_child("a_trap_between_two_rounds_is_looked_up_in_the_second", || {
        let code = own_code();
        trap::install(resolve).unwrap();
        code();
        assert_eq!(ASKED.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn int3_is_refused_while_another_handler_has_the_signal_and_names_it() {
    in_child("int3_is_refused_while_another_handler_has_the_signal_and_names_it", || {
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
