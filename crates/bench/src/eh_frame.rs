//! The sections from which unwind tables are made, in the objects of a process.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use dormouse_maps::{MapsLine, Perms, parse};
use object::{Object, ObjectSection};

/// The bytes of `.eh_frame` in each object whose code is mapped.
pub(crate) fn sizes(maps: &[u8]) -> BTreeMap<PathBuf, u64> {
    let code = parse(maps).map_while(Result::ok).filter(|line| line.perms.contains(Perms::EXECUTE));
    let mut sizes = BTreeMap::new();
    for path in code.map(|line| path(&line)).filter(|path| path.is_absolute()) {
        let Ok(file) = fs::read(&path) else { continue };
        let Ok(object) = object::File::parse(&file[..]) else { continue };
        if let Some(section) = object.section_by_name(".eh_frame") {
            sizes.insert(path, section.size());
        }
    }
    sizes
}

/// The path of a mapped file.
pub(crate) fn path(line: &MapsLine<'_>) -> PathBuf {
    OsStr::from_bytes(&line.name).into()
}
