//! Address spaces: answers about real mappings, and that each says truly what it rests on.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dormouse_maps::{AddressSpace, Basis, Cache, Keep, Kind, Perms, SpaceError};
use proptest::prelude::*;

const PAGE: usize = 4096;

/// As many of what is gone as by default, however old: the tests' times are small numbers.
fn timeless() -> AddressSpace {
    AddressSpace::own().unwrap().keeping(Keep { age: Duration::MAX, ..Keep::default() })
}

/// Pages of this process, which are its to map and unmap.
struct Pages {
    start: *mut libc::c_void,
    count: usize,
}

// SAFETY: an address and a length.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages that nothing else is mapped over.
    fn reserve(count: usize) -> Self {
        // SAFETY: a new mapping where the kernel likes it, which nobody has a reference into.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                count * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start, count }
    }

    fn addr(&self) -> u64 {
        self.start as u64
    }

    /// Maps `page` of `file` over the pages from `at` on.
    fn map(&self, at: usize, count: usize, file: &OwnedFd, page: usize) {
        assert!(at + count <= self.count);
        // SAFETY: pages of our own, which nobody has a reference into.
        let mapped = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let offset = (page * PAGE) as libc::off_t;
            libc::mmap(
                self.start.add(at * PAGE),
                count * PAGE,
                libc::PROT_READ,
                flags,
                file.as_raw_fd(),
                offset,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
    }

    /// Takes what is mapped over them away, so that they are reserved as before.
    fn unmap(&self) {
        // SAFETY: as above.
        let mapped = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(self.start, self.count * PAGE, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(mapped, libc::MAP_FAILED);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::munmap(self.start, self.count * PAGE) };
    }
}

fn memfd(name: &CStr, pages: usize) -> OwnedFd {
    // SAFETY: a terminated name; the descriptor is new and ours.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)) };
    // SAFETY: sets the length of a file of our own.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), (pages * PAGE) as libc::off_t) }, 0);
    file
}

#[test]
fn own_code_and_data_lie_where_they_do() {
    let space = AddressSpace::own().unwrap();
    let code = own_code_and_data_lie_where_they_do as *const () as u64;
    let found = space.resolve(code).unwrap().unwrap();
    assert_eq!((found.basis, found.mapping.value.kind), (Basis::Told, Kind::File));
    assert!(found.mapping.value.perms.contains(Perms::READ.union(Perms::EXECUTE)));
    let object = space.object(found.mapping.value.object).unwrap();
    assert_eq!(object.name(), std::env::current_exe().unwrap());
    assert!(object.file().is_some() && found.offset(code) > 0);

    let heap = Box::new([0_u8; 100]);
    let found = space.resolve(ptr::from_ref(&*heap) as u64).unwrap().unwrap();
    assert!(matches!(found.basis, Basis::Seen { .. } | Basis::Asked), "{found:?}");
    assert_eq!(space.resolve(0).unwrap(), None);
    assert_eq!(space.resolve(u64::MAX).unwrap(), None);
    let kinds: Vec<Kind> = space.mappings().unwrap().iter().map(|mapping| mapping.value.kind).collect();
    assert!(kinds.contains(&Kind::Vdso) && kinds.contains(&Kind::Anonymous));
}

#[test]
fn a_new_mapping_is_asked_for_and_one_that_is_gone_is_not_vouched_for() {
    let (space, pages, file) = (AddressSpace::own().unwrap(), Pages::reserve(4), memfd(c"tea house", 4));
    pages.map(1, 2, &file, 1);
    let addr = pages.addr() + 4096;
    let found = space.resolve_now(addr + 5).unwrap().unwrap();
    assert_eq!((found.basis, found.mapping.value.kind), (Basis::Asked, Kind::Memfd));
    assert_eq!((found.mapping.start, found.mapping.last, found.offset(addr + 5)), (addr, addr + 8191, 4101));
    assert_eq!(space.object(found.mapping.value.object).unwrap().name().to_str(), Some("/memfd:tea house"));

    pages.unmap();
    let stale = space.resolve(addr).unwrap().unwrap();
    assert!(matches!(stale.basis, Basis::Seen { .. }), "it may be gone, and is: {stale:?}");
    let now = space.resolve_now(addr).unwrap().unwrap();
    assert_eq!(now.mapping.value.kind, Kind::Anonymous);
    assert_eq!(space.resolve(addr).unwrap().unwrap().mapping.value.kind, Kind::Anonymous);
}

