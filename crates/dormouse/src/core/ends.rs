//! How tasks end.
//!
//! A task is counted by its outcome where it was counted as finished before: at its end, by one
//! addition. Three things decide:
//!
//! 1. The guard that ends it stores an [`Ending`] in the task: `Cancelled` if a future or a body is
//!    dropped before its end, an error if an adapter has seen one, `Completed` otherwise.
//! 2. A panic that unwinds one of the task's polls or runs leaves a *note* of the task's number
//!    ([`UNWOUND`]). The poll itself has no flag to set and to clear, so a poll that does not panic
//!    costs what it did before. A panic that starts in a task, or that unwinds a task inside of it,
//!    leaves [`SEEN`]: with an error at the end, somebody has caught the panic and answered for it.
//! 3. The service's own word ([`outcome`]) is a note, too.
//!
//! # Notes
//!
//! A note is the number of a task and some bits, in a table of lines of the cache. The number
//! decides the line. The end of the task takes its note; until the process leaves its first note,
//! this is one load.
//!
//! Only requests have notes: others are not counted by their outcomes, and a connection would keep
//! its note for as long as its client stays.
//!
//! A line that is full has no room for a ninth task. A panic takes the place of another note there;
//! a word is refused and counted.
//!
//! # Invariants
//!
//! 1. A task has at most one note: only the threads that run it leave notes, and two threads that
//!    do so at the same moment leave two, of which its end takes both.
//!
//! # Async-signal-safety
//!
//! Notes are left and taken without a lock. Only a word's first use allocates.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dormouse_sys::sync::OnceBox;

use crate::core::record::floor_char_boundary;

/// How many words of its own a service can have: as many as the counters of a group have room for
/// in the lines of the cache that they take anyway.
pub const MAX_OUTCOMES: usize = 6;

/// How many bytes of such a word are kept.
const MAX_WORD: usize = 64;

/// The outcomes that dormouse finds by itself, in the order of their numbers.
pub(crate) const KNOWN_OUTCOMES: [&str; KNOWN] =
    ["completed", "client_error", "error", "cancelled", "panicked"];
const KNOWN: usize = 5;

/// How many outcomes there are.
pub(crate) const OUTCOMES: usize = KNOWN + MAX_OUTCOMES;

/// How a task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskOutcome {
    /// Below [`OUTCOMES`].
    number: u8,
    is_unwound: bool,
}

/// How a task ends, as far as the guard that ends it can see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    #[default]
    Completed = 0,
    /// The answer says that the request was wrong.
    #[cfg_attr(not(any(feature = "actix", feature = "tower")), expect(dead_code, reason = "for layers"))]
    ClientError = 1,
    Error = 2,
    /// Dropped before its end.
    Cancelled = 3,
}

pub(crate) const PANICKED: u8 = 4;

/// The bits of a note: the number of an outcome and one, or 0; and what is known of panics.
const WORD: u64 = 0xf;
const SEEN: u64 = 1 << 4;
const UNWOUND: u64 = 1 << 5;
/// Above them is the number of the task.
const TASK: u32 = 8;

/// The highest number of a task of which there can be notes.
pub(crate) const MOST_NOTED: u64 = u64::MAX >> TASK;

/// Tasks of a line.
const LINE: usize = 8;
/// Room for some thousand tasks that have a word at the same time.
const LINES: usize = 1024;

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; LINE]);

static NOTES: [Line; LINES] = [const { Line([const { AtomicU64::new(0) }; LINE]) }; LINES];
/// Whether there was ever a note.
static HAS_NOTES: AtomicBool = AtomicBool::new(false);
/// How many words were refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

static WORDS: [OnceBox<Box<str>>; MAX_OUTCOMES] = [const { OnceBox::new() }; MAX_OUTCOMES];

impl TaskOutcome {
    /// Its number.
    pub(crate) fn number(self) -> u8 {
        self.number
    }

    /// Its number.
    pub(crate) fn index(self) -> usize {
        self.number.into()
    }

    /// Whether the task failed, by an error or by a panic.
    pub(crate) fn is_failed(self) -> bool {
        self.number == Ending::Error as u8 || self.number == PANICKED
    }

    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        outcome_word(self.number).unwrap_or_default()
    }

    /// Whether the task was dropped before its end, or its answer was that the client is gone.
    pub(crate) fn is_cancelled(self) -> bool {
        self.number == Ending::Cancelled as u8
    }

    /// Whether the task ended without an answer.
    pub(crate) fn is_unanswered(self) -> bool {
        self.is_unwound || self.is_cancelled()
    }
}

