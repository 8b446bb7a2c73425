//! Files that somebody else made so that a reader of their symbols waits, dies, or opens something.
//!
//! Each is a copy of this program that is changed in one way. Each time there is an answer
//! soon, with fewer symbols at most.

#![allow(unsafe_code)]

use crate::code;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use code::{Code, symbol_in};
use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{Symbol, Symbolizer};
use dormouse_testkit::skip;
use flate2::{Compress, Compression, FlushCompress};

/// After this nobody waits for an answer any more.
const PATIENCE: Duration = Duration::from_secs(60);
const SHF_COMPRESSED: u64 = 0x800;

/// The function that the tests ask about.
#[inline(never)]
fn tea_house() -> u64 {
    std::hint::black_box(tea_house as *const () as u64)
}

fn offset_of_tea_house() -> u64 {
    let space = AddressSpace::own().unwrap();
    space.resolve_now(tea_house()).unwrap().unwrap().offset_of(tea_house())
}

fn own_program() -> Vec<u8> {
    fs::read("/proc/self/exe").unwrap()
}

/// A symbolizer that looks for debug information beside the object alone.
fn symbolizer() -> Symbolizer {
    Symbolizer::with_debug_dirs([""; 0])
}

/// The symbol in `path` where this program has its function.
fn ask(path: &Path) -> Arc<Symbol> {
    let (path, offset) = (path.to_owned(), offset_of_tea_house());
    within_patience(move || symbol_in(&path, offset, &mut symbolizer()))
}

#[track_caller]
fn within_patience<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait.recv_timeout(PATIENCE).expect("there is an answer, and the reader does not panic")
}

fn name_and_line(symbol: &Symbol) -> (Option<&str>, bool) {
    let function = symbol.function();
    (function.map(|f| &*f.function), function.is_some_and(|f| f.source.is_some()))
}

const NAME: Option<&str> = Some("all::hostile_files::tea_house");

/// A section's header: where it is in the file, and where the section is.
struct Section {
    header: usize,
    offset: usize,
    size: usize,
}

fn section(file: &[u8], name: &str) -> Section {
    let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap()) as usize;
    let (table, count) = (long(40), half(60));
    let names = long(table + 64 * half(62) + 24);
    let is_it = |header: &usize| {
        let at = names + u32::from_le_bytes(file[*header..*header + 4].try_into().unwrap()) as usize;
        file[at..].starts_with(format!("{name}\0").as_bytes())
    };
    let header = (0..count).map(|i| table + 64 * i).find(is_it).expect("it has that section");
    Section { header, offset: long(header + 24), size: long(header + 32) }
}

/// Has a section say that it is compressed, with `stream` in it, and becomes `size` long.
fn compress(file: &mut Vec<u8>, name: &str, size: u64, stream: &[u8]) {
    let at = section(file, name).header;
    let flags = u64::from_le_bytes(file[at + 8..at + 16].try_into().unwrap()) | SHF_COMPRESSED;
    file.resize(file.len().next_multiple_of(16), 0);
    let offset = file.len() as u64;
    file[at + 8..at + 16].copy_from_slice(&flags.to_le_bytes());
    file[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
    file[at + 32..at + 40].copy_from_slice(&(24 + stream.len() as u64).to_le_bytes());
    for word in [1, size, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(stream);
}

/// A mebibyte of zeros, compressed, so that it can be put behind others.
fn zeros() -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut next) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
    let mut compress = Compress::new(Compression::best(), true);
    for out in [&mut head, &mut next] {
        compress.compress_vec(&vec![0; 1 << 20], out, FlushCompress::Full).unwrap();
    }
    (head, next)
}

/// A watch for anybody who opens one of some files.
struct Opened(File);

impl Opened {
    fn watch(paths: &[&Path]) -> Self {
        // SAFETY: no pointer; the descriptor is new.
        let watch = unsafe { File::from_raw_fd(libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC)) };
        for path in paths {
            let path = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: a terminated name.
            let added = unsafe { libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr(), libc::IN_OPEN) };
            assert!(added >= 0, "{}", io::Error::last_os_error());
        }
        Self(watch)
    }

    fn happened(&self) -> bool {
        (&self.0).read(&mut [0; 4096]).is_ok_and(|n| n > 0)
    }
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a terminated name.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "{}", io::Error::last_os_error());
}

