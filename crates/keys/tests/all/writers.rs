//! Other writers of a process's code, of its permissions and of its mappings.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

use crate::arch::{ASLEEP, BREAKPOINT, PROTOCOLS, UPROBE, retargeted};
use crate::process;
use crate::sites;

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::process::ExitStatus;

use dormouse_keys::{Batch, Error, Mismatches, Protocol, StaticKey, all, try_list};
use dormouse_testkit::{Filter, fork, in_child, skip};
use process::{Mapped, mapping_at, refuse_exec_gain};
use rustix::param::page_size;
use sites::{
    KEY, OTHER, SITES, assert_all, assert_switchable, in_a_page, other, over_a_page, site, site_in, switch,
};

/// The beginning of the page with this function.
fn page_of(function: extern "C" fn() -> bool) -> usize {
    function as usize & !(page_size() - 1)
}

/// Maps a page of code anew, shared with a file of this process alone that holds a copy of it.
/// Nobody runs it meanwhile.
fn share(page: usize) -> std::fs::File {
    // SAFETY: the copy is what was there.
    unsafe {
        let file = OwnedFd::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC));
        assert_eq!(libc::write(file.as_raw_fd(), page as *const _, page_size()), page_size() as isize);
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = libc::mmap(page as *mut _, page_size(), protection, flags, file.as_raw_fd(), 0);
        assert_eq!(mapped as usize, page);
        file.into()
    }
}

#[test]
fn shared_code_is_not_written() {
    in_child(|| {
        // After the sites were listed: the kernel is asked by each batch.
        assert!(!all().is_empty());
        in_a_page::KEY.enable().unwrap();
        in_a_page::KEY.disable().unwrap();
        share(page_of(in_a_page::SITE));
        for &protocol in PROTOCOLS {
            let error = Batch::new().enable(&in_a_page::KEY).protocol(protocol).apply().unwrap_err();
            let Error::SharedText { key, addr } = error else { panic!("{error}") };
            assert_eq!((key, addr), ("in_a_page", in_a_page::SITE as usize));
            assert!(!in_a_page::SITE());
        }
    });
}

/// The permissions of the mapping that holds an address.
fn permissions(at: usize) -> String {
    mapping_at(at).perms
}

/// Gives the page of a function other permissions.
fn protect(function: extern "C" fn() -> bool, protection: libc::c_int) {
    let page = page_of(function);
    // SAFETY: code that stays readable and executable.
    assert_eq!(unsafe { libc::mprotect(page as *mut c_void, page_size(), protection) }, 0);
}

#[test]
fn foreign_permissions_are_left_alone() {
    in_child(|| {
        const RWX: libc::c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        for (function, key) in SITES.into_iter().chain([(in_a_page::SITE, &in_a_page::KEY)]) {
            // A page of a site, with sites on both sides of it; then one without a site between
            // others.
            let at = function as usize;
            protect(function, RWX);
            assert_eq!(permissions(at), "rwxp");
            for &protocol in PROTOCOLS {
                for on in [true, false] {
                    switch(on, protocol).unwrap();
                    assert_all(on);
                    let batch = Batch::new().protocol(protocol);
                    let batch = if on { batch.enable(key) } else { batch.disable(key) };
                    batch.apply().unwrap();
                    assert_eq!(permissions(at), "rwxp", "{} by {protocol:?}", key.name());
                }
            }
            protect(function, libc::PROT_READ | libc::PROT_EXEC);
        }
        assert_eq!(permissions(site as *const () as usize), "r-xp");
    });
}

#[test]
fn foreign_pages_are_known_without_queries() {
    in_child(|| {
        let at = over_a_page::SITE as usize;
        protect(over_a_page::SITE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        // As before Linux 6.11.
        Filter::refuse(&[libc::SYS_ioctl]).install();
        for on in [true, false] {
            switch(on, Protocol::Flip).unwrap();
            assert_all(on);
            assert_eq!(permissions(at), "rwxp");
        }
        protect(over_a_page::SITE, libc::PROT_READ | libc::PROT_EXEC);
        assert_switchable();
    });
}

#[test]
fn who_opened_the_list_may_end() {
    in_child(|| {
        // As before Linux 6.11.
        Filter::refuse(&[libc::SYS_ioctl]).install();
        let opener = std::thread::spawn(|| {
            switch(true, Protocol::Flip).unwrap();
            rustix::thread::gettid()
        });
        let opener = opener.join().unwrap();
        while std::path::Path::new(&format!("/proc/self/task/{opener}")).exists() {
            std::thread::yield_now();
        }
        assert_all(true);
        switch(false, Protocol::Flip).unwrap();
        assert_all(false);
    });
}

#[test]
fn locked_memory_is_copied_only_at_sites() {
    in_child(|| {
        let own = std::env::current_exe().unwrap();
        let copied = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut is_code = false;
            let mut kib = 0;
            for line in smaps.lines() {
                let first = line.split(' ').next().unwrap();
                if first.contains('-') {
                    is_code = line.contains(" r-xp ") && line.ends_with(&*own.to_string_lossy());
                } else if is_code && first == "Anonymous:" {
                    kib += line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap();
                }
            }
            kib
        };
        // SAFETY: concerns this process alone.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            return skip("memory cannot be locked here");
        }
        let keys: Vec<_> = all().into_iter().map(|used| used.key).collect();
        let report = Batch::new().enable_all(keys).apply().unwrap();
        let span = {
            let mut at = SITES.map(|(function, _)| function as usize);
            at.sort_unstable();
            (at[2] - at[0]) / 1024
        };
        let page = page_size() / 1024;
        if span <= page * report.pages {
            return skip("in this build no text lies between the sites");
        }
        // The trial of the ways copies a page of its own, which may be one of them.
        let copied = copied();
        let expected = [page * report.pages, page * (report.pages + 1)];
        assert!(expected.contains(&copied), "{copied} KiB, {report:?}");
    });
}

