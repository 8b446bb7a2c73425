//! A mapped file and its reader of functions and lines.
//!
//! The file is the one that is mapped (`files.rs`); the kernel's own code is read from the
//! process's memory. The reader gets a copy of the parts that it needs (`copy.rs`), and never opens
//! a file whose name is in another one.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source as Src};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer as Reader};

use super::copy::{Copied, memory};
use super::crates::Crates;
use super::demangle::in_source_form;
use super::files::{Leads, mapped, package, separate};
use super::functions::Functions;
use super::lambdas::{self, Lambdas};
use super::open::{name_by_id, path_of};
use super::package::Package;
use super::symbol::{Frame, Lack, Names, Source};
use crate::{AddressSpace, MappedObject, Mapping, MappingKind, Region};

/// Bytes at the beginning of a mapping by which its text is told from other code.
const COMPARED: u64 = 4096;
/// The kernel's code for user space is a few pages.
const MOST_VDSO: u64 = 1 << 20;

/// A file with symbols, and the one that has its debug information.
#[derive(Debug)]
pub(super) struct Image {
    object: Readable,
    debug: Option<Readable>,
    crates: OnceCell<Crates>,
    advice: String,
    /// There is a package that cannot be read.
    has_unread_package: bool,
}

/// A copy of a file, and its reader.
#[derive(Debug)]
struct Readable {
    copied: Copied,
    /// A path to the copy.
    path: PathBuf,
    reader: Reader,
    /// The package with the debug information that the copy lacks.
    package: Option<Package>,
    /// `None` where they cannot be read.
    functions: OnceCell<Option<Functions>>,
    /// `None` where they cannot be read.
    lambdas: OnceCell<Option<Lambdas>>,
}

/// The reason why a reader has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// The reader reports that the file is broken.
    Broken,
    /// The reader panicked and must not be used again.
    Panicked,
}

impl Image {
    /// The file that `mapping` of `space` is a part of, if it can be opened and copied.
    pub(super) fn of_mapping(
        space: &AddressSpace,
        mapping: &Mapping<Region>,
        object: &MappedObject,
        debug_dirs: &[PathBuf],
    ) -> Option<Self> {
        let file = match object.file() {
            Some(id) => mapped(space, mapping, object, id)?,
            None if mapping.value.kind == MappingKind::Vdso => vdso(space.pid(), mapping).ok()?,
            None => return None,
        };
        let copied = Copied::of(&file, debug_dirs).ok()?;
        let debug = (!copied.has_debug).then(|| {
            let leads =
                Leads { file: &file, build_id: copied.build_id.as_deref(), link: copied.link.as_ref() };
            separate(&leads, space.pid(), object, debug_dirs, |file| Copied::of(&file, debug_dirs).ok())
        });
        let (mut own, mut debug) = (Readable::new(copied), debug.flatten().map(Readable::new));
        let teller = debug.as_mut().unwrap_or(&mut own);
        let package = package(&file, space.pid(), object).filter(|_| teller.copied.has_debug);
        if let Some(package) = &package {
            teller.add_package(package);
        }
        let has_unread_package = package.is_some() && teller.package.is_none();
        let advice = advice(object.name(), own.copied.build_id.as_deref());
        Some(Self { object: own, debug, crates: OnceCell::new(), advice, has_unread_package })
    }

    /// The crates that have code in it.
    pub(super) fn crates(&self) -> &Crates {
        self.crates.get_or_init(|| Crates::of(&self.teller().copied))
    }

    /// Its lack, if it has less than functions, inlined ones and lines.
    pub(super) fn lack(&self) -> Option<Lack> {
        let teller = self.teller();
        let Copied { has_debug, has_functions, unread, .. } = teller.copied;
        if has_debug {
            let is_split = || self.crates().is_split && teller.package.is_none();
            let change = if self.has_unread_package { OWN_PACKAGE } else { PACK };
            return is_split().then(|| Lack { has: NO_INLINED.into(), change: change.to_owned() });
        }
        let has = if has_functions || self.object.copied.has_functions {
            "functions only, no lines and no inlined functions"
        } else {
            "exported functions only"
        };
        let has = unread.map_or_else(|| has.to_owned(), |why| format!("{has}: {why}"));
        Some(Lack { has, change: self.advice.clone() })
    }

    /// The offset in the file of the text that a process has at `addr` of an anonymous mapping,
    /// where that is a copy of this file's text: `anchor` is a mapping of the file.
    pub(super) fn offset_of_copy(&self, anchor: &Mapping<Region>, addr: u64) -> Option<u64> {
        let copied = &self.object.copied;
        let distance = anchor.start.wrapping_sub(copied.addr_of_mapping(anchor.value.offset)?);
        copied.offset_of_code(addr.wrapping_sub(distance))
    }

    /// The copy that has the debug information.
    fn teller(&self) -> &Readable {
        self.debug.as_ref().unwrap_or(&self.object)
    }

    /// Has only the object itself from now on; false if that was so before.
    pub(super) fn forget_debug(&mut self) -> bool {
        self.debug.take().is_some()
    }

