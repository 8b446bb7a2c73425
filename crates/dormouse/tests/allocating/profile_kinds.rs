//! Profiles of allocations and page faults, of a program whose allocations and faults are known.
#![cfg(not(dormouse_fallback))]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse::{Group, ProfileRun, ProfileSpec};
use dormouse_profile::{Options, Profile, ProfileKind, Profiling, Values};
use dormouse_testkit::{StopOnDrop, fork, in_child, skip};

use crate::ALLOC;

// Functions whose frames do not depend on how the test was compiled: each has `runner` call the
// function that it is given, which may have no frame; `toucher` writes to each page of its memory,
// and `filler` has a function do that, as `memset` does.
std::arch::global_asm!(
    ".pushsection .text.routes, \"ax\", @progbits",
    ".irp name, left, right",
    ".globl \\name\\()_route",
    "\\name\\()_route:",
    "push rbp",
    "mov rbp, rsp",
    "call runner",
    "pop rbp",
    "ret",
    ".globl \\name\\()_route_end",
    "\\name\\()_route_end:",
    ".endr",
    "runner:",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "pop rbp",
    "ret",
    ".globl toucher",
    "toucher:",
    "push rbp",
    "mov rbp, rsp",
    "2: mov byte ptr [rdi], 1",
    "add rdi, 4096",
    "dec rsi",
    "jnz 2b",
    "pop rbp",
    "ret",
    ".globl toucher_end",
    "toucher_end:",
    ".globl filler",
    "filler:",
    "push rbp",
    "mov rbp, rsp",
    "call rcx",
    "pop rbp",
    "ret",
    ".globl filler_end",
    "filler_end:",
    ".popsection",
);

type Route = unsafe extern "C" fn(extern "C" fn(usize), usize);

unsafe extern "C" {
    fn left_route(run: extern "C" fn(usize), size: usize);
    fn left_route_end();
    fn right_route(run: extern "C" fn(usize), size: usize);
    fn right_route_end();
    fn toucher(memory: *mut u8, pages: usize);
    fn toucher_end();
    fn filler(memory: *mut u8, value: i32, bytes: usize, fill: *const ());
    fn filler_end();
}

fn code(first: *const (), end: *const ()) -> Range<u64> {
    first.addr() as u64..end.addr() as u64
}

fn left() -> Range<u64> {
    code(left_route as *const (), left_route_end as *const ())
}

fn right() -> Range<u64> {
    code(right_route as *const (), right_route_end as *const ())
}

/// The values of a group's samples that have a function on their stack.
fn values(profile: &Profile, group: Group, function: &Range<u64>) -> Values {
    let rows = profile.samples.iter().filter(|row| {
        profile.groups[row.group as usize].id == group.id()
            && profile.stack(row.stack).any(|at| function.contains(&at))
    });
    rows.fold(Values::default(), |sum, row| std::array::from_fn(|column| sum[column] + row.values[column]))
}

