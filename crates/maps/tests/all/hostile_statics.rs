//! Programs whose symbols and debug information somebody else has written, so that a reader of them
//! dies, goes on for ever, or takes all memory.
//!
//! Each is a program that runs: the kernel does not look at these sections. Each time there is an
//! answer soon.

use crate::program;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{StaticError, StaticPlace, Statics};
use program::{Language, Program, build};

/// After this nobody waits for an answer any more.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Result<Vec<StaticPlace>, StaticError>;

/// A small program, and its file.
struct Kitchen {
    directory: tempfile::TempDir,
    file: Vec<u8>,
}

impl Kitchen {
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kitchen");
        let source = include_str!("program/kitchen.c");
        let is_built = build(Language::C, source, &path, &["-gdwarf-4", "-no-pie"]);
        is_built.then(|| Self { file: fs::read(path).unwrap(), directory })
    }

    /// Where a section's header is, where the section begins, and how long it is.
    fn section(&self, name: &str) -> (usize, usize, usize) {
        let file = &self.file;
        let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let half = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap()) as usize;
        let (table, count) = (long(40), half(60));
        let names = long(table + 64 * half(62) + 24);
        let is_it = |header: &usize| {
            let at = names + u32::from_le_bytes(file[*header..*header + 4].try_into().unwrap()) as usize;
            file[at..].starts_with(format!("{name}\0").as_bytes())
        };
        let header = (0..count).map(|i| table + 64 * i).find(is_it).expect("it has that section");
        (header, long(header + 24), long(header + 32))
    }

    fn replace(&mut self, name: &str, content: &[u8]) {
        let (header, ..) = self.section(name);
        let offset = self.file.len() as u64;
        self.file[header + 24..header + 32].copy_from_slice(&offset.to_le_bytes());
        self.file[header + 32..header + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
        self.file.extend_from_slice(content);
    }

    fn start(&self, name: &str) -> Program {
        let path = self.directory.path().join(name);
        fs::write(&path, &self.file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Program::start(&path)
    }

    /// The address of a variable, which is where the linker put it.
    fn addr_of(&self, text: &str) -> u64 {
        let program = self.start("whole");
        program.said().iter().find(|(said, ..)| said == text).unwrap().1
    }

    /// The answer about a variable of the running program.
    #[track_caller]
    fn ask(&self, text: &str) -> Answer {
        let program = self.start("hostile");
        let (pid, text) = (program.pid(), text.to_owned());
        let answer = within_patience(move || {
            Statics::with_debug_dirs([""; 0]).find(&AddressSpace::of(pid).unwrap(), &text)
        });
        if let Err(error) = &answer {
            assert!(!error.to_string().contains("panicked"), "{error}");
        }
        answer
    }
}

#[track_caller]
fn within_patience<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait.recv_timeout(PATIENCE).expect("there is an answer, and the reader does not panic")
}

/// Debug information in which `hall` has the type that `types` begins with, at the place 37.
///
/// Kinds of entries: 3 another name of a type, 4 an array, 5 a type with members, 6 a member
/// without a name, 7 one with a name, 8 the size of an array, 9 a pointer. Types are referred to by
/// place.
fn debug_information(addr: u64, types: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let abbreviations: [&[u8]; 10] = [
        &[1, 0x11, 1, 0, 0],
        // A name, a type, a location.
        &[2, 0x34, 0, 0x03, 0x08, 0x49, 0x13, 0x02, 0x18, 0, 0],
        &[3, 0x16, 0, 0x49, 0x13, 0, 0],
        &[4, 0x01, 1, 0x49, 0x13, 0, 0],
        &[5, 0x13, 1, 0, 0],
        &[6, 0x0d, 0, 0x49, 0x13, 0x38, 0x0b, 0, 0],
        &[7, 0x0d, 0, 0x03, 0x08, 0x49, 0x13, 0x38, 0x0b, 0, 0],
        &[8, 0x21, 0, 0x37, 0x07, 0, 0],
        &[9, 0x0f, 0, 0x49, 0x13, 0, 0],
        &[0],
    ];
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1, 2];
    unit.extend(b"hall\0");
    unit.extend(32_u32.to_le_bytes());
    unit.extend([9, 3]);
    unit.extend(addr.to_le_bytes());
    // The length stands before.
    assert_eq!(unit.len() + 4, 32);
    unit.push(3);
    unit.extend(37_u32.to_le_bytes());
    unit.extend(types);
    unit.extend([0, 0]);
    let mut info = u32::try_from(unit.len()).unwrap().to_le_bytes().to_vec();
    info.extend(unit);
    (info, abbreviations.concat())
}

