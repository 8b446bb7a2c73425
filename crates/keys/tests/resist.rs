//! Processes that resist being written to, and other writers of their code.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

mod child;
#[macro_use]
mod placed;
mod process;

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

use child::in_child;
use dormouse_keys::{
    Batch, BatchReport, Error, Protocol, StaticKey, all, capability, prepare, static_key, text_reserved,
    unlikely,
};
use process::{NO_WRITABLE_CODE, Refusal, fork, mappings, no, refuse, refuse_exec_gain, skipped};

static_key! {
    static KEY: "resist.key" = false;
    static OTHER: "resist.other" = false;
}

placed! {
    in_a_line: nop, 8 before 1 << 6;
    over_a_page: nop, 2 before 1 << 12;
    in_a_page: test, 64 before 1 << 12;
}

#[inline(never)]
extern "C" fn site() -> bool {
    unlikely!(KEY)
}

#[inline(never)]
extern "C" fn other() -> bool {
    unlikely!(OTHER)
}

type Site = (extern "C" fn() -> bool, &'static StaticKey<false>);

/// A site that can be flipped, and two that cannot, one of which crosses the end of its page.
const SITES: [Site; 3] =
    [(site, &KEY), (in_a_line::SITE, &in_a_line::KEY), (over_a_page::SITE, &over_a_page::KEY)];

/// The first five bytes of each function with a site at its beginning, and the first 64 of the others'.
fn text() -> Vec<[u8; 64]> {
    // SAFETY: code of this binary, with other functions behind it.
    SITES.map(|(function, _)| unsafe { *(function as *const [u8; 64]) }).to_vec()
}

fn switch(on: bool, protocol: Protocol) -> Result<BatchReport, Error> {
    let batch = Batch::new().protocol(protocol);
    let keys = SITES.map(|(_, key)| key.key());
    if on { batch.enable_all(keys).apply() } else { batch.disable_all(keys).apply() }
}

/// Keys and sites all say the same.
fn assert_all(on: bool) {
    for (function, key) in SITES {
        assert_eq!((function(), key.is_enabled()), (on, on), "{}", key.name());
    }
}

/// Switches all keys on and off by each protocol; some pages, and no more traps than anybody could have taken.
fn assert_switchable() {
    for protocol in [Protocol::Flip, Protocol::INT3] {
        let before = text();
        for on in [true, false] {
            let report = switch(on, protocol).unwrap();
            assert_eq!((report.keys, report.traps), (3, 0));
            assert_eq!(report.barriers, if protocol == Protocol::Flip { 4 } else { 3 });
            assert!(report.pages >= 2);
            assert_all(on);
        }
        assert_eq!(text(), before);
    }
}

/// No protocol changes anything, for this reason.
fn assert_refused(reason: impl Fn(&Error) -> bool) {
    for protocol in [Protocol::Flip, Protocol::INT3] {
        let before = text();
        let error = switch(true, protocol).unwrap_err();
        assert!(reason(&error), "{error}");
        assert_all(false);
        assert_eq!(text(), before);
    }
}

/// A line of the capability report: what is seen, and what to change.
fn report(name: &str) -> (String, Option<String>) {
    let line = capability().into_iter().find(|line| line.name == name).unwrap();
    (line.detail.into_owned(), line.fix.map(std::borrow::Cow::into_owned))
}

/// Runs in a child of the test's own child, which it may leave with fewer rights.
fn assert_in_fork(name: &str, body: impl FnOnce()) {
    assert_eq!(fork(body), 0, "{name}");
}

/// Seals this binary's code; false where the kernel cannot.
fn seal_code() -> bool {
    const MSEAL: libc::c_long = 462;
    let own = site as *const () as usize;
    let (code, ..) = mappings().into_iter().find(|(range, ..)| range.contains(&own)).unwrap();
    // SAFETY: has the kernel refuse changes of this mapping, no more.
    unsafe { libc::syscall(MSEAL, code.start, code.len(), 0) == 0 }
}

#[test]
fn without_an_obstacle_pages_become_writable_and_both_steps_are_said_to_work() {
    in_child("without_an_obstacle_pages_become_writable_and_both_steps_are_said_to_work", || {
        assert_switchable();
        assert_eq!(report("keys.write").0, "by mprotect");
        assert_eq!(report("keys.write.mprotect").1, None);
        assert_eq!(report("keys.write.memory").1, None);
    });
}

#[test]
fn where_code_must_not_become_writable_it_is_written_through_the_memory_file() {
    in_child("where_code_must_not_become_writable_it_is_written_through_the_memory_file", || {
        let through_the_file = |fix: &str| {
            assert_switchable();
            assert!(report("keys.write").0.starts_with("through /proc/self/mem"));
            assert!(report("keys.write.mprotect").1.unwrap().contains(fix));
            // The mapping is what it was: private, of its file, not writable.
            let own = site as *const () as usize;
            let (_, permissions, rest) = mappings().into_iter().find(|m| m.0.contains(&own)).unwrap();
            let exe = std::env::current_exe().unwrap();
            assert!(permissions == "r-xp" && rest.ends_with(&*exe.to_string_lossy()), "{permissions} {rest}");
        };
        assert_in_fork("MDWE", || {
            refuse_exec_gain();
            through_the_file("MemoryDenyWriteExecute=no");
        });
        assert_in_fork("a filter", || {
            refuse(&[NO_WRITABLE_CODE]);
            through_the_file("filter of system calls");
        });
        assert_in_fork("a seal", || {
            if seal_code() {
                through_the_file("unsealed");
            } else {
                skipped("this kernel has no mseal");
            }
        });
    });
}

#[test]
fn where_nothing_works_the_error_names_both_refusals_and_the_keys_are_as_they_were() {
    in_child("where_nothing_works_the_error_names_both_refusals_and_the_keys_are_as_they_were", || {
        if !process::is_root() {
            return skipped("leaving /proc takes root");
        }
        let is_unwritable = |setting: &'static str| {
            move |error: &Error| {
                matches!(error, Error::Unwritable { .. }) && error.to_string().contains(setting)
            }
        };
        assert_in_fork("MDWE without /proc", || {
            refuse_exec_gain();
            process::leave_proc();
            let error = Batch::new().enable(&KEY).apply().unwrap_err();
            assert!(is_unwritable("mount /proc")(&error), "{error}");
            assert!(!site() && !KEY.is_enabled());
            assert_eq!(report("keys.write").0, "neither step of the ladder works");
        });
        assert_in_fork("MDWE, undumpable", || {
            process::become_undumpable();
            refuse_exec_gain();
            assert_refused(is_unwritable("prepare()"));
            assert!(report("keys.write.memory").1.unwrap().contains("prepare()"));
        });
        assert_in_fork("a filter of mprotect and open", || {
            refuse(&[NO_WRITABLE_CODE, no(libc::SYS_open), no(libc::SYS_openat)]);
            let error = Batch::new().enable(&KEY).apply().unwrap_err();
            assert!(is_unwritable("prepare()")(&error), "{error}");
            assert!(!site());
        });
    });
}

