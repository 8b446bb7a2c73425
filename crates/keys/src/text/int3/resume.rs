//! The table of addresses at which threads continue after an `int3` of ours: the lists that the
//! trap handler searches.
//!
//! # Lists that nobody waits for
//!
//! A handler may be descheduled for long, and need not come back at all: another signal's handler
//! that interrupts it may leave by `siglongjmp`, or fork. So handlers are not counted, and nothing
//! is freed that one may read. A list has two halves: the lowest bit of its *sequence* number
//! selects the half that is read; the other half is filled, then the number moves on. A half is
//! filled again two numbers later. A handler that reads it meanwhile finds, when done, that the
//! number has moved, and reads again. Memory that a half has outgrown is leaked; each allocation is
//! twice as long as the one before, so the leaked memory is never larger than the memory in use.
//!
//! # Invariants
//!
//! 1. A thread that traps finds its site: the round that contains it is published before the first
//!    `int3`, and replaced after the barrier that follows the last.
//! 2. A site that was in a round is never removed: a thread may take its `int3`, be descheduled,
//!    and enter the handler long after the round. It is added before the round is published.
//! 3. Published words are never freed, and only the holder of the patch lock writes them.
//!
//! # Async-signal-safety
//!
//! [`resolve`] allocates nothing and waits for nothing. It reads again if the holder of the patch
//! lock, which never waits for it, has published something meanwhile.
//!
//! # Safety
//!
//! The handler reads words that are never freed.
#![allow(unsafe_code)]

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use dormouse_sys::trap::{self, Verdict};

use crate::arch::LENGTH;
use crate::room::{collect, extend};
use crate::text::patch::Patch;

/// The address at which a thread goes on that has run into the site at `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    pub(super) code: usize,
    pub(super) target: usize,
}

impl Resume {
    /// Where the old instruction would continue, or the new one if `new`.
    pub(super) fn of(patch: &Patch, new: bool) -> Self {
        let leads_to = if patch.jumps == new { patch.target } else { patch.code + LENGTH };
        Self { code: patch.code, target: leads_to }
    }
}

/// Rows of words, in order of the first, that handlers search.
#[derive(Debug)]
struct List<const WORDS: usize> {
    /// Its lowest bit selects the half that is read.
    sequence: AtomicUsize,
    halves: [Half; 2],
}

#[derive(Debug)]
struct Half {
    /// Null: no room yet.
    words: AtomicPtr<Words>,
    rows: AtomicUsize,
}

/// The memory of a half. Its length is that of the allocation, independent of `rows`.
#[derive(Debug)]
struct Words(Vec<AtomicUsize>);

impl<const WORDS: usize> List<WORDS> {
    const fn new() -> Self {
        Self { sequence: AtomicUsize::new(0), halves: [const { Half::new() }; 2] }
    }

    /// The row that begins with this word.
    fn find(&self, first: usize) -> Option<[usize; WORDS]> {
        loop {
            // Pairs with the store in `replace`: the half was filled before.
            let sequence = self.sequence.load(Ordering::Acquire);
            let found = self.halves[sequence & 1].find(first);
            // Pairs with the fence in `replace`: a handler that has read a word of the next filling
            // sees that the number has moved.
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == sequence {
                return found;
            }
        }
    }

    /// Has handlers search these (sorted) rows from now on. The patch lock is held.
    fn replace(&self, rows: impl ExactSizeIterator<Item = [usize; WORDS]>) {
        let sequence = self.sequence.load(Ordering::Relaxed) + 1;
        // Pairs with the fence in `find`: the sequence moved away from this half before it is
        // filled.
        fence(Ordering::Release);
        self.halves[sequence & 1].fill(rows);
        // Pairs with the load in `find`. And before the first `int3`: a thread that runs into one
        // sees this.
        self.sequence.store(sequence, Ordering::SeqCst);
    }

    /// Makes room for `rows` rows in both halves, so that `replace` allocates nothing. The patch
    /// lock is held.
    fn reserve(&self, rows: usize) -> Result<(), TryReserveError> {
        self.halves.iter().try_for_each(|half| half.reserve(rows * WORDS))
    }

    /// The first words of the half that is read. The patch lock is held.
    fn first_words(&self) -> Result<Vec<usize>, TryReserveError> {
        let half = &self.halves[self.sequence.load(Ordering::Relaxed) & 1];
        let rows = 0..half.rows.load(Ordering::Relaxed);
        collect(rows.filter_map(|row| Some(half.row::<WORDS>(row)?[0])))
    }
}

impl Half {
    const fn new() -> Self {
        Self { words: AtomicPtr::new(std::ptr::null_mut()), rows: AtomicUsize::new(0) }
    }

    /// `None`: beyond what there is room for, in a half that is just filled anew.
    fn row<const WORDS: usize>(&self, row: usize) -> Option<[usize; WORDS]> {
        // Pairs with the store in `reserve`: the words are there. SAFETY: null, or published and so
        // never freed.
        let words = unsafe { self.words.load(Ordering::Acquire).as_ref() }?;
        let row = words.0.get(row * WORDS..(row + 1) * WORDS)?;
        Some(std::array::from_fn(|at| row[at].load(Ordering::Relaxed)))
    }

