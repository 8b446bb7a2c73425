//! Stacks that are not what the C library and the compiler make of them.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{NameFinder, Profile, Profiling, Sample};
use dormouse_testkit::{eventually, in_child};

use super::hogs::{caller, hog_with, leaf, odd, options, weight_in};
use super::unwound::{below_qsort, stacks, unwound, whole};

const WORK: Duration = Duration::from_millis(300);

#[test]
fn garbage_in_the_frame_pointer_is_harmless() {
    in_child(|| {
        let profiling = Profiling::start(&options(1000)).unwrap();
        let unwinding = Profiling::start(&unwound(1000)).unwrap();
        let page = rustix::param::page_size();
        // SAFETY: a new mapping, of which nothing can be read.
        let nothing = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(nothing, libc::MAP_FAILED);
        let nothing = nothing as usize;
        let run = move || {
            // So that it is sampled at once.
            dormouse_sys::thread::current();
            let frames = [0x5555_usize; 64];
            let here = std::hint::black_box(&frames).as_ptr() as usize;
            // The first and the last words of this thread's control block and beyond; itself;
            // unaligned; a page without rights; what no address can be.
            let thread_pointer = dormouse_sys::arch::thread_pointer() as usize;
            for frame in [
                0,
                8,
                1,
                here,
                here + 1,
                here + 8,
                here - 512,
                here + page,
                here + 512 * 1024,
                here + (8 << 20),
                thread_pointer,
                thread_pointer - 16,
                thread_pointer - 8,
                thread_pointer + page,
                nothing,
                nothing + page - 8,
                usize::MAX,
                usize::MAX - 7,
                usize::MAX - 15,
                1 << 63,
                0x8000_0000_0000_0000 - 16,
            ] {
                // SAFETY: the present stack.
                unsafe { hog_with(WORK / 10, 0, frame) };
            }
        };
        thread::spawn(run).join().unwrap();
        run();
        let profile = profiling.read();
        let found = weight_in(&profile, &[odd()]);
        assert!(found > 21 * WORK.as_nanos() as u64 / 10, "{found}: {:?}", profile.coverage);
        // The reader of tables goes on, too. It may not have read those of the chain yet.
        eventually(|| {
            below_qsort(WORK);
            whole(&stacks(&unwinding.read())) > 0
        });
    });
}

#[test]
fn stacks_of_the_programs_own_are_walked() {
    in_child(|| {
        let profiling = Profiling::start(&options(1000)).unwrap();
        // Two frames on a stack from the heap, as a library for fibers makes it.
        let mut fiber = vec![0_usize; 16 * 1024];
        let base = fiber.as_ptr() as usize;
        let at = |word: usize| base + 8 * word;
        (fiber[15_000], fiber[15_001]) = (at(15_100), leaf().start as usize + 2);
        (fiber[15_100], fiber[15_101]) = (0, caller().start as usize + 2);
        let (stack, frame) = (at(14_000) & !15, at(15_000));
        let run = move || {
            // So that it is sampled at once.
            dormouse_sys::thread::current();
            // SAFETY: handlers have the memory below.
            unsafe { hog_with(WORK, stack, frame) };
        };
        thread::spawn(run).join().unwrap();
        let profile = profiling.read();
        let found = weight_in(&profile, &[odd(), leaf(), caller()]);
        assert!(found * 10 > WORK.as_nanos() as u64 * 5, "{found}: {profile:#?}");
        drop(fiber);
    });
}

/// Uses this CPU time on a thread whose stack the host has mapped: on a fiber's stack, right below,
/// with a frame pointer between the two.
struct Between {
    work: Duration,
    stack: usize,
    frame: usize,
    begun: mpsc::Receiver<()>,
}

extern "C" fn run_between(between: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the test's, which waits.
    let between = unsafe { &*between.cast::<Between>() };
    between.begun.recv().unwrap();
    // SAFETY: handlers have the memory below.
    unsafe { hog_with(between.work, between.stack, between.frame) };
    std::ptr::null_mut()
}