/// The word for the outcome with that number, as exemplars have it
/// ([`Exemplar::outcome`](crate::waits::Exemplar)). `None` if there is none.
///
/// ```
/// use dormouse::waits::outcome_word;
///
/// assert_eq!((outcome_word(0), outcome_word(255)), (Some("completed"), None));
/// ```
pub fn outcome_word(number: u8) -> Option<&'static str> {
    let at = usize::from(number);
    let own = || WORDS.get(at - KNOWN).and_then(OnceBox::get);
    KNOWN_OUTCOMES.get(at).copied().or_else(|| Some(&**own()?))
}

/// How the task has ended, of which `ending` is known. Its note goes.
#[inline]
pub(crate) fn outcome_of(task: u64, ending: Ending) -> TaskOutcome {
    let notes = if HAS_NOTES.load(Ordering::Relaxed) { take(task) } else { 0 };
    if notes == 0 { TaskOutcome { number: ending as u8, is_unwound: false } } else { noted(notes, ending) }
}

#[cold]
fn noted(notes: u64, ending: Ending) -> TaskOutcome {
    let word = (notes & WORD) as u8;
    let is_unwound = notes & UNWOUND != 0;
    let number = match ending {
        _ if is_unwound => PANICKED,
        Ending::Cancelled => ending as u8,
        _ if word != 0 => word - 1,
        Ending::Error if notes & SEEN != 0 => PANICKED,
        _ => ending as u8,
    };
    TaskOutcome { number, is_unwound }
}

/// Whether the task is counted by its outcome: the numbers of requests are odd (invariant 2 of
/// [`super::tasks`]).
fn is_counted(task: u64) -> bool {
    task % 2 == 1
}

/// A panic starts in that task, or has unwound a task inside of it.
pub(crate) fn panic_seen(task: u64) {
    if is_counted(task) && !note(task, |bits| bits | SEEN) {
        displace(task, SEEN);
    }
}

/// A panic unwinds that task.
pub(crate) fn panic_unwinds(task: u64) {
    if is_counted(task) && !note(task, |bits| bits | UNWOUND) {
        displace(task, UNWOUND);
    }
}

/// Gives the current task, and the request if the task is one, an outcome of the service's own:
/// `dormouse_requests_total{outcome="sold_out"}`, and a row of `dormouse stat --json`. The last
/// word counts. It replaces what an adapter finds, but not `cancelled` or `panicked`. The names
/// `completed`, `client_error`, `error`, `cancelled` and `panicked` set these outcomes.
///
/// A process has at most [`MAX_OUTCOMES`] words, of which 64 bytes are kept, cut at the end of a
/// character: name kinds of outcomes, never what a request contains. Returns false if the word has
/// no place: no task is current, or one that is no request (a part of another one, a connection);
/// this would be the seventh word; or too many requests have a word at the same time.
/// `dormouse doctor` has the number of refused words.
///
/// ```
/// use dormouse::Group;
///
/// Group::new("POST /orders").scope(|| {
///     assert!(dormouse::outcome("sold_out"));
/// });
/// assert!(!dormouse::outcome("nobody's"), "no task is current");
/// ```
///
/// # Cost
///
/// A comparison with each known word, and one exchange; an allocation for a new word.
pub fn outcome(word: &str) -> bool {
    let task = dormouse_events::current_task();
    if cfg!(dormouse_off) || !is_counted(task) {
        return false;
    }
    let is_noted = number(word).is_some_and(|number| note(task, |bits| (bits & !WORD) | (number as u64 + 1)));
    if !is_noted {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    is_noted
}

/// The service's own words so far, in the order of their numbers.
pub(crate) fn own_words() -> impl Iterator<Item = &'static str> {
    WORDS.iter().map_while(OnceBox::get).map(|word| &**word)
}

/// How many words were refused.
pub(crate) fn refused_words() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// The number of the outcome of that name; `None` if there is room for no more.
fn number(word: &str) -> Option<usize> {
    let word = &word[..floor_char_boundary(word, MAX_WORD)];
    if let Some(known) = KNOWN_OUTCOMES.iter().position(|known| *known == word) {
        return Some(known);
    }
    let place = WORDS.iter().position(|place| **place.get_or_init(|| Box::new(word.into())) == *word);
    place.map(|place| KNOWN + place)
}

fn line(task: u64) -> &'static [AtomicU64; LINE] {
    // Numbers of neighbours differ by one or by four; the high bits of the product differ in all.
    let hash = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    &NOTES[hash as usize % LINES].0
}