#[test]
fn types_that_never_end_are_errors() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let addr = kitchen.addr_of("hall");
    let at = |place: u32| place.to_le_bytes();
    let types: [(&str, Vec<u8>); 6] = [
        ("stands for itself", [&[3][..], &at(37)].concat()),
        ("an array of itself", [&[4][..], &at(37), &[8], &[2, 0, 0, 0, 0, 0, 0, 0], &[0]].concat()),
        ("an array of none of itself", [&[4][..], &at(37), &[0]].concat()),
        ("a part of itself", [&[5, 6][..], &at(37), &[0], &[6], &at(37), &[0], &[0]].concat()),
        ("beyond the end", [&[3][..], &at(u32::MAX)].concat()),
        ("a pointer to itself", [&[9][..], &at(37)].concat()),
    ];
    for (what, types) in types {
        let (info, abbreviations) = debug_information(addr, &types);
        kitchen.replace(".debug_info", &info);
        kitchen.replace(".debug_abbrev", &abbreviations);
        for text in ["hall.x", "hall[1]", "hall[1][1].x", "hall->x", "*hall"] {
            assert!(kitchen.ask(text).is_err(), "{what}: {text}");
        }
        let whole = kitchen.ask("hall").unwrap();
        assert_eq!((whole[0].addr, whole[0].len > 100), (addr, true), "{what}");
    }
    // Such debug information is read where it makes sense.
    let (info, abbreviations) =
        debug_information(addr, &[&[5, 7][..], b"x\0", &at(47), &[8], &[0], &[9], &at(47)].concat());
    kitchen.replace(".debug_info", &info);
    kitchen.replace(".debug_abbrev", &abbreviations);
    let found = kitchen.ask("hall.x").unwrap();
    assert_eq!((found[0].addr, found[0].len), (addr + 8, 8));
}

#[test]
fn entries_without_number_are_left() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let addr = kitchen.addr_of("hall");
    let (mut info, mut abbreviations) = debug_information(addr + 1, &[]);
    // A variable with a million attributes that take no byte.
    abbreviations.pop();
    abbreviations.extend([10, 0x34, 0]);
    abbreviations.extend([0x3f, 0x19].repeat(1_000_000));
    abbreviations.extend([0, 0, 0]);
    info.truncate(12);
    info.extend(vec![10; 4_000_000]);
    // So that the unit is taken apart: the address stands in it, in no entry.
    info.push(0);
    info.extend([&[3][..], &addr.to_le_bytes()].concat());
    let length = (info.len() - 4) as u32;
    info[..4].copy_from_slice(&length.to_le_bytes());
    kitchen.replace(".debug_info", &info.repeat(8));
    kitchen.replace(".debug_abbrev", &abbreviations);
    let error = kitchen.ask("hall.name").unwrap_err();
    assert!(matches!(error, StaticError::Broken { .. } | StaticError::NoType { .. }), "{error}");
}

#[test]
fn units_sharing_a_boundless_table_are_left() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let addr = kitchen.addr_of("hall");
    let mut abbreviations = Vec::new();
    for code in 0..2_000_000_u32 {
        abbreviations.extend([
            code as u8 | 0x80,
            (code >> 7) as u8 | 0x80,
            (code >> 14) as u8 & 0x7f,
            0x11,
            0,
            0,
            0,
        ]);
    }
    abbreviations.push(0);
    let mut unit = vec![16, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 3];
    unit.extend(addr.to_le_bytes());
    kitchen.replace(".debug_info", &unit.repeat(500_000));
    kitchen.replace(".debug_abbrev", &abbreviations);
    assert!(kitchen.ask("hall.name").is_err());
}

