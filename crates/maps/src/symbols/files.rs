//! Finding the file that is mapped, and the file that has its debug information.
//!
//! A path is where a file once was. Another file may be there now, or the process may see other
//! file systems than we do. So the opened file is compared with the mapped one: by device and
//! inode, or, where a stacked file system shows different numbers for an open file and a mapped
//! one, by the build id that the kernel reads from the mapped pages. A file without a path is found
//! through the process's links to what it maps and executes. For a process that has ended there is
//! only the path, as this process sees it.
//!
//! Separate debug information is searched by build id in the directories for it, or by the name in
//! the object, if that has no directory, in the same directories and beside the object, as the
//! process sees them. The file must belong to root or to the object's owner, and have the object's
//! build id or the check sum that the object contains.

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use flate2::CrcReader;

use super::copy::MOST_BYTES;
use super::elf::{Link, build_id};
use super::open::{by_id, is_bare, regular, regular_below};
use crate::{AddressSpace, FileId, MappedObject, Mapping, MappingKind, Region};

/// The file that is mapped, opened by one of the ways to it.
pub(super) fn mapped(
    space: &AddressSpace,
    mapping: &Mapping<Region>,
    object: &MappedObject,
    id: FileId,
) -> Option<File> {
    let proc = PathBuf::from(format!("/proc/{}", space.pid()));
    let mut by_name = proc.join("root").into_os_string();
    by_name.push(object.name());
    if mapping.value.kind == MappingKind::Deleted {
        // A file whose name ends so reads as a deleted one.
        by_name.push(" (deleted)");
    }
    let by_name = PathBuf::from(by_name);
    let by_range = proc.join(format!("map_files/{:x}-{:x}", mapping.start, mapping.last + 1));
    // The last one is for a process that has ended, if it saw the file systems that we do.
    let ways: [&Path; 4] = [&by_name, &by_range, &proc.join("exe"), object.name()];
    ways.into_iter().find_map(|way| regular(way).ok().filter(|file| is(file, id))).or_else(|| {
        // A stacked file system: the maps show the numbers of the file below.
        let wanted = space.build_id(mapping)?;
        regular(&by_name).ok().filter(|file| build_id(file).as_deref() == Some(&*wanted))
    })
}

/// The id of the file that is at `path` now, if it is the file that a process had mapped: it has
/// the same build id or, if the build id is not known, it has not changed since then.
pub fn file_that_was(path: &Path, id: Option<&[u8]>, mapped: SystemTime) -> Option<FileId> {
    let file = regular(path).ok()?;
    let data = file.metadata().ok()?;
    let is_it = match id {
        Some(id) => build_id(&file).as_deref() == Some(id),
        None => data.modified().is_ok_and(|changed| changed <= mapped),
    };
    is_it.then(|| number(&data))
}

fn is(file: &File, id: FileId) -> bool {
    file.metadata().is_ok_and(|data| number(&data) == id)
}

fn number(of: &Metadata) -> FileId {
    FileId { device: (libc::major(of.dev()), libc::minor(of.dev())), inode: of.ino() }
}

/// The hints of an object about the file that has its debug information.
pub(super) struct Leads<'a> {
    /// The object's own file.
    pub(super) file: &'a File,
    pub(super) build_id: Option<&'a [u8]>,
    pub(super) link: Option<&'a Link>,
}

/// The first file with the debug information of `object` in process `pid` that `read` accepts.
pub(super) fn separate<T>(
    leads: &Leads<'_>,
    pid: u32,
    object: &MappedObject,
    debug_dirs: &[PathBuf],
    mut read: impl FnMut(File) -> Option<T>,
) -> Option<T> {
    let by_id = leads.build_id.and_then(|id| by_id(debug_dirs, id));
    by_id.and_then(&mut read).or_else(|| linked(leads, pid, object, debug_dirs).and_then(read))
}

/// The file to which a link in an object leads: one of a bare name, in the directories for debug
/// information or beside the object.
fn linked(leads: &Leads<'_>, pid: u32, object: &MappedObject, debug_dirs: &[PathBuf]) -> Option<File> {
    let link = leads.link.filter(|link| object.file().is_some() && is_bare(&link.name))?;
    let dir = directory(object)?;
    let ours = debug_dirs.iter().filter_map(|debug| regular(&debug.join(dir).join(&link.name)).ok());
    let theirs = [dir.join(&link.name), dir.join(".debug").join(&link.name)];
    let theirs = theirs.iter().filter_map(|name| of_process(leads.file, pid, name));
    ours.chain(theirs).find(|file| match (leads.build_id, build_id(file)) {
        (Some(wanted), Some(id)) => *wanted == id,
        _ => crc(file).is_ok_and(|crc| crc == link.crc),
    })
}

/// The package with the debug information that is not in the object: `OBJECT.dwp` beside it.
pub(super) fn package(file: &File, pid: u32, object: &MappedObject) -> Option<File> {
    let mut name = object.file().and(object.name().file_name())?.to_owned();
    name.push(".dwp");
    of_process(file, pid, &directory(object)?.join(name))
}

/// The directory of an object, below its process's root.
fn directory(object: &MappedObject) -> Option<&Path> {
    let dir = object.name().parent()?;
    let leads_up = dir.components().any(|part| part == Component::ParentDir);
    (!leads_up).then(|| dir.strip_prefix("/").unwrap_or(dir))
}

/// A file that a process sees, if it belongs to root or to the owner of `like`.
fn of_process(like: &File, pid: u32, name: &Path) -> Option<File> {
    let owner = like.metadata().ok()?.uid();
    let file = regular_below(&PathBuf::from(format!("/proc/{pid}/root")), name).ok()?;
    file.metadata().is_ok_and(|data| data.uid() == 0 || data.uid() == owner).then_some(file)
}

/// The check sum of a whole file as links have it.
fn crc(mut file: &File) -> io::Result<u32> {
    file.rewind()?;
    let mut reader = CrcReader::new(file.take(MOST_BYTES));
    io::copy(&mut reader, &mut io::sink())?;
    Ok(reader.crc().sum())
}
