//! The symbols of an object that was changed anywhere: names and places are found or not, and each
//! question has an answer.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::SystemTime;

use dormouse_maps::symbols::{Statics, Symbolizer, file_that_was};
use dormouse_maps::{AddressSpace, MappingKind, MapsLine, Perms};
use tempfile::TempDir;

const SOURCE: &str = "
struct leaf { const char *name; int grams[3]; };
static struct leaf leaves[2];
static inline int weigh(struct leaf *leaf) { return leaf->grams[1] * 2; }
int brew(int cups) { leaves[cups & 1].grams[1] = cups; return weigh(&leaves[0]) + cups; }
int pour(int cups) { return brew(cups) - 1; }
";

/// Where the object is mapped.
const START: u64 = 0x5000_0000;

/// The object as the compiler has made it.
struct Good {
    folder: TempDir,
    bytes: Vec<u8>,
    function: u64,
}

static GOOD: LazyLock<Good> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (source, object) = (folder.path().join("tea.c"), folder.path().join("tea.so"));
    std::fs::write(&source, SOURCE).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-O1", "-fPIC", "-shared", "-nostdlib", "-Wl,-z,noseparate-code"]);
    let status = compiler.arg(source).arg("-o").arg(&object).status().expect("a C compiler");
    assert!(status.success());
    let bytes = std::fs::read(object).expect("an object");
    let (space, _) = mapped(&folder, &bytes);
    let found = Statics::with_debug_dirs([""; 0]).find_function(&space, "brew").expect("a function");
    Good { function: found[0].addr, folder, bytes }
});

/// Bytes are changes: three of a place and one that is written there.
///
/// # Panics
///
/// When the object without a change has other symbols than its source.
pub fn check(bytes: &[u8]) {
    let good = &*GOOD;
    let mut object = good.bytes.clone();
    for change in bytes.chunks_exact(4) {
        // Each second change is in the end of the file, which has the debug information.
        let room = if change[2] % 2 == 0 { object.len() } else { object.len().min(4096) };
        let place = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % room;
        let start = object.len() - room;
        object[start + place] = change[3];
    }
    let is_good = object == good.bytes;
    let (space, path) = mapped(&good.folder, &object);
    let mut symbolizer = Symbolizer::with_debug_dirs([""; 0]);
    for addr in [good.function, good.function + 5, START + object.len() as u64 - 1] {
        let mapping = space.resolve_now(addr).expect("a reader's slot").expect("a mapping");
        let symbol = symbolizer.symbol(&space, &mapping, addr);
        let is_brew = symbol.function().is_some_and(|it| &*it.function == "brew" && it.source.is_some());
        assert!(!is_good || addr != good.function || is_brew, "{symbol:?}");
    }
    let statics = Statics::with_debug_dirs([""; 0]);
    for name in ["leaves[1].grams[1]", "leaves[0].name", "no_such", "leaves+8"] {
        let found = statics.find(&space, name);
        assert!(!is_good || found.is_ok() == name.starts_with("leaves"), "{name}: {found:?}");
    }
    assert!(!is_good || statics.find_function(&space, "pour").is_ok());
    std::fs::remove_file(path).expect("the file");
}

/// A process that has mapped this object, and nothing else.
fn mapped(folder: &TempDir, object: &[u8]) -> (AddressSpace, PathBuf) {
    let path = folder.path().join(format!("{:?}", std::thread::current().id()));
    std::fs::write(&path, object).expect("a file");
    let name = path.to_str().expect("a path of ours").as_bytes().to_vec();
    let line = MapsLine {
        start: START,
        last: START + object.len() as u64 - 1,
        perms: Perms::READ.union(Perms::EXECUTE),
        offset: 0,
        file: file_that_was(&path, None, SystemTime::now()),
        kind: MappingKind::File,
        name: name.into(),
    };
    (AddressSpace::recorded(vec![line]).expect("one mapping"), path)
}