#[test]
fn units_sharing_a_boundless_entry_are_left() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    // The first abbreviation is the whole table, and no unit contains the variable.
    let mut abbreviations = vec![1, 0x11, 0];
    abbreviations.extend([0x3f, 0x19].repeat(8 << 20));
    abbreviations.extend([0, 0, 0]);
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    kitchen.replace(".debug_info", &unit.repeat(50_000));
    kitchen.replace(".debug_abbrev", &abbreviations);
    assert!(kitchen.ask("hall.name").is_err());
}

#[test]
fn only_some_names_of_fields_are_kept() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let addr = kitchen.addr_of("hall");
    let mut types = vec![5];
    for _ in 0..1000 {
        types.extend([&[7][..], &b"x".repeat(10_000), &[0], &37_u32.to_le_bytes(), &[8]].concat());
    }
    types.push(0);
    let (info, abbreviations) = debug_information(addr, &types);
    kitchen.replace(".debug_info", &info);
    kitchen.replace(".debug_abbrev", &abbreviations);
    let Err(StaticError::NoField { fields, .. }) = kitchen.ask("hall.y") else { panic!("it has no y") };
    let bytes: usize = fields.iter().map(String::len).sum();
    assert!((24..100).contains(&fields.len()) && bytes <= fields.len() * 4096, "{}: {bytes}", fields.len());
}

#[test]
fn symbols_with_endless_names_are_left() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let (_, offset, size) = kitchen.section(".symtab");
    let symbol = kitchen.file[offset..offset + size]
        .chunks(24)
        .find(|symbol| symbol[4] & 15 == 1 && symbol[6..8] != [0, 0])
        .unwrap()
        .to_vec();
    // Each has a name of thirty megabytes without an end.
    let symbols: Vec<u8> =
        (0..2_000_000_u32).flat_map(|n| [&n.to_le_bytes(), &symbol[4..]].concat()).collect();
    kitchen.replace(".symtab", &symbols);
    kitchen.replace(".strtab", &vec![b'h'; 30 << 20]);
    assert!(kitchen.ask("hall").is_err());
}

#[test]
fn sections_beyond_the_end_are_errors() {
    let Some(whole) = Kitchen::new() else { return };
    for (name, has_symbols) in
        [(".debug_info", true), (".debug_abbrev", true), (".symtab", false), (".strtab", false)]
    {
        let mut kitchen = Kitchen { file: whole.file.clone(), directory: tempfile::tempdir().unwrap() };
        let (header, ..) = kitchen.section(name);
        for size in [1_u64 << 46, u64::MAX] {
            kitchen.file[header + 32..header + 40].copy_from_slice(&size.to_le_bytes());
            assert!(kitchen.ask("hall.name").is_err(), "{name}");
            assert_eq!(kitchen.ask("hall").is_ok(), has_symbols, "{name}");
        }
    }
}

#[test]
fn noise_in_sections_is_survived() {
    let Some(mut kitchen) = Kitchen::new() else { return };
    let whole = kitchen.file.clone();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let sections = [".debug_info", ".debug_abbrev", ".debug_str", ".symtab", ".strtab"];
    let (mut found, mut failed) = (0, 0);
    for round in 0..60 {
        kitchen.file.clone_from(&whole);
        let (_, offset, size) = kitchen.section(sections[round % sections.len()]);
        for _ in 0..=size / 200 {
            kitchen.file[offset + random() as usize % size] = random() as u8;
        }
        for text in ["hall.grid[1][4]", "pointer->y"] {
            let counted = if kitchen.ask(text).is_ok() { &mut found } else { &mut failed };
            *counted += 1;
        }
    }
    assert!(found > 0 && failed > 0, "some were broken: {found} found, {failed} failed");
}

#[test]
fn replaced_program_is_not_read() {
    let Some(kitchen) = Kitchen::new() else { return };
    let program = kitchen.start("first");
    let other = kitchen.directory.path().join("other");
    fs::write(&other, b"something else").unwrap();
    let space = AddressSpace::of(program.pid()).unwrap();
    fs::rename(&other, kitchen.directory.path().join("first")).unwrap();
    let found = Statics::with_debug_dirs([""; 0]).find(&space, "hall");
    assert!(found.is_ok_and(|found| found[0].len > 100), "the file that is mapped is found");
}