#[test]
fn a_cache_gives_the_same_answers() {
    let (space, cache) = (AddressSpace::own().unwrap(), Cache::new());
    let code = a_cache_gives_the_same_answers as *const () as u64;
    for _ in 0..3 {
        assert_eq!(space.resolve_cached(&cache, code).unwrap(), space.resolve(code).unwrap());
    }
    space.register(code..=code, "patched", 1).unwrap();
    assert_eq!(space.resolve_cached(&cache, code).unwrap().unwrap().mapping.value.kind, Kind::Jit);
    space.unregister(code..=code, 2).unwrap();
    assert_eq!(space.resolve_cached(&cache, code).unwrap().unwrap().mapping.value.kind, Kind::File);
}

#[test]
fn what_the_loader_brings_and_takes_away_is_noticed() {
    let space = AddressSpace::own().unwrap();
    let name = c"libresolv.so.2";
    // SAFETY: a library of the system's, whose constructors may run at any time.
    let open = |flags| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    if !open(libc::RTLD_NOLOAD).is_null() {
        eprintln!("skipped: {name:?} is loaded already");
        return;
    }
    let library = open(0);
    if library.is_null() {
        eprintln!("skipped: {name:?} is not here");
        return;
    }
    // SAFETY: an open library and room for the address of its description, which begins with that of the library.
    let code = unsafe {
        let mut map: *const u64 = ptr::null();
        assert_eq!(libc::dlinfo(library, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()), 0);
        *map
    };
    let found = space.resolve(code).unwrap().unwrap();
    assert_eq!((found.basis, found.mapping.value.kind), (Basis::Told, Kind::File));
    let first = found.mapping.value.object;
    assert!(space.object(first).unwrap().short_name().contains("resolv"));
    let loaded_ns = monotonic_ns();
    // SAFETY: opened above; nothing of it is used any more.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    let after = space.resolve(code).unwrap();
    assert!(after.is_none_or(|after| after.mapping.value.object != first), "{after:?}");
    // A record from before still has it.
    let then = space.resolve_at(code, loaded_ns).unwrap().unwrap();
    assert_eq!(then.mapping.value.object, first);
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into what it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A shell that reads a line before it does anything.
fn shell(script: &str) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    shell.spawn().unwrap()
}

#[test]
fn another_process_is_told_from_one_that_came_after_it() {
    let mut child = shell("read line; exec cat");
    let space = AddressSpace::of(child.id()).unwrap();
    let code = space.mappings().unwrap()[0].start;
    assert_eq!(space.resolve_now(code).unwrap().unwrap().basis, Basis::Asked);
    assert!(matches!(space.resolve(code).unwrap().unwrap().basis, Basis::Seen { .. }));

    // What `cat` gives back was written after it began.
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"go\n").unwrap();
    stdin.write_all(b"cup\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "cup\n");
    assert!(matches!(space.refresh(), Err(SpaceError::Replaced { .. })));
    assert!(matches!(space.resolve_now(code), Err(SpaceError::Replaced { .. })));
    // What was seen of the program before is not forgotten, and not vouched for.
    assert!(matches!(space.resolve(code).unwrap().unwrap().basis, Basis::Seen { .. }));

    let anew = AddressSpace::of(child.id()).unwrap();
    drop(child.stdin.take());
    // SAFETY: waits for the end of a child and leaves it as it is.
    let ended = unsafe {
        let mut info = std::mem::zeroed();
        libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT)
    };
    assert_eq!(ended, 0);
    assert!(matches!(AddressSpace::of(child.id()), Err(SpaceError::NoMemory { .. })));
    child.wait().unwrap();
    assert!(matches!(anew.refresh(), Err(SpaceError::Gone { .. })));
    assert!(matches!(AddressSpace::of(child.id()), Err(SpaceError::Gone { .. })));
}

#[test]
fn a_forked_child_goes_on_with_its_own_mappings() {
    const CHILD: &str = "DORMOUSE_TEST_FORK";
    let name = "a_forked_child_goes_on_with_its_own_mappings";
    if std::env::var_os(CHILD).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (space, pages, file) = (AddressSpace::own().unwrap(), Pages::reserve(1), memfd(c"of the child", 1));
    let kind = || space.resolve_now(pages.addr()).unwrap().unwrap().mapping.value.kind;
    // SAFETY: the child does what is below and ends; the allocator is whole in it, and no other thread used the space.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        pages.map(0, 1, &file, 0);
        let is_right = kind() == Kind::Memfd && space.pid() == std::process::id();
        // SAFETY: ends the child, without what belongs to its parent.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of our own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((status, kind()), (0, Kind::Anonymous));
}

