//! Files that are read in place, and cut off meanwhile.

use crate::code;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use code::symbol_in;
use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{Symbolizer, survive_cut_files};
use dormouse_testkit::{StopOnDrop, eventually};

/// The function that the test asks about.
#[inline(never)]
fn tea_house() -> u64 {
    std::hint::black_box(tea_house as *const () as u64)
}

#[test]
fn mapped_file_cut_off_is_survived() {
    survive_cut_files().unwrap();
    let space = AddressSpace::own().unwrap();
    let offset = space.resolve_now(tea_house()).unwrap().unwrap().offset_of(tea_house());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut");
    let whole = fs::read("/proc/self/exe").unwrap();
    fs::write(&path, &whole).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let ask = || symbol_in(&path, offset, &mut Symbolizer::with_debug_dirs([""; 0]));
    let has_name = || ask().function().is_some_and(|it| it.function.ends_with("tea_house"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.set_len(4096).unwrap();
                file.write_all_at(&whole[4096..], 4096).unwrap();
            }
        });
        let _stop = StopOnDrop(&stop);
        for _ in 0..20 {
            ask();
        }
        // On a busy machine the other thread may have begun late.
        eventually(|| !has_name());
    });
    assert!(ask().function().is_some_and(|it| it.source.is_some()) && has_name(), "a whole file is read");
}
