//! The properties of a mapping in an address space, and the objects that mappings belong to.
//!
//! A [`Region`] is small and copied out of a range map. The file behind it, or the kernel's name
//! for other memory, is a [`MappedObject`], which mappings refer to by id. No id is used twice, in
//! any space, so data that is kept under an id never belongs to another object.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kind::{FileId, MappingKind, Perms};
use crate::mapping::Mapping;
use crate::parse::MapsLine;

/// The properties of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The kind of memory.
    pub kind: MappingKind,
    /// The mapping's permissions.
    pub perms: Perms,
    /// The offset of the mapping's first byte in the file; 0 without a file.
    pub offset: u64,
    /// The object that the mapping belongs to
    /// ([`AddressSpace::object`](crate::AddressSpace::object)).
    pub object: ObjectId,
}

impl Mapping<Region> {
    /// The offset in the file of `addr`, which lies in the mapping; without a file, the offset in
    /// the mapping.
    pub fn offset_of(&self, addr: u64) -> u64 {
        debug_assert!(self.contains(addr));
        (addr - self.start).wrapping_add(self.value.offset)
    }
}

/// The id of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u64);

/// A file or other memory that mappings belong to. One file is one object in a space, however many
/// mappings it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MappedObject {
    name: PathBuf,
    file: Option<FileId>,
}

impl MappedObject {
    /// The path of a file as its process sees it, without the mark of deleted ones; or the kernel's
    /// name for other memory, which may be empty.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The last component of the object's name, for display.
    pub fn short_name(&self) -> Cow<'_, str> {
        let last = self.file.and_then(|_| self.name.file_name());
        last.unwrap_or(self.name.as_os_str()).to_string_lossy()
    }

    /// The id of the file, if it is a file.
    pub fn file(&self) -> Option<FileId> {
        self.file
    }
}

/// The objects of a space.
#[derive(Debug, Default)]
pub(super) struct Objects {
    by_id: HashMap<ObjectId, Arc<MappedObject>>,
    ids: HashMap<Arc<MappedObject>, ObjectId>,
    /// How many there may be before those are looked for that nothing belongs to.
    most: usize,
}

impl Objects {
    pub(super) fn get(&self, id: ObjectId) -> Option<Arc<MappedObject>> {
        self.by_id.get(&id).cloned()
    }

    /// The mapping and its object for a line of the kernel's list.
    pub(super) fn mapping(&mut self, line: MapsLine<'_>) -> Mapping<Region> {
        let MapsLine { start, last, perms, offset, file, kind, name } = line;
        let object = self.id_of(MappedObject { name: OsStr::from_bytes(&name).into(), file });
        Mapping { start, last, value: Region { kind, perms, offset, object } }
    }

    fn id_of(&mut self, object: MappedObject) -> ObjectId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if let Some(&id) = self.ids.get(&object) {
            return id;
        }
        let (id, object) = (ObjectId(NEXT.fetch_add(1, Ordering::Relaxed)), Arc::new(object));
        self.by_id.insert(id, Arc::clone(&object));
        self.ids.insert(object, id);
        id
    }

    /// Forgets the objects that none of all mappings belongs to, when there may be many.
    pub(super) fn sweep(&mut self, mappings: &[Mapping<Region>]) {
        if self.by_id.len() > self.most {
            let used: HashSet<ObjectId> = mappings.iter().map(|mapping| mapping.value.object).collect();
            self.by_id.retain(|id, _| used.contains(id));
            self.ids.retain(|_, id| used.contains(id));
            // So that the next sweep comes after as many new ones as it looks at.
            self.most = 2 * self.by_id.len() + 64;
        }
    }
}