    /// How much memory its copies take.
    pub(super) fn bytes(&self) -> u64 {
        self.object.bytes() + self.debug.as_ref().map_or(0, Readable::bytes)
    }

    /// The functions at `offset` of the file, the innermost first.
    pub(super) fn frames(&self, offset: u64, names: &mut Names) -> Result<Vec<Frame>, Unread> {
        let Some(addr) = self.object.copied.addr_of(offset) else { return Ok(Vec::new()) };
        match self.debug.as_ref().map(|debug| debug.frames(addr, names)) {
            Some(Err(Unread::Panicked)) => Err(Unread::Panicked),
            Some(Ok(frames)) if !frames.is_empty() => Ok(frames),
            _ => self.object.frames(addr, names),
        }
    }
}

impl Readable {
    fn new(copied: Copied) -> Self {
        let no_dirs: [&Path; 0] = [];
        // It does not bound what it demangles.
        let reader = Reader::builder().enable_auto_reload(false).enable_demangling(false);
        let reader = reader.set_debug_dirs(Some(no_dirs)).build();
        let path = path_of(&copied.file);
        Self { path, copied, reader, package: None, functions: OnceCell::new(), lambdas: OnceCell::new() }
    }

    /// Lets the reader find a package, if it can be read.
    fn add_package(&mut self, file: &File) {
        if let Ok(copied) = Copied::package(file)
            && let Ok((package, path)) = Package::new(copied, &self.path)
        {
            (self.package, self.path) = (Some(package), path);
        }
    }

    fn frames(&self, addr: u64, names: &mut Names) -> Result<Vec<Frame>, Unread> {
        let mut frames = match self.read(addr, true, names) {
            // Its debug information may be broken, its symbols whole.
            Err(Unread::Broken) => return self.read(addr, false, names),
            read => read?,
        };
        // Of a function in several parts, the reader takes 0 for its beginning.
        let is_in_parts = |outer: &Frame| outer.offset == Some(addr);
        // `call<main()::<lambda(long)>>` stands for all lambdas of `main`; symbols number them.
        let is_partial = |name: &str| !name.contains("::") || name.contains("<lambda");
        // Tables of lines have the function's own name; symbols have its path and the start of each
        // part.
        if let Some(outer) =
            frames.last_mut().filter(|outer| is_in_parts(outer) || is_partial(&outer.function))
            && let Some(functions) = self.functions.get_or_init(|| Functions::of(&self.copied).ok())
            && let Some(symbol) = functions.at(addr, &self.copied, names)
        {
            if is_in_parts(outer) || is_mark(&outer.function) {
                outer.offset = symbol.offset;
            }
            if is_mark(&outer.function) || outer.function.is_empty() || is_path_of(&symbol, outer) {
                outer.function = Arc::clone(&symbol.function);
            }
        }
        if frames.iter().any(|frame| frame.offset.is_none() && &*frame.function == lambdas::NAME) {
            self.name_lambdas(addr, &mut frames, names);
        }
        // A name may be in a file that was not found (`dwz`): then what is inlined is a part of the
        // function around it.
        frames.retain(|frame| !frame.function.is_empty() && !is_mark(&frame.function));
        Ok(frames)
    }

    fn bytes(&self) -> u64 {
        let lambdas = self.lambdas.get().and_then(Option::as_ref);
        let functions = self.functions.get().and_then(Option::as_ref);
        let package = self.package.as_ref().map_or(0, |package| package.copied.bytes);
        self.copied.bytes
            + package
            + lambdas.map_or(0, Lambdas::bytes)
            + functions.map_or(0, Functions::bytes)
    }

    /// Gives the inlined lambdas of C++ their paths, if all that is inlined here is known.
    fn name_lambdas(&self, addr: u64, frames: &mut [Frame], names: &mut Names) {
        let lambdas = self.lambdas.get_or_init(|| Lambdas::of(&self.copied).ok());
        let paths = lambdas.as_ref().map(|lambdas| lambdas.at(addr)).unwrap_or_default();
        let inlined = frames.iter().filter(|frame| frame.offset.is_none());
        if inlined.count() != paths.len() {
            return;
        }
        for (frame, path) in frames.iter_mut().zip(paths) {
            if let Some(path) = path.filter(|_| &*frame.function == lambdas::NAME) {
                frame.function = names.intern(&path);
            }
        }
    }

    fn read(&self, addr: u64, debug_syms: bool, names: &mut Names) -> Result<Vec<Frame>, Unread> {
        let source = Src::Elf(Elf { debug_syms, ..Elf::new(&self.path) });
        let read = catch_unwind(AssertUnwindSafe(|| {
            match self.reader.symbolize_single(&source, Input::VirtOffset(addr)) {
                Ok(Symbolized::Sym(symbol)) => Ok(frames(&symbol, names)),
                Ok(Symbolized::Unknown(_)) => Ok(Vec::new()),
                Err(_) => Err(Unread::Broken),
            }
        }));
        // The reader has opened the package, or has found that it cannot be read.
        self.package.iter().for_each(Package::hide);
        read.unwrap_or(Err(Unread::Panicked))
    }
}