#[test]
fn memory_between_stacks_may_go() {
    const PART: usize = 256 * 1024;
    in_child(|| {
        // Of three parts, that of a fiber, one that goes, and the thread's own stack.
        // SAFETY: a new mapping; the thread has its stack, and ends before this one.
        unsafe {
            let (rights, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), 3 * PART, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let (begin, begun) = mpsc::channel();
            let (stack, frame) = (start as usize + PART / 2, start as usize + PART + PART / 2);
            let mut between = Between { work: WORK, stack, frame, begun };
            let mut attributes = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            assert_eq!(libc::pthread_attr_setstack(&raw mut attributes, start.add(2 * PART), PART), 0);
            let mut thread = 0;
            let argument = (&raw mut between).cast();
            let made = libc::pthread_create(&raw mut thread, &raw const attributes, run_between, argument);
            assert_eq!(made, 0);
            // It looks for the stack.
            let profiling = Profiling::start(&options(1000)).unwrap();
            assert_eq!(libc::munmap(start.add(PART), PART), 0);
            begin.send(()).unwrap();
            libc::pthread_join(thread, std::ptr::null_mut());
            let profile = profiling.read();
            assert!(weight_in(&profile, &[odd()]) > 0, "{:?}", profile.coverage);
        }
    });
}

#[test]
#[expect(clippy::large_stack_arrays, reason = "frames that the test lays out on its stack")]
fn a_deep_recursion_is_cut() {
    #[inline(never)]
    fn deeper(frames: &mut [usize], depth: usize) {
        // A chain of frames in the thread's own stack, whatever the compiler makes of this
        // function.
        let base = frames.as_ptr() as usize;
        for n in 0..depth {
            frames[2 * n] = base + 16 * (n + 1);
            frames[2 * n + 1] = leaf().start as usize + 2;
        }
        frames[2 * depth] = 0;
        // SAFETY: the present stack.
        unsafe { hog_with(WORK, 0, base) };
    }
    in_child(|| {
        for (depth, is_cut) in [(50, false), (2000, true)] {
            let profiling = Profiling::start(&options(1000)).unwrap();
            // Where the sampler had to wait for a processor, it has found the thread late.
            let mut profiles = (0..20).map(|_| {
                let run = move || deeper(std::hint::black_box(&mut [0; 4096]), depth);
                thread::Builder::new().name("bare".into()).spawn(run).unwrap().join().unwrap();
                profiling.read()
            });
            let has_many = |profile: &Profile| {
                let coverage = &profile.coverage;
                let (most, least) =
                    if is_cut { (coverage.cut, coverage.ended) } else { (coverage.ended, coverage.cut) };
                most > 10 && most > least
            };
            let profile = profiles.find(has_many).expect("a profile with many such stacks");
            let rows = profile
                .samples
                .iter()
                .filter(|row| profile.stack(row.stack).next().is_some_and(|at| odd().contains(&at)));
            let depths: Vec<_> = rows.map(|row| profile.stack(row.stack).count()).collect();
            // Samples of the moments around the chain are shorter.
            let wanted = if is_cut { 513 } else { depth + 1 };
            assert!(depths.contains(&wanted), "{depths:?}");
            // By no name of a thread: one may end before it is read.
            let symbols = NameFinder::own().unwrap().symbols(&profile);
            let marks =
                |at: u64| symbols.get(at).iter().any(|frame| frame.function == "(deeper than 512 frames)");
            let marked = |row: &Sample| profile.stack(row.stack).position(marks);
            let told: Vec<_> = profile.samples.iter().filter_map(marked).collect();
            assert_eq!(!told.is_empty(), is_cut);
            assert!(told.iter().all(|&at| at == 256), "in the middle: {told:?}");
        }
    });
}