#[test]
fn who_prepares_before_giving_up_rights_can_switch_keys_after_it() {
    in_child("who_prepares_before_giving_up_rights_can_switch_keys_after_it", || {
        if !process::is_root() {
            return skipped("giving up root takes root");
        }
        assert_in_fork("MDWE, undumpable", || {
            prepare().unwrap();
            process::become_undumpable();
            refuse_exec_gain();
            assert_switchable();
        });
        assert_in_fork("MDWE without /proc", || {
            prepare().unwrap();
            refuse_exec_gain();
            process::leave_proc();
            Batch::new().enable(&KEY).apply().unwrap();
            assert!(site());
            // Who blocks SIGTRAP cannot be told without /proc.
            let error = Batch::new().disable(&KEY).protocol(Protocol::INT3).apply().unwrap_err();
            assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("/proc"), "{error}");
            assert!(site());
        });
    });
}

#[test]
fn a_memory_file_that_the_host_has_closed_is_opened_anew_and_its_number_left_alone() {
    in_child("a_memory_file_that_the_host_has_closed_is_opened_anew_and_its_number_left_alone", || {
        let is_memory = |fd: &libc::c_int| {
            std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.ends_with("mem"))
        };
        refuse_exec_gain();
        prepare().unwrap();
        let number = (3..100).find(is_memory).unwrap();
        // SAFETY: asks.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
        // The host closes what it has not opened, and opens a file of its own.
        let path = std::env::temp_dir().join(format!("dormouse-resist-{}", std::process::id()));
        // SAFETY: nobody writes code meanwhile.
        unsafe { libc::close(number) };
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.as_raw_fd(), number, "the lowest free number");
        assert_switchable();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert!((3..100).any(|fd| is_memory(&fd)));
    });
}

