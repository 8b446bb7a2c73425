//! Each row beside what `gimli` makes of the same entry.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![allow(unsafe_code, reason = "the vDSO lies in memory alone")]

use std::path::{Path, PathBuf};

use dormouse_unwind::{FrameBase, FrameRule, MappedBytes, RowTable};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, NativeEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow,
};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

const FRAME: Register = Register(6);
const STACK: Register = Register(7);
const RETURN: Register = Register(16);

/// The rule that a row of gimli's stands for.
fn rule_of(row: &UnwindTableRow<usize>) -> FrameRule {
    if row.register(RETURN) == Some(RegisterRule::Undefined) {
        return FrameRule::Outermost;
    }
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return FrameRule::Unknown };
    let base = match register {
        STACK => FrameBase::Stack,
        FRAME => FrameBase::Frame,
        _ => return FrameRule::Unknown,
    };
    let Some(RegisterRule::Offset(returns_to)) = row.register(RETURN) else {
        return FrameRule::Unknown;
    };
    let frame = match row.register(FRAME) {
        None | Some(RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(at)) => Some(at as i32),
        _ => return FrameRule::Unknown,
    };
    FrameRule::Caller { base, distance: offset as i32, returns_to: returns_to as i32, frame }
}

/// Compares all rows of an object: how many there are, and how many have a rule.
fn compare(name: &str, file: &[u8], moved: u64) -> (usize, usize) {
    let object = object::File::parse(file).unwrap();
    let (Some(index), Some(entries)) =
        (object.section_by_name(".eh_frame_hdr"), object.section_by_name(".eh_frame"))
    else {
        return (0, 0);
    };
    let segment =
        object.segments().find(|it| (it.address()..it.address() + it.size()).contains(&index.address()));
    let segment = segment.unwrap();
    let memory = MappedBytes { address: moved + segment.address(), bytes: segment.data().unwrap() };
    let table = RowTable::read(memory, moved + index.address()).unwrap();

    let section = EhFrame::new(entries.data().unwrap(), NativeEndian);
    let bases = BaseAddresses::default().set_eh_frame(entries.address());
    let (mut context, mut all) = (UnwindContext::new(), section.entries(&bases));
    let (mut rows, mut known, mut covered) = (0, 0, Vec::new());
    while let Some(entry) = all.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let entry = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut wanted = entry.rows(&section, &bases, &mut context).unwrap();
        covered.push(moved + entry.initial_address()..moved + entry.end_address());
        while let Some(row) = wanted.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address().min(entry.end_address()));
            if start >= end {
                continue;
            }
            let right = if entry.is_signal_trampoline() { FrameRule::Unknown } else { rule_of(row) };
            for at in [start, end - 1, start + (end - start) / 2] {
                let found = table.rule((moved + at) as usize);
                assert_eq!(found, right, "{name}: {at:#x} in {:#x}", entry.initial_address());
            }
            rows += 1;
            known += usize::from(right != FrameRule::Unknown);
        }
    }
    // Between the entries nothing is known.
    covered.sort_by_key(|range| range.start);
    for pair in covered.windows(2).filter(|pair| pair[0].end < pair[1].start) {
        for at in [pair[0].end, pair[1].start - 1] {
            assert_eq!(table.rule(at as usize), FrameRule::Unknown, "{name}: {at:#x}");
        }
    }
    let (first, last) = (covered.first().unwrap().start, covered.last().unwrap().end);
    for at in [first - 1, last, 0, u64::MAX] {
        assert!(!table.contains(at as usize) && table.rule(at as usize) == FrameRule::Unknown, "{at:#x}");
    }
    assert!(table.rows().is_sorted_by(|one, other| one.0 < other.0 && one.1 != other.1));
    (rows, known)
}

/// The shared libraries that this program has mapped, and what lies beside the C library.
fn libraries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}")));
    let mut files: Vec<_> = mapped.filter(|path| path.contains(".so")).map(PathBuf::from).collect();
    let libc = files.iter().find(|path| path.ends_with("libc.so.6")).and_then(|path| path.parent());
    let libc = libc.map(Path::to_owned);
    for name in ["libm.so.6", "libstdc++.so.6", "libssl.so.3", "libz.so.1"] {
        files.extend(libc.iter().map(|folder| folder.join(name)).filter(|path| path.exists()));
    }
    files.sort();
    files.dedup();
    files
}

#[test]
fn each_row_is_that_of_dwarf() {
    let files = libraries();
    assert!(!files.is_empty());
    for file in &files {
        let (rows, known) = compare(&file.to_string_lossy(), &std::fs::read(file).unwrap(), 0x7f00_0000_0000);
        println!("{}: {rows} rows, {known} with a rule", file.display());
        assert!(rows > 100 && known * 100 > rows * 90, "{}: {known} of {rows}", file.display());
    }
    assert!(files.iter().any(|file| is_c_library(file)), "{files:?}");
}

fn is_c_library(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libc"))
}

#[test]
fn the_kernels_own_object_has_rows() {
    // SAFETY: looks up a list that the kernel has made.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if start == 0 {
        return dormouse_testkit::skip("the kernel maps no object");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (_, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    let end = usize::from_str_radix(end, 16).unwrap();
    // SAFETY: the kernel has mapped it, and nobody can write it.
    let bytes =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), end - start) };
    let (rows, known) = compare("vDSO", bytes, start as u64);
    assert!(rows > 0 && known * 100 > rows * 90, "{known} of {rows}");
}

#[test]
fn own_libraries_are_found_once() {
    dormouse_unwind::prepare_libraries();
    let libraries = dormouse_unwind::libraries().unwrap();
    let function = libc::getpid as *const () as usize;
    if dormouse_sys::loader::is_in_executable(function) {
        return dormouse_testkit::skip("the C library is linked in");
    }
    assert!(libraries.contains(function));
    assert!(!libraries.contains(own_libraries_are_found_once as *const () as usize));
    assert!(matches!(
        libraries.tables().find(|table| table.contains(function)).unwrap().rule(function),
        FrameRule::Caller { base: FrameBase::Stack, distance: 8, returns_to: -8, frame: None }
    ));
    let sizes: Vec<_> = libraries.tables().map(|table| (table.rows().count(), table.size())).collect();
    println!("rows and bytes: {sizes:?}");
    assert!(sizes.len() >= 2 && sizes.iter().map(|(_, size)| size).sum::<usize>() < 1 << 20, "{sizes:?}");
    dormouse_unwind::prepare_libraries();
    assert!(std::ptr::eq(libraries, dormouse_unwind::libraries().unwrap()));
}
