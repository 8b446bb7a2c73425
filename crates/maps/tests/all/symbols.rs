//! Symbols of real files: of this program, and of copies of it that are hard to read.

#![allow(unsafe_code)]

use crate::arch::behind_here;
use crate::code;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::FromRawFd as _;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Arc;

use code::{Code, PAGE, symbol_in};
use dormouse_maps::symbols::{Frame, Symbol, Symbolizer};
use dormouse_maps::{AddressSpace, Mapping, MappingKind, Region};
use dormouse_testkit::skip;

/// The function that the tests ask about.
#[inline(never)]
fn tea_house() -> u64 {
    std::hint::black_box(tea_house as *const () as u64)
}

/// Where it is in the file of this program.
fn offset_of_tea_house() -> u64 {
    let space = AddressSpace::own().unwrap();
    space.resolve_now(tea_house()).unwrap().unwrap().offset_of(tea_house())
}

fn own_program() -> Vec<u8> {
    fs::read("/proc/self/exe").unwrap()
}

/// The symbol at an address of this process.
fn own(symbolizer: &mut Symbolizer, space: &AddressSpace, addr: u64) -> Arc<Symbol> {
    let mapping = space.resolve_now(addr).unwrap().unwrap();
    symbolizer.symbol(space, &mapping, addr)
}

#[track_caller]
fn assert_is_tea_house(symbol: &Symbol) {
    let function = symbol.function().unwrap_or_else(|| panic!("{symbol:?} has a name"));
    assert_eq!((&*function.function, function.offset), ("all::symbols::tea_house", Some(0)), "{symbol:?}");
    let source = function.source.as_ref().unwrap();
    assert!(source.file.ends_with("tests/all/symbols.rs") && source.line.is_some(), "{source}");
}

#[test]
fn own_function_has_name_offset_and_line() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let symbol = own(&mut symbolizer, &space, tea_house());
    assert_is_tea_house(&symbol);
    assert_eq!(own(&mut symbolizer, &space, tea_house() + 1).to_string(), "all::symbols::tea_house+0x1");
    let again = own(&mut symbolizer, &space, tea_house());
    assert!(Arc::ptr_eq(&symbol, &again), "asked for twice, it is looked up once");
    let data = Box::new(0);
    assert_eq!(own(&mut symbolizer, &space, ptr::from_ref(&*data) as u64).function(), None);
}

#[test]
fn ended_process_keeps_its_names() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let (own, space) = (AddressSpace::own().unwrap(), AddressSpace::of(child.id()).unwrap());
    let read = libc::read as *const () as u64;
    let ours = own.resolve_now(read).unwrap().unwrap();
    let file = |space: &AddressSpace, id| space.object(id).and_then(|object| object.file());
    let wanted = file(&own, ours.value.object);
    let same = |it: &&Mapping<Region>| {
        file(&space, it.value.object) == wanted && it.value.offset == ours.value.offset
    };
    let mappings = loop {
        // The loader maps it when the program begins.
        space.refresh().unwrap();
        let mappings = space.mappings().unwrap();
        if mappings.iter().any(|it| same(&it)) {
            break mappings;
        }
    };
    let theirs = mappings.iter().find(same).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let symbol = Symbolizer::new().symbol(&space, theirs, theirs.start + (read - ours.start));
    let function = symbol.function().unwrap_or_else(|| panic!("{symbol:?} has a name"));
    assert!(function.function.contains("read"), "{symbol:?}");
}

#[test]
fn inlined_functions_stand_before_their_host() {
    #[inline(always)]
    fn cup() -> u64 {
        behind_here!()
    }
    #[inline(never)]
    fn table() -> u64 {
        cup()
    }
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    // Inside of the instruction: the next one may be the host's.
    let symbol = own(&mut symbolizer, &space, table() - 1);
    let [inner, outer] = &symbol.frames[..] else { panic!("{symbol:?}") };
    assert!(inner.function.ends_with("cup") && inner.offset.is_none(), "{inner:?}");
    assert!(outer.function.ends_with("table") && outer.offset.is_some(), "{outer:?}");
    let line = |frame: &Frame| frame.source.as_ref().unwrap().line.unwrap();
    assert!(line(inner) < line(outer), "each frame has its own line: {symbol:?}");
}

#[test]
fn library_without_debug_information_has_names() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let symbol = own(&mut symbolizer, &space, libc::getpid as *const () as u64);
    assert!(symbol.function().unwrap().function.contains("getpid"), "{symbol:?}");
    assert!(symbol.object.contains("libc"), "{symbol:?}");
}

#[test]
fn vdso_has_names() {
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let vdso = space.mappings().unwrap().into_iter().find(|mapping| mapping.value.kind == MappingKind::Vdso);
    let Some(vdso) = vdso else {
        skip("this kernel gives no code to processes");
        return;
    };
    let names: Vec<String> = (vdso.start..vdso.last)
        .step_by(16)
        .map(|addr| own(&mut symbolizer, &space, addr).to_string())
        .collect();
    assert!(names.iter().any(|name| name.contains("clock_gettime")), "{names:?}");
}

#[test]
fn deleted_file_is_found_not_its_successor() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("copy");
    fs::write(&path, own_program()).unwrap();
    let file = File::open(&path).unwrap();
    let code = Code::map(&file, offset);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "something else").unwrap();
    let (kind, symbol) = code.symbol(&mut Symbolizer::new());
    assert_eq!((kind, &*symbol.object), (MappingKind::Deleted, "copy"));
    if symbol.frames.is_empty() {
        skip("/proc/self/map_files is closed to this user");
        return;
    }
    assert_is_tea_house(&symbol);
}