#[test]
fn a_refused_system_call_refuses_the_batch_before_the_first_byte() {
    in_child("a_refused_system_call_refuses_the_batch_before_the_first_byte", || {
        let denied = |what: &'static str| {
            move |e: &Error| matches!(e, Error::Denied { .. }) && e.to_string().starts_with(what)
        };
        assert_in_fork("membarrier", || {
            refuse(&[no(libc::SYS_membarrier)]);
            assert_refused(denied("membarrier"));
            assert!(report("keys.sync").1.is_some());
        });
        assert_in_fork("membarrier, after a batch", || {
            KEY.enable().unwrap();
            KEY.disable().unwrap();
            refuse(&[no(libc::SYS_membarrier)]);
            assert_refused(denied("membarrier"));
        });
        assert_in_fork("rt_sigaction", || {
            refuse(&[no(libc::SYS_rt_sigaction)]);
            assert_refused(denied("a handler for SIGTRAP"));
            KEY.enable().unwrap();
            assert!(site(), "flip needs no handler");
        });
    });
}

/// Which membarriers are refused, counted from 1; and how many there were.
static REFUSED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static BARRIERS: AtomicU32 = AtomicU32::new(0);

/// Answers for the kernel.
extern "C" fn answer(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let count = BARRIERS.fetch_add(1, Ordering::Relaxed) + 1;
    let [from, to] = [&REFUSED[0], &REFUSED[1]].map(|bound| bound.load(Ordering::Relaxed));
    let answer = if (from..to).contains(&count) { -i64::from(libc::EPERM) } else { 0 };
    // SAFETY: what the kernel passes to a handler with SA_SIGINFO.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RAX as usize] = answer };
}

#[test]
fn whichever_barrier_is_refused_half_way_the_text_is_as_it_was() {
    in_child("whichever_barrier_is_refused_half_way_the_text_is_as_it_was", || {
        // Registering, the flips' barrier, and three for the sites that go by int3.
        for (from, for_good) in (1..=5).flat_map(|from| [(from, false), (from, true)]) {
            for through_the_file in [false, true] {
                let name =
                    format!("barrier {from}, for good: {for_good}, through the file: {through_the_file}");
                assert_in_fork(&name, || {
                    REFUSED[0].store(from, Ordering::Relaxed);
                    REFUSED[1].store(if for_good { u32::MAX } else { from + 1 }, Ordering::Relaxed);
                    // SAFETY: the handler above.
                    unsafe {
                        let mut action: libc::sigaction = std::mem::zeroed();
                        action.sa_sigaction = answer as *const () as usize;
                        action.sa_flags = libc::SA_SIGINFO;
                        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
                    }
                    let before = text();
                    let trap = libc::SECCOMP_RET_TRAP;
                    refuse(&[Refusal { call: libc::SYS_membarrier, third_has: 0, answer: trap }]);
                    if through_the_file {
                        refuse(&[NO_WRITABLE_CODE]);
                    }
                    let error = switch(true, Protocol::Flip).unwrap_err();
                    assert!(matches!(error, Error::Denied { .. }), "{error}");
                    assert!(BARRIERS.load(Ordering::Relaxed) >= from);
                    assert_eq!(text(), before);
                    assert_all(false);
                });
            }
        }
    });
}

#[test]
fn code_that_is_mapped_from_a_file_for_all_to_see_is_not_written() {
    in_child("code_that_is_mapped_from_a_file_for_all_to_see_is_not_written", || {
        let page = in_a_page::SITE as usize & !4095;
        // SAFETY: a file of this process alone, mapped over a copy of itself, at a function that nobody runs.
        unsafe {
            let file = OwnedFd::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::write(file.as_raw_fd(), page as *const _, 4096), 4096);
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let mapped = libc::mmap(page as *mut _, 4096, protection, flags, file.as_raw_fd(), 0);
            assert_eq!(mapped as usize, page);
        }
        for protocol in [Protocol::Flip, Protocol::INT3] {
            let error = Batch::new().enable(&in_a_page::KEY).protocol(protocol).apply().unwrap_err();
            let Error::SharedText { key, addr } = error else { panic!("{error}") };
            assert_eq!((key, addr), ("in_a_page", in_a_page::SITE as usize));
            assert!(!in_a_page::SITE());
        }
    });
}

/// A uprobe on a byte of this binary's code, as long as it lives.
fn uprobe(at: usize) -> io::Result<OwnedFd> {
    /// The beginning of `struct perf_event_attr`.
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        kind: u32,
        size: u32,
        config: [u64; 5],
        wakeup: [u32; 2],
        path: u64,
        offset: u64,
    }
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let path = std::env::current_exe()?;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let (range, _, rest) = mappings().into_iter().find(|(range, ..)| range.contains(&at)).unwrap();
    let file_offset = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
    let attr = Attr {
        kind: kind.trim().parse().unwrap(),
        size: size_of::<Attr>() as u32,
        path: path.as_ptr() as u64,
        offset: file_offset + (at - range.start) as u64,
        ..Attr::default()
    };
    // SAFETY: the kernel reads the attributes and the path, and gives a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, 8);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

