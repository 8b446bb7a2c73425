//! Static variables by name: address, length and type of a variable, or of a part of it; and
//! functions by name.
//!
//! ```
//! use dormouse_maps::AddressSpace;
//! use dormouse_maps::symbols::Statics;
//!
//! static POTS: [u32; 3] = [1, 2, 3];
//!
//! let space = AddressSpace::own()?;
//! // With debug information `POTS[2]` names the same bytes.
//! let found = Statics::new().find(&space, "POTS+8")?;
//! assert!(found.iter().any(|part| (part.addr, part.len) == (&raw const POTS[2] as u64, 4)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! 1. `query.rs` parses the text.
//! 2. `tables.rs` lists the symbols of each object, `matching.rs` compares their names.
//! 3. `object.rs` finds the address at which the loader has put a variable.
//! 4. `dwarf.rs` finds the entry of the variable with that address, and `types.rs` follows the
//!    steps from it.
//!
//! `search.rs` combines these.
//!
//! # Broken files
//!
//! In an object that cannot be read no variables are found. Debug information that cannot be read
//! is an error if the caller names a part of a variable; otherwise the type is missing. Files are
//! neither copied nor mapped: their bytes are read one section or unit at a time, into bounded
//! memory.

mod dwarf;
mod error;
mod leb;
mod matching;
mod object;
mod part;
mod query;
mod search;
mod tables;
mod types;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use super::elf::broken;
use crate::AddressSpace;
use object::Objects;
use query::Query;

pub(super) use dwarf::UnitRoots;
pub use error::StaticError;

/// A static variable of a process, a part of one, or a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPlace {
    /// The full name, with a compiler's suffix and the steps: `tea::HOUSE.rooms[2]`.
    pub name: String,
    /// The address in the process.
    pub addr: u64,
    /// The size in bytes.
    pub len: u64,
    /// The name of the type, if debug information contains it.
    pub type_name: Option<String>,
    /// The file name of the object that contains the variable or function.
    pub object: Arc<str>,
}

/// Finds static variables, and functions, by name.
#[derive(Debug, Clone)]
pub struct Statics {
    debug_dirs: Vec<PathBuf>,
}

impl Default for Statics {
    fn default() -> Self {
        Self::new()
    }
}

impl Statics {
    /// Searches separate debug information in the system's usual directories.
    pub fn new() -> Self {
        Self::with_debug_dirs(["/usr/lib/debug", "/lib/debug"])
    }

    /// Searches separate debug information in `dirs`, and by build id in their `.build-id`.
    pub fn with_debug_dirs<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>) -> Self {
        Self { debug_dirs: dirs.into_iter().map(Into::into).collect() }
    }

    /// The variables of the process that `text` names, one or more:
    ///
    /// | text | is |
    /// |---|---|
    /// | `NAME` | the whole variable: a path as its language writes it (`tea::HOUSE`, `main()::count`), or its end (`HOUSE`) |
    /// | `NAME.field`, `NAME.0`, `NAME[3]` | a part of it, any number of steps deep |
    /// | `NAME->field`, `*NAME` | what a pointer leads to now |
    /// | `NAME+0x10` | the longest word of 8, 4, 2 or 1 bytes that is aligned there |
    ///
    /// If a variable has exactly this name, only it is returned; otherwise all whose path ends in
    /// it. For a bit field, the bytes that contain it are returned. The mappings are read anew; a
    /// result is valid until the object is unloaded.
    ///
    /// # Errors
    ///
    /// [`StaticError`] contains the reason, and what helps: similar names, how to build, the fields
    /// that exist. If the name has several matches, those without the part are left out.
    ///
    /// # Cost
    ///
    /// Slow: reads the symbols of all objects, one after the other, and for the objects that match
    /// all debug information until the variable is found: a gigabyte of it in a second or two.
    /// Takes memory for the symbols of one object, at most 768 MiB, and for one unit of debug
    /// information; compressed debug information is inflated, to at most 1 GiB. Blocks if a file
    /// system does not respond.
    pub fn find(&self, space: &AddressSpace, text: &str) -> Result<Vec<StaticPlace>, StaticError> {
        let query = Query::parse(text)?;
        caught(|| search::variables(&Objects::of(space, &self.debug_dirs)?, &query))
    }

    /// The functions of the process that `name` names, by the rules of [`Statics::find`]: each with
    /// the address of its first instruction, or, if `+0x10` follows the name, of the byte at that
    /// offset. Functions that were inlined everywhere are not found.
    ///
    /// # Errors
    ///
    /// [`StaticError`] contains the reason.
    ///
    /// # Cost
    ///
    /// Reads the symbols of all objects, at most 768 MiB at a time.
    pub fn find_function(&self, space: &AddressSpace, name: &str) -> Result<Vec<StaticPlace>, StaticError> {
        let query = Query::parse(name)?;
        let query = Query { name: query.whole, steps: Vec::new(), ..query };
        caught(|| search::functions(&Objects::of(space, &self.debug_dirs)?, &query))
    }
}

/// Does the work; a reader that panics does no more harm than an error.
fn caught<T>(work: impl FnOnce() -> Result<T, StaticError>) -> Result<T, StaticError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let error = broken("the reader panicked");
        Err(StaticError::Broken { object: "a file of the process".into(), error })
    })
}
