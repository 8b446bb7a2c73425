//! Symbols: which function an address lies in, where in the source, and what was inlined there.
//!
//! `blazesym` reads the files. This is what stands around it: that the file which is read is the one that is mapped
//! (`image.rs`), and that nobody waits for it twice. What was found is kept by object and place in it, so it holds for
//! each mapping of a file and, since no object's number is given twice, never for another file that came to lie at the
//! same addresses.
//!
//! ```
//! use dormouse_maps::AddressSpace;
//! use dormouse_maps::symbols::Symbolizer;
//!
//! fn brew() {}
//!
//! let (space, mut symbolizer) = (AddressSpace::own()?, Symbolizer::new());
//! let place = symbolizer.symbolize(&space, brew as *const () as u64)?.expect("code is mapped");
//! assert!(place.symbol.to_string().contains("brew+0x0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Broken files
//!
//! Debug information that cannot be read is gone without, then names. A file that makes the reader panic is not read
//! again. One that is made shorter while it is read ends the process by SIGBUS, as it does one that executes it.
//!
//! # Threads
//!
//! What reads files stays on one thread, so a symbolizer does too. What it finds does not.

mod image;

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{AddressSpace, Cache, Found, Kind, ObjectId, Perms, Region, SpaceError};

use image::{At, Image};

/// Places whose symbols are kept.
const MOST_SYMBOLS: usize = 1 << 16;
/// Files that are kept open, by two descriptors each.
const MOST_IMAGES: usize = 128;

/// What stands at a place in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// The object's name without its path.
    pub object: Arc<str>,
    /// Where in the object.
    pub offset: u64,
    /// The function, and those that were inlined into it there, the innermost first. Empty where no name is known.
    pub frames: Vec<Frame>,
}

/// A function, and where in its source the address lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name as people write it.
    pub function: Arc<str>,
    /// How far behind its beginning; `None` if it was inlined.
    pub offset: Option<u64>,
    /// Where in the source.
    pub source: Option<Source>,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file, as the compiler was told of it.
    pub file: Arc<str>,
    /// The line.
    pub line: Option<u32>,
}

impl Symbol {
    /// The function that the address lies in, which may have others inlined into it.
    pub fn function(&self) -> Option<&Frame> {
        self.frames.last()
    }
}

/// `function+0x12`, else `object+0x1234`.
impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function() {
            Some(Frame { function, offset, .. }) => write!(f, "{function}+{:#x}", offset.unwrap_or(0)),
            None => write!(f, "{}+{:#x}", self.object, self.offset),
        }
    }
}

/// `file:line`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// What lies at an address, with its symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The mapping, and what says so.
    pub found: Found,
    /// What stands there.
    pub symbol: Arc<Symbol>,
}

/// Why a file has no symbols to give.
#[derive(Debug, thiserror::Error)]
#[error("cannot read symbols of {}: {reason}", path.display())]
pub struct SymbolError {
    /// The file, or the directory of a build id's.
    pub path: PathBuf,
    /// What is wrong.
    pub reason: String,
}

/// A place in an object, and whether code is what lies there: pieces of a file may be mapped twice, as code and not.
type Key = (ObjectId, u64, bool);

/// Finds symbols, and keeps what it has found.
#[derive(Debug)]
pub struct Symbolizer {
    debug_dirs: Vec<PathBuf>,
    places: Cache<Region>,
    known: HashMap<Key, Arc<Symbol>>,
    /// `None` for what cannot be read.
    images: HashMap<ObjectId, Option<Image>>,
    files: HashMap<PathBuf, Image>,
    names: HashSet<Arc<str>>,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Symbolizer {
    /// One that looks for separate debug information where systems keep it.
    pub fn new() -> Self {
        Self::with_debug_dirs(["/usr/lib/debug", "/lib/debug"])
    }

    /// One that looks for it in `dirs`, and by build id in their `.build-id`.
    pub fn with_debug_dirs<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>) -> Self {
        Self {
            debug_dirs: dirs.into_iter().map(Into::into).collect(),
            places: Cache::new(),
            known: HashMap::new(),
            images: HashMap::new(),
            files: HashMap::new(),
            names: HashSet::new(),
        }
    }

