//! The tables of one process, of which each function is read when a stack first needs it.

use std::ops::Range;

use dormouse_maps::{FileId, MappingKind, Perms, parse};

use crate::arch;
use crate::entry::Buffers;
use crate::function::{Learned, Unlearned};
use crate::index::Index;
use crate::memory::{Attempt, MemorySource};
use crate::object::Head;
use crate::rule::{CallFrame, CallerStep, FrameRule, PackedRule};
use crate::table::{Learning, RowTable};

/// The most memory of all tables, unless told otherwise.
pub(crate) const MOST: usize = 64 << 20;

/// The most functions that are found in a copy of a stack.
pub const MOST_FRAMES: usize = 1024;

/// How the caller of an address is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerWay {
    /// By this rule of its object's table.
    Ruled(FrameRule),
    /// Its object has no table: by the frame pointer.
    Linked,
    /// Its function was not read before, and is not to be read now, or cannot be.
    Unlearned,
    /// No code lies there.
    None,
}

/// How far the functions in a copy of a stack go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyEnd {
    /// To the first function of the thread.
    Outermost,
    /// To the end of the copy.
    Copy,
    /// To the last one of [`MOST_FRAMES`].
    Enough,
    /// To code whose table has no rule that leads to its caller.
    NoRule,
    /// To code of no object with a table, whose frame pointer leads nowhere.
    NoTable,
    /// To a function that was not read before, and is not to be read now, or cannot be.
    Unlearned,
}

/// An object with code.
#[derive(Debug)]
pub(crate) struct Object {
    /// Where its file begins, and which file that is.
    at: u64,
    file: Option<FileId>,
    head: Head,
    index: Option<Index>,
    /// `None` where there is no index, or no memory.
    learning: Option<Learning>,
    /// No other object of this process has the same number.
    pub(crate) number: u64,
    /// How often its table has changed.
    pub(crate) version: u64,
}

/// A mapping with code, and the place of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeRange {
    pub(crate) range: Range<u64>,
    object: Option<usize>,
}

/// The unwind tables of a process.
#[derive(Debug)]
pub struct UnwindTables<M> {
    memory: M,
    objects: Vec<Object>,
    code: Vec<CodeRange>,
    buffers: Buffers,
    most: usize,
    /// Whether functions that were not read before are read when a stack needs them.
    is_learning: bool,
    /// Whether all objects could be read by the last update.
    is_whole: bool,
    /// The number of objects so far.
    numbers: u64,
    /// How often tables were forgotten to make room.
    forgotten: u64,
    /// How often something was learned, or code has come or gone.
    changes: u64,
}

impl<M: MemorySource> UnwindTables<M> {
    /// Tables that know of no code yet.
    pub fn new(memory: M) -> Self {
        Self {
            memory,
            objects: Vec::new(),
            code: Vec::new(),
            buffers: Buffers::default(),
            most: MOST,
            is_learning: true,
            is_whole: true,
            numbers: 0,
            forgotten: 0,
            changes: 0,
        }
    }

    /// Limits the memory of all tables.
    pub fn set_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Whether to read functions that were not read before when a stack needs them.
    pub(crate) fn set_learning(&mut self, is_learning: bool) {
        self.is_learning = is_learning;
    }

    /// Takes in the text of `/proc/PID/maps`: code that has come, and code that is gone. Code that
    /// is still there keeps its rows, also if its object cannot be read now. Returns false if there
    /// is such an object, or a new one that cannot be read.
    ///
    /// # Cost
    ///
    /// Some ten reads of memory for each object.
    pub fn update(&mut self, maps: &[u8]) -> bool {
        let mut before = std::mem::take(&mut self.objects);
        let mut bytes = 0;
        self.changes += 1;
        self.is_whole = true;
        self.code.clear();
        let files = files_with_code(maps);
        let has_code = |file: Option<FileId>| {
            file.zip(files.as_ref()).is_none_or(|(file, files)| files.binary_search(&file).is_ok())
        };
        for line in parse(maps).map_while(Result::ok) {
            let range = line.start..line.last.saturating_add(1);
            let is_head = line.offset == 0 && (line.kind.has_file() || line.kind == MappingKind::Vdso);
            // An object's file may also be mapped as data, whole. Where its segments would lie,
            // behind that mapping, other objects may begin.
            let is_inside = || self.object_of(line.file, range.start).is_some();
            if is_head && line.perms.contains(Perms::READ) && has_code(line.file) && !is_inside() {
                let known = before.iter().position(|old| old.at == range.start && old.file == line.file);
                let known = known.map(|at| before.swap_remove(at));
                let is_of_kernel = line.kind == MappingKind::Vdso;
                // Its rows are of no use where other tables take all the room.
                let has_room = bytes <= self.most;
                if let Some(object) = self.read(range.start, line.file, is_of_kernel, known, has_room)
                    && self.objects.try_reserve(1).is_ok()
                {
                    bytes += object.size();
                    self.objects.push(object);
                }
            }
            if line.perms.contains(Perms::EXECUTE) && self.code.try_reserve(1).is_ok() {
                let own = self.object_of(line.file, range.start);
                let object = own.or_else(|| self.object_at(range.start));
                // One range for pieces whose permissions differed for a while: each would take a
                // place in the memories of threads.
                match self.code.last_mut() {
                    Some(last) if last.range.end == range.start && last.object == object => {
                        last.range.end = range.end;
                    }
                    _ => self.code.push(CodeRange { range, object }),
                }
            }
        }
        self.is_whole
    }

