//! Random lives of tasks on one thread against the obvious account: an event counts for a context
//! if it happens while the topmost task is one of its, whose context counts it (or the task itself
//! does), and which is not stopped.

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{
    Context, Counting, Event, Kind, Mode, Task, TaskGuard, current_context, current_task, enter, park,
    set_lazy, switch,
};
use proptest::prelude::*;

const EVENTS: usize = 4;
const CONTEXTS: usize = 2;
/// Counted everywhere and throughout, so that tasks' own counts and nested ones are exact in it.
const ALWAYS: usize = 0;

static PMU: CountingPmu = CountingPmu::new();

fn event(number: usize) -> Event {
    PMU.event(["a", "b", "c", "d"][number], number as u32)
}

fn events(mask: usize) -> Vec<Event> {
    (0..EVENTS).filter(|number| mask & 1 << number != 0).map(event).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Happen { event: usize, times: u64 },
    Spawn { context: usize },
    Inherit { task: usize },
    Enter { task: usize, kind: Kind },
    Leave { guard: usize },
    Forget { guard: usize },
    Switch { task: usize },
    Idle,
    Enable { task: usize, on: bool },
    Pin { task: usize, on: bool },
    Change { task: usize, event: usize, add: bool },
    Count { context: Option<usize>, mask: usize, exact: bool },
    Stop { counting: usize },
    Lazy { on: bool },
    Park,
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    let (task, event) = (0..64_usize, 0..EVENTS);
    let kind = prop_oneof![Just(Kind::Scope), Just(Kind::Poll), Just(Kind::Drop)];
    prop_oneof![
        12 => (event.clone(), 1..100_u64).prop_map(|(event, times)| Step::Happen { event, times }),
        2 => (0..CONTEXTS).prop_map(|context| Step::Spawn { context }),
        1 => task.clone().prop_map(|task| Step::Inherit { task }),
        8 => (task.clone(), kind).prop_map(|(task, kind)| Step::Enter { task, kind }),
        7 => task.clone().prop_map(|guard| Step::Leave { guard }),
        1 => task.clone().prop_map(|guard| Step::Forget { guard }),
        4 => task.clone().prop_map(|task| Step::Switch { task }),
        1 => Just(Step::Idle),
        2 => (task.clone(), any::<bool>()).prop_map(|(task, on)| Step::Enable { task, on }),
        2 => (task.clone(), any::<bool>()).prop_map(|(task, on)| Step::Pin { task, on }),
        2 => (task.clone(), event, any::<bool>()).prop_map(|(task, event, add)| Step::Change { task, event, add }),
        2 => (prop::option::of(0..CONTEXTS), 1..1_usize << EVENTS, prop::bool::weighted(0.2))
            .prop_map(|(context, mask, exact)| Step::Count { context, mask, exact }),
        2 => task.prop_map(|counting| Step::Stop { counting }),
        1 => any::<bool>().prop_map(|on| Step::Lazy { on }),
        1 => Just(Step::Park),
        2 => Just(Step::Read),
    ]
}

/// A task, as the model knows it.
#[derive(Debug, Clone, Default)]
struct Life {
    context: usize,
    id: u64,
    disabled: bool,
    pinned: bool,
    more: usize,
    less: usize,
    own: u64,
}

/// A task on the stack.
#[derive(Debug, Clone)]
struct Frame {
    task: usize,
    guard: u64,
    kind: Kind,
    /// Whether the task counts for itself, since it became current or was changed.
    own: bool,
    gone: bool,
}

struct World {
    contexts: [&'static Context; CONTEXTS],
    tasks: Vec<(Task, Life)>,
    guards: Vec<(u64, TaskGuard)>,
    next_guard: u64,
    stack: Vec<Frame>,
    /// The context that a lazy thread charges without a current task.
    kept: Option<usize>,
    lazy: bool,
    countings: Vec<(Option<usize>, usize, bool, Counting)>,
    values: [[u64; EVENTS]; CONTEXTS],
    nested: [u64; CONTEXTS],
    ever: [usize; CONTEXTS],
}

impl World {
    fn new() -> Self {
        let everywhere = Counting::everywhere(&[event(ALWAYS)], Mode::GroupExact).unwrap();
        let mut world = Self {
            contexts: std::array::from_fn(|_| Context::new()),
            tasks: Vec::new(),
            guards: Vec::new(),
            next_guard: 0,
            stack: Vec::new(),
            kept: None,
            lazy: false,
            countings: vec![(None, 1 << ALWAYS, false, everywhere)],
            values: [[0; EVENTS]; CONTEXTS],
            nested: [0; CONTEXTS],
            ever: [0; CONTEXTS],
        };
        world.tasks.push((Task::new(world.contexts[0], 1), Life { id: 1, ..Life::default() }));
        world
    }

