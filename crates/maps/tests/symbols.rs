//! Symbols of real files: of this program, and of copies of it that are hard to read.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use dormouse_maps::symbols::{Symbol, Symbolizer};
use dormouse_maps::{AddressSpace, Kind};

const PAGE: u64 = 4096;

/// The function that the tests ask about.
#[inline(never)]
fn tea_house() -> u64 {
    std::hint::black_box(tea_house as *const () as u64)
}

/// Where it is in the file of this program.
fn offset_of_tea_house() -> u64 {
    let space = AddressSpace::own().unwrap();
    let found = space.resolve(tea_house()).unwrap().unwrap();
    found.offset(tea_house())
}

fn own_program() -> Vec<u8> {
    fs::read("/proc/self/exe").unwrap()
}

/// A page of a file, mapped as code.
struct Code {
    start: *mut libc::c_void,
}

impl Code {
    fn map(file: &File, offset: u64) -> Self {
        // SAFETY: a new mapping where the kernel likes it; nobody runs what is there.
        let start = unsafe {
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            let offset = (offset & !(PAGE - 1)) as libc::off_t;
            libc::mmap(ptr::null_mut(), PAGE as usize, prot, libc::MAP_PRIVATE, file.as_raw_fd(), offset)
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start }
    }

    fn addr(&self, offset: u64) -> u64 {
        self.start as u64 + offset % PAGE
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has a reference into it.
        unsafe { libc::munmap(self.start, PAGE as usize) };
    }
}

/// What stands at `offset` of `file` when that is mapped, and as what.
fn mapped(file: &File, offset: u64, before_asking: impl FnOnce()) -> (Kind, Arc<Symbol>) {
    let code = Code::map(file, offset);
    before_asking();
    let space = AddressSpace::own().unwrap();
    let place = Symbolizer::new().symbolize(&space, code.addr(offset)).unwrap().unwrap();
    (place.found.mapping.value.kind, place.symbol)
}

#[track_caller]
fn assert_is_tea_house(symbol: &Symbol) {
    let function = symbol.function().unwrap_or_else(|| panic!("{symbol:?} has a name"));
    assert_eq!((&*function.function, function.offset), ("symbols::tea_house", Some(0)), "{symbol:?}");
    let source = function.source.as_ref().unwrap();
    assert!(source.file.ends_with("tests/symbols.rs") && source.line.is_some(), "{source}");
}

#[test]
fn a_function_of_our_own_has_name_offset_and_line() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let place = symbolizer.symbolize(&space, tea_house()).unwrap().unwrap();
    assert_is_tea_house(&place.symbol);
    let behind = symbolizer.symbolize(&space, tea_house() + 1).unwrap().unwrap();
    assert_eq!(behind.symbol.to_string(), "symbols::tea_house+0x1");
    let again = symbolizer.symbolize(&space, tea_house()).unwrap().unwrap();
    assert!(Arc::ptr_eq(&place.symbol, &again.symbol), "asked for twice, it is looked up once");
    let data = Box::new(0);
    let place = symbolizer.symbolize(&space, ptr::from_ref(&*data) as u64).unwrap().unwrap();
    assert_eq!(place.symbol.function(), None);
    assert_eq!(symbolizer.symbolize(&space, 0).unwrap(), None);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_was_inlined_stands_before_what_it_was_inlined_into() {
    #[inline(always)]
    fn cup() -> u64 {
        let here: u64;
        // SAFETY: reads the address of the next instruction.
        unsafe { std::arch::asm!("lea {}, [rip]", out(reg) here, options(nomem, nostack, preserves_flags)) };
        here
    }
    #[inline(never)]
    fn table() -> u64 {
        cup()
    }
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let symbol = symbolizer.symbolize(&space, table()).unwrap().unwrap().symbol;
    let [inner, outer] = &symbol.frames[..] else { panic!("{symbol:?}") };
    assert!(inner.function.ends_with("cup") && inner.offset.is_none(), "{inner:?}");
    assert!(outer.function.ends_with("table") && outer.offset.is_some(), "{outer:?}");
    let line = |frame: &dormouse_maps::symbols::Frame| frame.source.as_ref().unwrap().line.unwrap();
    assert!(line(inner) < line(outer), "each frame has its own line: {symbol:?}");
}

#[test]
fn a_library_without_debug_information_has_its_dynamic_symbols() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let symbol = symbolizer.symbolize(&space, libc::getpid as *const () as u64).unwrap().unwrap().symbol;
    assert!(symbol.function().unwrap().function.contains("getpid"), "{symbol:?}");
    assert!(symbol.object.contains("libc"), "{symbol:?}");
}

#[test]
fn the_kernels_own_code_has_names() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let vdso = space.mappings().unwrap().into_iter().find(|mapping| mapping.value.kind == Kind::Vdso);
    let Some(vdso) = vdso else {
        eprintln!("skipped: this kernel gives no code to processes");
        return;
    };
    let names: Vec<String> = (vdso.start..vdso.last)
        .step_by(16)
        .map(|addr| symbolizer.symbolize(&space, addr).unwrap().unwrap().symbol.to_string())
        .collect();
    assert!(names.iter().any(|name| name.contains("clock_gettime")), "{names:?}");
}