    /// The place of the object in which an address lies, among those that begin below it.
    fn object_at(&self, address: u64) -> Option<usize> {
        self.objects.iter().rposition(|object| object.head.range.contains(&address))
    }

    /// The place of the object in which an address lies, among those of one file.
    fn object_of(&self, file: Option<FileId>, address: u64) -> Option<usize> {
        self.objects.iter().rposition(|object| object.file == file && object.head.range.contains(&address))
    }

    /// The object whose file begins at an address: the one that was known there before, or another
    /// one. A file may have been written anew between two loads.
    fn read(
        &mut self,
        at: u64,
        file: Option<FileId>,
        is_of_kernel: bool,
        known: Option<Object>,
        has_room: bool,
    ) -> Option<Object> {
        let memory = Attempt::new(&self.memory);
        let head = Head::read(&memory, at);
        let index = head.as_ref().and_then(|head| Index::read(&memory, head.index?));
        if memory.has_failed() {
            self.is_whole = false;
            return known;
        }
        let head = head?;
        let has_rows = has_room && (index.is_some() || is_of_kernel && arch::HAS_LINK);
        let learning = || if has_rows { Learning::new(head.range.clone()) } else { None };
        if let Some(mut known) = known.filter(|known| known.head == head && known.index == index) {
            if known.learning.is_none() {
                known.learning = learning();
                known.version += 1;
            }
            return Some(known);
        }
        let learning = learning();
        self.numbers += 1;
        Some(Object { at, file, head, index, learning, number: self.numbers, version: 0 })
    }

    /// The mapping with code in which an address lies.
    fn code_at(&self, address: u64) -> Option<&CodeRange> {
        let behind = self.code.partition_point(|code| code.range.start <= address);
        self.code.get(behind.checked_sub(1)?).filter(|code| code.range.contains(&address))
    }

    /// Whether code lies at an address.
    pub fn is_code(&self, address: u64) -> bool {
        self.code_at(address).is_some()
    }

    /// How the caller of an address inside of an instruction is found. The entry of its function is
    /// read if it was not before.
    ///
    /// # Cost
    ///
    /// The first time that a function is met, some ten reads of memory.
    pub fn code(&mut self, address: u64) -> CallerWay {
        let Some(code) = self.code_at(address) else { return CallerWay::None };
        let Some(place) = code.object else { return CallerWay::Linked };
        let Some(learning) = &self.objects[place].learning else { return CallerWay::Linked };
        if let Some(rule) = learning.table().packed(address) {
            return CallerWay::Ruled(rule.rule());
        }
        if !self.is_learning {
            return CallerWay::Unlearned;
        }
        if let Some(function) = self.unlearned(address) {
            let learned = function.read(&self.memory, &mut self.buffers);
            let Some(learned) = learned else { return CallerWay::Unlearned };
            self.put(&learned);
        }
        let learning = self.objects[place].learning.as_ref();
        let rule = learning.and_then(|learning| learning.table().packed(address));
        self.make_room();
        CallerWay::Ruled(rule.unwrap_or(PackedRule::UNKNOWN).rule())
    }

    /// The function to be read to find the caller of an address; `None`: it was read before.
    pub(crate) fn unlearned(&self, address: u64) -> Option<Unlearned> {
        let object = self.objects.get(self.code_at(address)?.object?)?;
        let gap = object.learning.as_ref()?.table().gap(address)?;
        Some(Unlearned { object: object.number, index: object.index, gap, address })
    }

    /// Takes in what was read elsewhere.
    pub(crate) fn learn(&mut self, learned: &Learned) {
        self.put(learned);
        self.make_room();
    }

    /// Puts the rows of a function into the table of its object, unless that is gone, or has
    /// others.
    fn put(&mut self, learned: &Learned) {
        let object = self.objects.iter_mut().find(|object| object.number == learned.object);
        let Some(object) = object else { return };
        let Some(learning) = &mut object.learning else { return };
        learning.put(&learned.rows, learned.end);
        object.version += 1;
        self.changes += 1;
    }

