//! Each row beside what `gimli` makes of the same entry.
#![cfg(not(miri))]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use dormouse_unwind::{
    CallerRule, CallerWay, FrameBase, FrameRule, MappedBytes, MemorySource, ProcessMemory, SavedAt,
    UnwindTables, arch,
};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, NativeEndian, Operation, Register, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow,
};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

type Section<'a> = EhFrame<EndianSlice<'a, NativeEndian>>;

const FRAME: Register = Register(arch::FRAME as u16);
const STACK: Register = Register(arch::STACK as u16);
const RETURN: Register = Register(arch::RETURN as u16);

/// Where a file that is not loaded is taken to be.
const MOVED: u64 = 0x7f00_0000_0000;

/// The operations of an expression, as text.
fn operations(
    expression: UnwindExpression<usize>,
    section: &Section<'_>,
    of: gimli::Encoding,
) -> Vec<String> {
    let mut operations = expression.get(section).unwrap().operations(of);
    std::iter::from_fn(|| operations.next().unwrap())
        .map(|operation| match operation {
            Operation::RegisterOffset { register, offset, .. } => format!("r{}{offset:+}", register.0),
            Operation::UnsignedConstant { value } => value.to_string(),
            Operation::Deref { size: 8, .. } => "*".to_owned(),
            other => format!("{other:?}"),
        })
        .collect()
}

/// The register and the distance of `r7+8`.
fn register(text: &str) -> Option<(Register, i32)> {
    let at = text.find(['+', '-'])?;
    Some((Register(text.strip_prefix('r')?[..at - 1].parse().ok()?), text[at..].parse().ok()?))
}

/// The rule that a row of gimli's stands for.
fn rule_of(
    row: &UnwindTableRow<usize>,
    section: &Section<'_>,
    of: gimli::Encoding,
    is_interrupted: bool,
) -> FrameRule {
    if row.register(RETURN) == Some(RegisterRule::Undefined) {
        return FrameRule::Outermost;
    }
    let caller = || {
        let mut is_indirect = false;
        let (from, distance, stub) = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => (register, i32::try_from(offset).ok()?, None),
            CfaRule::Expression(expression) => {
                let operations = operations(expression, section, of);
                let operations: Vec<_> = operations.iter().map(String::as_str).collect();
                match operations[..] {
                    [place, "*"] => {
                        is_indirect = true;
                        let (from, distance) = register(place)?;
                        (from, distance, None)
                    }
                    ["r7+8", "r16+0", "15", "And", pushed, "Ge", "3", "Shl", "Plus"] => {
                        (STACK, 8, pushed.parse().ok())
                    }
                    _ => return None,
                }
            }
        };
        let base = match (from, stub) {
            (_, Some(pushed)) => FrameBase::Stub(pushed),
            (STACK, _) => FrameBase::Stack,
            (FRAME, _) => FrameBase::Frame,
            _ => return None,
        };
        let saved = |rule| match rule {
            RegisterRule::Offset(at) => Some(SavedAt::Caller(i32::try_from(at).ok()?)),
            RegisterRule::Expression(expression) => {
                let operations = operations(expression, section, of);
                let [place] = &operations[..] else { return None };
                register(place).filter(|&(register, _)| register == from).map(|(_, at)| SavedAt::Base(at))
            }
            _ => None,
        };
        let frame = match row.register(FRAME) {
            None | Some(RegisterRule::SameValue) => None,
            Some(rule) => Some(saved(rule)?),
        };
        let returns_to = match row.register(RETURN) {
            None | Some(RegisterRule::SameValue) if arch::HAS_LINK => SavedAt::Link,
            rule => saved(rule?)?,
        };
        Some(CallerRule { base, distance, is_indirect, returns_to, frame, is_interrupted })
    };
    caller().map_or(FrameRule::Unknown, FrameRule::Caller)
}

/// The memory of a file as the loader would map it.
struct Image<'a>(Vec<MappedBytes<'a>>);

