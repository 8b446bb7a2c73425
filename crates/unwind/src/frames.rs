//! A stack in limited room: of one that is deeper, the functions in the middle are left out.
//!
//! The first half of the room has the innermost functions. The second half is a ring, which has the
//! outermost of those that have come so far. [`in_order`] gives both.

/// The most functions that a walk takes: beyond them the outermost are missing.
pub const MOST_FRAMES: usize = 4096;

/// Where the function belongs that comes after `before` others, in this much room.
#[inline]
pub fn place(before: usize, room: usize) -> usize {
    let inner = room / 2;
    if before < inner { before } else { inner + (before - inner) % (room - inner) }
}

/// Takes in the function that comes after `count` others. Returns whether to go on.
#[inline]
pub fn take(address: usize, count: &mut u32, into: &mut [usize]) -> bool {
    if *count as usize >= MOST_FRAMES {
        return false;
    }
    if let Some(place) = into.get_mut(place(*count as usize, into.len())) {
        *place = address;
    }
    *count += 1;
    true
}

/// The functions of a stack of `count`, the innermost first: those before the ones that are left
/// out, and those behind.
pub fn in_order<T: Copy>(
    count: usize,
    frames: &[T],
) -> (&[T], impl DoubleEndedIterator<Item = T> + Clone + '_) {
    let room = frames.len();
    let is_cut = count > room;
    let (inner, outer) = frames[..count.min(room)].split_at(if is_cut { room / 2 } else { count });
    let oldest = if is_cut { place(count, room) - room / 2 } else { 0 };
    let (newer, older) = outer.split_at(oldest);
    (inner, older.iter().chain(newer).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_left_out() {
        for room in [1, 2, 7, 8] {
            for depth in 0..30 {
                let (mut into, mut count) = (vec![0; room], 0);
                for address in 1..=depth {
                    assert!(take(address, &mut count, &mut into));
                }
                let (inner, outer) = in_order(count as usize, &into);
                let found: Vec<usize> = inner.iter().copied().chain(outer).collect();
                let first = if depth > room { room / 2 } else { depth };
                let expected: Vec<usize> =
                    (1..=first).chain(depth + 1 - (depth.min(room) - first)..=depth).collect();
                assert_eq!(found, expected, "{depth} in {room}");
            }
        }
    }

    #[test]
    fn an_endless_stack_ends() {
        let (mut into, mut count) = ([0; 4], 0);
        assert_eq!((0..1 << 20).take_while(|&at| take(at, &mut count, &mut into)).count(), MOST_FRAMES);
        assert_eq!(into[..2], [0, 1]);
    }
}
