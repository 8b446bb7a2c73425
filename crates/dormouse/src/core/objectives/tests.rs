//! Leases, slots and counts, without a service.

use std::thread;

use super::*;
use crate::core::ends::{Ending, outcome_of};

const LIMIT_NS: u64 = 250;

fn objective(limit_ns: u64) -> Objective {
    Objective { target_ppm: 990_000, limit_ns }
}

/// A group that no registry has.
fn group(name: &'static str) -> OfGroup {
    static NEXT: AtomicU32 = AtomicU32::new(1_000_000);
    let counts = Box::leak(Box::new(OnceBox::new()));
    OfGroup { id: NEXT.fetch_add(1, Ordering::Relaxed), name, counts }
}

fn matching(globs: &str) -> Chosen {
    Chosen::Matching(Arc::new(Selector::parse(globs).unwrap()))
}

fn rows(group: OfGroup) -> Vec<(u64, u64, u64)> {
    let rows = group.counts.get().map_or_else(Vec::new, ObjectiveCounts::rows);
    rows.iter().map(|row| (row.objective.limit_ns, row.met, row.missed)).collect()
}

fn end(group: OfGroup, age_ns: u64, ending: Ending) {
    group.counts.get().unwrap().count(age_ns, outcome_of(0, ending));
}

fn lease(group: OfGroup, limit_ns: u64) -> Result<ObjectiveLeases, NoRoom> {
    let wanted = vec![(Chosen::One(group.id), objective(limit_ns))];
    begin(wanted, || vec![group]).map(|(held, _)| held)
}

#[test]
fn each_end_counts_as_it_should() {
    let group = group("ends");
    let _held = lease(group, LIMIT_NS).unwrap();
    for (age_ns, ending, counts) in [
        (LIMIT_NS - 1, Ending::Completed, (1, 0)),
        (LIMIT_NS, Ending::Completed, (1, 1)),
        (LIMIT_NS - 1, Ending::ClientError, (2, 1)),
        (LIMIT_NS, Ending::ClientError, (2, 2)),
        (LIMIT_NS - 1, Ending::Error, (2, 3)),
        (LIMIT_NS, Ending::Error, (2, 4)),
        (LIMIT_NS - 1, Ending::Cancelled, (2, 4)),
        (LIMIT_NS, Ending::Cancelled, (2, 5)),
    ] {
        end(group, age_ns, ending);
        assert_eq!(rows(group), [(LIMIT_NS, counts.0, counts.1)], "{ending:?} at {age_ns}");
    }
}

#[test]
fn leases_for_one_objective_share_a_count() {
    let group = group("shared");
    let first = lease(group, 5).unwrap();
    end(group, 1, Ending::Completed);
    let second = lease(group, 5).unwrap();
    drop(first);
    end(group, 9, Ending::Completed);
    assert_eq!(rows(group), [(5, 1, 1)]);
    drop(second);
    assert_eq!(rows(group), []);
    end(group, 9, Ending::Completed);
    let _third = lease(group, 5).unwrap();
    assert_eq!(rows(group), [(5, 0, 0)], "it begins anew");
}

#[test]
fn the_ninth_objective_is_refused_by_name() {
    let (group, other) = (group("GET /full"), group("GET /other"));
    let mut held: Vec<_> = (1..=8).map(|n| lease(group, n).unwrap()).collect();
    let _same = lease(group, 8).unwrap();
    let globs = || matching("GET /full,GET /other");
    let wanted = || vec![(globs(), objective(3)), (globs(), objective(9))];
    let refused = begin(wanted(), || vec![other, group]).unwrap_err().to_string();
    assert!(refused.contains("the group GET /full has 8 objectives"), "{refused}");
    assert_eq!((rows(other).len(), rows(group).len()), (0, 8), "all or none");
    drop(held.pop());
    held.truncate(6);
    let (_held, with) = begin(wanted(), || vec![other, group]).unwrap();
    assert_eq!((with, rows(other).len()), (2, 2));
}

#[test]
fn an_objective_without_groups_is_told_later() {
    let [orders, meant] = ["GET /orders", "GET /ordrs"].map(group);
    let begun = Instant::now();
    let is_told = |after: Duration, groups: &[OfGroup]| {
        let told = unmatched(begun + after, || groups.to_vec());
        told.iter().any(|(globs, of)| globs.as_str() == "GET /ordrs" && *of == objective(7))
    };
    let wanted = || vec![(matching("GET /ordrs"), objective(7)), (matching("GET /*"), objective(7))];
    let (held, with) = begin(wanted(), || vec![orders]).unwrap();
    assert_eq!(with, 1);
    let (again, _) = begin(wanted(), || vec![orders]).unwrap();
    let later = A_WHILE * 2;
    assert!(is_told(later, &[orders]) && !is_told(Duration::ZERO, &[orders]));
    assert!(!is_told(later, &[]), "a service that has served nothing may have it yet");
    assert!(!is_told(later, &[orders, meant]));
    let all = unmatched(begun + later, || vec![orders]);
    assert_eq!(all.iter().filter(|(globs, _)| globs.as_str() == "GET /ordrs").count(), 1, "each once");
    assert!(!all.iter().any(|(globs, _)| globs.as_str() == "GET /*"));
    drop(held);
    assert!(is_told(later, &[orders]));
    drop(again);
    assert!(!is_told(later, &[orders]));
}

#[test]
fn a_group_that_comes_later_has_them() {
    let globs = matching("GET /late*");
    let (held, with) = begin(vec![(globs, objective(7))], Vec::new).unwrap();
    assert_eq!(with, 0);
    let [late, none] = ["GET /late/1", "GET /early"].map(group);
    // While another thread has the lock, this one leaves word.
    let leases = LEASES.lock().unwrap();
    thread::scope(|scope| scope.spawn(|| group_begins(late, || vec![late])).join()).unwrap();
    assert_eq!((rows(late), PENDING.load(Ordering::SeqCst)), (vec![], true));
    drop(leases);
    // The next thread that has the lock does it. Those of other tests may take the word, and have
    // other groups.
    for _ in 0..1000 {
        group_begins(none, || vec![late, none]);
        if !rows(late).is_empty() {
            break;
        }
        PENDING.store(true, Ordering::SeqCst);
    }
    assert_eq!((rows(late), rows(none)), (vec![(7, 0, 0)], vec![]));
    drop(held);
    assert_eq!(rows(late), []);
}

#[test]
fn a_slot_counts_for_its_objective_alone() {
    let slot = Slot::default();
    slot.begin(objective(5));
    let before = slot.limit.load(Ordering::Relaxed);
    slot.end();
    slot.begin(objective(6));
    // A request that was compared with the one before.
    slot.count(before, 1, outcome_of(0, Ending::Completed));
    assert_eq!(slot.row().map(|row| (row.met, row.missed)), Some((0, 0)));
}

#[test]
fn no_request_is_lost_between_threads() {
    const EACH: u64 = 20_000;
    let group = group("threads");
    let _held = lease(group, 5).unwrap();
    thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || (0..EACH).for_each(|age| end(group, age % (n + 6), Ending::Completed)));
        }
    });
    let [(_, met, missed)] = rows(group)[..] else { panic!("one objective") };
    assert_eq!(met + missed, 4 * EACH);
    assert!(met > missed && missed > 0);
}