/// Where the site of a function of the `SITES` is.
fn address_of(function: extern "C" fn() -> bool) -> usize {
    let start = function as usize;
    (start..start + 64).find(|&at| text_reserved(at, 1).is_some()).unwrap()
}

/// Whether a batch with this key is refused, saying that the byte at its site is this one.
fn assert_names(key: &'static StaticKey<false>, site: usize, byte: u8) {
    for protocol in [Protocol::Flip, Protocol::INT3] {
        let batch = Batch::new().enable(&OTHER).protocol(protocol);
        let batch = if key.is_enabled() { batch.disable(key) } else { batch.enable(key) };
        let error = batch.apply().unwrap_err();
        let text = error.to_string();
        let Error::UnexpectedText { key: name, addr, expected, found } = error else { panic!("{error}") };
        assert_eq!((name, addr, found[0]), (key.name(), site, byte));
        assert_ne!(expected[0], byte);
        assert!(text.contains(name) && text.contains(&format!("{site:#x}")), "{text}");
        assert_eq!(text.contains("breakpoint"), byte == 0xcc, "{text}");
        assert!(!OTHER.is_enabled() && !other());
    }
}

#[test]
fn a_uprobe_on_a_site_is_named_and_left_alone() {
    in_child("a_uprobe_on_a_site_is_named_and_left_alone", || {
        let at = address_of(site);
        let probe = match uprobe(at) {
            Ok(probe) => probe,
            Err(error) => return skipped(&format!("no uprobe here: {error}")),
        };
        assert_names(&KEY, at, 0xcc);
        assert!(!site(), "the kernel runs what it has replaced");
        drop(probe);
        KEY.enable().unwrap();
        assert!(site());
    });
}

#[test]
fn a_uprobe_on_a_site_that_is_awake_puts_it_to_sleep_and_that_is_named_too() {
    in_child("a_uprobe_on_a_site_that_is_awake_puts_it_to_sleep_and_that_is_named_too", || {
        let at = address_of(site);
        KEY.enable().unwrap();
        let probe = match uprobe(at) {
            Ok(probe) => probe,
            Err(error) => return skipped(&format!("no uprobe here: {error}")),
        };
        assert_names(&KEY, at, 0xcc);
        // The kernel knows the instruction from the file.
        assert!(!site());
        drop(probe);
        assert!(!site());
        assert_names(&KEY, at, 0xa9);
    });
}

#[test]
fn a_breakpoint_of_a_debugger_is_named_and_left_alone() {
    in_child("a_breakpoint_of_a_debugger_is_named_and_left_alone", || {
        let at = address_of(site);
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        // SAFETY: lets a child trace its parent, where else only the parent may trace the child.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, -1) };
        let poke = |byte: u8| {
            fork(|| {
                // SAFETY: traces the parent, which waits, and lets it go again. Only the child's own memory is
                // written by these calls, and the parent's word.
                unsafe {
                    let none = std::ptr::null_mut::<libc::c_void>();
                    assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, thread, none, none), 0);
                    assert_eq!(libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL), thread);
                    let word = libc::ptrace(libc::PTRACE_PEEKTEXT, thread, at, none);
                    let word = word & !0xff | libc::c_long::from(byte);
                    assert_eq!(libc::ptrace(libc::PTRACE_POKETEXT, thread, at, word), 0);
                    assert_eq!(libc::ptrace(libc::PTRACE_DETACH, thread, none, none), 0);
                }
            })
        };
        // SAFETY: reads the site.
        let byte = unsafe { std::ptr::read_volatile(at as *const u8) };
        assert_eq!(poke(0xcc), 0);
        assert_names(&KEY, at, 0xcc);
        assert_eq!(poke(byte), 0);
        KEY.enable().unwrap();
        assert!(site());
    });
}

#[test]
fn reserved_text_is_the_five_bytes_of_each_site_and_names_its_key() {
    let keys = all();
    for (function, key) in [(in_a_line::SITE, &in_a_line::KEY), (over_a_page::SITE, &over_a_page::KEY)] {
        assert!(keys.iter().any(|k| k.key.name() == key.name()));
        let start = function as usize;
        let names = |addr, len| text_reserved(addr, len).map(dormouse_keys::Key::name);
        for addr in start..start + 5 {
            assert_eq!(names(addr, 1), Some(key.name()));
        }
        assert_eq!((names(start - 1, 1), names(start + 5, 1)), (None, None));
        assert_eq!((names(start - 1, 2), names(start - 9, 100)), (Some(key.name()), Some(key.name())));
        assert_eq!(names(start, 0), None);
    }
}
