//! Symbols: the functions and lines of a place, and the one copy of each of their names.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The symbol of a place in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// The object's name without its path.
    pub object: Arc<str>,
    /// Where in the object.
    pub offset: u64,
    /// The functions that the place lies in, the innermost first: those that were inlined, and the
    /// one that has its own code. Empty where no name is known.
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