fn objcopy<const N: usize>(args: [&Path; N]) -> bool {
    Command::new("objcopy").args(args).status().is_ok_and(|status| status.success())
}

/// A copy of this program without debug information and with `link` in the section `name`; `None`
/// without tools.
fn linked(directory: &Path, name: &str, link: &[u8]) -> Option<PathBuf> {
    let (content, out) = (directory.join("link"), directory.join("linked"));
    fs::write(&content, link).unwrap();
    let add = format!("{name}={}", content.display());
    let own = std::env::current_exe().unwrap();
    let is_done = objcopy(["--strip-debug".as_ref(), "--add-section".as_ref(), add.as_ref(), &own, &out]);
    if !is_done {
        skip("there is no objcopy");
    }
    is_done.then_some(out)
}

fn link_to(name: &[u8]) -> Vec<u8> {
    let mut link = name.to_vec();
    link.resize((name.len() + 1).next_multiple_of(4), 0);
    link.extend_from_slice(&[1, 2, 3, 4]);
    link
}

#[test]
fn links_open_nothing_but_debug_information() {
    let directory = tempfile::tempdir().unwrap();
    let (inner, pipe, text) =
        (directory.path().join("inner"), directory.path().join("pipe"), directory.path().join("text"));
    fs::create_dir(&inner).unwrap();
    fifo(&pipe);
    fifo(&inner.join("pipe"));
    fs::write(&text, "of no concern to others").unwrap();
    std::os::unix::fs::symlink(&text, inner.join("symlink")).unwrap();
    let inner_pipe = inner.join("pipe");
    let opened = Opened::watch(&[&pipe, &inner_pipe, &text]);
    let names: [&[u8]; 6] =
        [b"pipe", b"../pipe", b"../text", b"symlink", pipe.as_os_str().as_bytes(), b"/dev/ptmx"];
    for section in [".gnu_debuglink", ".gnu_debugaltlink"] {
        for name in names {
            let link = match section {
                ".gnu_debuglink" => link_to(name),
                _ => [name, &b"\0twelve bytes"[..]].concat(),
            };
            let Some(path) = linked(&inner, section, &link) else { return };
            let symbol = ask(&path);
            assert_eq!(name_and_line(&symbol), (NAME, false), "{section}: {}", name.escape_ascii());
            assert!(!opened.happened(), "{section}: {}", name.escape_ascii());
        }
    }
    File::open(&text).unwrap();
    assert!(opened.happened(), "the watch sees what is opened");
}

#[test]
fn boundless_sections_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (head, next) = zeros();
    let two_gib = [&head[..], &next.repeat(2047)].concat();
    for (what, size, stream) in [
        ("says that it is 64 TiB", 1 << 46, &head[..]),
        ("says more than can be", u64::MAX, &head),
        ("is 2 GiB", 2 << 30, &two_gib),
        ("is 2 GiB and says 4 KiB", 4096, &two_gib),
        ("is 1 MiB and says 900", 900 << 20, &head),
    ] {
        let mut file = own_program();
        compress(&mut file, ".debug_str", size, stream);
        let path = directory.path().join("bomb");
        fs::write(&path, &file).unwrap();
        let symbol = ask(&path);
        assert_eq!(name_and_line(&symbol).0, NAME, "{what}: {symbol:?}");
    }
    let mut file = own_program();
    compress(&mut file, ".symtab", 1 << 46, &head);
    let path = directory.path().join("bomb");
    fs::write(&path, &file).unwrap();
    assert_eq!(ask(&path).function(), None, "without symbols there is nothing to read");
}

#[test]
fn file_cut_off_meanwhile_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut");
    let whole = own_program();
    fs::write(&path, &whole).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let mut named = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.set_len(4096).unwrap();
                file.write_all_at(&whole[4096..], 4096).unwrap();
            }
        });
        for _ in 0..10 {
            named += usize::from(ask(&path).function().is_some());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(named < 10, "it was cut off at times");
}

