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
//! 1. `query.rs` reads the text.
//! 2. `tables.rs` lists the symbols of each object, `matching.rs` compares their names.
//! 3. `object.rs` tells where the loader has put a variable.
//! 4. `dwarf.rs` finds the entry of the variable with that address, and `types.rs` goes the steps
//!    from it.
//!
//! `search.rs` has these steps follow one another.
//!
//! # Broken files
//!
//! An object that cannot be read has no variables; debug information that cannot be read is an
//! error for those who ask for a part of a variable, and no type for others. The files are copied
//! or mapped by nobody: their bytes are read one section or unit at a time, into bounded memory.

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
    /// Its name in full, with what a compiler put behind it and the steps: `tea::HOUSE.rooms[2]`.
    pub name: String,
    /// Its address in the process.
    pub addr: u64,
    /// How many bytes it has.
    pub len: u64,
    /// The name of its type, if debug information tells it.
    pub type_name: Option<String>,
    /// The name of the object that it belongs to, without the path.
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
    /// Looks for separate debug information where systems keep it.
    pub fn new() -> Self {
        Self::with_debug_dirs(["/usr/lib/debug", "/lib/debug"])
    }

    /// Looks for it in `dirs`, and by build id in their `.build-id`.
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
    /// A variable that has the whole name is found alone; else all whose path ends in it. A field
    /// of bits is the bytes that have them. The mappings are looked at anew; an answer holds until
    /// the object is unloaded.
    ///
    /// # Errors
    ///
    /// [`StaticError`] tells the reason, and what would help: names that are like it, how to build,
    /// the fields that there are. Of several matches those count that have the part.
    ///
    /// # Cost
    ///
    /// An absolute slow path: reads the symbols of all objects, one after the other, and of the
    /// objects that match all debug information until the variable is found: a gigabyte of it in a
    /// second or two. Takes memory for the symbols of one object, 768 MiB at most, and for one unit
    /// of debug information; compressed debug information is inflated, to 1 GiB at most. A file
    /// system that does not answer blocks.
    pub fn find(&self, space: &AddressSpace, text: &str) -> Result<Vec<StaticPlace>, StaticError> {
        let query = Query::parse(text)?;
        caught(|| search::variables(&Objects::of(space, &self.debug_dirs)?, &query))
    }

    /// The functions of the process that `name` names, as [`Statics::find`] does: each with the
    /// address of its first instruction, or with `+0x10` behind it of the byte there. Functions
    /// that were inlined everywhere have none.
    ///
    /// # Errors
    ///
    /// [`StaticError`] tells the reason.
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
