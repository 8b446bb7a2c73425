//! Cases 5 and 6 while nothing is counted. No other test counts anything in a process of its own.

use dormouse_testkit::in_child;

use super::*;

#[test]
fn asleep_threads_stay_open_over_contexts() {
    in_child(|| {
        let [a, b] = [Context::new(), Context::new()];
        let is_open = || with(|stack| stack.state.is_open());
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        for (context, id) in [(b, 2), (a, 3), (b, 4)] {
            let inside = enter(&mut Task::new(context, id), Kind::Poll);
            assert!(is_open(), "a task of another context takes case 5(b)");
            assert_eq!((current_task(), current_context()), (id, context.id()));
            drop(inside);
            assert!(is_open());
        }
        let inside = enter(&mut Task::new(a, 5), Kind::Poll);
        pass(100);
        let _countings = [a, b].map(|of| Counting::of(of, &[happenings()], Mode::GroupExact).unwrap());
        pass(5);
        drop(inside);
        pass(1000);
        assert_eq!((value(a), value(b)), ((5, 0), (0, 0)), "counting began inside of the task of `a`");
    });
}

#[test]
fn asleep_threads_stay_open_inside_of_tasks() {
    in_child(|| {
        let [a, b] = [Context::new(), Context::new()];
        let is_open = || with(|stack| stack.state.is_open());
        let current = || (current_task(), current_context());
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        let outer = enter(&mut Task::new(a, 2), Kind::Poll);
        for kind in [Kind::Poll, Kind::Run, Kind::Scope, Kind::Drop] {
            let inner = enter(&mut Task::new(b, 3), kind);
            let innermost = enter(&mut Task::new(a, 4), kind);
            assert!(is_open(), "a task inside of another one takes case 5(c)");
            assert_eq!(current(), (4, a.id()));
            drop(innermost);
            assert_eq!(current(), (3, b.id()));
            drop(inner);
            assert!(is_open(), "case 6(c)");
            assert_eq!(current(), (2, a.id()));
        }
        let inner = enter(&mut Task::new(b, 5), Kind::Run);
        pass(1000);
        let _countings = [a, b].map(|of| Counting::of(of, &[happenings()], Mode::GroupExact).unwrap());
        pass(5);
        drop(inner);
        pass(70);
        drop(outer);
        pass(1000);
        assert_eq!((value(a), value(b)), ((70, 5), (5, 0)), "counting began inside of both tasks");
    });
}

#[test]
fn asleep_guards_may_end_in_any_order() {
    in_child(|| {
        let [a, b] = [Context::new(), Context::new()];
        let current = || (current_task(), current_context());
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        let outer = enter(&mut Task::new(a, 2), Kind::Poll);
        let first = enter(&mut Task::new(b, 3), Kind::Scope);
        let second = enter(&mut Task::new(a, 4), Kind::Scope);
        drop(first);
        assert_eq!(current(), (4, a.id()));
        drop(second);
        assert_eq!(current(), (2, a.id()), "the frame between is passed over");
        std::mem::forget(enter(&mut Task::new(b, 5), Kind::Scope));
        drop(outer);
        assert_eq!(current(), (0, 0), "a poll ends what is left inside");
        let _counting = Counting::of(b, &[happenings()], Mode::GroupExact).unwrap();
        pass(3);
        assert_eq!(value(b).0, 0);
    });
}

#[test]
fn a_handler_leaves_the_edit_that_it_interrupts() {
    in_child(|| {
        let a = Context::new();
        set_lazy(true);
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        let here = with(|stack| stack.here.get()).unwrap();
        let number = here.span.begin();
        // Case 5 does not ask for the edit.
        let poll = enter(&mut Task::new(a, 2), Kind::Poll);
        assert_eq!(current_task(), 2);
        let _counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
        drop(poll);
        assert!(here.span.is_in_edit(), "the generation is over, but this edit is not the handler's to end");
        assert_eq!(current_task(), 0);
        here.span.cancel(number);
        let _poll = enter(&mut Task::new(a, 3), Kind::Poll);
        pass(1);
        assert_eq!(value(a).0, 1);
    });
}
