//! Address spaces: answers about real mappings, of this process and of others.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dormouse_maps::{AddressSpace, Cache, Mapping, MappingKind, Perms, Region, SpaceError};
use dormouse_testkit::{fork, in_child, skip};

const PAGE: usize = 4096;

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
        // SAFETY: a new mapping where the kernel likes it, into which nobody has a reference.
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
        // SAFETY: pages of our own, into which nobody has a reference.
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

    /// Takes the mappings over them away, so that they are reserved as before.
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
    let (space, cache) = (AddressSpace::own().unwrap(), Cache::new());
    let code = own_code_and_data_lie_where_they_do as *const () as u64;
    let found = space.resolve(&cache, code).unwrap().unwrap();
    assert_eq!(found.value.kind, MappingKind::File);
    assert!(found.value.perms.contains(Perms::READ.union(Perms::EXECUTE)));
    let object = space.object(found.value.object).unwrap();
    assert_eq!(object.name(), std::env::current_exe().unwrap());
    assert!(object.file().is_some() && found.offset_of(code) > 0);

    let heap = Box::new([0_u8; 100]);
    assert!(space.resolve(&cache, ptr::from_ref(&*heap) as u64).unwrap().is_some());
    assert_eq!(space.resolve(&cache, 0).unwrap(), None);
    assert_eq!(space.resolve(&cache, u64::MAX).unwrap(), None);
    let kinds: Vec<MappingKind> =
        space.mappings().unwrap().iter().map(|mapping| mapping.value.kind).collect();
    assert!(kinds.contains(&MappingKind::Vdso) && kinds.contains(&MappingKind::Anonymous));
}

#[test]
fn new_mapping_is_asked_for() {
    let (space, pages, file) = (AddressSpace::own().unwrap(), Pages::reserve(4), memfd(c"tea house", 4));
    pages.map(1, 2, &file, 1);
    let (cache, addr) = (Cache::new(), pages.addr() + 4096);
    let found = space.resolve(&cache, addr + 5).unwrap().unwrap();
    assert_eq!((found.start, found.last, found.offset_of(addr + 5)), (addr, addr + 8191, 4101));
    assert_eq!(found.value.kind, MappingKind::Memfd);
    assert_eq!(space.object(found.value.object).unwrap().name().to_str(), Some("/memfd:tea house"));
    let hits = cache.stats().hits;
    assert_eq!(space.resolve(&cache, addr).unwrap(), Some(found));
    assert_eq!(space.resolve(&cache, addr).unwrap(), Some(found));
    assert_eq!(cache.stats().hits, hits + 1, "the answer is remembered");
}

#[test]
fn kernels_answer_corrects_a_remembered_one() {
    let (space, pages, file) = (AddressSpace::own().unwrap(), Pages::reserve(4), memfd(c"tea house", 4));
    let (cache, addr) = (Cache::new(), pages.addr() + 4096);
    pages.map(1, 2, &file, 1);
    let kind = |found: Option<Mapping<Region>>| found.unwrap().value.kind;
    assert_eq!(kind(space.resolve(&cache, addr).unwrap()), MappingKind::Memfd);
    pages.unmap();
    assert_eq!(kind(space.resolve_now(addr).unwrap()), MappingKind::Anonymous);
    assert_eq!(kind(space.resolve(&cache, addr).unwrap()), MappingKind::Anonymous);
    pages.map(1, 2, &file, 1);
    space.refresh().unwrap();
    assert_eq!(kind(space.resolve(&cache, addr).unwrap()), MappingKind::Memfd);
}

#[test]
fn loaded_and_unloaded_libraries_are_noticed() {
    let (space, cache) = (AddressSpace::own().unwrap(), Cache::new());
    let name = c"libresolv.so.2";
    // SAFETY: a library of the system's, whose constructors may run at any time.
    let open = |flags| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    if !open(libc::RTLD_NOLOAD).is_null() {
        skip(format_args!("{name:?} is loaded already"));
        return;
    }
    let library = open(0);
    if library.is_null() {
        skip(format_args!("{name:?} is not here"));
        return;
    }
    // SAFETY: an open library and room for the address of its description, which begins with that
    // of the library.
    let code = unsafe {
        let mut map: *const u64 = ptr::null();
        assert_eq!(libc::dlinfo(library, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()), 0);
        *map
    };
    let found = space.resolve(&cache, code).unwrap().unwrap().value;
    assert!(space.object(found.object).unwrap().short_name().contains("resolv"));
    // SAFETY: opened above; nothing of it is used any more.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    let after = space.resolve(&cache, code).unwrap();
    assert!(after.is_none_or(|after| after.value.object != found.object), "{after:?}");
}

/// A shell that reads a line before it does anything.
fn shell(script: &str) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    shell.spawn().unwrap()
}

#[test]
fn process_is_told_from_its_successor() {
    let mut child = shell("read line; exec cat");
    let (space, cache) = (AddressSpace::of(child.id()).unwrap(), Cache::new());
    let first = space.mappings().unwrap()[0];
    let code = first.start;
    assert_eq!(space.resolve_now(code).unwrap(), Some(first));
    assert_eq!(space.resolve(&cache, code).unwrap(), Some(first));

    // The line that `cat` gives back was written after it began.
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"go\n").unwrap();
    stdin.write_all(b"cup\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "cup\n");
    assert!(matches!(space.refresh(), Err(SpaceError::Replaced { .. })));
    assert!(matches!(space.resolve_now(code), Err(SpaceError::Replaced { .. })));
    // A known mapping of the program before is not forgotten.
    assert_eq!(space.resolve(&cache, code).unwrap(), Some(first));

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
fn forked_child_sees_its_own_mappings() {
    in_child(|| {
        let (space, pages, file) =
            (AddressSpace::own().unwrap(), Pages::reserve(1), memfd(c"of the child", 1));
        let kind = || space.resolve_now(pages.addr()).unwrap().unwrap().value.kind;
        let status = fork(|| {
            pages.map(0, 1, &file, 0);
            assert_eq!((kind(), space.pid()), (MappingKind::Memfd, std::process::id()));
        });
        assert!(status.success(), "{status}");
        assert_eq!(kind(), MappingKind::Anonymous);
    });
}

#[test]
fn objects_without_mappings_are_forgotten() {
    let (space, pages) = (AddressSpace::own().unwrap(), Pages::reserve(1));
    let mut ids = Vec::new();
    for _ in 0..2_000 {
        pages.map(0, 1, &memfd(c"cup", 1), 0);
        ids.push(space.resolve_now(pages.addr()).unwrap().unwrap().value.object);
    }
    let kept = ids.iter().filter(|&&id| space.object(id).is_some()).count();
    assert!((1..1_000).contains(&kept), "{kept} of 2000");
    assert!(space.object(ids[1_999]).is_some());
}

/// The steps that a writer has begun and ended, so that a reader knows the states that there were
/// while it asked.
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

    /// Asserts that the answer of `ask` is that `after` one of the steps that were or could have
    /// been made meanwhile.
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
fn kernels_answers_are_true_between_call_and_return() {
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
                let (cache, mut asked, mut seen) = (Cache::new(), 0, 0);
                while !done.load(Ordering::Relaxed) {
                    let offset = |found: Mapping<Region>| {
                        (found.value.kind == MappingKind::Memfd).then_some(found.value.offset)
                    };
                    steps.timely(|| space.resolve_now(at).unwrap().and_then(offset), after);
                    asked += 1;
                    // From memory: right or not, the page is known.
                    assert!(space.resolve(&cache, at).unwrap().is_some());
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