    /// Forgets the longest tables until all have room.
    fn make_room(&mut self) {
        while self.size() > self.most {
            let longest = self.objects.iter_mut().max_by_key(|object| object.size());
            // Nothing can be forgotten of tables that have no rows yet.
            let Some(object) = longest.filter(|object| object.has_rows()) else { return };
            object.learning = Learning::new(object.head.range.clone());
            object.version += 1;
            self.forgotten += 1;
        }
    }

    /// Fills in the functions of a stack whose copy begins at its stack pointer, the innermost
    /// first: the instruction of `from`, then one inside of each call; [`MOST_FRAMES`] at most.
    pub fn follow(&mut self, from: CallFrame, copy: &[u8], into: &mut Vec<u64>) -> CopyEnd {
        let (mut at, mut is_beyond) = (from, false);
        into.clear();
        while into.len() < MOST_FRAMES {
            into.push(at.instruction as u64);
            let word = |address: usize| crate::bytes::word_at(copy, address.checked_sub(from.stack)?);
            let read = |address: usize| {
                let word = word(address);
                is_beyond |= word.is_none() && address >= from.stack;
                word
            };
            let (rule, nowhere) = match self.code(at.instruction as u64) {
                CallerWay::Ruled(rule) => (rule, CopyEnd::NoRule),
                CallerWay::Linked => (FrameRule::LINK, CopyEnd::NoTable),
                CallerWay::Unlearned => return CopyEnd::Unlearned,
                CallerWay::None => return CopyEnd::NoTable,
            };
            let is_other = |address: usize| {
                !matches!(self.code(address as u64), CallerWay::Ruled(FrameRule::UNCOVERED) | CallerWay::None)
            };
            let linked = rule.linked_caller(at, word, is_other).map(CallerStep::Found);
            match linked.unwrap_or_else(|| rule.caller(at, read)) {
                CallerStep::Found(caller) => at = caller,
                CallerStep::Outermost => return CopyEnd::Outermost,
                CallerStep::Unknown if is_beyond => return CopyEnd::Copy,
                CallerStep::Unknown if into.len() > 1 && rule.is_first(at) => return CopyEnd::Outermost,
                CallerStep::Unknown => return nowhere,
            }
        }
        CopyEnd::Enough
    }

    /// Reads all functions of the object in which an address lies. Returns its table.
    pub fn read_whole(&mut self, address: u64) -> Option<&RowTable> {
        let place = self.code_at(address)?.object?;
        let index = self.objects[place].index?;
        for number in 0..index.count() {
            // A count that is not true leads behind the list.
            let Some(function) = index.get(&self.memory, number) else { break };
            self.code(function.start);
        }
        Some(self.objects[place].learning.as_ref()?.table())
    }

    /// The bytes of all tables.
    pub fn size(&self) -> usize {
        self.objects.iter().map(Object::size).sum()
    }

    /// How often the tables have changed: functions were learned, or mappings added.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How often the longest table was forgotten to make room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The mappings with code, each with its object, if that has a table.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&Range<u64>, Option<(&Object, &RowTable)>)> {
        self.code.iter().map(|code| {
            let object = code.object.and_then(|place| self.objects.get(place));
            (&code.range, object.and_then(|object| Some((object, object.learning.as_ref()?.table()))))
        })
    }
}

/// The files of which code is mapped, sorted. Only their heads are read: to read others costs the
/// process memory, or waits for a file system that does not answer. `None`: there is no memory.
fn files_with_code(maps: &[u8]) -> Option<Vec<FileId>> {
    let mut files = Vec::new();
    for line in parse(maps).map_while(Result::ok).filter(|line| line.perms.contains(Perms::EXECUTE)) {
        if let Some(file) = line.file.filter(|file| files.last() != Some(file)) {
            files.try_reserve(1).ok()?;
            files.push(file);
        }
    }
    files.sort_unstable();
    Some(files)
}

impl Object {
    fn size(&self) -> usize {
        self.learning.as_ref().map_or(0, |learning| learning.table().size())
    }

