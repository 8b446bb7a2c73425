//! The tables of one file, copied into memory of ours, and checked before they are used.
//!
//! The reader computes addresses by expressions that a table may contain. It has no bound for them,
//! so an expression that jumps back would never end. No compiler writes jumps there. So the tables
//! are checked once, in the way in which the reader finds them: each entry of the index, or of the
//! table where there is none. A table with a jump, or one that takes longer to check than its
//! length allows, is not used. Then its functions are assumed to have frame pointers.

use std::ops::{Deref, Range};
use std::sync::Arc;

use framehop::ExplicitModuleSectionInfo;
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, EhFrame, EhFrameHdr,
    EhFrameOffset, Encoding, EndianSlice, FrameDescriptionEntry, LittleEndian, Operation, UnwindExpression,
    UnwindSection as _,
};

use crate::symbols::elf::{Elf, Load};

/// Bytes of a table, which all mappings of its file share.
#[derive(Debug, Clone, Default)]
pub(super) struct TableBytes(Arc<Vec<u8>>);

impl Deref for TableBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The most bytes of one table.
const MOST_TABLE: u64 = 256 << 20;
/// The most instructions that lead to one address.
const MOST_STEPS: usize = 1 << 16;

/// The tables of a file: `.eh_frame`, and the index of it.
#[derive(Debug, Default)]
pub(super) struct FrameTables {
    loads: Vec<Load>,
    frames: Option<(Range<u64>, TableBytes)>,
    index: Option<(Range<u64>, TableBytes)>,
}

impl FrameTables {
    /// The tables of a file; empty if there is no memory for them.
    pub(super) fn read(elf: &Elf<'_>) -> Self {
        let section = |name: &[u8]| {
            let section = elf.find(name).filter(|section| section.size <= MOST_TABLE)?;
            let range = section.addr..section.addr.checked_add(section.size)?;
            let bytes = elf.bytes(section.offset, section.size).ok()?;
            Some((range, TableBytes(Arc::new(bytes))))
        };
        let read =
            Self { loads: elf.loads(), frames: section(b".eh_frame"), index: section(b".eh_frame_hdr") };
        if read.is_usable() { read } else { Self { loads: read.loads, ..Self::default() } }
    }

    /// The bytes that it takes.
    pub(super) fn size(&self) -> usize {
        [&self.frames, &self.index].into_iter().flatten().map(|(_, bytes)| bytes.len()).sum()
    }

    /// The address in the file of the byte at an offset of it.
    pub(super) fn addr(&self, offset: u64) -> Option<u64> {
        let page = rustix::param::page_size() as u64 - 1;
        let holds =
            |load: &&Load| (load.offset & !page..load.offset.saturating_add(load.size)).contains(&offset);
        // The last: the data before the code may end in the same page.
        let load = self.loads.iter().rfind(holds)?;
        Some(load.addr.wrapping_add(offset.wrapping_sub(load.offset)))
    }

    /// The sections in the form that the reader takes.
    pub(super) fn sections(&self) -> ExplicitModuleSectionInfo<TableBytes> {
        let (eh_frame_svma, eh_frame) = self.frames.clone().unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = self.index.clone().unzip();
        ExplicitModuleSectionInfo {
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        }
    }
}

impl FrameTables {
    /// Whether the reader comes to an end with each entry that it can find.
    fn is_usable(&self) -> bool {
        let Some((at, bytes)) = &self.frames else { return true };
        let mut bases = BaseAddresses::default().set_eh_frame(at.start);
        let mut frames = EhFrame::new(bytes, LittleEndian);
        frames.set_address_size(8);
        let Some((at, index)) = &self.index else {
            // The reader makes an index of its own.
            let has_room = Vec::<u8>::new().try_reserve_exact(bytes.len()).is_ok();
            return has_room && Check::new(&frames, bytes.len(), &bases).all();
        };
        bases = bases.set_eh_frame_hdr(at.start);
        let mut check = Check::new(&frames, bytes.len(), &bases);
        let Ok(index) = EhFrameHdr::new(index, LittleEndian).parse(&bases, 8) else { return true };
        let Some(table) = index.table() else { return true };
        let offsets = table.iter(&bases).map_while(Result::ok).map(|(_, to)| table.pointer_to_offset(to));
        offsets.filter_map(Result::ok).all(|offset| check.entry(offset))
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A look through all instructions of a table.
struct Check<'a> {
    frames: &'a EhFrame<Bytes<'a>>,
    bases: &'a BaseAddresses,
    /// The steps that a table of this length may take.
    left: usize,
    /// The common entry that was read last.
    common: Option<usize>,
}

impl<'a> Check<'a> {
    fn new(frames: &'a EhFrame<Bytes<'a>>, length: usize, bases: &'a BaseAddresses) -> Self {
        Self { frames, bases, left: 4 * length, common: None }
    }