fn options(bytes: u64, live: bool) -> Options {
    let mut options = Options::default();
    (options.kind, options.bytes, options.live) = (ProfileKind::Alloc, bytes, live);
    options.heap = Some(dormouse::events::heap());
    options
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

extern "C" fn allocate(size: usize) {
    // SAFETY: the layout is not empty, and the place is given back with it.
    unsafe { ALLOC.dealloc(black_box(ALLOC.alloc(layout(size))), layout(size)) };
}

thread_local! {
    /// The place that [`keep`] has made last.
    static KEPT: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
}

extern "C" fn keep(size: usize) {
    // SAFETY: the layout is not empty.
    KEPT.set(unsafe { ALLOC.alloc(layout(size)) });
}

/// Makes allocations of 4 kB that stay.
fn keep_many(count: usize) -> Vec<*mut u8> {
    let one = |_| {
        // SAFETY: calls `keep`.
        unsafe { left_route(keep, 4096) };
        KEPT.get()
    };
    (0..count).map(one).collect()
}

fn free(places: impl Iterator<Item = *mut u8>) {
    // SAFETY: `keep_many` made them.
    places.for_each(|place| unsafe { ALLOC.dealloc(place, layout(4096)) });
}

/// The bytes, within five times the error that is to be expected of a sample.
fn assert_about(found: u64, size: usize, count: usize, period: u64) {
    let odds = -(-(size as f64) / period as f64).exp_m1();
    let expected = (size * count) as f64;
    let sigma = size as f64 * (count as f64 * (1.0 - odds) / odds).sqrt();
    let allowed = 5.0 * sigma + count as f64;
    assert!((found as f64 - expected).abs() <= allowed, "{found} of {expected}, {allowed} allowed");
}

#[test]
fn allocations_have_their_functions_and_groups() {
    const PERIOD: u64 = 1024;
    const TIMES: usize = 40;
    in_child(|| {
        let routes: [(Group, Route, Range<u64>, usize, usize); 2] = [
            (Group::new("left"), left_route, left(), 100, 2000),
            (Group::new("right"), right_route, right(), 3000, 200),
        ];
        let profiling = Profiling::start(&options(PERIOD, false)).unwrap();
        let other = Profiling::start(&options(64 * PERIOD, false)).unwrap();
        for _ in 0..TIMES {
            for (group, route, _, size, count) in &routes {
                // SAFETY: calls `allocate`.
                group.scope(|| (0..*count).for_each(|_| unsafe { route(allocate, *size) }));
            }
            // Empties the queue, too.
            profiling.read();
        }
        for profile in [profiling.read(), other.read()] {
            assert_eq!(profile.coverage.dropped, 0, "{:?}", profile.coverage);
            for (group, _, code, size, count) in &routes {
                let [objects, bytes, inuse, live] = values(&profile, *group, code);
                assert_about(bytes, *size, count * TIMES, PERIOD);
                assert_about(objects * *size as u64, *size, count * TIMES, PERIOD);
                assert_eq!((inuse, live), (0, 0), "nobody asked");
                let elsewhere = if *code == left() { right() } else { left() };
                assert_eq!(values(&profile, *group, &elsewhere), [0; 4]);
            }
        }
    });
}

#[test]
fn totals_are_those_of_the_account() {
    in_child(|| {
        let group = Group::new("totals");
        let run = ProfileRun::start(&ProfileSpec::alloc().bytes(16 * 1024)).unwrap();
        let before = group.read_counts();
        // SAFETY: calls `allocate`.
        group.scope(|| (0..1000).for_each(|_| unsafe { left_route(allocate, 1000) }));
        let counted = |counts: &[dormouse_events::Count]| {
            counts
                .iter()
                .find(|count| count.event == dormouse::Event::ALLOC_BYTES)
                .map_or(0, |count| count.value)
        };
        let used = counted(&group.read_counts()) - counted(&before);
        let profile = run.read();
        let found = profile.groups.iter().position(|found| found.id == group.id()).unwrap();
        assert!(used >= 1_000_000 && profile.groups[found].total.unwrap() >= used, "{:?}", profile.groups);
        let rows = profile.samples.iter().filter(|row| row.group as usize == found);
        let sum: u64 = rows.map(|row| row.values[1]).sum();
        assert_eq!(Some(sum), profile.groups[found].total);
    });
}

#[test]
fn live_allocations_are_those_not_freed() {
    in_child(|| {
        let group = Group::new("keeper");
        let _before = keep_many(100);
        // Each of them is in the sample, but for one in millions.
        let profiling = Profiling::start(&options(256, true)).unwrap();
        let live = || values(&profiling.read(), group, &left());
        let mut kept = group.scope(|| keep_many(1000));
        assert_eq!(live(), [1000, 4_096_000, 1000, 4_096_000]);
        free(kept.drain(..400));
        assert_eq!(live(), [1000, 4_096_000, 600, 2_457_600]);
        // Another thread frees; another thing of the same size takes the place.
        let rest: Vec<usize> = kept.drain(..).map(<*mut u8>::expose_provenance).collect();
        std::thread::spawn(|| free(rest.into_iter().map(std::ptr::with_exposed_provenance_mut)))
            .join()
            .unwrap();
        let _other = keep_many(1000);
        assert_eq!(live(), [1000, 4_096_000, 0, 0]);
        drop(profiling);
        // The next one begins with nothing.
        let profiling = Profiling::start(&options(256, true)).unwrap();
        let row = |row: &dormouse_profile::Sample| row.values[2] > 0 && row.group != 0;
        assert!(!profiling.read().samples.iter().any(row));
    });
}

#[test]
fn a_child_profiles_its_own_allocations() {
    in_child(|| {
        let group = Group::new("parent");
        let profiling = Profiling::start(&options(256, true)).unwrap();
        let kept = group.scope(|| keep_many(10));
        let child = fork(|| {
            let nothing = profiling.read();
            assert!(nothing.samples.is_empty() && nothing.coverage.notes.len() == 1, "{nothing:?}");
            let own = Profiling::start(&options(256, true)).unwrap();
            let kept = group.scope(|| keep_many(20));
            assert_eq!(values(&own.read(), group, &left())[2], 20);
            free(kept.into_iter());
            assert_eq!(values(&own.read(), group, &left())[2], 0);
        });
        assert!(child.success(), "{child}");
        assert_eq!(values(&profiling.read(), group, &left())[2], 10);
        free(kept.into_iter());
        assert_eq!(values(&profiling.read(), group, &left())[2], 0);
    });
}

#[test]
fn profiles_come_and_go_under_allocating_threads() {
    in_child(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            for thread in 0..4 {
                let stop = &stop;
                scope.spawn(move || {
                    let group = Group::new(&format!("thread {thread}"));
                    while !stop.load(Ordering::Relaxed) {
                        group.scope(|| free(keep_many(100).into_iter()));
                        let mut bytes = vec![7_u8; 1 + thread * 1000];
                        bytes.reserve(black_box(5000));
                        std::thread::scope(|inner| _ = inner.spawn(|| drop(bytes)));
                    }
                });
            }
            for round in 0..12 {
                let profiling =
                    Profiling::start(&options([1, 1000, 100_000][round % 3], round % 2 == 0)).unwrap();
                let other = Profiling::start(&options(500, round % 4 == 0)).unwrap();
                while profiling.read().samples.is_empty() {
                    std::thread::yield_now();
                }
                drop(profiling);
                other.read();
            }
        });
    });
}

