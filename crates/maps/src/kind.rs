//! The kernel's report on a mapping: the kind of memory, the permissions, and the file behind it.

use std::fmt;

/// The kind of memory in a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingKind {
    /// A part of a file.
    File,
    /// A part of a file that was deleted.
    Deleted,
    /// A part of a file that never had a name in a directory.
    Memfd,
    /// Memory without a file.
    Anonymous,
    /// The heap that ends at the program break.
    Heap,
    /// The stack of the first thread.
    Stack,
    /// The kernel's code for user space.
    Vdso,
    /// The kernel's data for that code.
    Vvar,
    /// Other memory with a name from the kernel.
    Special,
}

/// The mark behind the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

impl MappingKind {
    /// The name of the kind.
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
        }
    }

    /// Whether mappings of this kind have a file behind them.
    pub fn has_file(self) -> bool {
        matches!(self, Self::File | Self::Deleted | Self::Memfd)
    }

    /// The kind of a mapping that the kernel calls `name`, and the name without the mark of deleted
    /// files.
    pub(crate) fn of(name: &[u8], has_file: bool) -> (Self, &[u8]) {
        if has_file {
            return match name.strip_suffix(DELETED) {
                Some(name) if name.starts_with(b"/memfd:") => (Self::Memfd, name),
                // Huge pages without a file have one that nobody can open.
                Some(b"/anon_hugepage") => (Self::Anonymous, b""),
                Some(name) => (Self::Deleted, name),
                None => (Self::File, name),
            };
        }
        let kind = match name {
            b"" => Self::Anonymous,
            b"[heap]" => Self::Heap,
            b"[stack]" => Self::Stack,
            b"[vdso]" => Self::Vdso,
            name if name.starts_with(b"[anon:") => Self::Anonymous,
            name if name.starts_with(b"[vvar") => Self::Vvar,
            _ => Self::Special,
        };
        (kind, name)
    }
}

/// The permissions of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Perms(u8);

/// The letter in the maps file for each right, and for its absence.
const LETTERS: [(Perms, u8, u8); 4] = [
    (Perms::READ, b'r', b'-'),
    (Perms::WRITE, b'w', b'-'),
    (Perms::EXECUTE, b'x', b'-'),
    (Perms::SHARED, b's', b'p'),
];

impl Perms {
    /// The memory may be read.
    pub const READ: Self = Self(1);
    /// The memory may be written.
    pub const WRITE: Self = Self(2);
    /// The memory may be executed.
    pub const EXECUTE: Self = Self(4);
    /// Writes are visible to other processes.
    pub const SHARED: Self = Self(8);

    /// Whether this includes all permissions of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets of permissions.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// By the kernel's bits (`PROCMAP_QUERY_VMA_*`), which are those of the constants.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits as u8 & 15)
    }

    /// By the letters of the maps file.
    pub(crate) fn from_letters(word: &[u8]) -> Option<Self> {
        let word: &[u8; 4] = word.try_into().ok()?;
        LETTERS.iter().zip(word).try_fold(Self::default(), |perms, (&(perm, yes, no), &letter)| {
            if letter == yes { Some(perms.union(perm)) } else { (letter == no).then_some(perms) }
        })
    }
}

/// In the format of the maps file: `r-xp`.
impl fmt::Display for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |&(perm, yes, no)| char::from(if self.contains(perm) { yes } else { no });
        f.pad(&LETTERS.iter().map(letter).collect::<String>())
    }
}

/// A file, as the kernel identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Major and minor number of the device that contains its file system.
    pub device: (u32, u32),
    /// The number of its inode.
    pub inode: u64,
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
