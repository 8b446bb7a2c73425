//! Symbols: the functions and lines of a place, and one shared copy of each name.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The symbol of a place in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// The file name of the object.
    pub object: Arc<str>,
    /// The offset in the object.
    pub offset: u64,
    /// The functions that contain the place, the innermost first: those that were inlined, then the
    /// one with its own code. Empty if no name is known.
    pub frames: Vec<Frame>,
}

/// A function, and the line of the address in its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The function's name in source form, not mangled.
    pub function: Arc<str>,
    /// The distance of the address from the function's beginning; `None` if the function was
    /// inlined.
    pub offset: Option<u64>,
    /// The line of the address in the source.
    pub source: Option<Source>,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file, as it was passed to the compiler.
    pub file: Arc<str>,
    /// The line.
    pub line: Option<u32>,
}

impl Symbol {
    /// The function with its own code that contains the address, which may have others inlined into
    /// it.
    pub fn function(&self) -> Option<&Frame> {
        self.frames.last()
    }
}

/// An object for which less than functions, inlined ones and lines is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The things that are found: `functions only, no lines and no inlined functions`.
    pub has: String,
    /// The way to the rest.
    pub change: String,
}

/// `functions only …; install …`.
impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.has, self.change)
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

/// One copy of each name.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Arc<str>>);

impl Names {
    pub(super) fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.0.insert(Arc::clone(&name));
        name
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