#[test]
fn pipe_in_place_of_a_file_never_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let (path, pipe) = (directory.path().join("file"), directory.path().join("pipe"));
    fs::write(&path, own_program()).unwrap();
    fifo(&pipe);
    let stop = AtomicBool::new(false);
    let names = [&path, &pipe].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    let code = Arc::new(Mutex::new(Code::map(&File::open(&path).unwrap(), offset_of_tea_house())));
    let (mut pipes, mut named) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (here, flag) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
                // SAFETY: terminated names.
                unsafe { libc::renameat2(here, names[0].as_ptr(), here, names[1].as_ptr(), flag) };
            }
        });
        // The file is known by its range too, where this user may look at that.
        while (pipes < 40 || named == 0) && pipes < 4_000 {
            pipes += usize::from(fs::metadata(&path).unwrap().file_type().is_fifo());
            let code = Arc::clone(&code);
            let symbol = within_patience(move || code.lock().unwrap().symbol(&mut symbolizer()).1);
            named += usize::from(symbol.function().is_some());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(pipes >= 40 && named > 0, "it was a pipe {pipes} times, and found {named} times");
}

/// Makes a file somebody else's, which takes root.
fn give_away(path: &Path) -> bool {
    let is_done = std::os::unix::fs::chown(path, Some(65534), None).is_ok();
    if !is_done {
        skip("only root has files of others");
    }
    is_done
}

#[test]
fn units_without_number_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = own_program();
    let Section { header, .. } = section(&file, ".debug_info");
    let offset = file.len() as u64;
    // Version 4, no abbreviations, addresses of eight bytes, one empty entry.
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 0];
    let units = unit.repeat(2_000_000);
    file[header + 24..header + 32].copy_from_slice(&offset.to_le_bytes());
    file[header + 32..header + 40].copy_from_slice(&(units.len() as u64).to_le_bytes());
    file.extend_from_slice(&units);
    let path = directory.path().join("units");
    fs::write(&path, &file).unwrap();
    if !give_away(&path) {
        return;
    }
    assert_eq!(name_and_line(&ask(&path)), (NAME, false));
}

