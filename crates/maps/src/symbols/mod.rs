//! Symbols: the function that contains an address, its place in the source, and the functions that
//! were inlined there; and, in the other direction, static variables by name ([`Statics`]).
//!
//! `blazesym` reads the files. The modules around it make sure that it reads the file which is
//! mapped (`image.rs`), and that no caller waits for it twice. Symbols are kept by object and
//! offset, so they are valid for each mapping of a file and, because no object's id is reused,
//! never for another file that was later mapped at the same addresses.
//!
//! ```
//! use dormouse_maps::symbols::Symbolizer;
//! use dormouse_maps::{AddressSpace, Cache};
//!
//! fn brew() {}
//!
//! let (space, cache, mut symbolizer) = (AddressSpace::own()?, Cache::new(), Symbolizer::new());
//! let addr = brew as *const () as u64;
//! let mapping = space.resolve(&cache, addr)?.expect("code is mapped");
//! assert!(symbolizer.symbol(&space, &mapping, addr).to_string().contains("brew+0x0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Broken files
//!
//! If the debug information of an object is broken, only names are found; if its symbols are
//! broken, nothing is. A file that makes the reader panic is not read again. Files are copied in
//! part before they are read (`copy.rs`): one that is cut off meanwhile, that names other files or
//! that declares more memory than there is yields fewer symbols and does no harm.
//!
//! # Threads
//!
//! The reader stays on one thread, so a symbolizer does too. Its symbols may be sent to others.

mod copy;
mod crates;
mod cut;
mod demangle;
mod elf;
mod entries;
mod files;
mod functions;
mod image;
mod lambdas;
mod open;
mod package;
mod packed;
mod perf_map;
mod statics;
mod symbol;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::{AddressSpace, Mapping, MappingKind, ObjectId, Perms, Region};

use files::mapped;
use image::{Image, is_text_of};
use perf_map::PerfMap;
use symbol::Names;

pub use crates::{Crate, Crates};
pub use cut::survive_cut_files;
pub use files::file_that_was;
pub use statics::{StaticError, StaticPlace, Statics};
pub use symbol::{Frame, Lack, Source, Symbol};

/// The feature for the command, which may read more files than a service.
const IS_COMMAND: bool = cfg!(feature = "forms");
/// Places whose symbols are kept.
const MOST_SYMBOLS: usize = 1 << 16;
/// Files that are kept open, by two descriptors each, four with separate debug information.
const MOST_IMAGES: usize = 128;
/// Bytes of them that are kept in memory before another one is read.
const MOST_BYTES: u64 = 1 << 30;

/// Directories for debug information that this process has added.
static ALSO: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Has all symbolizers that this process makes later search separate debug information in these
/// directories, too, as in those of the system. The first call counts.
pub fn search_also(dirs: Vec<PathBuf>) {
    let _ = ALSO.set(dirs);
}

/// A place in an object, and whether code lies there: pieces of a file may be mapped twice,
/// as code and not.
type Key = (ObjectId, u64, bool);

/// Finds symbols, and keeps those that it has found.
#[derive(Debug)]
pub struct Symbolizer {
    debug_dirs: Vec<PathBuf>,
    known: HashMap<Key, Arc<Symbol>>,
    /// `None` for files that cannot be read.
    images: HashMap<ObjectId, Option<Image>>,
    /// Mappings that are copies of an object's text, and a mapping of that object; `None` for code
    /// that is none.
    copies: HashMap<(ObjectId, u64, u64), Option<Mapping<Region>>>,
    perf_map: PerfMap,
    names: Names,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Symbolizer {
    /// A symbolizer that searches separate debug information in the system's usual directories, and
    /// in those of [`search_also`].
    pub fn new() -> Self {
        let also = ALSO.get().into_iter().flatten().cloned();
        Self::with_debug_dirs(["/usr/lib/debug", "/lib/debug"].map(PathBuf::from).into_iter().chain(also))
    }

    /// A symbolizer that searches separate debug information in `dirs`: by build id in their
    /// `.build-id`, or as in a cache of debuginfod's, and by link.
    pub fn with_debug_dirs<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>) -> Self {
        Self {
            debug_dirs: dirs.into_iter().map(Into::into).collect(),
            known: HashMap::new(),
            images: HashMap::new(),
            copies: HashMap::new(),
            perf_map: PerfMap::default(),
            names: Names::default(),
        }
    }

