//! Where the statics are: large ones are zeros, which cost nothing until they are used.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

const PAGE: u64 = 4096;

#[test]
fn large_statics_are_no_part_of_the_file() {
    // The linker keeps the functions that this program uses.
    dormouse_sys::records::push(b"a record");
    dormouse_clock::thread_cpu_ns();
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*program).unwrap();
    let large: Vec<_> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > PAGE)
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| name.contains("dormouse"))?;
            let section = file.section_by_index(symbol.section_index()?).ok()?;
            Some((name, symbol.size(), section.kind()))
        })
        .collect();
    assert!(large.len() >= 2, "the pool and the table of threads are missing: {large:?}");
    for (name, size, section) in large {
        assert!(
            section == SectionKind::UninitializedData,
            "{name} has {size} bytes in the file ({section:?})"
        );
    }
}