#[test]
fn generated_code_is_found_as_of_the_time_of_a_record() {
    let (space, pages) = (timeless(), Pages::reserve(1));
    let at = pages.addr();
    space.register(at..at + 100, "first", 1_000).unwrap();
    // Without a word about the first one.
    space.register(at + 50..at + 150, "second", 2_000).unwrap();
    assert_eq!(space.unregister(at..at + 4096, 3_000).unwrap(), 1);
    space.register(at..at + 10, "third", 4_000).unwrap();
    let name = |addr: u64, time_ns| {
        let found =
            space.resolve_at(addr, time_ns).unwrap().filter(|found| found.mapping.value.kind == Kind::Jit);
        found.map(|found| space.object(found.mapping.value.object).unwrap().short_name().into_owned())
    };
    for (addr, time_ns, right) in [
        (at, 999, None),
        (at, 1_000, Some("first")),
        (at + 60, 1_999, Some("first")),
        (at + 60, 2_000, Some("second")),
        (at, 2_500, None),
        (at + 60, 3_000, None),
        (at, 4_000, Some("third")),
        (at, u64::MAX, Some("third")),
    ] {
        assert_eq!(name(addr, time_ns).as_deref(), right, "{:#x} at {time_ns}", addr - at);
    }
    assert!(matches!(space.register(at..at, "nothing", 1), Err(SpaceError::Edit(_))));
}

#[test]
fn what_is_forgotten_is_said_to_be() {
    let keep = Keep { mappings: 2, age: Duration::MAX };
    let (space, pages) = (AddressSpace::own().unwrap().keeping(keep), Pages::reserve(1));
    let at = pages.addr();
    for n in 0..5 {
        space.register(at..at + 10, "code", 100 * n).unwrap();
        space.unregister(at..at + 10, 100 * n + 50).unwrap();
    }
    assert_eq!(space.resolve_at(at, 420).unwrap().unwrap().mapping.value.since_ns, 400);
    assert_eq!(space.resolve_at(at, 320).unwrap().unwrap().mapping.value.since_ns, 300);
    let error = space.resolve_at(at, 220).unwrap_err();
    assert!(matches!(error, SpaceError::Forgotten { time_ns: 220, forgotten_ns: 250, .. }), "{error}");
}

#[test]
fn objects_that_nothing_belongs_to_are_forgotten() {
    let keep = Keep { mappings: 8, age: Duration::MAX };
    let (space, pages) = (AddressSpace::own().unwrap().keeping(keep), Pages::reserve(1));
    let at = pages.addr();
    let mut ids = Vec::new();
    for n in 0..2_000 {
        space.register(at..at + 10, "code", n).unwrap();
        ids.push(space.resolve(at).unwrap().unwrap().mapping.value.object);
    }
    let kept = ids.iter().filter(|&&id| space.object(id).is_some()).count();
    assert!((9..500).contains(&kept), "{kept} of 2000");
    assert!(space.object(ids[1_999]).is_some());
}

/// What a writer has begun and ended, so that a reader knows which states there were while it asked.
#[derive(Default)]
struct Steps {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Steps {
    fn step<T>(&self, number: u64, change: impl FnOnce() -> T) -> T {
        self.begun.store(number, Ordering::SeqCst);
        let result = change();
        self.ended.store(number, Ordering::SeqCst);
        result
    }