    /// Each entry.
    fn all(&mut self) -> bool {
        let mut entries = self.frames.entries(self.bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
                && !self.is_bounded(&entry)
            {
                return false;
            }
        }
        true
    }

    /// The entry at an offset, if the reader finds one there.
    fn entry(&mut self, offset: EhFrameOffset<usize>) -> bool {
        let entry = self.frames.fde_from_offset(self.bases, offset, EhFrame::cie_from_offset);
        entry.map_or(true, |entry| self.is_bounded(&entry))
    }

    fn is_bounded(&mut self, entry: &FrameDescriptionEntry<Bytes<'a>>) -> bool {
        let common = entry.cie();
        let (frames, bases, encoding) = (self.frames, self.bases, common.encoding());
        if self.common != Some(common.offset()) {
            self.common = Some(common.offset());
            if !self.are_bounded(common.instructions(frames, bases), encoding) {
                return false;
            }
        }
        self.are_bounded(entry.instructions(frames, bases), encoding)
    }

    fn are_bounded(
        &mut self,
        mut instructions: CallFrameInstructionIter<'_, Bytes<'a>>,
        encoding: Encoding,
    ) -> bool {
        use CallFrameInstruction::{DefCfaExpression, Expression, ValExpression};
        let least = self.left.saturating_sub(MOST_STEPS);
        // The reader, too, ends where it cannot read on.
        while let Ok(Some(instruction)) = instructions.next() {
            let is_straight = match instruction {
                DefCfaExpression { expression }
                | Expression { expression, .. }
                | ValExpression { expression, .. } => self.is_straight(expression, encoding),
                _ => true,
            };
            if !is_straight || self.left <= least {
                return false;
            }
            self.left -= 1;
        }
        true
    }

    /// Whether an expression has no jump: then what is read here is what will be computed.
    fn is_straight(&mut self, expression: UnwindExpression<usize>, encoding: Encoding) -> bool {
        let Ok(expression) = expression.get(self.frames) else { return true };
        let mut operations = expression.operations(encoding);
        while let Ok(Some(operation)) = operations.next() {
            if matches!(operation, Operation::Skip { .. } | Operation::Bra { .. }) {
                return false;
            }
            self.left = self.left.saturating_sub(1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of a common entry, and one entry with these instructions.
    fn table(instructions: &[u8]) -> FrameTables {
        let mut bytes = Vec::new();
        let mut add = |head: u32, content: &[u8]| {
            let padded = content.len().next_multiple_of(8);
            bytes.extend((4 + padded as u32).to_le_bytes());
            bytes.extend(head.to_le_bytes());
            bytes.extend(content);
            bytes.resize(bytes.len() + padded - content.len(), 0);
        };
        // Version 1, no augmentation, factors 1 and -8, return address in 16; CFA is RSP + 8.
        add(0, &[1, 0, 1, 0x78, 16, 0x0c, 7, 8]);
        let mut entry = [0x1000_u64.to_le_bytes(), 0x100_u64.to_le_bytes()].concat();
        entry.extend(instructions);
        add(20, &entry);
        let frames = Some((0x5000..0x5000 + bytes.len() as u64, TableBytes(Arc::new(bytes))));
        FrameTables { frames, ..FrameTables::default() }
    }

    #[test]
    fn tables_that_take_too_long_are_refused() {
        assert!(table(&[0; 100]).is_usable());
        assert!(!table(&vec![0; MOST_STEPS + 8]).is_usable());
    }

    #[test]
    fn tables_with_jumps_are_refused() {
        // The CFA is RSP + 16, and so it is after a jump over nothing.
        assert!(table(&[0x0f, 2, 0x77, 16]).is_usable());
        for jump in [0x28, 0x2f] {
            assert!(!table(&[0x0f, 5, 0x77, 16, jump, 0, 0]).is_usable());
        }
    }
}