impl MemorySource for Image<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
        self.0.iter().filter_map(|segment| segment.read(address, into)).max().or(Some(0))
    }
}

/// How the rows of an object compare.
#[derive(Debug, Default)]
struct Compared {
    rows: usize,
    /// Those with a rule.
    known: usize,
    /// The bytes of the table, and of the section that it was made from.
    sizes: (usize, usize),
}

/// Compares all rows of an object, of which `memory` has the bytes from `moved` on.
fn compare(name: &str, file: &[u8], memory: impl MemorySource, moved: u64) -> Compared {
    let object = object::File::parse(file).unwrap();
    let Some(entries) = object.section_by_name(".eh_frame") else { return Compared::default() };
    let mut maps = String::new();
    let mut end = 0;
    for segment in object.segments() {
        let (start, length) =
            (moved + (segment.address() & !4095), segment.address() % 4096 + segment.size());
        let start = start.max(end);
        end = (moved + (segment.address() & !4095) + length).next_multiple_of(4096);
        let is_code = matches!(segment.flags(), object::SegmentFlags::Elf { p_flags } if p_flags & 1 != 0);
        let (right, offset) = (if is_code { 'x' } else { '-' }, segment.file_range().0 & !4095);
        writeln!(maps, "{start:x}-{end:x} r-{right}p {offset:08x} fe:01 7 /{name}").unwrap();
    }
    let mut tables = UnwindTables::new(memory);
    tables.update(maps.as_bytes());

    let section = EhFrame::new(entries.data().unwrap(), NativeEndian);
    let bases = BaseAddresses::default().set_eh_frame(entries.address());
    let (mut context, mut all) = (UnwindContext::new(), section.entries(&bases));
    let (mut compared, mut covered, mut inside) = (Compared::default(), Vec::new(), moved);
    while let Some(entry) = all.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let entry = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut wanted = entry.rows(&section, &bases, &mut context).unwrap();
        covered.push(moved + entry.initial_address()..moved + entry.end_address());
        inside = moved + entry.initial_address();
        let is_interrupted = entry.is_signal_trampoline();
        while let Some(row) = wanted.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address().min(entry.end_address()));
            if start >= end {
                continue;
            }
            let right = rule_of(row, &section, entry.cie().encoding(), is_interrupted);
            for at in [start, end - 1, start + (end - start) / 2] {
                let found = tables.code(moved + at);
                assert_eq!(
                    found,
                    CallerWay::Ruled(right),
                    "{name}: {at:#x} in {:#x}",
                    entry.initial_address()
                );
            }
            compared.rows += 1;
            compared.known += usize::from(right != FrameRule::Unknown);
        }
    }
    // Between entries that are not only padded frame pointers are followed.
    covered.sort_by_key(|range| range.start);
    for pair in covered.windows(2).filter(|pair| pair[0].end + 16 <= pair[1].start) {
        for at in [pair[0].end, pair[1].start - 1] {
            let found = tables.code(at);
            assert!(
                matches!(found, CallerWay::None | CallerWay::Ruled(FrameRule::UNCOVERED)),
                "{name}: {at:#x}: {found:?}"
            );
        }
    }
    let table = tables.read_whole(inside).unwrap();
    assert!(table.rows().is_sorted_by(|one, other| one.0 < other.0), "{name}");
    compared.sizes = (table.size(), entries.size() as usize);
    compared
}

/// Compares all rows of a file that is not loaded.
fn compare_file(path: &Path) -> Compared {
    let file = std::fs::read(path).unwrap();
    let object = object::File::parse(&file[..]).unwrap();
    let segments = object.segments().map(|segment| {
        // The loader maps whole pages of the file.
        let (offset, length) = segment.file_range();
        let before = (segment.address() % 4096) as usize;
        let bytes = &file[offset as usize - before..(offset + length) as usize];
        MappedBytes { address: MOVED + segment.address() - before as u64, bytes }
    });
    compare(&path.to_string_lossy(), &file, Image(segments.collect()), MOVED)
}