    /// The symbol of `addr`, which lies in `mapping` of `space`.
    ///
    /// # Cost
    ///
    /// One look-up if the place was looked up before. The first address of a file reads the file's
    /// debug information.
    pub fn symbol(&mut self, space: &AddressSpace, mapping: &Mapping<Region>, addr: u64) -> Arc<Symbol> {
        let Region { object, perms, .. } = mapping.value;
        let offset = mapping.offset_of(addr);
        let key = (object, offset, perms.contains(Perms::EXECUTE));
        if let Some(symbol) = self.known.get(&key) {
            return Arc::clone(symbol);
        }
        let (symbol, is_lasting) = self.look_up(space, mapping, addr);
        let symbol = Arc::new(symbol);
        if !is_lasting {
            return symbol;
        }
        if self.known.len() >= MOST_SYMBOLS {
            self.known.clear();
            self.names.clear();
        }
        self.known.insert(key, Arc::clone(&symbol));
        symbol
    }

    /// Reads the names of the code that a process generates, while it exists.
    ///
    /// # Cost
    ///
    /// One `stat` of a file. If it has changed, up to 64 MiB of it are read, for 5 % of the time.
    pub fn see_generated(&mut self, space: &AddressSpace) {
        if IS_COMMAND {
            self.perf_map.see(space.pid());
        }
    }

    /// The crates of a program or library in Rust. `None` unless [`Symbolizer::symbol`] has
    /// recently looked up an address in it.
    ///
    /// # Cost
    ///
    /// The first time, reads the beginnings of all units of debug information.
    pub fn crates(&self, mapping: &Mapping<Region>) -> Option<&Crates> {
        Some(self.images.get(&mapping.value.object)?.as_ref()?.crates())
    }

    /// The lack of a mapping's object, if less than functions, inlined ones and lines is found for
    /// its code. For code that no file maps: what is missing where an address has no name.
    ///
    /// # Cost
    ///
    /// Reads the mapping's file, if no address of it was looked up recently.
    pub fn lack(&mut self, space: &AddressSpace, mapping: &Mapping<Region>) -> Option<Lack> {
        match mapping.value.kind {
            MappingKind::Vdso => None,
            kind if kind.has_file() => match self.image(space, mapping) {
                Some(image) => image.lack(),
                None => Some(Lack {
                    has: "no names: its file cannot be read".to_owned(),
                    change: "look as root or as the user of the process".to_owned(),
                }),
            },
            _ => Some(no_map(space.pid())),
        }
    }

    /// The symbol of `addr`, and whether that holds as long as the mapping does.
    fn look_up(&mut self, space: &AddressSpace, mapping: &Mapping<Region>, addr: u64) -> (Symbol, bool) {
        let Region { kind, perms, object: id, .. } = mapping.value;
        let mut symbol = Symbol { object: "".into(), offset: mapping.offset_of(addr), frames: Vec::new() };
        let is_code = perms.contains(Perms::EXECUTE);
        let is_lasting = !is_code || kind.has_file() || kind == MappingKind::Vdso;
        let (mut named, mut place) = (id, Some((*mapping, symbol.offset)));
        if IS_COMMAND && !is_lasting && kind == MappingKind::Anonymous {
            symbol.frames.extend(self.perf_map.frame(space.pid(), addr, &mut self.names));
            place = if symbol.frames.is_empty() { self.copied_from(space, mapping, addr) } else { None };
            if let Some((object, offset)) = &place {
                (named, symbol.offset) = (object.value.object, *offset);
            }
        }
        // None if the space has forgotten the mapping meanwhile.
        let name = space.object(named).map(|object| object.short_name().into_owned());
        let name = name.filter(|name| !name.is_empty());
        symbol.object = self.names.intern(name.as_deref().unwrap_or(kind.name()));
        if let Some((of, offset)) = place.filter(|_| is_code) {
            let Self { images, names, .. } = self.with_image(space, &of);
            let image = images.get_mut(&of.value.object);
            match image.as_ref().and_then(|image| image.as_ref()).map(|image| image.frames(offset, names)) {
                Some(Ok(found)) => symbol.frames = found,
                // Of a file beside it nothing more is read, or of the object.
                Some(Err(_)) => image.into_iter().for_each(|place| {
                    place.take_if(|image| !image.forget_debug());
                }),
                None => {}
            }
        }
        (symbol, is_lasting)
    }