/// An object whose debug information is in files that were not found.
const NO_INLINED: &str = "functions and lines, no inlined functions: they are in .dwo files";
const PACK: &str = "make a package of these beside it (dwp -e OBJECT -o OBJECT.dwp)";
/// The entries of other users' packages are not checked, so these are not read.
const OWN_PACKAGE: &str = "look as the user to whom its .dwp file belongs, if that file is whole";

/// The way to give an object debug information.
fn advice(name: &Path, build_id: Option<&[u8]>) -> String {
    let is_systems = ["/usr", "/lib", "/lib64", "/opt"].iter().any(|dir| name.starts_with(dir));
    let make = if is_systems {
        "install its debug package (-dbgsym, -dbg or -debuginfo)"
    } else {
        "build it with debug information (-g; Cargo: debug = \"line-tables-only\")"
    };
    match build_id.and_then(name_by_id) {
        Some(file) => format!("{make}, or put its debug file under /usr/lib/debug/{file}"),
        None => make.to_owned(),
    }
}

/// Whether a process has at the beginning of `mapping` the text of `file` that is at `offset`, but
/// for instructions that were patched.
pub(super) fn is_text_of(file: &File, offset: u64, pid: u32, mapping: &Mapping<Region>) -> bool {
    let length = (mapping.last - mapping.start + 1).min(COMPARED) as usize;
    let (mut there, mut here) = (vec![0; length], vec![0; length]);
    let memory = File::open(format!("/proc/{pid}/mem"));
    let is_read = memory.and_then(|memory| memory.read_exact_at(&mut there, mapping.start));
    if is_read.is_err() || file.read_exact_at(&mut here, offset).is_err() {
        return false;
    }
    let same = there.iter().zip(&here).filter(|(there, here)| there == here).count();
    same > length - length / 8 && there.iter().any(|&byte| byte != 0)
}

/// Whether a symbol names no function: on arm64 and RISC-V, `$x` and `$d` say that what follows is
/// code, or data in the midst of code. The reader takes them for functions.
fn is_mark(symbol: &str) -> bool {
    let kind = symbol.strip_prefix('$').and_then(|kind| kind.split('.').next());
    kind.is_some_and(|kind| kind == "x" || kind == "d" || kind.starts_with("xrv"))
}

/// Whether `symbol` is the name, with its path, of the function that debug information calls
/// `outer`. They begin at the same address; several functions with the same code may do that.
fn is_path_of(symbol: &Frame, outer: &Frame) -> bool {
    let own = match outer.function.strip_prefix('{') {
        // The bodies of async functions and blocks have names of their own there, `{async_fn#0}`;
        // in symbols they are closures, as `{{closure}}` or `{closure#0}`.
        Some(_) => "{closure",
        None => outer.function.split(['<', '(']).next().unwrap_or_default(),
    };
    symbol.offset == outer.offset && symbol.function.contains(own)
}

fn frames(symbol: &Sym<'_>, names: &mut Names) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(symbol.inlined.len() + 1);
    for inlined in symbol.inlined.iter().rev() {
        let source = inlined.code_info.as_ref().map(|info| source(info, names));
        frames.push(Frame { function: names.intern(&in_source_form(&inlined.name)), offset: None, source });
    }
    let source = symbol.code_info.as_ref().map(|info| source(info, names));
    let function = names.intern(&in_source_form(&symbol.name));
    frames.push(Frame { function, offset: Some(symbol.offset as u64), source });
    frames
}

fn source(info: &CodeInfo<'_>, names: &mut Names) -> Source {
    Source { file: names.intern(&info.to_path().to_string_lossy()), line: info.line }
}

/// The kernel's code, copied from where a process has it.
fn vdso(pid: u32, mapping: &Mapping<Region>) -> io::Result<File> {
    let length = (mapping.last - mapping.start).min(MOST_VDSO) as usize + 1;
    let mut code = vec![0; length];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut code, mapping.start)?;
    let mut file = memory()?;
    file.write_all(&code)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_has_the_path_of_its_function() {
        let frame = |function: &str| Frame { function: function.into(), offset: Some(4), source: None };
        let pours = ["tea::pour::{{closure}}", "tea::pour::{closure#0}"];
        for (own, symbols, is_its) in [
            ("{async_fn#0}", &pours[..], true),
            ("{async_block#1}<u64>", &pours, true),
            ("{closure#0}", &pours, true),
            ("pour", &["tea::pour", "tea::pour<u8>"], true),
            ("pour<u8>", &["tea::pour"], true),
            ("brew", &pours, false),
            ("{async_fn#0}", &["tea::pour"], false),
        ] {
            for symbol in symbols {
                assert_eq!(is_path_of(&frame(symbol), &frame(own)), is_its, "{own} {symbol}");
                assert!(!is_path_of(&Frame { offset: Some(5), ..frame(symbol) }, &frame(own)), "{own}");
            }
        }
    }
}