/// Changes the bits of a task's note. False: there is no room for it.
fn note(task: u64, change: impl Fn(u64) -> u64) -> bool {
    // Its note would be another task's.
    if task > MOST_NOTED {
        return false;
    }
    HAS_NOTES.store(true, Ordering::Relaxed);
    let line = line(task);
    let own = |place: &&AtomicU64| place.load(Ordering::Relaxed) >> TASK == task;
    let bits = |entry: u64| if entry >> TASK == task { entry & ((1 << TASK) - 1) } else { 0 };
    let of_task = |entry: u64| {
        let is_free = entry == 0 || entry >> TASK == task;
        is_free.then(|| task << TASK | change(bits(entry)))
    };
    let tried = line.iter().find(own).into_iter().chain(line);
    tried.into_iter().any(|place| place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_task).is_ok())
}

/// Puts a note into the place of another one.
#[cold]
fn displace(task: u64, bits: u64) {
    line(task)[0].store(task << TASK | bits, Ordering::Relaxed);
}

/// Takes the notes of a task. Of two words, the later place's counts: both in one would be a third.
#[inline(never)]
fn take(task: u64) -> u64 {
    let mut notes = 0;
    for place in line(task) {
        let gone = |entry: u64| (entry >> TASK == task).then_some(0);
        if let Ok(entry) = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, gone) {
            let before = if entry & WORD == 0 { notes } else { notes & !WORD };
            notes = before | entry & ((1 << TASK) - 1);
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_goes_with_its_task() {
        for task in ((1 << 40) + 1..).step_by(14).take(2000) {
            panic_seen(task);
            assert_eq!(outcome_of(task, Ending::Error).number, PANICKED, "caught, and answered for");
            assert_eq!(outcome_of(task, Ending::Error).number, Ending::Error as u8, "a later task");
            panic_seen(task);
            assert_eq!(outcome_of(task, Ending::Completed).number, Ending::Completed as u8, "caught inside");
            panic_unwinds(task);
            panic_seen(task);
            assert_eq!(outcome_of(task, Ending::Cancelled).number, PANICKED);
        }
    }

    #[test]
    fn the_highest_number_has_its_own_note() {
        let (task, low) = (1 << 55 | 0x7531, 0x7531);
        assert!(note(task, |bits| bits | 6));
        assert_eq!(outcome_of(low, Ending::Completed).index(), 0, "another task");
        assert_eq!(outcome_of(task, Ending::Completed).index(), 5);
        assert!(!note(1 << 56 | 0x7531, |bits| bits | 6), "it cannot be kept");
    }

    #[test]
    fn a_full_line_refuses_words_and_takes_panics() {
        let same = |task: &u64| std::ptr::eq(line(*task), line(1 << 41));
        let tasks: Vec<u64> = ((1 << 41) + 1..).step_by(2).filter(same).take(LINE + 1).collect();
        let (last, first) = tasks.split_last().unwrap();
        assert!(first.iter().all(|task| note(*task, |bits| bits | 6)));
        assert!(!note(*last, |bits| bits | 6));
        assert!(note(first[3], |bits| (bits & !WORD) | 7), "it has one");
        panic_unwinds(*last);
        assert_eq!(outcome_of(*last, Ending::Cancelled).number, PANICKED);
        let kept = first.iter().map(|task| outcome_of(*task, Ending::Completed).index());
        assert_eq!(kept.collect::<Vec<_>>(), [0, 5, 5, 6, 5, 5, 5, 5]);
    }

    #[test]
    fn two_notes_of_a_task_are_one_word() {
        let task = 1 << 42;
        // Of two threads that were in the task at the same moment.
        line(task)[2].store(task << TASK | 5, Ordering::Relaxed);
        line(task)[5].store(task << TASK | SEEN | 0xa, Ordering::Relaxed);
        HAS_NOTES.store(true, Ordering::Relaxed);
        assert_eq!(outcome_of(task, Ending::Completed).index(), 9);
    }

    #[test]
    fn words_are_cut_and_bounded() {
        let long = "ä".repeat(MAX_WORD);
        assert_eq!((number("error"), number(&long)), (Some(2), Some(KNOWN)));
        assert_eq!(number(&format!("{long}!")), Some(KNOWN));
        for n in 1..MAX_OUTCOMES {
            assert_eq!(number(&format!("word {n}")), Some(KNOWN + n));
        }
        assert_eq!((number("one more"), number("word 3")), (None, Some(KNOWN + 3)));
        assert_eq!(own_words().next(), Some(&long[..MAX_WORD]));
        assert_eq!(own_words().count(), MAX_OUTCOMES);
    }
}