    /// The image of a mapping's file, if it can be read.
    fn image(&mut self, space: &AddressSpace, mapping: &Mapping<Region>) -> Option<&Image> {
        self.with_image(space, mapping).images.get(&mapping.value.object)?.as_ref()
    }

    /// Reads the file of a mapping, if it was not read recently.
    fn with_image(&mut self, space: &AddressSpace, mapping: &Mapping<Region>) -> &mut Self {
        let Region { kind, object: id, .. } = mapping.value;
        let is_readable = kind.has_file() || kind == MappingKind::Vdso;
        if let Some(object) = space.object(id).filter(|_| is_readable && !self.images.contains_key(&id)) {
            if self.has_many_images() {
                self.images.clear();
            }
            self.images.insert(id, Image::of_mapping(space, mapping, &object, &self.debug_dirs));
        }
        self
    }

    /// Where an address lies in the object of which its mapping has a copy: a program may copy its
    /// text to anonymous pages, which can be huge, and put these where the text was.
    fn copied_from(
        &mut self,
        space: &AddressSpace,
        mapping: &Mapping<Region>,
        addr: u64,
    ) -> Option<(Mapping<Region>, u64)> {
        let key = (mapping.value.object, mapping.start, mapping.last);
        if !self.copies.contains_key(&key) {
            if self.copies.len() >= MOST_IMAGES {
                self.copies.clear();
            }
            let found = self.original(space, mapping);
            self.copies.insert(key, found);
        }
        let anchor = (*self.copies.get(&key)?)?;
        let offset = self.image(space, &anchor)?.offset_of_copy(&anchor, addr)?;
        Some((anchor, offset))
    }

    /// A mapping of the object that has text where `mapping` has the same, its neighbour.
    fn original(&mut self, space: &AddressSpace, mapping: &Mapping<Region>) -> Option<Mapping<Region>> {
        let all = space.mappings().ok()?;
        let at = all.partition_point(|it| it.start < mapping.start);
        let has_file = |it: &&Mapping<Region>| it.value.kind.has_file();
        let neighbours = [all[..at].iter().rev().find(has_file), all[at..].iter().find(has_file)];
        neighbours.into_iter().flatten().copied().find(|anchor| {
            let offset = self.image(space, anchor).and_then(|it| it.offset_of_copy(anchor, mapping.start));
            let object = space.object(anchor.value.object);
            let file = object.and_then(|object| mapped(space, anchor, &object, object.file()?));
            match (offset, file) {
                (Some(offset), Some(file)) => is_text_of(&file, offset, space.pid(), mapping),
                _ => false,
            }
        })
    }

    /// Whether some have to go before another one is read.
    fn has_many_images(&self) -> bool {
        let bytes: u64 = self.images.values().flatten().map(Image::bytes).sum();
        self.images.len() >= MOST_IMAGES || bytes >= MOST_BYTES
    }
}

/// The lack of code that no file maps.
fn no_map(pid: u32) -> Lack {
    let own = perf_map::own_number(pid);
    Lack {
        has: "no names for code that is generated at run time".to_owned(),
        change: format!(
            "have its runtime write /tmp/perf-{own}.map (Node: --perf-basic-prof; Python 3.12: -X perf; \
             Java: jcmd {own} Compiler.perfmap)"
        ),
    }
}
