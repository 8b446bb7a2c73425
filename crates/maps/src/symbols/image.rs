//! The file that is mapped, and no other, opened and read.
//!
//! A path is where a file was once. By the time somebody asks, another one may stand there, or the process may see
//! other file systems than we do. So what was opened is compared with what is mapped: by device and inode, or where a
//! stacked file system shows others to those who open than to those who map, by the build id that the kernel reads from
//! the mapped pages. What has no path any more is found by the process's links to what it maps and executes, and the
//! kernel's own code in the process's memory.
//!
//! The reader is given the opened file by its number, so that it cannot get another.
//!
//! # Safety
//!
//! One `memfd_create`, with a terminated name; the descriptor is new.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source as Src};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer as Reader};

use super::{Frame, Source};
use crate::{AddressSpace, FileId, Kind, Mapping, Object, Region};

/// The kernel's code for user space is a few pages.
const MOST_VDSO: u64 = 1 << 20;

/// A place in a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    /// Bytes from its beginning.
    Offset(u64),
    /// The address that the linker gave it.
    Addr(u64),
}

/// A file with symbols.
#[derive(Debug)]
pub(super) struct Image {
    /// What the reader's path leads to.
    _file: File,
    path: PathBuf,
    reader: Reader,
}

impl Image {
    /// The file `path`, whatever it is.
    pub(super) fn open(path: &Path, debug_dirs: &[PathBuf]) -> io::Result<Self> {
        Ok(Self::of(File::open(path)?, debug_dirs))
    }

    /// What `mapping` of `space` is a part of, if it can be had.
    pub(super) fn of_mapping(
        space: &AddressSpace,
        mapping: &Mapping<Region>,
        object: &Object,
        debug_dirs: &[PathBuf],
    ) -> Option<Self> {
        let file = match object.file() {
            Some(id) => mapped(space, mapping, object, id),
            None if mapping.value.kind == Kind::Vdso => vdso(space.pid(), mapping).ok(),
            None => None,
        };
        Some(Self::of(file?, debug_dirs))
    }

    fn of(file: File, debug_dirs: &[PathBuf]) -> Self {
        let path = path_of(&file);
        let reader = Reader::builder().enable_auto_reload(false).set_debug_dirs(Some(debug_dirs)).build();
        Self { _file: file, path, reader }
    }

    /// The functions at a place, the innermost first; or why the file cannot be read.
    pub(super) fn frames(
        &self,
        at: At,
        intern: &mut dyn FnMut(&str) -> Arc<str>,
    ) -> Result<Vec<Frame>, String> {
        match self.read(at, true, intern)? {
            Ok(frames) => Ok(frames),
            // Its debug information may be broken, or that which it leads to.
            Err(_) => self.read(at, false, intern)?,
        }
    }

    /// Either error is of the file: that the reader could not go on, or that it said so.
    fn read(
        &self,
        at: At,
        debug_syms: bool,
        intern: &mut dyn FnMut(&str) -> Arc<str>,
    ) -> Result<Result<Vec<Frame>, String>, String> {
        let source = Src::Elf(Elf { debug_syms, ..Elf::new(&self.path) });
        let input = match at {
            At::Offset(offset) => Input::FileOffset(offset),
            At::Addr(addr) => Input::VirtOffset(addr),
        };
        // Nobody looks at a reader that panicked again.
        let read = catch_unwind(AssertUnwindSafe(|| match self.reader.symbolize_single(&source, input) {
            Ok(Symbolized::Sym(symbol)) => Ok(frames(&symbol, intern)),
            Ok(Symbolized::Unknown(_)) => Ok(Vec::new()),
            Err(error) => Err(format!("{error:#}")),
        }));
        read.map_err(|_| "its symbols are broken in a way that the reader does not bear".to_owned())
    }
}

/// A way to an open file that leads nowhere else as long as it is open.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn frames(symbol: &Sym<'_>, intern: &mut dyn FnMut(&str) -> Arc<str>) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(symbol.inlined.len() + 1);
    for inlined in symbol.inlined.iter().rev() {
        let source = inlined.code_info.as_ref().map(|info| source(info, intern));
        frames.push(Frame { function: intern(&inlined.name), offset: None, source });
    }
    let source = symbol.code_info.as_ref().map(|info| source(info, intern));
    frames.push(Frame { function: intern(&symbol.name), offset: Some(symbol.offset as u64), source });
    frames
}

fn source(info: &CodeInfo<'_>, intern: &mut dyn FnMut(&str) -> Arc<str>) -> Source {
    Source { file: intern(&info.to_path().to_string_lossy()), line: info.line }
}

/// The file that is mapped, opened by one of the ways to it.
fn mapped(space: &AddressSpace, mapping: &Mapping<Region>, object: &Object, id: FileId) -> Option<File> {
    let proc = PathBuf::from(format!("/proc/{}", space.pid()));
    let mut by_name = proc.join("root").into_os_string();
    by_name.push(object.name());
    if mapping.value.kind == Kind::Deleted {
        // What a name that ends so reads as.
        by_name.push(" (deleted)");
    }
    let by_name = PathBuf::from(by_name);
    let by_range = proc.join(format!("map_files/{:x}-{:x}", mapping.start, mapping.last + 1));
    let ways = [&by_name, &by_range, &proc.join("exe")];
    ways.into_iter().find_map(|way| open(way).filter(|file| is(file, id))).or_else(|| {
        // The kernel shows these numbers of the file below to those who map.
        let wanted = space.build_id(mapping)?;
        open(&by_name)
            .filter(|file| read_elf_build_id(&path_of(file)).ok().flatten().as_deref() == Some(&*wanted))
    })
}

/// A regular file: what else a path may lead to by now, such as a pipe, would have us wait.
fn open(path: &Path) -> Option<File> {
    if path.as_os_str().as_bytes().contains(&0) || !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    File::open(path).ok()
}

fn is(file: &File, id: FileId) -> bool {
    file.metadata().is_ok_and(|data| {
        let device = (libc::major(data.dev()), libc::minor(data.dev()));
        FileId { device, inode: data.ino() } == id
    })
}

/// The kernel's code, copied from where a process has it.
fn vdso(pid: u32, mapping: &Mapping<Region>) -> io::Result<File> {
    let length = (mapping.last - mapping.start).min(MOST_VDSO) as usize + 1;
    let mut code = vec![0; length];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut code, mapping.start)?;
    // SAFETY: a terminated name, and a check that the descriptor is one. It is new, so nobody else has it.
    let mut file = unsafe {
        let file = libc::memfd_create(c"vdso".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(file)
    };
    file.write_all(&code)?;
    Ok(file)
}