#[test]
fn file_named_like_a_deleted_one_is_found() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("copy (deleted)");
    fs::write(&path, own_program()).unwrap();
    assert_is_tea_house(&symbol_in(&path, offset, &mut Symbolizer::new()));
}

#[test]
fn memfd_is_found() {
    // SAFETY: a terminated name; the descriptor is new.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC)) };
    file.write_all(&own_program()).unwrap();
    let (kind, symbol) = Code::map(&file, offset_of_tea_house()).symbol(&mut Symbolizer::new());
    assert_eq!((kind, &*symbol.object), (MappingKind::Memfd, "memfd:code"));
    if symbol.frames.is_empty() {
        skip("/proc/self/map_files is closed to this user");
        return;
    }
    assert_is_tea_house(&symbol);
}

#[test]
fn stripped_file_leaves_object_and_offset() {
    let (directory, offset) = (tempfile::tempdir().unwrap(), offset_of_tea_house());
    let path = directory.path().join("stripped");
    fs::write(&path, own_program()).unwrap();
    if !Command::new("strip").arg(&path).status().is_ok_and(|status| status.success()) {
        skip("there is no strip");
        return;
    }
    let symbol = symbol_in(&path, offset, &mut Symbolizer::new());
    assert_eq!(symbol.to_string(), format!("stripped+{offset:#x}"));

    let path = directory.path().join("no program");
    fs::write(&path, vec![b'x'; 2 * PAGE as usize]).unwrap();
    let symbol = symbol_in(&path, PAGE + 5, &mut Symbolizer::new());
    assert_eq!(symbol.to_string(), "no program+0x1005");
}

#[test]
fn separate_debug_information_is_found_by_build_id() {
    let directory = tempfile::tempdir().unwrap();
    let space = AddressSpace::own().unwrap();
    let found = space.resolve_now(tea_house()).unwrap().unwrap();
    let Some(id) = space.build_id(&found) else {
        skip("this program has no build id, or the kernel does not tell (Linux 6.11)");
        return;
    };
    let hex: Vec<String> = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let place = directory.path().join(".build-id").join(&hex[0]);
    fs::create_dir_all(&place).unwrap();
    let debug = place.join(format!("{}.debug", hex[1..].concat()));
    let (program, stripped) = (std::env::current_exe().unwrap(), directory.path().join("stripped"));
    for (what, out) in [("--only-keep-debug", &debug), ("--strip-all", &stripped)] {
        let copied = Command::new("objcopy").arg(what).args([&program, out]).status();
        if !copied.is_ok_and(|status| status.success()) {
            skip("there is no objcopy");
            return;
        }
    }
    let ask = |dirs: &[&std::path::Path]| {
        symbol_in(&stripped, offset_of_tea_house(), &mut Symbolizer::with_debug_dirs(dirs.iter().copied()))
    };
    assert!(ask(&[]).frames.is_empty());
    assert_is_tea_house(&ask(&[directory.path()]));
}

#[test]
fn function_path_comes_from_its_symbol() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("tea.rs"), directory.path().join("tea"));
    let text = "mod house { #[inline(never)] pub fn brew(n: usize) -> usize { std::hint::black_box(n) + 1 } }
        fn main() { println!(\"{}\", house::brew(std::env::args().count())); }";
    fs::write(&source, text).unwrap();
    let rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["-Cdebuginfo=line-tables-only", "-Copt-level=1", "-o"])
        .args([&program, &source])
        .status();
    if !rustc.is_ok_and(|status| status.success()) {
        skip("there is no rustc");
        return;
    }
    let symbols = Command::new("nm").arg("-C").arg(&program).output().unwrap().stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    let brew = symbols.lines().find(|line| line.contains("tea::house::brew")).unwrap();
    let addr = u64::from_str_radix(brew.split(' ').next().unwrap(), 16).unwrap();
    // Code is placed behind headers that are not mapped as code, so its address is not its offset.
    let headers = Command::new("readelf").arg("-lW").arg(&program).output().unwrap().stdout;
    let headers = String::from_utf8(headers).unwrap();
    let code = headers.lines().find(|line| line.contains("LOAD") && line.contains("R E")).unwrap();
    let hex = |at: usize| {
        let word = code.split_whitespace().nth(at).unwrap();
        u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()
    };
    let offset = addr - hex(2) + hex(1);
    let symbol = symbol_in(&program, offset, &mut Symbolizer::new());
    let function = symbol.function().unwrap();
    assert_eq!((&*function.function, function.offset), ("tea::house::brew", Some(0)));
    assert!(function.source.is_some(), "{symbol:?}");
}

// The assemblers of some processors mark so what is code and what is data. It never runs.
std::arch::global_asm!(
    ".pushsection .text.dormouse_marked, \"ax\", %progbits",
    ".globl dormouse_marked",
    ".type dormouse_marked, %function",
    "dormouse_marked:",
    ".skip 16, 0",
    "\"$x.1\":",
    ".skip 16, 0",
    ".size dormouse_marked, . - dormouse_marked",
    ".popsection",
);

#[test]
fn marks_in_code_are_no_functions() {
    unsafe extern "C" {
        fn dormouse_marked();
    }
    let (space, mut symbolizer) = (AddressSpace::own().unwrap(), Symbolizer::new());
    let symbol = own(&mut symbolizer, &space, dormouse_marked as *const () as u64 + 20);
    let function = symbol.function().unwrap_or_else(|| panic!("{symbol:?} has a name"));
    assert_eq!((&*function.function, function.offset), ("dormouse_marked", Some(20)));
}

#[test]
fn broken_files_only_lose_symbols() {
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
        named += usize::from(!symbol_in(&path, offset, &mut Symbolizer::new()).frames.is_empty());
        fs::remove_file(&path).unwrap();
    }
    assert!(named < 40, "some of them were broken");
}