    /// What lies at `addr` of `space`, as [`AddressSpace::resolve`] says.
    ///
    /// # Cost
    ///
    /// Two look-ups where this was asked before. The first address of a file reads its debug information.
    pub fn symbolize(&mut self, space: &AddressSpace, addr: u64) -> Result<Option<Place>, SpaceError> {
        let found = space.resolve_cached(&self.places, addr)?;
        Ok(found.map(|found| Place { symbol: self.symbol(space, &found, addr), found }))
    }

    /// The symbol of `addr`, which lies in the mapping that was found in `space`.
    pub fn symbol(&mut self, space: &AddressSpace, found: &Found, addr: u64) -> Arc<Symbol> {
        let Region { object, perms, .. } = found.mapping.value;
        let key = (object, found.offset(addr), perms.contains(Perms::EXECUTE));
        if let Some(symbol) = self.known.get(&key) {
            return Arc::clone(symbol);
        }
        let symbol = Arc::new(self.look_up(space, found, key.1));
        if self.known.len() >= MOST_SYMBOLS {
            self.known.clear();
            self.names.clear();
        }
        self.known.insert(key, Arc::clone(&symbol));
        symbol
    }

    /// What stands at `offset` of the file `path`, whoever maps it.
    pub fn symbolize_file(&mut self, path: &Path, offset: u64) -> Result<Symbol, SymbolError> {
        self.in_file(path, At::Offset(offset))
    }

    /// What stands at `addr`, as the linker has placed it, in the object with that build id, by its separate debug
    /// information.
    pub fn symbolize_build_id(&mut self, build_id: &[u8], addr: u64) -> Result<Symbol, SymbolError> {
        let mut name = ".build-id/".to_owned();
        for (at, byte) in build_id.iter().enumerate() {
            let _ = write!(name, "{byte:02x}{}", if at == 0 { "/" } else { "" });
        }
        name.push_str(".debug");
        let found = self.debug_dirs.iter().map(|dir| dir.join(&name)).find(|path| path.exists());
        let missing = || SymbolError {
            path: PathBuf::from(&name),
            reason: "it is in none of the directories for debug information; install that".into(),
        };
        self.in_file(&found.ok_or_else(missing)?, At::Addr(addr))
    }

    fn in_file(&mut self, path: &Path, at: At) -> Result<Symbol, SymbolError> {
        let fail = |reason: String| SymbolError { path: path.to_owned(), reason };
        if !self.files.contains_key(path) {
            let image = Image::open(path, &self.debug_dirs).map_err(|error| fail(error.to_string()))?;
            if self.files.len() >= MOST_IMAGES {
                self.files.clear();
            }
            self.files.insert(path.to_owned(), image);
        }
        let frames = self.files[path].frames(at, &mut |name| intern(&mut self.names, name));
        let frames = frames.map_err(|reason| {
            self.files.remove(path);
            fail(reason)
        })?;
        let object = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let (At::Offset(offset) | At::Addr(offset)) = at;
        Ok(Symbol { object: intern(&mut self.names, &object), offset, frames })
    }

    fn look_up(&mut self, space: &AddressSpace, found: &Found, offset: u64) -> Symbol {
        let region = &found.mapping.value;
        let Some(object) = space.object(region.object) else {
            // Gone since it was found.
            return Symbol {
                object: intern(&mut self.names, region.kind.name()),
                offset,
                frames: Vec::new(),
            };
        };
        let name = object.short_name();
        let name = intern(&mut self.names, if name.is_empty() { region.kind.name() } else { &name });
        let frames = match region.kind {
            Kind::Jit => vec![Frame { function: Arc::clone(&name), offset: Some(offset), source: None }],
            Kind::File | Kind::Deleted | Kind::Memfd | Kind::Vdso
                if region.perms.contains(Perms::EXECUTE) =>
            {
                if self.images.len() >= MOST_IMAGES {
                    self.images.clear();
                }
                let image = self
                    .images
                    .entry(region.object)
                    .or_insert_with(|| Image::of_mapping(space, &found.mapping, &object, &self.debug_dirs));
                let read = image
                    .as_ref()
                    .map(|image| image.frames(At::Offset(offset), &mut |name| intern(&mut self.names, name)));
                match read {
                    Some(Ok(frames)) => frames,
                    Some(Err(_)) => {
                        *image = None;
                        Vec::new()
                    }
                    None => Vec::new(),
                }
            }
            _ => Vec::new(),
        };
        Symbol { object: name, offset, frames }
    }
}

/// The one copy of `name`.
fn intern(names: &mut HashSet<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    names.insert(Arc::clone(&name));
    name
}
