//! A scheduler of fibers that tells dormouse of every switch. Between two fibers of one group no
//! counter is read, however many are counted.
//!
//! ```sh
//! cargo run -p dormouse --example fibers
//! ```

use std::collections::VecDeque;

use dormouse::events::Switched;
use dormouse::{Event, Group, Task, idle};

/// A step of a computation, in place of a stack of its own: `false` at the end.
type Step = Box<dyn FnMut() -> bool>;

struct Fiber {
    task: Task,
    resume: Step,
}

/// Runs fibers in turn until all have ended, and tells how many switches read counters.
fn run(mut ready: VecDeque<Fiber>) -> (usize, usize) {
    let mut switches = Vec::new();
    while let Some(mut fiber) = ready.pop_front() {
        switches.push(fiber.task.switch_to());
        // The task is current here, with all that the step does.
        if (fiber.resume)() {
            ready.push_back(fiber);
        }
    }
    // Before the thread sleeps or does anything else.
    switches.push(idle());
    let read = switches.iter().filter(|&&switched| switched == Switched::Read).count();
    (switches.len(), read)
}

/// A fiber that works in `steps` steps.
fn fiber(group: Group, steps: u32) -> Fiber {
    let mut left = steps;
    let resume = move || {
        std::hint::black_box((0..50_000_u64).map(std::hint::black_box).sum::<u64>());
        left -= 1;
        left > 0
    };
    Fiber { task: group.task(), resume: Box::new(resume) }
}

fn main() -> Result<(), dormouse::events::Error> {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK, Event::PAGE_FAULTS])?;
    let [index, query] = ["index", "query"].map(Group::new);

    let (switches, read) = run((1..=8).map(|steps| fiber(index, steps)).collect());
    println!("one group: {switches} switches, {read} read counters");
    let (switches, read) = run([index, query].into_iter().map(|group| fiber(group, 5)).collect());
    println!("two groups in turn: {switches} switches, {read} read counters");

    for stat in [index.read(), query.read()] {
        println!("{}: {:?} in {} stretches of {} fibers", stat.name, stat.cpu, stat.polls, stat.finished);
    }
    Ok(())
}
