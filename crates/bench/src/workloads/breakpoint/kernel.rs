//! The same on the running kernel, through `perf_event_open`: threads that inherit breakpoints which
//! nothing ever hits, and one breakpoint that is switched off and on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, park, scope};

use dormouse_sys::perf::{Access, Attr, Breakpoint, Event, Subject, WatchLen};

use super::accounting::Nothing;
use super::{BreakpointArgs, threads};
use crate::clocks::wall;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

pub(super) const NOTES: &[&str] =
    &["kernel rows: perf_event_open on this kernel, as perf bench breakpoint thread and enable: \
     breakpoints that threads inherit and nothing hits; enable is one pair of PERF_EVENT_IOC_DISABLE \
     and ENABLE, alone and with threads asleep that inherited the breakpoint"];

/// The most breakpoints of a thread.
const MOST: u32 = 4;

/// Threads that sleep while the breakpoint they inherited is switched.
const ASLEEP: [u32; 2] = [0, 256];

/// What is watched, a byte a breakpoint. Nothing reads or writes it.
static WATCHED: [u8; MOST as usize] = [0; MOST as usize];

/// The cases.
pub(super) fn cases(settings: &Settings, args: &BreakpointArgs) -> Vec<Case<'static>> {
    let mut cases: Vec<_> = (0..=MOST).map(|breakpoints| thread_case(breakpoints, args)).collect();
    cases.extend(ASLEEP.map(|asleep| enable_case(asleep, if settings.quick { 200 } else { 1000 })));
    cases
}

/// Breakpoints of this thread and of those that it will start.
fn open(breakpoints: u32) -> Result<Vec<Event>, Failure> {
    WATCHED
        .iter()
        .take(breakpoints as usize)
        .map(|byte| {
            let addr = std::ptr::from_ref(byte).addr();
            let watch = Breakpoint::watch(addr, WatchLen::One, Access::ReadWrite)?;
            Ok(Event::open(&Attr::breakpoint(watch).inherited(), Subject::ThisThread)?)
        })
        .collect()
}

fn thread_case(breakpoints: u32, args: &BreakpointArgs) -> Case<'static> {
    let spec = Spec::new(format!("kernel/thread/{breakpoints}"), "us")
        .with("per", "thread made and joined")
        .with("breakpoints", breakpoints)
        .with("population", args.population());
    let args = args.clone();
    Case::new(vec![spec], move || {
        let _events = open(breakpoints)?;
        let took = threads::run(&args, &Nothing)?;
        Ok(vec![took.as_secs_f64() * 1e6 / args.operations()])
    })
}

fn enable_case(asleep: u32, pairs: u32) -> Case<'static> {
    let name = if asleep == 0 { "kernel/enable".to_owned() } else { format!("kernel/enable/{asleep}") };
    let spec = Spec::new(name, "us").with("per", "pair").with("pairs", pairs).with("threads_asleep", asleep);
    Case::new(vec![spec], move || {
        let events = open(1)?;
        let done = AtomicBool::new(false);
        let took = scope(|scope| {
            let mut sleepers = Vec::new();
            let started = (0..asleep).try_for_each(|_| {
                let sleep = || {
                    while !done.load(Ordering::Acquire) {
                        park();
                    }
                };
                sleepers.push(Builder::new().spawn_scoped(scope, sleep)?);
                Ok::<_, Failure>(())
            });
            let took = started.and_then(|()| {
                let (took, switched) = wall(|| {
                    (0..pairs).flat_map(|_| &events).try_for_each(|event| {
                        event.disable()?;
                        event.enable()
                    })
                });
                switched?;
                Ok(took)
            });
            // Pairs with the acquire load of the sleepers.
            done.store(true, Ordering::Release);
            for sleeper in &sleepers {
                sleeper.thread().unpark();
            }
            took
        })?;
        Ok(vec![took.as_secs_f64() * 1e6 / f64::from(pairs)])
    })
}
