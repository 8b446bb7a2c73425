//! The counts of watches of groups, for readers on other threads.

use std::sync::atomic::Ordering;

use super::row::{Line, number_of};
use super::unarmed::REASONS;
use super::{Covered, Entry, ROWS, USED, entry};

/// How often a reader looks, as long as a line is being turned.
const PATIENCE: usize = 8;

/// The hits of the watch by the kernel's count. They never fall, and are never too many: a line
/// that is being turned is left out.
pub(in super::super) fn hits(number: u32) -> u64 {
    let Entry { number: present, hits: settled, seen, .. } = entry(number);
    if present.load(Ordering::Relaxed) != number {
        // Of another watch that has had the entry, or has it by now.
        return 0;
    }
    let mut most = 0;
    for _ in 0..PATIENCE {
        // Acquire: pairs with the fence in `Line::settle`. Hits that are settled by now are in no
        // line that is counted below.
        let before = settled.load(Ordering::Acquire);
        let (mut hits, mut is_whole) = (before, true);
        each_line(|_, line| match line.count_for(number) {
            Some(n) => hits += n,
            None => is_whole = false,
        });
        most = most.max(hits);
        // A line that was turned away meanwhile has been settled since.
        if is_whole && settled.load(Ordering::Relaxed) == before {
            break;
        }
    }
    seen.fetch_max(most, Ordering::Relaxed).max(most)
}

/// The coverage of the watch.
pub(in super::super) fn covered(number: u32) -> Covered {
    let mut threads = 0;
    let mut last = usize::MAX;
    each_line(|row, line| {
        if number_of(line.target()) == number {
            threads += u32::from(row != last);
            last = row;
        }
    });
    let unarmed = entry(number).unarmed.each_ref().map(|count| count.load(Ordering::Relaxed));
    let most = unarmed.iter().zip(REASONS).max_by_key(|(count, _)| **count).filter(|(count, _)| **count > 0);
    Covered { threads, unarmed: unarmed.iter().sum(), reason: most.map(|(_, reason)| reason) }
}

/// Each open line, with the row that it is in.
fn each_line(mut each: impl FnMut(usize, &Line)) {
    for (index, row) in ROWS[..(USED.load(Ordering::Relaxed) as usize).min(ROWS.len())].iter().enumerate() {
        let Some(_inside) = row.enter() else { continue };
        row.lines.iter().filter(|line| line.is_open()).for_each(|line| each(index, line));
    }
}