#[test]
fn a_process_without_the_allocator_is_told_so() {
    let mut options = options(1024, false);
    options.heap = None;
    let refused = Profiling::start(&options).unwrap_err().to_string();
    assert!(refused.contains("dormouse::Alloc"), "{refused}");
}

/// Single pages that nobody has touched.
fn untouched(pages: usize) -> &'static mut [u8] {
    // SAFETY: a new mapping, which stays.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), pages * 4096, rights, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, pages * 4096, libc::MADV_NOHUGEPAGE);
        std::slice::from_raw_parts_mut(memory.cast(), pages * 4096)
    }
}

#[test]
fn page_faults_have_their_function_and_group() {
    const PAGES: usize = 10_000;
    const EVERY: u32 = 7;
    in_child(|| {
        let mut options = Options::default();
        (options.kind, options.faults) = (ProfileKind::Faults, EVERY);
        let profiling = match Profiling::start(&options) {
            Ok(profiling) => profiling,
            Err(error) => return skip(error),
        };
        let group = Group::new("toucher");
        // A thread that has begun since, too.
        let touch = || {
            // So that no sample finds the queue full.
            for part in untouched(PAGES).chunks_mut(PAGES / 10 * 4096) {
                // SAFETY: it writes to that many pages, which are there.
                group.scope(|| unsafe { toucher(part.as_mut_ptr(), PAGES / 10) });
                profiling.read();
            }
        };
        touch();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                profiling.read();
                touch();
            });
        });
        let profile = profiling.read();
        let function = code(toucher as *const (), toucher_end as *const ());
        let [samples, faults, ..] = values(&profile, group, &function);
        assert_eq!(faults, samples * u64::from(EVERY));
        let missing = (2 * PAGES as u64).abs_diff(faults);
        // At both ends of both threads' work less than a period; the kernel brings in some pages
        // for others.
        assert!(missing <= 4 * u64::from(EVERY) + 40, "{faults} of {}: {:?}", 2 * PAGES, profile.coverage);
        assert_eq!(profile.coverage.dropped, 0);
        assert!(profile.coverage.armed >= 2, "{:?}", profile.coverage);
        // The one that faulted, innermost.
        let innermost = profile
            .samples
            .iter()
            .filter(|row| profile.stack(row.stack).next().is_some_and(|at| function.contains(&at)));
        assert!(innermost.map(|row| row.values[1]).sum::<u64>() >= faults);
        drop(profiling);
    });
}

#[test]
fn page_faults_in_the_library_have_its_caller() {
    const PAGES: usize = 1000;
    in_child(|| {
        if dormouse_sys::loader::is_in_executable(libc::memset as *const () as usize) {
            return skip("the C library is linked in");
        }
        let mut options = Options::default();
        (options.kind, options.faults) = (ProfileKind::Faults, 1);
        let profiling = match Profiling::start(&options) {
            Ok(profiling) => profiling,
            Err(error) => return skip(error),
        };
        let group = Group::new("filler");
        let memory = untouched(PAGES);
        // SAFETY: that many bytes are there.
        let fill = || unsafe { filler(memory.as_mut_ptr(), 1, PAGES * 4096, libc::memset as *const ()) };
        group.scope(fill);
        let profile = profiling.read();
        let function = code(filler as *const (), filler_end as *const ());
        let [_, faults, ..] = values(&profile, group, &function);
        // The kernel brings in some pages for others.
        assert!(faults + 40 >= PAGES as u64, "{faults} of {PAGES}: {:?}", profile.coverage);
        drop(profiling);
    });
}

/// A thread's first sample is a fault on its alternate stack, too, where one frame of the kernel's
/// fits in, and not two.
#[test]
fn first_samples_of_threads_come_on_new_stacks() {
    const THREADS: usize = 8;
    const PAGES: usize = 64;
    in_child(|| {
        let mut options = Options::default();
        (options.kind, options.faults) = (ProfileKind::Faults, 1);
        let profiling = match Profiling::start(&options) {
            Ok(profiling) => profiling,
            Err(error) => return skip(error),
        };
        let armed = || {
            let coverage = profiling.read().coverage;
            assert_eq!(coverage.refused, 0, "{coverage:?}");
            coverage.armed as usize
        };
        let before = armed();
        for round in 1..=20 {
            let meet = Barrier::new(THREADS + 1);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        meet.wait();
                        // Until this one has an event.
                        meet.wait();
                        untouched(PAGES).chunks_mut(4096).for_each(|page| page[0] = black_box(1));
                    });
                }
                meet.wait();
                while armed() < before + round * THREADS {
                    std::thread::yield_now();
                }
                meet.wait();
            });
        }
        let profile = profiling.read();
        let samples = profile.samples.iter().map(|row| row.values[0]).sum::<u64>() + profile.coverage.dropped;
        assert!(samples >= (20 * THREADS * PAGES) as u64, "{samples}: {:?}", profile.coverage);
    });
}