#[test]
fn a_file_that_was_deleted_is_found_and_not_the_one_that_has_its_name() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("copy");
    fs::write(&path, own_program()).unwrap();
    let file = File::open(&path).unwrap();
    let (kind, symbol) = mapped(&file, offset, || {
        fs::remove_file(&path).unwrap();
        fs::write(&path, "something else").unwrap();
    });
    assert_eq!((kind, &*symbol.object), (Kind::Deleted, "copy"));
    if symbol.frames.is_empty() {
        eprintln!("skipped: /proc/self/map_files is closed to this user");
        return;
    }
    assert_is_tea_house(&symbol);
}

#[test]
fn a_file_whose_name_only_reads_as_deleted_is_found() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("copy (deleted)");
    fs::write(&path, own_program()).unwrap();
    assert_is_tea_house(&mapped(&File::open(&path).unwrap(), offset, || {}).1);
}

#[test]
fn a_file_in_memory_is_found() {
    // SAFETY: a terminated name; the descriptor is new.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC)) };
    file.write_all(&own_program()).unwrap();
    let (kind, symbol) = mapped(&file, offset_of_tea_house(), || {});
    assert_eq!((kind, &*symbol.object), (Kind::Memfd, "memfd:code"));
    if symbol.frames.is_empty() {
        eprintln!("skipped: /proc/self/map_files is closed to this user");
        return;
    }
    assert_is_tea_house(&symbol);
}

#[test]
fn without_any_symbol_the_object_and_the_place_in_it_remain() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("stripped");
    fs::write(&path, own_program()).unwrap();
    if !Command::new("strip").arg(&path).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no strip");
        return;
    }
    let (_, symbol) = mapped(&File::open(&path).unwrap(), offset, || {});
    assert_eq!(symbol.to_string(), format!("stripped+{offset:#x}"));

    let path = directory.path().join("no program");
    fs::write(&path, vec![b'x'; 2 * PAGE as usize]).unwrap();
    let (_, symbol) = mapped(&File::open(&path).unwrap(), PAGE + 5, || {});
    assert_eq!(symbol.to_string(), "no program+0x1005");
}

#[test]
fn registered_code_has_the_name_it_was_registered_under() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    for name in ["first", "second"] {
        space.register(0x1000..0x1100, name, 1).unwrap();
        let symbol = symbolizer.symbolize(&space, 0x1010).unwrap().unwrap().symbol;
        assert_eq!(symbol.to_string(), format!("{name}+0x10"));
    }
}

#[test]
fn a_file_can_be_asked_without_a_process() {
    let mut symbolizer = Symbolizer::new();
    let path = fs::canonicalize("/proc/self/exe").unwrap();
    let symbol = symbolizer.symbolize_file(&path, offset_of_tea_house()).unwrap();
    assert_is_tea_house(&symbol);
    let error = symbolizer.symbolize_file(Path::new("/nothing/here"), 0).unwrap_err();
    assert!(error.to_string().starts_with("cannot read symbols of /nothing/here: "), "{error}");
    let text = tempfile::NamedTempFile::new().unwrap();
    fs::write(&text, "no program").unwrap();
    assert!(symbolizer.symbolize_file(text.path(), 0).is_err());
}

#[test]
fn separate_debug_information_is_found_by_build_id() {
    let directory = tempfile::tempdir().unwrap();
    let space = AddressSpace::own().unwrap();
    let found = space.resolve(tea_house()).unwrap().unwrap();
    let Some(id) = space.build_id(&found.mapping) else {
        eprintln!("skipped: this program has no build id, or the kernel does not tell (Linux 6.11)");
        return;
    };
    let hex: Vec<String> = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let place = directory.path().join(".build-id").join(&hex[0]);
    fs::create_dir_all(&place).unwrap();
    let debug = place.join(format!("{}.debug", hex[1..].concat()));
    let copied = Command::new("objcopy")
        .arg("--only-keep-debug")
        .args([&std::env::current_exe().unwrap(), &debug])
        .status();
    if !copied.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no objcopy");
        return;
    }
    let mappings = space.mappings().unwrap();
    let base = mappings.iter().find(|mapping| mapping.value.object == found.mapping.value.object).unwrap();
    assert_eq!(base.value.offset, 0);
    let mut symbolizer = Symbolizer::with_debug_dirs([directory.path()]);
    let symbol = symbolizer.symbolize_build_id(&id, tea_house() - base.start).unwrap();
    assert_is_tea_house(&symbol);
    let error = symbolizer.symbolize_build_id(&[1, 2, 3], 0).unwrap_err();
    assert!(error.to_string().contains(".build-id/01/0203.debug"), "{error}");
}

#[test]
fn broken_files_have_fewer_symbols_and_nothing_worse() {
    let (directory, whole, offset) = (tempfile::tempdir().unwrap(), own_program(), offset_of_tea_house());
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut named = 0;
    for round in 0..40 {
        let mut broken = whole.clone();
        match round % 4 {
            // Cut off, in the headers or anywhere.
            0 => broken.truncate((random() % 4096) as usize),
            1 => broken.truncate((random() % whole.len() as u64) as usize),
            // Its head, or anything, is noise.
            kind => {
                let range = if kind == 2 { 1024 } else { whole.len() as u64 };
                for _ in 0..if kind == 2 { 4 } else { 20_000 } {
                    broken[(random() % range) as usize] = random() as u8;
                }
            }
        }
        let path = directory.path().join(round.to_string());
        fs::write(&path, &broken).unwrap();
        let symbol = Symbolizer::new().symbolize_file(&path, offset);
        named += usize::from(symbol.is_ok_and(|symbol| !symbol.frames.is_empty()));
        fs::remove_file(&path).unwrap();
    }
    assert!(named < 40, "some of them were broken");
}