    /// Asserts that what `ask` gives was so after one of the steps that had or could have been made meanwhile.
    fn timely<T: PartialEq + std::fmt::Debug>(&self, ask: impl FnOnce() -> T, after: impl Fn(u64) -> T) {
        let low = self.ended.load(Ordering::SeqCst);
        let answer = ask();
        let high = self.begun.load(Ordering::SeqCst);
        assert!(
            (low..=high).any(|step| after(step) == answer),
            "{answer:?} between the steps {low} and {high}"
        );
    }
}

/// Cycles of mapping and unmapping that the readers are asked about.
const CYCLES: u64 = 100_000;

#[test]
fn no_answer_about_registered_code_was_wrong_between_call_and_return() {
    let (space, pages, file) = (timeless(), Pages::reserve(1), memfd(c"code", 1));
    let (steps, done, at) = (Steps::default(), AtomicBool::new(false), pages.addr());
    // After an odd step the code of that step is there.
    let after = |step: u64| (step % 2 == 1).then_some(step);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (space, steps, done) = (&space, &steps, &done);
            scope.spawn(move || {
                let cache = Cache::new();
                while !done.load(Ordering::Relaxed) {
                    let ask = || {
                        let found =
                            if reader == 0 { space.resolve(at) } else { space.resolve_cached(&cache, at) };
                        let found = found.unwrap().filter(|found| found.basis == Basis::Told);
                        found.map(|found| found.mapping.value.since_ns)
                    };
                    steps.timely(ask, after);
                }
            });
        }
        for cycle in 0..CYCLES {
            let step = 2 * cycle + 1;
            pages.map(0, 1, &file, 0);
            steps.step(step, || space.register(at..at + 4096, "code", step)).unwrap();
            assert_eq!(steps.step(step + 1, || space.unregister(at..at + 4096, step + 1)).unwrap(), 1);
            pages.unmap();
        }
        done.store(true, Ordering::Relaxed);
    });
    // And the last ones are there to be looked back at.
    for step in [2 * CYCLES - 1, 2 * CYCLES - 1_001] {
        assert_eq!(space.resolve_at(at, step).unwrap().unwrap().mapping.value.since_ns, step);
    }
}

#[test]
fn no_answer_of_the_kernels_was_wrong_between_call_and_return() {
    const FILE: u64 = 64;
    let (space, pages, file) =
        (AddressSpace::own().unwrap(), Pages::reserve(1), memfd(c"pages", FILE as usize));
    let (steps, done, at) = (Steps::default(), AtomicBool::new(false), pages.addr());
    // After an odd step a page of the file is there, each time another one.
    let after = |step: u64| (step % 2 == 1).then_some(step / 2 % FILE * 4096);
    let (mut asked, mut seen) = (0, 0);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let (mut asked, mut seen) = (0, 0);
                while !done.load(Ordering::Relaxed) {
                    let offset = |found: dormouse_maps::Found| {
                        (found.mapping.value.kind == Kind::Memfd).then_some(found.mapping.value.offset)
                    };
                    steps.timely(|| space.resolve_now(at).unwrap().and_then(offset), after);
                    asked += 1;
                    // From memory: right or not, it does not say that it is.
                    let found = space.resolve(at).unwrap().unwrap();
                    assert!(matches!(found.basis, Basis::Seen { .. }), "{found:?}");
                    seen += 1;
                }
                (asked, seen)
            })
        });
        for cycle in 0..CYCLES {
            let step = 2 * cycle + 1;
            steps.step(step, || pages.map(0, 1, &file, (cycle % FILE) as usize));
            steps.step(step + 1, || pages.unmap());
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (more_asked, more_seen) = reader.join().unwrap();
            asked += more_asked;
            seen += more_seen;
        }
    });
    assert!(asked > 0 && seen > 0);
}

proptest! {
    /// Against a list of all that was ever registered.
    #[test]
    fn history_is_what_a_list_of_everything_says(
        changes in prop::collection::vec((0_u64..8, 1_u64..4, any::<bool>()), 1..60),
    ) {
        let (space, pages) = (timeless(), Pages::reserve(1));
        let base = pages.addr();
        let mut all: Vec<(u64, u64, u64, u64)> = Vec::new();
        for (now, (start, length, comes)) in (1_u64..).zip(changes.iter().copied()) {
            let (start, end) = (base + start, base + start + length);
            let mut ended = 0;
            for there in all.iter_mut().filter(|there| there.3 == u64::MAX && there.0 < end && start < there.1) {
                there.3 = now;
                ended += 1;
            }
            if comes {
                space.register(start..end, "code", now).unwrap();
                all.push((start, end, now, u64::MAX));
            } else {
                prop_assert_eq!(space.unregister(start..end, now).unwrap(), ended);
            }
        }
        for addr in base..base + 11 {
            for time in 0..=changes.len() as u64 + 1 {
                let right = all.iter().find(|c| c.0 <= addr && addr < c.1 && c.2 <= time && time < c.3).map(|c| c.2);
                let found = space.resolve_at(addr, time).unwrap().filter(|found| found.basis == Basis::Told);
                prop_assert_eq!(found.map(|found| found.mapping.value.since_ns), right);
            }
        }
    }
}
