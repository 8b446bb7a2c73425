//! The running kernel as the oracle, through `perf_event_open`: its own nine cases, and random
//! requests decided by it and by us.
//!
//! Needs root (a breakpoint of a processor sees everybody's tasks) and two processors. Runs in a
//! process of its own, at whose end the kernel takes back all that is open.
#![cfg(target_os = "linux")]

use crate::suite;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::{array, thread};

use dormouse_breakpoints::{Cpu, Error, Registers, SlotKind, SlotRequest, Slots, Target, TaskId};
use dormouse_sys::arch::WATCH_REGISTERS;
use dormouse_sys::perf::{Access, Attr, Breakpoint, Error as Refusal, OpenEvent, Subject, WatchLen};
use dormouse_testkit::{in_child, skip};
use suite::{Accounting, CASES, Place, SLOTS, Who, run};

/// Threads that do nothing; they stand for tasks.
const TASKS: usize = 3;

/// Random requests and releases.
const OPS: usize = 6000;

static WATCHED: u64 = 0;

struct Kernel {
    tids: [u32; TASKS],
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
}

impl Kernel {
    fn new() -> Self {
        let mut threads = Vec::new();
        let tids = array::from_fn(|_| {
            let (tell, tid) = channel();
            let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
            let thread = thread::spawn(move || {
                tell.send(own_tid()).unwrap();
                // Until the other end is gone.
                let _ = stopped.recv();
            });
            threads.push((stop, thread));
            tid.recv().unwrap()
        });
        Self { tids, threads }
    }

    fn open(&self, request: SlotRequest) -> Result<OpenEvent, Refusal> {
        let breakpoint = match request.kind {
            SlotKind::Data => {
                Breakpoint::watch((&raw const WATCHED).addr(), WatchLen::One, Access::ReadWrite)?
            }
            SlotKind::Execute => Breakpoint::execute(Kernel::new as *const () as usize),
        };
        let tid = |task: TaskId| self.tids[task.0 as usize];
        let subject = match request.target {
            Target::Cpu(Cpu(cpu)) => Subject::Cpu(cpu),
            Target::Task(task) => Subject::Thread(tid(task)),
            Target::TaskOnCpu(task, Cpu(cpu)) => Subject::ThreadOnCpu { tid: tid(task), cpu },
        };
        // Never on: slots are taken at the opening, and nobody is to stop.
        OpenEvent::open(&Attr::breakpoint(breakpoint).disabled(), subject)
    }

    /// `None`: no space.
    fn reserve(&self, request: SlotRequest) -> Option<OpenEvent> {
        match self.open(request) {
            Ok(event) => Some(event),
            Err(Refusal::NoSlot { .. }) => None,
            Err(error) => panic!("{request}: {error}"),
        }
    }

    /// Whether all registers of two processors can be had: else somebody else uses some.
    fn is_free(&self) -> bool {
        let all: Vec<_> = (0..2)
            .flat_map(|cpu| vec![SlotRequest::new(Target::Cpu(Cpu(cpu)), SlotKind::Data); SLOTS])
            .map(|request| self.reserve(request))
            .collect();
        all.iter().all(Option::is_some)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for (stop, thread) in self.threads.drain(..) {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn own_tid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() as u32 }
}

impl Accounting for Kernel {
    type Held = OpenEvent;

    fn take(&mut self, place: Place) -> Option<OpenEvent> {
        let task = |who| TaskId(u64::from(who != Who::Current));
        let target = match place {
            Place::All(who) => Target::Task(task(who)),
            Place::On(cpu, who) => Target::TaskOnCpu(task(who), Cpu(cpu)),
            Place::Cpu(cpu) => Target::Cpu(Cpu(cpu)),
        };
        self.reserve(SlotRequest::new(target, SlotKind::Data))
    }

    fn release(&mut self, held: OpenEvent) {
        drop(held);
    }
}

/// The kernel with all its registers free; or why not, counted and said.
fn kernel() -> Option<Kernel> {
    let kernel = Kernel::new();
    // Closed again at once: it would be in the way of the next question.
    let refused = kernel.open(SlotRequest::new(Target::Cpu(Cpu(1)), SlotKind::Data)).err();
    let reason = match refused {
        Some(error) => format!("perf_event_open for processor 1: {error}"),
        None if WATCH_REGISTERS != 4 => "the table is that of x86".to_owned(),
        None if !kernel.is_free() => "somebody else holds breakpoints".to_owned(),
        None => return Some(kernel),
    };
    skip(reason);
    None
}

/// One test for both: side by side they would take each other's registers.
#[test]
fn kernel_decides_like_cases_and_slots() {
    in_child(ask_the_kernel);
}

fn ask_the_kernel() {
    let Some(mut kernel) = kernel() else { return };
    for case in CASES {
        run(&mut kernel, case);
    }
    if let Err(difference) = differ(&kernel, 0x2545_f491_4f6c_dd1d) {
        // Breakpoints that others open meanwhile are in the kernel's answers and not in ours.
        assert!(!kernel.is_free(), "{difference}");
        skip("somebody else took breakpoints meanwhile");
    }
}

/// The same requests to the kernel and to us, until they differ.
fn differ(kernel: &Kernel, mut seed: u64) -> Result<(), String> {
    let slots = Slots::new(Registers::X86, 2).unwrap();
    let mut held = Vec::new();
    let mut seen: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as usize % below
    };
    for number in 0..OPS {
        if random(5) < 2 && !held.is_empty() {
            let index = random(held.len());
            drop(held.swap_remove(index));
            continue;
        }
        let (task, cpu) = (TaskId(random(TASKS) as u64), Cpu(random(2) as u32));
        let (what, target) = match random(7) {
            0..3 => ("task", Target::Task(task)),
            3..6 => ("task on cpu", Target::TaskOnCpu(task, cpu)),
            _ => ("cpu", Target::Cpu(cpu)),
        };
        let kind = if random(4) == 0 { SlotKind::Execute } else { SlotKind::Data };
        let request = SlotRequest::new(target, kind);
        let (ours, theirs) = (slots.reserve(request), kernel.reserve(request));
        if matches!(ours, Err(Error::NoSpace { .. })) != theirs.is_none() {
            return Err(format!("operation {number}, {request}: {ours:?}, the kernel {theirs:?}"));
        }
        *seen.entry((what, theirs.is_some())).or_default() += 1;
        held.extend(ours.ok().zip(theirs));
    }
    // A run that refuses nothing, or everything, shows nothing.
    assert!(seen.len() == 6 && seen.values().all(|&times| times > 50), "{seen:?}");
    println!("{OPS} operations decided alike: {seen:?}");
    Ok(())
}
