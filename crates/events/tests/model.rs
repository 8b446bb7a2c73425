//! Random lives of tasks on one thread against the obvious account: an event counts for a parent if it happens
//! while a task runs whose context has the counter, enabled.

use std::collections::HashMap;

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Event, Parent, TaskContext, switch, switch_eager};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Happen { event: u32, times: u64 },
    Spawn { parent: usize },
    Inherit { task: usize },
    Switch { task: usize, eager: bool },
    Idle,
    End { task: usize },
    Enable { task: usize, on: bool },
    Pin { task: usize, on: bool },
    ChangeParent { parent: usize, event: u32, add: bool },
    ChangeTask { task: usize, event: u32, add: bool },
    Publish { task: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (task, parent, event) = (0..64_usize, 0..2_usize, 0..4_u32);
    prop_oneof![
        6 => (event.clone(), 1..100_u64).prop_map(|(event, times)| Step::Happen { event, times }),
        2 => parent.clone().prop_map(|parent| Step::Spawn { parent }),
        1 => task.clone().prop_map(|task| Step::Inherit { task }),
        8 => (task.clone(), prop::bool::weighted(0.2)).prop_map(|(task, eager)| Step::Switch { task, eager }),
        1 => Just(Step::Idle),
        1 => task.clone().prop_map(|task| Step::End { task }),
        2 => (task.clone(), any::<bool>()).prop_map(|(task, on)| Step::Enable { task, on }),
        1 => (task.clone(), any::<bool>()).prop_map(|(task, on)| Step::Pin { task, on }),
        1 => (parent, event.clone(), any::<bool>())
            .prop_map(|(parent, event, add)| Step::ChangeParent { parent, event, add }),
        1 => (task.clone(), event, any::<bool>())
            .prop_map(|(task, event, add)| Step::ChangeTask { task, event, add }),
        1 => task.prop_map(|task| Step::Publish { task }),
    ]
}

/// What the model knows of a task: its parent, and for each event whether it counts it and for which of the
/// parent's accounts (none: for itself).
#[derive(Debug, Clone)]
struct Task {
    parent: usize,
    counters: HashMap<u32, Option<usize>>,
    enabled: bool,
}

/// What the model knows of a parent: the account of each counter that it has now.
#[derive(Debug, Default)]
struct Model {
    accounts: HashMap<u32, usize>,
    sums: Vec<u64>,
}

impl Model {
    fn add(&mut self, event: u32) {
        self.accounts.insert(event, self.sums.len());
        self.sums.push(0);
    }

    fn task(&self, parent: usize, enabled: bool) -> Task {
        let counters = self.accounts.iter().map(|(&event, &account)| (event, Some(account))).collect();
        Task { parent, counters, enabled }
    }
}

proptest! {
    #[test]
    fn every_event_is_counted_once_for_the_task_that_runs(steps in prop::collection::vec(step(), 1..200)) {
        let pmu: &'static CountingPmu = Box::leak(Box::new(CountingPmu::new()));
        let event = |number: u32| pmu.event("x", number);
        let all: Vec<Event> = (0..2).map(event).collect();
        let parents = [Parent::new(&all).unwrap(), Parent::new(&all).unwrap()];
        let mut models = [Model::default(), Model::default()];
        for model in &mut models {
            model.add(0);
            model.add(1);
        }
        let mut tasks: Vec<(TaskContext, Task)> = Vec::new();
        let mut running: Option<usize> = None;
        for step in steps {
            let count = tasks.len().max(1);
            let at = |task: usize| task % count;
            match step {
                Step::Happen { event, times } => {
                    CountingPmu::happen(event, times);
                    if let Some(task) = running.map(|task| &tasks[task].1)
                        && task.enabled
                        && let Some(&Some(account)) = task.counters.get(&event)
                    {
                        models[task.parent].sums[account] += times;
                    }
                }
                Step::Spawn { parent } => {
                    tasks.push((parents[parent].context(), models[parent].task(parent, true)));
                }
                _ if tasks.is_empty() => {}
                Step::Inherit { task } => {
                    let (context, own) = &tasks[at(task)];
                    let child = models[own.parent].task(own.parent, own.enabled);
                    tasks.push((context.inherit(), child));
                }
                Step::Switch { task, eager } => {
                    let by = if eager { switch_eager } else { switch };
                    let to = at(task);
                    match running {
                        Some(from) if from == to => {}
                        Some(from) => {
                            let [a, b] = tasks.get_disjoint_mut([from, to]).unwrap();
                            by(&mut a.0, &mut b.0);
                        }
                        None => {
                            by(&mut TaskContext::none(), &mut tasks[to].0);
                        }
                    }
                    running = Some(to);
                }
                Step::Idle => {
                    if let Some(from) = running.take() {
                        switch(&mut tasks[from].0, &mut TaskContext::none());
                    }
                }
                Step::End { task } => {
                    let gone = at(task);
                    tasks.remove(gone);
                    running = running.filter(|&now| now != gone).map(|now| now - usize::from(now > gone));
                }
                Step::Enable { task, on } => {
                    let (context, task) = &mut tasks[at(task)];
                    if on { context.enable_all() } else { context.disable_all() }
                    task.enabled = on;
                }
                Step::Pin { task, on } => {
                    let context = &mut tasks[at(task)].0;
                    if on { context.pin() } else { context.unpin() }
                }
                Step::ChangeParent { parent, event: number, add } => {
                    let has = models[parent].accounts.contains_key(&number);
                    if add {
                        prop_assert_eq!(parents[parent].add(event(number)).is_ok(), !has);
                        if !has {
                            models[parent].add(number);
                        }
                    } else {
                        prop_assert_eq!(parents[parent].remove(event(number)).is_ok(), has);
                        models[parent].accounts.remove(&number);
                    }
                }
                Step::ChangeTask { task, event: number, add } => {
                    let (context, task) = &mut tasks[at(task)];
                    let has = task.counters.contains_key(&number);
                    if add {
                        prop_assert_eq!(context.add(event(number)).is_ok(), !has);
                        task.counters.entry(number).or_insert(None);
                    } else {
                        prop_assert_eq!(context.remove(event(number)).is_ok(), has);
                        task.counters.remove(&number);
                    }
                }
                Step::Publish { task } => tasks[at(task)].0.publish(),
            }
        }
        drop(tasks);
        for (parent, model) in parents.iter().zip(&models) {
            let ledger = parent.ledger();
            prop_assert_eq!(ledger.alive(), 0);
            for (&number, &account) in &model.accounts {
                prop_assert_eq!(ledger.value(event(number)), Some(model.sums[account]));
            }
        }
    }
}