    fn has_rows(&self) -> bool {
        self.learning.as_ref().is_some_and(|learning| learning.table().rows().next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::bytes::MappedBytes;
    use crate::memory::Failing;

    /// Where the object of [`Written`] lies, and its code.
    const AT: u64 = 0x1_0000;
    const MAPS: &[u8] = b"10000-11000 r--p 00000000 fe:01 7 /a\n11000-12000 r-xp 00001000 fe:01 7 /a\n";
    const CODE: u64 = AT + 0x1000;

    /// Memory that may be written anew, and the number of times that it was read.
    #[derive(Debug)]
    struct Written(RefCell<Vec<u8>>, Cell<u32>);

    impl MemorySource for &Written {
        fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
            self.1.set(self.1.get() + 1);
            MappedBytes { address: AT, bytes: &self.0.borrow() }.read(address, into)
        }
    }

    /// An object of two pages with an index of two functions; the second begins at that distance.
    fn object(second: u32) -> Vec<u8> {
        let mut bytes = vec![0; 0x1000];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "big") { 2 } else { 1 }]);
        put(32, &64_u64.to_ne_bytes());
        put(54, &56_u16.to_ne_bytes());
        put(56, &2_u16.to_ne_bytes());
        let segments = [(1_u32, 0_u64, 0x2000_u64), (0x6474_e550, 0x200, 0x20)];
        for (at, (kind, start, length)) in [64, 120].into_iter().zip(segments) {
            put(at, &kind.to_ne_bytes());
            put(at + 16, &start.to_ne_bytes());
            put(at + 40, &length.to_ne_bytes());
        }
        put(0x200, &[1, 0x1b, 0x03, 0x3b]);
        for (at, number) in [(0x208, 2), (0x20c, 0xe00), (0x214, second)] {
            put(at, &u32::to_ne_bytes(number));
        }
        bytes
    }

    #[test]
    fn a_rewritten_file_is_another_object() {
        let memory = Written(RefCell::new(object(0xe40)), Cell::new(0));
        let mut tables = UnwindTables::new(&memory);
        let mut number = || {
            tables.update(MAPS);
            tables.unlearned(CODE).expect("nothing is learned yet").object
        };
        let first = number();
        assert_eq!(number(), first);
        memory.0.replace(object(0xe80));
        assert_ne!(number(), first);
    }

    #[test]
    fn objects_that_cannot_be_read_keep_their_rows() {
        let bytes = object(0xe40);
        let memory = Failing::new(MappedBytes { address: AT, bytes: &bytes });
        let (mut failed, mut is_whole) = (0, false);
        while !is_whole {
            let mut tables = UnwindTables::new(&memory);
            assert!(tables.update(MAPS));
            let way = tables.code(CODE);
            memory.fail_after(failed);
            is_whole = tables.update(MAPS);
            let changes = tables.changes();
            assert_eq!((tables.code(CODE), tables.changes()), (way, changes), "read {failed} fails");
            failed += 1;
        }
        assert!(failed > 5, "{failed}");
    }

    #[test]
    fn files_without_code_are_not_read() {
        let memory = Written(RefCell::new(object(0xe40)), Cell::new(0));
        let mut tables = UnwindTables::new(&memory);
        tables.update(b"10000-11000 r--p 00000000 fe:01 7 /data\n11000-12000 r-xp 00001000 fe:01 8 /a\n");
        assert_eq!(memory.1.get(), 0);
        tables.update(MAPS);
        assert_ne!(memory.1.get(), 0);
    }

    #[test]
    fn a_stack_of_too_many_functions_is_told() {
        // Frame pointers lead from each function to the next one, whose return address is in code.
        let (frames, stack) = (MOST_FRAMES + 1, 0x8000_usize);
        let links = (1..=frames).flat_map(|number| [stack + 16 * number, CODE as usize + 8]);
        let copy: Vec<u8> = links.flat_map(usize::to_ne_bytes).collect();
        let mut tables = UnwindTables::new(MappedBytes { address: 0, bytes: &[] });
        tables.update(MAPS);
        let (from, mut found) =
            (CallFrame { instruction: CODE as usize, stack, frame: stack, link: 0 }, Vec::new());
        assert_eq!(tables.follow(from, &copy, &mut found), CopyEnd::Enough);
        assert_eq!(found.len(), MOST_FRAMES);
        assert_eq!(tables.follow(from, &copy[..160], &mut found), CopyEnd::Copy);
    }

    #[test]
    fn pieces_of_an_object_are_one_range() {
        let mut tables = UnwindTables::new(MappedBytes { address: 0, bytes: &[] });
        let ranges = |tables: &mut UnwindTables<_>, maps: &[u8]| -> Vec<Range<u64>> {
            tables.update(maps);
            tables.objects().map(|(range, _)| range.clone()).collect()
        };
        // A page of its code was writable for a while.
        let pieces = b"1000-3000 r-xp 00001000 fe:01 7 /a\n3000-4000 r-xp 00003000 fe:01 7 /a\n\
            4000-5000 r-xp 00004000 fe:01 7 /a\n5000-6000 r--p 00005000 fe:01 7 /a\n\
            6000-7000 r-xp 00006000 fe:01 7 /a\n";
        assert_eq!(ranges(&mut tables, pieces), [0x1000..0x5000, 0x6000..0x7000]);
        assert!(tables.is_code(0x4fff) && !tables.is_code(0x5000));
    }
}