    fn mask(&self, context: usize) -> usize {
        let of =
            |counting: &&(Option<usize>, usize, bool, Counting)| counting.0.is_none_or(|of| of == context);
        self.countings.iter().filter(of).fold(0, |mask, counting| mask | counting.1)
    }

    fn is_exact(&self, context: usize) -> bool {
        let of =
            |counting: &(Option<usize>, usize, bool, Counting)| counting.0.is_none_or(|of| of == context);
        self.countings.iter().any(|counting| of(counting) && counting.2)
    }

    fn counts_for_itself(&self, task: usize) -> bool {
        let life = &self.tasks[task].1;
        self.is_exact(life.context) || life.disabled || life.pinned || life.more | life.less != 0
    }

    fn happen(&mut self, number: usize, times: u64) {
        CountingPmu::happen(number as u32, times);
        let bit = 1 << number;
        let Some(top) = self.stack.last().cloned() else {
            if let Some(context) = self.kept.filter(|&context| self.mask(context) & bit != 0) {
                self.values[context][number] += times;
            }
            return;
        };
        let life = self.tasks[top.task].1.clone();
        let shared = self.mask(life.context) & bit != 0;
        let counted = !life.disabled && (shared || life.more & bit != 0) && life.less & bit == 0;
        if !counted {
            return;
        }
        if shared {
            self.values[life.context][number] += times;
        }
        if number == ALWAYS {
            self.tasks[top.task].1.own += if top.own { times } else { 0 };
            for context in 0..CONTEXTS {
                let around = self.stack.iter().any(|f| !f.gone && self.tasks[f.task].1.context == context);
                if context != life.context && around {
                    self.nested[context] += times;
                }
            }
        }
    }

    fn push(&mut self, task: usize, guard: u64, kind: Kind) {
        let own = self.counts_for_itself(task);
        self.kept = None;
        self.stack.push(Frame { task, guard, kind, own, gone: false });
    }

    /// The stack is cut to `len`, and further to what is still alive.
    fn cut(&mut self, len: usize) {
        // A thread keeps a task only if the task was alone.
        let top = self.stack.last().filter(|_| self.stack.len() == 1).cloned();
        self.stack.truncate(len);
        while self.stack.last().is_some_and(|frame| frame.gone) {
            self.stack.pop();
        }
        if let (true, Some(top)) = (self.stack.is_empty() && self.lazy, top) {
            let context = self.tasks[top.task].1.context;
            self.kept = (!top.own && !self.is_exact(context)).then_some(context);
        }
    }

    fn leave(&mut self, guard: u64) {
        let Some(place) = self.stack.iter().position(|frame| frame.guard == guard && !frame.gone) else {
            return;
        };
        if self.stack[place].kind == Kind::Scope && place + 1 < self.stack.len() {
            self.stack[place].gone = true;
        } else {
            self.cut(place);
        }
    }

