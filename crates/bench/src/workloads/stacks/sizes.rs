//! `table/…`: the size of the tables of whole objects: this program, and the C library.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use dormouse_maps::{MapsLine, Perms, parse};
use dormouse_unwind::ProcessTables;
use object::{Object, ObjectSection};

use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The name of an object's rows, and the address of a function inside of it.
type Named = (&'static str, fn() -> u64);

const OBJECTS: [Named; 2] =
    [("program", || rows as *const () as u64), ("libc", || libc::getpid as *const () as u64)];

pub(super) fn rows(bench: &mut Bench) {
    for (name, inside) in OBJECTS {
        let specs = [
            Spec::new(format!("table/{name}/rows"), "rows"),
            Spec::new(format!("table/{name}/row"), "bytes").per("row"),
            Spec::new(format!("table/{name}/size"), "% of .eh_frame").better(Better::Lower),
        ];
        bench.sample(specs, move || whole(inside()));
    }
}

pub(super) fn compare(bench: &mut Bench) {
    for (name, _) in OBJECTS {
        bench.at_most(&format!("{name}: a row at most 8 bytes"), &format!("table/{name}/row"), 8.0);
        let text = format!("{name}: the whole table at most as long as .eh_frame");
        bench.at_most(&text, &format!("table/{name}/size"), 100.0);
    }
}

/// The rows of the object with this address, the bytes of each, and the table's size in percent of
/// what it was made from.
fn whole(inside: u64) -> Result<[f64; 3], Failure> {
    let maps = fs::read("/proc/self/maps")?;
    let sections = sections(&maps);
    let mut lines = parse(&maps).map_while(Result::ok);
    let line = lines.find(|line| (line.start..=line.last).contains(&inside)).ok_or("no such mapping")?;
    let path = path(&line);
    let section = *sections.get(&path).ok_or_else(|| format!("{} has no .eh_frame", path.display()))?;
    let mut own = ProcessTables::own()?;
    let table = own.tables().read_whole(inside).ok_or("the object has no table")?;
    let (rows, bytes) = (table.rows().count().max(1) as f64, table.size() as f64);
    Ok([rows, bytes / rows, 100.0 * bytes / section as f64])
}

/// The bytes of `.eh_frame` in each object whose code is mapped.
pub(crate) fn sections(maps: &[u8]) -> BTreeMap<PathBuf, u64> {
    let code = parse(maps).map_while(Result::ok).filter(|line| line.perms.contains(Perms::EXECUTE));
    let mut sections = BTreeMap::new();
    for path in code.map(|line| path(&line)).filter(|path| path.is_absolute()) {
        let Ok(file) = fs::read(&path) else { continue };
        let Ok(object) = object::File::parse(&file[..]) else { continue };
        if let Some(section) = object.section_by_name(".eh_frame") {
            sections.insert(path, section.size());
        }
    }
    sections
}

fn path(line: &MapsLine<'_>) -> PathBuf {
    OsStr::from_bytes(&line.name).into()
}
