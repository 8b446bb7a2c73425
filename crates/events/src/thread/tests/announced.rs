//! Polls that a runtime announces.

use super::*;

/// The polls that `work` announces, and how many of them were inside of tasks. No other test
/// announces polls.
fn announced(work: impl FnOnce()) -> (u64, u64) {
    let before = announced_polls();
    work();
    let after = announced_polls();
    (after.all - before.all, after.inside - before.inside)
}

fn poll(work: impl FnOnce()) {
    poll_begins();
    work();
    poll_ends();
}

/// The calls in one test: counts are of the process.
#[test]
fn polls_are_inside_if_a_task_was_entered() {
    let ((a, _a), (b, _b)) = (context(), context());
    let run = |context, kind| drop(enter(&mut Task::new(context, 7), kind));
    let (inside, outside) = ((1, 1), (1, 0));
    for lazy in [false, true] {
        set_lazy(lazy);
        assert_eq!(announced(|| poll(|| ())), outside);
        for kind in [Kind::Poll, Kind::Poll, Kind::Scope, Kind::Run, Kind::Drop, Kind::Drop] {
            assert_eq!(
                announced(|| poll(|| run(a, kind))),
                inside,
                "{kind:?} of the same context, lazy: {lazy}"
            );
        }
        assert_eq!(announced(|| poll(|| [a, b, a].into_iter().for_each(|of| run(of, Kind::Poll)))), inside);
        // Ends of what ran before are no entries.
        assert_eq!(announced(|| poll(park)), outside, "lazy: {lazy}");
        run(a, Kind::Poll);
        assert_eq!(announced(|| poll(|| set_lazy(false))), outside, "lazy: {lazy}");
    }
    let mut task = Task::new(a, 9);
    task.disable_all();
    assert_eq!(announced(|| poll(|| drop(enter(&mut task, Kind::Poll)))), inside, "it counts nothing");
    // A scheduler that switches, before the call or behind it.
    switch(Some(&mut task));
    assert_eq!(announced(|| poll(|| ())), inside);
    assert_eq!(announced(|| poll(|| _ = switch(None))), outside);
    assert_eq!(announced(|| poll(|| _ = switch(Some(&mut task)))), inside);
    switch(None);
    // A runtime that runs inside of a task, and one inside of another one's poll.
    let around = enter(&mut Task::new(a, 10), Kind::Scope);
    assert_eq!(announced(|| poll(|| ())), inside);
    let further = |depth| (0..depth).map(|_| enter(&mut Task::new(b, 11), Kind::Scope)).collect::<Vec<_>>();
    assert_eq!(announced(|| poll(|| drop(further(3)))), inside);
    drop(around);
    assert_eq!(announced(|| poll(|| poll(|| run(a, Kind::Poll)))), inside, "the inner one alone");
    assert_eq!(announced(|| poll(|| drop(further(2 * MAX_DEPTH)))), inside);
    assert_eq!(announced(poll_ends), (0, 0), "no poll had begun");
}
