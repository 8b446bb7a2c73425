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
mod elf;
mod entries;
mod files;
mod image;
mod lambdas;
mod open;
mod statics;
mod symbol;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{AddressSpace, Mapping, MappingKind, ObjectId, Perms, Region};

use image::Image;
use symbol::Names;

pub use crates::{Crate, Crates};
pub use files::file_that_was;
pub use statics::{StaticError, StaticPlace, Statics};
pub use symbol::{Frame, Source, Symbol};

/// Places whose symbols are kept.
const MOST_SYMBOLS: usize = 1 << 16;
/// Files that are kept open, by two descriptors each, four with separate debug information.
const MOST_IMAGES: usize = 128;
/// Bytes of them that are kept in memory before another one is read.
const MOST_BYTES: u64 = 1 << 30;

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
    names: Names,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Symbolizer {
    /// A symbolizer that searches separate debug information in the system's usual directories.
    pub fn new() -> Self {
        Self::with_debug_dirs(["/usr/lib/debug", "/lib/debug"])
    }

    /// A symbolizer that searches separate debug information in `dirs`, and by build id in their
    /// `.build-id`.
    pub fn with_debug_dirs<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>) -> Self {
        Self {
            debug_dirs: dirs.into_iter().map(Into::into).collect(),
            known: HashMap::new(),
            images: HashMap::new(),
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
        let symbol = Arc::new(self.look_up(space, mapping, offset));
        if self.known.len() >= MOST_SYMBOLS {
            self.known.clear();
            self.names.clear();
        }
        self.known.insert(key, Arc::clone(&symbol));
        symbol
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

    /// Why less than functions and lines is found for addresses in a mapping, or `None`.
    /// [`Symbolizer::symbol`] must have looked up one of them recently.
    pub fn lack(&self, mapping: &Mapping<Region>) -> Option<&'static str> {
        let Region { kind, object, .. } = mapping.value;
        match self.images.get(&object) {
            Some(Some(image)) => image.lack(),
            Some(None) => Some("its file cannot be read"),
            None if kind.has_file() || kind == MappingKind::Vdso => None,
            None => Some("code that no file maps: a JIT, or text copied to anonymous pages"),
        }
    }

    fn look_up(&mut self, space: &AddressSpace, mapping: &Mapping<Region>, offset: u64) -> Symbol {
        let Region { kind, perms, object: id, .. } = mapping.value;
        // None if the space has forgotten the mapping meanwhile.
        let object = space.object(id);
        let name = object.as_ref().map(|object| object.short_name()).filter(|name| !name.is_empty());
        let name = self.names.intern(name.as_deref().unwrap_or(kind.name()));
        let is_code = perms.contains(Perms::EXECUTE) && (kind.has_file() || kind == MappingKind::Vdso);
        let mut frames = Vec::new();
        if let Some(object) = object.filter(|_| is_code) {
            if !self.images.contains_key(&id) && self.has_many_images() {
                self.images.clear();
            }
            let new = || Image::of_mapping(space, mapping, &object, &self.debug_dirs);
            let image = self.images.entry(id).or_insert_with(new);
            match image.as_ref().map(|image| image.frames(offset, &mut self.names)) {
                Some(Ok(found)) => frames = found,
                Some(Err(_)) => *image = None,
                None => {}
            }
        }
        Symbol { object: name, offset, frames }
    }

    /// Whether some have to go before another one is read.
    fn has_many_images(&self) -> bool {
        let bytes: u64 = self.images.values().flatten().map(Image::bytes).sum();
        self.images.len() >= MOST_IMAGES || bytes >= MOST_BYTES
    }
}