/// Has the first thread of the process end, and goes on with `body` on another, which ends the
/// process.
fn without_first_thread(body: fn()) -> ExitStatus {
    extern "C" fn run(body: *mut c_void) -> *mut c_void {
        // SAFETY: what was passed below.
        let body = unsafe { std::mem::transmute::<*mut c_void, fn()>(body) };
        let state = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            status.lines().any(|line| line.starts_with("State:\tZ"))
        };
        while !state() {
            std::thread::yield_now();
        }
        let ended = std::panic::catch_unwind(body);
        // SAFETY: plain call.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) };
    }
    fork(|| {
        // SAFETY: the thread's function has what it needs; the first thread ends without unwinding.
        unsafe {
            let mut thread = std::mem::zeroed();
            let started = libc::pthread_create(&raw mut thread, std::ptr::null(), run, body as *mut c_void);
            assert_eq!(started, 0);
            libc::syscall(libc::SYS_exit, 0);
        }
    })
}

#[test]
fn keys_switch_without_the_first_thread() {
    in_child(|| {
        let switchable = without_first_thread(|| {
            assert_switchable();
            if !refuse_exec_gain() {
                return;
            }
            assert_switchable();
        });
        assert!(switchable.success(), "{switchable}");
        let refused = without_first_thread(|| {
            let page = page_of(in_a_page::SITE);
            let file = share(page);
            for &protocol in PROTOCOLS {
                let error = Batch::new().enable(&in_a_page::KEY).protocol(protocol).apply().unwrap_err();
                assert!(matches!(error, Error::SharedText { .. }), "{error}");
            }
            let mut bytes = vec![0; page_size()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            // SAFETY: a page of code.
            assert_eq!(bytes, unsafe { std::slice::from_raw_parts(page as *const u8, page_size()) });
            assert!(!in_a_page::SITE());
        });
        assert!(refused.success(), "{refused}");
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
    let Mapped { range, offset, .. } = mapping_at(at);
    let attr = Attr {
        kind: kind.trim().parse().unwrap(),
        size: size_of::<Attr>() as u32,
        path: path.as_ptr() as u64,
        offset: offset + (at - range.start) as u64,
        ..Attr::default()
    };
    // SAFETY: the kernel reads the attributes and the path, and gives a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, 8);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

/// The first bytes of a breakpoint, as many as a batch exchanges.
const BREAK: &[u8] = BREAKPOINT.first_chunk::<{ ASLEEP.len() }>().unwrap();

/// The code at a site.
fn code_at<const LENGTH: usize>(site: usize) -> [u8; LENGTH] {
    // SAFETY: code of this binary.
    unsafe { std::ptr::read_volatile(site as *const [u8; LENGTH]) }
}

/// Whether a batch with this key is refused, saying that its site begins with these bytes.
fn assert_names(key: &'static StaticKey<false>, site: usize, bytes: &[u8]) {
    for &protocol in PROTOCOLS {
        let batch = Batch::new().enable(&OTHER).protocol(protocol);
        let batch = if key.is_enabled() { batch.disable(key) } else { batch.enable(key) };
        let error = batch.apply().unwrap_err();
        let text = error.to_string();
        let Error::UnexpectedText { key: name, addr, expected, found } = error else { panic!("{error}") };
        assert_eq!((name, addr), (key.name(), site));
        assert!(found.starts_with(bytes) && !expected.starts_with(bytes), "{expected:x?}, {found:x?}");
        assert!(text.contains(name) && text.contains(&format!("{site:#x}")), "{text}");
        assert_eq!(text.contains("breakpoint"), [BREAK, UPROBE].contains(&bytes), "{text}");
        assert!(!OTHER.is_enabled() && !other());
    }
}

/// The numbers of a key's sites that have the code of its other state, and other code, in a
/// listing.
fn mismatches(key: &'static StaticKey<false>) -> (usize, usize) {
    let of_key =
        |used: dormouse_keys::Listed<'_>| (std::ptr::eq(used.key, key.key())).then(|| used.mismatches());
    let Mismatches { stale, foreign } = try_list(of_key).unwrap().into_iter().flatten().next().unwrap();
    (stale, foreign)
}

#[test]
fn a_listing_tells_sites_that_do_not_follow() {
    in_child(|| {
        let at = site_in(site);
        let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        let write = |bytes: &[u8]| memory.write_all_at(bytes, at as u64).unwrap();
        let [asleep, awake] = [false, true].map(|on| {
            switch(on, Protocol::Flip).unwrap();
            code_at::<{ ASLEEP.len() }>(at)
        });
        for (on, own, other_code) in [(false, asleep, awake), (true, awake, asleep)] {
            switch(on, Protocol::Flip).unwrap();
            assert_eq!(mismatches(&KEY), (0, 0));
            // A tool puts the other code back.
            write(&other_code);
            assert_eq!((mismatches(&KEY), KEY.is_enabled(), site()), ((1, 0), on, !on));
            assert_eq!(mismatches(&OTHER), (0, 0));
            // As the command advises.
            switch(!on, Protocol::Flip).unwrap();
            switch(on, Protocol::Flip).unwrap();
            assert_eq!((mismatches(&KEY), site()), ((0, 0), on));
            write(BREAK);
            assert_eq!(mismatches(&KEY), (0, 1));
            write(&own);
            assert_eq!((mismatches(&KEY), site()), ((0, 0), on));
        }
    });
}

#[test]
fn a_uprobe_is_named_and_left_alone() {
    in_child(|| {
        let at = site_in(site);
        let probe = match uprobe(at) {
            Ok(probe) => probe,
            Err(error) => return skip(format_args!("no uprobe here: {error}")),
        };
        assert_names(&KEY, at, UPROBE);
        assert!(!site(), "the kernel runs what it has replaced");
        drop(probe);
        KEY.enable().unwrap();
        assert!(site());
    });
}

#[test]
fn a_site_follows_again_after_a_uprobe() {
    in_child(|| {
        let at = site_in(site);
        KEY.enable().unwrap();
        let probe = match uprobe(at) {
            Ok(probe) => probe,
            Err(error) => return skip(format_args!("no uprobe here: {error}")),
        };
        assert_names(&KEY, at, UPROBE);
        // The kernel knows the instruction from the file.
        assert_eq!((mismatches(&KEY), site()), ((0, 1), false));
        drop(probe);
        assert!(!site() && KEY.is_enabled());
        assert_eq!(mismatches(&KEY), (1, 0));
        // It holds what it should after the batch, so there is nothing to write.
        assert_eq!(Batch::new().disable(&KEY).apply().unwrap().sites, 0);
        assert!(!site() && !KEY.is_enabled());
        KEY.enable().unwrap();
        assert_eq!((mismatches(&KEY), site()), ((0, 0), true));
    });
}

#[test]
fn a_site_with_foreign_operands_refuses_the_batch() {
    in_child(|| {
        let at = site_in(site);
        let [asleep, awake] = [false, true].map(|on| {
            switch(on, Protocol::Flip).unwrap();
            code_at::<{ BREAKPOINT.len() }>(at)
        });
        let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        let write = |bytes: &[u8]| memory.write_all_at(bytes, at as u64).unwrap();
        for enabled in [false, true] {
            let batch = if enabled { Batch::new().enable(&KEY) } else { Batch::new().disable(&KEY) };
            batch.apply().unwrap();
            // The other instruction is what a batch wants, with another target it is not.
            let (own, other) = if enabled { (awake, asleep) } else { (asleep, awake) };
            let foreign = retargeted(own, other);
            write(&foreign);
            assert_names(&KEY, at, &foreign);
            write(&own);
        }
        assert!(site());
    });
}

#[test]
fn a_breakpoint_is_named_and_left_alone() {
    in_child(|| {
        let at = site_in(site);
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        // SAFETY: lets a child trace its parent, where else only the parent may trace the child.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, -1) };
        let poke = |bytes: &[u8]| {
            fork(|| {
                // SAFETY: traces the parent, which waits, and lets it go again. Only the child's
                // own memory is written by these calls, and the parent's word.
                unsafe {
                    let none = std::ptr::null_mut::<libc::c_void>();
                    assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, thread, none, none), 0);
                    assert_eq!(libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL), thread);
                    let word = libc::ptrace(libc::PTRACE_PEEKTEXT, thread, at, none);
                    let mut word = word.to_ne_bytes();
                    word[..bytes.len()].copy_from_slice(bytes);
                    let word = libc::c_long::from_ne_bytes(word);
                    assert_eq!(libc::ptrace(libc::PTRACE_POKETEXT, thread, at, word), 0);
                    assert_eq!(libc::ptrace(libc::PTRACE_DETACH, thread, none, none), 0);
                }
            })
        };
        let own: [u8; ASLEEP.len()] = code_at(at);
        assert!(poke(BREAK).success());
        assert_names(&KEY, at, BREAK);
        assert!(poke(&own).success());
        KEY.enable().unwrap();
        assert!(site());
    });
}