    fn renewed(&mut self, task: usize) {
        let own = self.counts_for_itself(task);
        for frame in &mut self.stack {
            if frame.task == task {
                frame.own = own;
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (tasks, guards, countings) = (self.tasks.len(), self.guards.len(), self.countings.len());
        match *step {
            Step::Happen { event, times } => self.happen(event, times),
            Step::Spawn { context } => {
                let id = tasks as u64 + 1;
                let life = Life { context, id, ..Life::default() };
                self.tasks.push((Task::new(self.contexts[context], id), life));
            }
            Step::Inherit { task } => {
                let id = tasks as u64 + 1;
                let (parent, life) = &self.tasks[task % tasks];
                let life = Life { context: life.context, id, disabled: life.disabled, ..Life::default() };
                self.tasks.push((parent.inherit(id), life));
            }
            Step::Enter { task, kind } if self.stack.len() < 20 => {
                let guard = enter(&mut self.tasks[task % tasks].0, kind);
                self.next_guard += 1;
                self.guards.push((self.next_guard, guard));
                self.push(task % tasks, self.next_guard, kind);
            }
            Step::Leave { guard } if guards > 0 => {
                let (number, guard) = self.guards.remove(guard % guards);
                drop(guard);
                self.leave(number);
            }
            Step::Forget { guard } if guards > 0 => std::mem::forget(self.guards.remove(guard % guards)),
            Step::Switch { task } => {
                switch(Some(&mut self.tasks[task % tasks].0));
                self.stack.clear();
                self.push(task % tasks, 0, Kind::Poll);
            }
            Step::Idle => {
                switch(None);
                self.stack.clear();
                self.kept = None;
            }
            Step::Enable { task, on } => {
                let (task, life) = &mut self.tasks[task % tasks];
                if on {
                    task.enable_all();
                } else {
                    task.disable_all();
                }
                life.disabled = !on;
                let index = life.id as usize - 1;
                self.renewed(index);
            }
            Step::Pin { task, on } => {
                let (task, life) = &mut self.tasks[task % tasks];
                if on {
                    task.pin();
                } else {
                    task.unpin();
                }
                life.pinned = on;
                let index = life.id as usize - 1;
                self.renewed(index);
            }
            // Tasks' own counts are exact in an event that nobody removes.
            Step::Change { task, event: number, add } if number != ALWAYS => {
                let (index, bit) = (task % tasks, 1 << number);
                let shared = self.mask(self.tasks[index].1.context);
                let (task, life) = &mut self.tasks[index];
                let counts = (shared | life.more) & !life.less & bit != 0;
                let done = if add { task.add(event(number)) } else { task.remove(event(number)) };
                prop_assert_eq!(done.is_ok(), counts != add);
                if done.is_ok() {
                    life.more = if add { life.more | bit } else { life.more & !bit };
                    life.less = if add { life.less & !bit } else { life.less | bit };
                    self.renewed(index);
                }
            }
            Step::Count { context, mask, exact } => {
                let mode = if exact { Mode::TaskExact } else { Mode::GroupExact };
                let counting = match context {
                    None => Counting::everywhere(&events(mask), mode),
                    Some(context) => Counting::of(self.contexts[context], &events(mask), mode),
                };
                self.countings.push((context, mask, exact, counting.unwrap()));
            }
            Step::Stop { counting } if countings > 1 => {
                drop(self.countings.remove(1 + counting % (countings - 1)));
            }
            Step::Enter { .. }
            | Step::Leave { .. }
            | Step::Forget { .. }
            | Step::Change { .. }
            | Step::Stop { .. } => {}
            Step::Lazy { on } => {
                set_lazy(on);
                self.lazy = on;
                self.kept = None;
            }
            Step::Park => {
                park();
                self.kept = None;
            }
            Step::Read => self.check(false)?,
        }
        for context in 0..CONTEXTS {
            self.ever[context] |= self.mask(context);
        }
        let top = self.stack.last().map(|frame| &self.tasks[frame.task].1);
        prop_assert_eq!(current_task(), top.map_or(0, |life| life.id));
        prop_assert_eq!(current_context(), top.map_or(0, |life| self.contexts[life.context].id()));
        Ok(())
    }

    fn check(&self, all: bool) -> Result<(), TestCaseError> {
        for (context, values) in self.contexts.iter().zip(&self.values) {
            let counts = context.read();
            for (number, &value) in values.iter().enumerate() {
                let count = counts.iter().find(|count| count.event == event(number));
                prop_assert_eq!(
                    count.map_or(0, |count| count.value),
                    value,
                    "{} of {}",
                    number,
                    context.id()
                );
            }
        }
        if all {
            for (context, &nested) in self.contexts.iter().zip(&self.nested) {
                let count = context.read().into_iter().find(|count| count.event == event(ALWAYS));
                prop_assert_eq!(count.map_or(0, |count| count.nested), nested);
            }
            for (task, life) in &self.tasks {
                let own = task.counts().into_iter().find(|(of, _)| *of == event(ALWAYS));
                prop_assert_eq!(own.map_or(0, |(_, n)| n), life.own, "{:?}", life);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn each_event_is_counted_once_where_it_belongs(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        let done = steps.iter().try_for_each(|step| world.step(step));
        set_lazy(false);
        switch(None);
        done?;
        world.check(true)?;
    }
}
