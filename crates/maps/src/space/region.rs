//! What lies in an address space: the facts of a mapping, and the object behind it.
//!
//! Facts are small and copied out of a range map. What they belong to, a file or generated code, is an [`Object`]:
//! mappings bear its number, and no number is given twice, in whatever space, so what somebody keeps under one is never
//! about another object.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a mapping holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A part of a file.
    File,
    /// A part of a file that has no name any more.
    Deleted,
    /// A part of a file that never had a name in a directory.
    Memfd,
    /// Memory without a file.
    Anonymous,
    /// The heap that the program break ends.
    Heap,
    /// The stack of the first thread.
    Stack,
    /// The kernel's code for user space.
    Vdso,
    /// The kernel's data for that.
    Vvar,
    /// Something else that the kernel has a name for.
    Special,
    /// Code that was generated, and registered.
    Jit,
}

impl Kind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Deleted => "deleted",
            Self::Memfd => "memfd",
            Self::Anonymous => "anonymous",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Vdso => "vdso",
            Self::Vvar => "vvar",
            Self::Special => "special",
            Self::Jit => "jit",
        }
    }

    /// Whether there is a file behind it.
    pub fn has_file(self) -> bool {
        matches!(self, Self::File | Self::Deleted | Self::Memfd)
    }
}

/// What may be done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Perms(u8);

impl Perms {
    /// It may be read.
    pub const READ: Self = Self(1);
    /// It may be written.
    pub const WRITE: Self = Self(2);
    /// It may be executed.
    pub const EXECUTE: Self = Self(4);
    /// Other processes see what is written.
    pub const SHARED: Self = Self(8);

    /// Whether all of `other` may be done.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What either allows.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        Self(bits & 15)
    }
}

/// As the maps file has it: `r-xp`.
impl fmt::Display for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = [
            (Self::READ, 'r', '-'),
            (Self::WRITE, 'w', '-'),
            (Self::EXECUTE, 'x', '-'),
            (Self::SHARED, 's', 'p'),
        ]
        .iter()
        .map(|&(perm, yes, no)| if self.contains(perm) { yes } else { no })
        .collect();
        f.pad(&text)
    }
}

/// The number of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u64);

impl ObjectId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A file, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Major and minor number of the device that its file system is on.
    pub device: (u32, u32),
    /// Its number there.
    pub inode: u64,
}

/// What mappings belong to. One file has one object in a space, however many mappings it has.
#[derive(Debug)]
pub struct Object {
    pub(super) identity: Identity,
    pub(super) build_id: OnceLock<Vec<u8>>,
}

/// What makes an object another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) name: PathBuf,
    pub(super) file: Option<FileId>,
}

impl Object {
    pub(super) fn new(identity: Identity) -> Self {
        Self { identity, build_id: OnceLock::new() }
    }

    /// The path of a file as its process sees it, without what says that it was deleted; what the kernel calls other
    /// memory, empty if nothing; the name that code was registered under.
    pub fn name(&self) -> &std::path::Path {
        &self.identity.name
    }

    /// The last part of its name, which tells people enough.
    pub fn short_name(&self) -> std::borrow::Cow<'_, str> {
        let name = &self.identity.name;
        if self.identity.file.is_none() {
            return name.to_string_lossy();
        }
        name.file_name().unwrap_or(name.as_os_str()).to_string_lossy()
    }

    /// The file that it is, if it is one.
    pub fn file(&self) -> Option<FileId> {
        self.identity.file
    }
}

/// The facts of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// What it holds.
    pub kind: Kind,
    /// What may be done with it.
    pub perms: Perms,
    /// Where in its file it begins; 0 without one.
    pub offset: u64,
    /// What it belongs to ([`AddressSpace::object`](crate::AddressSpace::object)).
    pub object: ObjectId,
    /// When it was first seen, or from when on it is registered: nanoseconds of the monotonic clock.
    pub since_ns: u64,
    /// The last look before that, which did not show it; 0 if there was none.
    pub(super) unseen_ns: u64,
    /// The loader brought it, and says when it takes it away.
    pub(super) is_loaded: bool,
}

impl Region {
    /// Whether another look at the same addresses has shown the same thing.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.kind, self.perms, self.offset, self.object)
            == (other.kind, other.perms, other.offset, other.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_in_the_maps_file() {
        assert_eq!(Perms::default().to_string(), "---p");
        assert_eq!(Perms::READ.union(Perms::EXECUTE).to_string(), "r-xp");
        assert_eq!(Perms::from_bits(255).to_string(), "rwxs");
        assert_eq!(format!("[{:>6}]", Perms::WRITE), "[  -w-p]");
    }
}