    fn find<const WORDS: usize>(&self, first: usize) -> Option<[usize; WORDS]> {
        let (mut low, mut high) = (0, self.rows.load(Ordering::Relaxed));
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.row::<WORDS>(middle)?;
            match row[0].cmp(&first) {
                std::cmp::Ordering::Equal => return Some(row),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Makes room for `words` words. The rows keep their contents: handlers may be searching them.
    fn reserve(&self, words: usize) -> Result<(), TryReserveError> {
        // SAFETY: as in `row`.
        let present = unsafe { self.words.load(Ordering::Relaxed).as_ref() };
        let present = present.map(|words| &words.0[..]).unwrap_or_default();
        if present.len() >= words {
            return Ok(());
        }
        let room = words.next_power_of_two();
        let (mut all, mut one) = (Vec::new(), Vec::new());
        all.try_reserve_exact(room)?;
        one.try_reserve_exact(1)?;
        all.extend(present.iter().map(|word| AtomicUsize::new(word.load(Ordering::Relaxed))));
        all.resize_with(room, || AtomicUsize::new(0));
        one.push(Words(all));
        // Pairs with the load in `row`. The words before them stay, for handlers that read them.
        self.words.store(one.leak().as_mut_ptr(), Ordering::Release);
        Ok(())
    }

    fn fill<const WORDS: usize>(&self, rows: impl ExactSizeIterator<Item = [usize; WORDS]>) {
        // SAFETY: as in `row`.
        let words = unsafe { self.words.load(Ordering::Relaxed).as_ref() };
        let words = words.map(|words| &words.0[..]).unwrap_or_default();
        let count = rows.len();
        debug_assert!(count * WORDS <= words.len(), "`reserve` comes first");
        for (place, word) in words.iter().zip(rows.flatten()) {
            place.store(word, Ordering::Relaxed);
        }
        self.rows.store(count, Ordering::Relaxed);
    }
}

/// The sites of the round that is under way: code, target.
static ROUND: List<2> = List::new();
/// The addresses of all sites that ever were in a round.
static KNOWN: List<1> = List::new();
static TRAPS: AtomicU64 = AtomicU64::new(0);

/// How many threads have run into a site of ours.
pub(super) fn traps() -> u64 {
    TRAPS.load(Ordering::Relaxed)
}

/// Asked by the trap handler.
pub(super) fn resolve(address: usize) -> Verdict {
    if let Some([_, target]) = ROUND.find(address) {
        TRAPS.fetch_add(1, Ordering::Relaxed);
        return Verdict::Resume(target);
    }
    if KNOWN.find(address).is_some() { Verdict::Late } else { Verdict::Foreign }
}

/// Makes the sites at these addresses known. The patch lock is held, as in the next two.
pub(super) fn know(codes: impl Iterator<Item = usize> + Clone) -> Result<(), TryReserveError> {
    if codes.clone().any(|code| KNOWN.find(code).is_none()) {
        let all = with(KNOWN.first_words()?, codes)?;
        KNOWN.reserve(all.len())?;
        KNOWN.replace(all.into_iter().map(|code| [code]));
    }
    Ok(())
}

/// Makes room for rounds of up to `sites` sites.
pub(super) fn reserve(sites: usize) -> Result<(), TryReserveError> {
    ROUND.reserve(sites)
}

/// Has the handler search this (sorted) table, for which there is room, from now on.
pub(super) fn publish(round: impl ExactSizeIterator<Item = Resume>) {
    ROUND.replace(round.map(|resume| [resume.code, resume.target]));
    trap::begin_round();
}

/// Ends the rounds: no `int3` of them is left.
pub(super) fn retire() {
    ROUND.replace(std::iter::empty());
}

/// `known` and some addresses, in order, each once.
fn with(
    mut known: Vec<usize>,
    addresses: impl Iterator<Item = usize>,
) -> Result<Vec<usize>, TryReserveError> {
    extend(&mut known, addresses)?;
    known.sort_unstable();
    known.dedup();
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_site_stays_known_for_good() {
        let known = with(Vec::new(), [0x20, 0x40].into_iter()).unwrap();
        assert_eq!(with(known, [0x10, 0x40].into_iter()).unwrap(), [0x10, 0x20, 0x40]);
    }

    #[test]
    fn a_list_answers_by_its_last_filling() {
        static LIST: List<2> = List::new();
        assert_eq!(LIST.find(0x20), None);
        for (round, length) in [3, 0, 100, 1, 64, 65].into_iter().enumerate() {
            LIST.reserve(length).unwrap();
            LIST.replace((0..length).map(|row| [row * 16, row + round]));
            for row in 0..130 {
                let expected = (row < length).then(|| [row * 16, row + round]);
                assert_eq!((LIST.find(row * 16), LIST.find(row * 16 + 1)), (expected, None));
            }
            assert_eq!(LIST.first_words().unwrap().len(), length);
            // Room for later fillings leaves this one as it is.
            LIST.reserve(length + 70).unwrap();
            assert_eq!(LIST.find(0x20), (length > 2).then(|| [0x20, 2 + round]));
        }
    }

    #[test]
    fn a_list_answers_whole_while_it_is_filled() {
        static LIST: List<2> = List::new();
        static STOP: AtomicBool = AtomicBool::new(false);
        // Seven is in every filling, each time in another row.
        let fill = |round: usize| LIST.replace((round % 7..60).map(|row| [row, round << 32 | row]));
        LIST.reserve(60).unwrap();
        fill(0);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut found = 0_u64;
                        while !STOP.load(Ordering::Relaxed) {
                            let [code, target] = LIST.find(7).expect("in every filling");
                            assert_eq!((code, target & 0xffff_ffff), (7, 7));
                            found += 1;
                        }
                        found
                    })
                })
                .collect();
            (1..20_000).for_each(fill);
            STOP.store(true, Ordering::Relaxed);
            assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
        });
    }

    #[test]
    fn words_grow_by_doubling_so_little_is_leaked() {
        let half = Half::new();
        let mut places = std::collections::BTreeSet::new();
        for length in 1..=1000 {
            half.reserve(length).unwrap();
            half.fill((0..length).map(|row| [row]));
            places.insert(half.words.load(Ordering::Relaxed) as usize);
        }
        assert_eq!(places.len(), 11, "1, 2, 4 … 1,024");
    }
}
