//! A table of callers is read from any bytes, and has sorted rows; a step only goes up the stack.

use dormouse_unwind::{CallFrame, CallerStep, FrameRule, MappedBytes, RowTable};

/// Where the bytes are mapped, with the index first.
const START: u64 = 0x1000;

/// Bytes are an index, and the entries behind it.
///
/// # Panics
///
/// When rows are not sorted, a rule is not found by its address, or a step leads down.
pub fn check(bytes: &[u8]) {
    let Some(table) = RowTable::read(MappedBytes { address: START, bytes }, START) else { return };
    let rows: Vec<(u64, FrameRule)> = table.rows().collect();
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "{rows:?}");
    for &(start, rule) in &rows {
        let instruction = start as usize;
        assert!(table.contains(instruction) && table.rule(instruction) == rule);
        let from = CallFrame { instruction, stack: 0x7000, frame: 0x7000 + bytes.len() };
        if let CallerStep::Found(caller) = rule.caller(from, |at| Some(at ^ instruction)) {
            assert!(caller.stack > from.stack, "{caller:?}");
        }
    }
}