/// The objects that this program has mapped, what lies beside the C library, and what the
/// environment names.
fn files() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains(" r-xp "));
    let mut files: Vec<_> = mapped
        .filter_map(|line| line.split_once('/').map(|(_, path)| PathBuf::from(format!("/{path}"))))
        .collect();
    let libc = files.iter().find(|path| path.ends_with("libc.so.6")).and_then(|path| path.parent());
    let libc = libc.map(Path::to_owned);
    for name in ["libm.so.6", "libstdc++.so.6", "libssl.so.3", "libcrypto.so.3", "libz.so.1"] {
        files.extend(libc.iter().map(|folder| folder.join(name)).filter(|path| path.exists()));
    }
    let named = std::env::var("DORMOUSE_TEST_OBJECTS").unwrap_or_default();
    files.extend(std::env::split_paths(&named).filter(|path| path.exists()));
    files.sort();
    files.dedup();
    files
}

#[test]
fn each_row_is_that_of_dwarf() {
    let files = files();
    assert!(files.contains(&std::env::current_exe().unwrap()), "{files:?}");
    for file in &files {
        let Compared { rows, known, sizes: (table, section) } = compare_file(file);
        println!("{}: {rows} rows, {known} with a rule, {table} bytes for {section}", file.display());
        assert!(rows > 100 && known * 100 > rows * 98, "{}: {known} of {rows}", file.display());
    }
    assert!(files.iter().any(|file| is_c_library(file)), "{files:?}");
}

fn is_c_library(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libc"))
}

#[test]
fn the_kernels_own_object_has_rows() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return dormouse_testkit::skip("the kernel maps no object");
    };
    let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    let memory = ProcessMemory::own().unwrap();
    let mut bytes = vec![0; (end - start) as usize];
    assert_eq!(memory.read(start, &mut bytes), Some(bytes.len()));
    let Compared { rows, known, .. } = compare("vDSO", &bytes, memory, start);
    if rows == 0 {
        return dormouse_testkit::skip("the kernel's object has no table");
    }
    assert!(rows > 0 && known * 100 > rows * 90, "{known} of {rows}");
}

#[test]
fn what_is_learned_stays_with_its_code() {
    let mut tables = UnwindTables::new(ProcessMemory::own().unwrap());
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let here = what_is_learned_stays_with_its_code as *const () as u64;
    assert_eq!(tables.code(here), CallerWay::None);
    tables.update(&maps);
    let CallerWay::Ruled(FrameRule::Caller(rule)) = tables.code(here) else {
        panic!("{:?}", tables.code(here))
    };
    let (distance, returns_to) = if arch::HAS_LINK { (0, SavedAt::Link) } else { (8, SavedAt::Caller(-8)) };
    assert_eq!((rule.base, rule.distance, rule.returns_to), (FrameBase::Stack, distance, returns_to));
    let size = tables.size();
    assert!(size > 0);
    tables.update(&maps);
    tables.code(here);
    assert_eq!(tables.size(), size);
    // Without it, its rows are gone.
    let others = maps.split_inclusive(|&byte| byte == b'\n');
    let own = std::env::current_exe().unwrap();
    let others = others.filter(|line| !String::from_utf8_lossy(line).contains(own.to_str().unwrap()));
    tables.update(&others.flatten().copied().collect::<Vec<_>>());
    assert_eq!((tables.code(here), tables.is_code(here)), (CallerWay::None, false));
    assert!(tables.size() < size);
}

#[test]
fn the_longest_table_makes_room() {
    let mut tables = UnwindTables::new(ProcessMemory::own().unwrap());
    tables.update(&std::fs::read("/proc/self/maps").unwrap());
    tables.set_most(20_000);
    let here = the_longest_table_makes_room as *const () as u64;
    let right = tables.code(here);
    tables.read_whole(here);
    assert!(tables.forgotten() > 0 && tables.size() <= 20_000, "{} {}", tables.forgotten(), tables.size());
    assert_eq!(tables.code(here), right);
}
