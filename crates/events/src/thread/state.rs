//! The states of a thread, and every transition between them.
//!
//! A span costs two readings of each counter. Threads mostly go from poll to poll of one context.
//! Then a thread leaves out what it can, and its state is a record of what it has left out. `g` is
//! the generation in which that holds.
//!
//! | state | the span without a task | the span with one |
//! |---|---|---|
//! | `Closed` | idle | runs for the topmost task |
//! | `Idle(g)` | idle; it lacks one reading of the clock and is otherwise what the next poll wants | runs, since that reading |
//! | `Open(g)` | runs on: the thread is lazy, or nothing is counted | runs |
//!
//! `Idle` and `Open` hold for plain tasks of one context, `Stack::kept_for`. While nothing is
//! counted, the span of a thread that is in a task inside of another one is that of the inner one,
//! and the state stays `Open`: when that task is left, the span is as before.
//!
//! | event | `Closed` | `Idle(g)` | `Open(g)` |
//! |---|---|---|---|
//! | a plain task of `kept_for` is entered on an empty stack, `g` is current | 1 | 3 → `Idle` | 5 → `Open` |
//! | a plain task of another context is entered there, nothing is counted | 1 | 1 | 5(b) → `Open` |
//! | a plain task is entered inside another one, nothing is counted | 1 | 1 | 5(c) → `Open` |
//! | any other task is entered, or `g` is over | 1 | 1 | 1 |
//! | the only task is left (its poll ends), `g` is current | 2 | 4 → `Idle` | 6 → `Open` |
//! | the only task is left, `g` is over | 2 | 2 | 2 |
//! | a plain task inside another one is left, nothing is counted | 1, for the outer one | 1 | 6(c) → `Open` |
//! | any other task inside another one is left | 1, for the outer one | 1 | 1 |
//! | `switch` to a task | 7 | 7 | 7 |
//! | `switch` to none, `park`, `set_lazy` | 2, not (b) | 2, not (b) | 2, not (b) |
//! | the tasks are set aside (`aside`) | 2, not (b) | 2, not (b) | 2, not (b) |
//! | the tasks are current again | 1 | 1 | 1 |
//! | a handler enters or leaves, between edits of the span | as the thread itself: 1, 2 | 1 to 4 | 1, 2, 5, 6 |
//! | a handler enters or leaves, in an edit of the span | 8 | 8 | 8; on an empty stack 5, 6 |
//! | what is counted changes | 9 | 9 | 9 |
//! | the process is a new fork child | 10 → `Closed` | 10 → `Closed` | 10 → `Closed` |
//! | the thread ends | 11 | 11 | 11 |
//!
//! 1. *Begin.* (a) The span suits the task already, because the task around it is of the same
//!    context: nothing is read, and the state stays. (b) Otherwise the thread charges the span up
//!    to now, begins the next one from the same reading, and is `Closed`.
//! 2. *End.* The thread charges the span up to now. The next state is (a) `Open` if nothing is
//!    counted: the span of a thread without a task and of one with a task are then the same; (b)
//!    `Open` if the thread is lazy, and then the span just runs on; (c) `Idle` if the span counted
//!    task-clock alone and the thread is not lazy; (d) `Closed` otherwise. Only a plain task that
//!    was alone on the stack leads to (a), (b) or (c).
//! 3. *Resume.* One edit of the span, which stores one reading of the clock.
//! 4. *Suspend.* One edit of the span, which adds the clock's progress to the pending counts.
//! 5. *Go on.* The thread stores the topmost frame and the current task, passes a light barrier,
//!    and looks at the generation. No edit of the span. (b) The span has nothing to charge, so one
//!    edit stores the other context, for which the state holds from then on. (Only for polls and
//!    runs; a scope or a destructor takes 1.) (c) The same edit inside of another task, with which
//!    the state still holds for the lowest frame's context.
//! 6. *Stop.* As 5, backwards. If `g` is over, 2 follows. (c) As 5(c), for the outer task.
//! 7. *Switch.* (a) The span suits the task: the thread stores the task. (b) Otherwise 1(b).
//! 8. *Inert.* The handler's guard does nothing. The work of the handler is charged to whatever the
//!    edit leads to.
//! 9. The change of what is counted flushes the span from another thread and leaves the state
//!    alone. The thread's next event finds that `g` is over. There is one case where the change
//!    must read the thread's block to learn whether there is a task: a span in state `Open` while
//!    nothing is counted. See `fast`.
//! 10. The span is asleep: the delta that was running belongs to the parent. The pending counts
//!     stay, and the child charges them.
//! 11. All tasks are left (2), the pending counts are charged, and the thread has no span any more.
//!
//! A handler may come between any two instructions of 3 to 6. So 3 to 6, except for 5(b), 5(c) and
//! 6(c), store the topmost frame *first*, do nothing that the handler's own events could spoil, and
//! load the state *last*. An event of the handler that began or ended a span has left another state
//! there; then they undo everything and fall through to 1 or 2.
//!
//! 5(b), 5(c) and 6(c) are one edit of the span each, in which all events of a handler but one are
//! inert (8): case 5 does not check whether the span is in an edit, and the state stays `Open`.
//! But case 5 needs an empty stack:
//!
//! - Inside of another task, in 5(c) and 6(c), the stack is never empty. So no event can come
//!   between their stores, and they store the topmost frame last, when it is complete.
//! - 5(b) finds an empty stack and stores the topmost frame first. Until that store a handler may
//!   take 5 and 6, which write the lowest frame and leave the stack empty again; nothing of 5(b) is
//!   stored yet. From that store on the handler finds a frame, and is inert. (In the other order a
//!   handler's task would stay in the frame: the thread would return to it from a task inside.)

use std::cell::Cell;

use crate::generation::Generation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The span begins and ends with the task.
    Closed,
    /// Between polls the span lacks one reading of the clock.
    Idle(Generation),
    /// Between polls the span runs on.
    Open(Generation),
}

/// The state of a thread in one word, because each poll compares it.
#[derive(Debug)]
pub(super) struct StateCell(Cell<u64>);

const OPEN: u64 = 1;
const IDLE: u64 = 2;
const GENERATION_SHIFT: u32 = 2;
/// The lowest bit of the generation: see [`Generation::counts`].
const COUNTS: u64 = 1 << GENERATION_SHIFT;

impl StateCell {
    pub(super) const fn new() -> Self {
        Self(Cell::new(0))
    }

    #[inline]
    fn word(state: State) -> u64 {
        match state {
            State::Closed => 0,
            State::Idle(generation) => generation.0 << GENERATION_SHIFT | IDLE,
            State::Open(generation) => generation.0 << GENERATION_SHIFT | OPEN,
        }
    }

    #[inline]
    pub(super) fn set(&self, state: State) {
        self.0.set(Self::word(state));
    }

    #[inline]
    pub(super) fn is(&self, state: State) -> bool {
        self.0.get() == Self::word(state)
    }

    /// Whether the state is `Open`, in whatever generation.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.0.get() & OPEN != 0
    }

    /// Whether the state is `Open`, and nothing is counted in its generation.
    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        self.0.get() & (OPEN | COUNTS) == OPEN
    }

    /// Whether the state is `Idle`, in whatever generation.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.0.get() & IDLE != 0
    }
}
