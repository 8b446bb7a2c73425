//! The handshake by which a new context takes the set of events that is counted everywhere, while
//! that set may change.
//!
//! A new context (a) puts itself into the table and then calls [`take_over`]: it (b) reads the
//! word, (c) passes a fence and (d) reads the word again; if the word has changed, it goes back to
//! (b). A change (e) stores a new word, (f) passes a fence ([`changed`]) and (g) writes the word
//! into all contexts in the table.
//!
//! Either (c) comes before (f): then (g) finds the context, and its write comes after (b)'s. Or (f)
//! comes before (c): then (d) finds the new word. So the word that is written last into the context
//! is that of the last change. No other thread knows the context before (d) has found the word
//! unchanged. From then on every change finds it.

use std::sync::atomic::Ordering;

use crate::primitive::fence;

/// Hands what `look` finds to `take`, until it stays the same. The caller has shown its context
/// before.
pub(crate) fn take_over<T: Copy + PartialEq>(look: impl Fn() -> T, take: impl Fn(T)) {
    loop {
        let seen = look();
        take(seen);
        // Pairs with that in `changed`.
        fence(Ordering::SeqCst);
        if look() == seen {
            return;
        }
    }
}

/// The caller has moved the word that [`take_over`] reads, and writes to all contexts that are
/// shown next.
pub(crate) fn changed() {
    // Pairs with that in `take_over`.
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use loom::thread::spawn;

    use super::*;
    use crate::primitive::AtomicU64;

    struct World {
        word: AtomicU64,
        /// Whether the table shows the context.
        shown: AtomicU64,
        context: AtomicU64,
    }

    impl World {
        fn register(&self) {
            self.shown.store(1, Release);
            take_over(|| self.word.load(Relaxed), |word| self.context.store(word, Release));
        }

        fn change(&self, word: u64) {
            self.word.store(word, Relaxed);
            changed();
            if self.shown.load(Acquire) == 1 {
                self.context.store(word, Release);
            }
        }
    }

    fn run(words: &'static [u64]) {
        loom::model(move || {
            let zero = || AtomicU64::new(0);
            let world = Arc::new(World { word: zero(), shown: zero(), context: zero() });
            let other = Arc::clone(&world);
            let new = spawn(move || other.register());
            words.iter().for_each(|&word| world.change(word));
            new.join().unwrap();
            assert_eq!(world.context.load(Relaxed), words[words.len() - 1]);
        });
    }

    #[test]
    fn a_new_context_has_the_last_word() {
        run(&[1]);
        run(&[1, 2]);
    }

    #[test]
    fn a_last_word_that_came_before_wins_too() {
        run(&[1, 0]);
        run(&[1, 0, 1]);
    }
}