#[test]
fn units_sharing_a_boundless_table_are_left_out() {
    const UNITS: u32 = 100_000;
    let directory = tempfile::tempdir().unwrap();
    // Three million abbreviations without children and attributes.
    let mut abbreviations = Vec::new();
    for code in 1..3_000_000_u32 {
        let mut rest = code;
        while rest >= 0x80 {
            abbreviations.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        abbreviations.extend([rest as u8, 0x11, 0, 0, 0]);
    }
    abbreviations.push(0);
    // All units begin where the table does, or each of them a bit behind the one before.
    for step in [0, 4] {
        let mut units = Vec::new();
        for unit in 0..UNITS {
            units.extend([8, 0, 0, 0, 4, 0]);
            units.extend((600_000 + unit * step).to_le_bytes());
            units.extend([8, 0]);
        }
        let mut file = own_program();
        for (name, content) in [(".debug_info", &units), (".debug_abbrev", &abbreviations)] {
            let header = section(&file, name).header;
            let offset = file.len() as u64;
            file[header + 24..header + 32].copy_from_slice(&offset.to_le_bytes());
            file[header + 32..header + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend_from_slice(content);
        }
        let path = directory.path().join(step.to_string());
        fs::write(&path, &file).unwrap();
        if !give_away(&path) {
            return;
        }
        assert_eq!(name_and_line(&ask(&path)), (NAME, false));
    }
}

#[test]
fn deeply_nested_entries_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (start, end) = (offset_of_tea_house(), 1_u64 << 40);
    // Two abbreviations with children: a unit and a function of all addresses, and an inlined
    // function without anything.
    let abbreviations: [&[u8]; 4] = [
        &[1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0],
        &[2, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0],
        &[3, 0x1d, 1, 0, 0],
        &[0],
    ];
    for depth in [100, 4_000_000] {
        let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
        unit.extend([0, end].map(u64::to_le_bytes).concat());
        unit.extend(b"\x02deep\0");
        unit.extend([0, end].map(u64::to_le_bytes).concat());
        unit.extend(vec![3; depth]);
        unit.extend(vec![0; depth + 2]);
        let mut info = u32::try_from(unit.len()).unwrap().to_le_bytes().to_vec();
        info.extend(unit);
        let mut file = own_program();
        for (name, content) in [(".debug_info", info), (".debug_abbrev", abbreviations.concat())] {
            let Section { header, .. } = section(&file, name);
            let offset = file.len() as u64;
            file[header + 24..header + 32].copy_from_slice(&offset.to_le_bytes());
            file[header + 32..header + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend(content);
        }
        let aranges = section(&file, ".debug_aranges").header;
        file[aranges + 32..aranges + 40].copy_from_slice(&0_u64.to_le_bytes());
        let path = directory.path().join(depth.to_string());
        fs::write(&path, &file).unwrap();
        if !give_away(&path) {
            return;
        }
        let symbol = ask(&path);
        let right = if depth == 100 { Some("deep") } else { NAME };
        assert_eq!(name_and_line(&symbol).0, right, "{depth} of {start:#x}");
    }
}

#[test]
fn sections_beyond_the_end_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    for (name, has_name) in [(".debug_info", true), (".debug_str", true), (".strtab", false)] {
        let mut file = own_program();
        let Section { header, offset, size } = section(&file, name);
        assert!(offset + size <= file.len());
        file[header + 32..header + 40].copy_from_slice(&(1_u64 << 46).to_le_bytes());
        let path = directory.path().join("long");
        fs::write(&path, &file).unwrap();
        assert_eq!(name_and_line(&ask(&path)).0 == NAME, has_name, "{name}");
    }
}

#[test]
fn endless_section_names_are_not_searched() {
    const SECTIONS: u16 = 65_000;
    let directory = tempfile::tempdir().unwrap();
    let mut file = own_program();
    let (names, length) = (file.len() as u64, 16_u64 << 20);
    file.resize(file.len() + length as usize, b'a');
    let table = file.len() as u64;
    for _ in 0..SECTIONS {
        let mut header = [0; 64];
        header[4] = 1;
        header[24..32].copy_from_slice(&names.to_le_bytes());
        header[32..40].copy_from_slice(&length.to_le_bytes());
        file.extend(header);
    }
    file[40..48].copy_from_slice(&table.to_le_bytes());
    file[60..62].copy_from_slice(&SECTIONS.to_le_bytes());
    file[62..64].copy_from_slice(&1_u16.to_le_bytes());
    let path = directory.path().join("names");
    fs::write(&path, &file).unwrap();
    assert_eq!(name_and_line(&ask(&path)), (None, false));
}

#[test]
fn compressed_debug_information_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("compressed");
    let own = std::env::current_exe().unwrap();
    if !objcopy(["--compress-debug-sections=zlib".as_ref(), &own, &path]) {
        skip("there is no objcopy");
        return;
    }
    assert!(fs::metadata(&path).unwrap().len() < fs::metadata(&own).unwrap().len());
    assert_eq!(ask(&path).frames, ask(&own).frames);
}

#[test]
fn link_is_followed_if_the_sum_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let own = std::env::current_exe().unwrap();
    let link = format!("--add-gnu-debuglink={}", at("tea.debug").display());
    let is_done = objcopy(["--only-keep-debug".as_ref(), &own, &at("tea.debug")])
        && objcopy([
            "--strip-all".as_ref(),
            "--remove-section=.note.gnu.build-id".as_ref(),
            link.as_ref(),
            &own,
            &at("tea"),
        ]);
    if !is_done {
        skip("there is no objcopy");
        return;
    }
    assert_eq!(ask(&at("tea")).frames, ask(&own).frames);
    fs::create_dir(at(".debug")).unwrap();
    fs::rename(at("tea.debug"), at(".debug/tea.debug")).unwrap();
    assert_eq!(name_and_line(&ask(&at("tea"))), (NAME, true));
    File::options().append(true).open(at(".debug/tea.debug")).unwrap().write_all(b"x").unwrap();
    assert_eq!(name_and_line(&ask(&at("tea"))), (None, false), "it is another file by now");
}
