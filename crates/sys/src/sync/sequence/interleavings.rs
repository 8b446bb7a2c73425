//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-sys --lib interleavings`.

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;

fn explore(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

#[test]
fn a_reader_sees_words_of_one_moment() {
    explore(|| {
        let shared = Arc::new((Sequence::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let writer = {
            let shared = Arc::clone(&shared);
            spawn(move || {
                for n in 1..3 {
                    let (sequence, words) = &*shared;
                    sequence.write(|| words.iter().for_each(|word| word.store(n, Ordering::Relaxed)));
                }
            })
        };
        let (sequence, words) = &*shared;
        let (seen, is_whole) = sequence.read(|| words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        assert!(!is_whole || seen[0] == seen[1], "{seen:?}");
        writer.join().unwrap();
        assert_eq!(sequence.read(|| words[1].load(Ordering::Relaxed)), (2, true));
    });
}

#[test]
fn one_of_several_writers_writes() {
    explore(|| {
        let shared = Arc::new((Sequence::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let writers: Vec<_> = (1..3)
            .map(|n| {
                let shared = Arc::clone(&shared);
                spawn(move || {
                    let (sequence, words) = &*shared;
                    let write = || words.iter().for_each(|word| word.store(n, Ordering::Relaxed));
                    sequence.try_write(write).is_some()
                })
            })
            .collect();
        let (sequence, words) = &*shared;
        let look = || sequence.read(|| words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let (seen, is_whole) = look();
        assert!(!is_whole || seen[0] == seen[1], "{seen:?}");
        let written = writers.into_iter().map(|writer| writer.join().unwrap()).filter(|&has| has).count();
        let (seen, is_whole) = look();
        assert!(written > 0 && is_whole && seen[0] == seen[1] && seen[0] != 0, "{written} {seen:?}");
    });
}
