//! Tables are learned from any bytes, and have sorted rows; a walk only goes up the stack.

use dormouse_unwind::{CallFrame, CallerWay, CopyEnd, MOST_FRAMES, MappedBytes, UnwindTables};

/// Where the bytes are mapped.
const START: u64 = 0x1000;
/// The most bytes.
const LONGEST: usize = 1 << 16;

/// Bytes are an object: its head, the index of its entries, and the entries.
///
/// # Panics
///
/// When an address has another rule at the second look, rows are not sorted, or a walk does not
/// end.
pub fn check(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let mut tables = UnwindTables::new(MappedBytes { address: START, bytes });
    tables.update(format!("{START:x}-{:x} r-xp 00000000 fe:01 7 /object\n", START + 0x10_0000).as_bytes());
    let addresses =
        || bytes.chunks(3).map(|chunk| START + chunk.iter().map(|&byte| u64::from(byte) * 37).sum::<u64>());
    let first: Vec<CallerWay> = addresses().map(|address| tables.code(address)).collect();
    let again: Vec<CallerWay> = addresses().map(|address| tables.code(address)).collect();
    assert_eq!(first, again);
    if let Some(table) = tables.read_whole(START) {
        let rows: Vec<_> = table.rows().collect();
        assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "{rows:?}");
    }
    for (address, from) in addresses().zip([0, 8, 0x1000, usize::MAX - 7]) {
        let from =
            CallFrame { instruction: address as usize, stack: from, frame: from.wrapping_add(16), link: 0 };
        let mut functions = Vec::new();
        let end = tables.follow(from, bytes, &mut functions);
        assert!(functions.len() <= MOST_FRAMES && functions[0] == address, "{end:?}");
        assert!(end != CopyEnd::Outermost || !bytes.is_empty());
    }
}
