//! The running kernel as the oracle, through `perf_event_open`: its own nine cases, and random requests
//! decided by it and by us.
//!
//! Needs root (a breakpoint of a processor sees everybody's tasks) and two processors. Runs in a process
//! of its own, at whose end the kernel takes back whatever is open.
#![cfg(target_os = "linux")]

mod suite;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::{array, thread};

use dormouse_breakpoints::{Cpu, Error, Kind, Registers, Request, Slots, Target, Task};
use dormouse_sys::perf::{Access, Attr, Breakpoint, Error as Refusal, Event, Subject, WatchLen};
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

    fn open(&self, request: Request) -> Result<Event, Refusal> {
        let breakpoint = match request.kind {
            Kind::Data => Breakpoint::watch((&raw const WATCHED).addr(), WatchLen::One, Access::ReadWrite)?,
            Kind::Execute => Breakpoint::execute(Kernel::new as *const () as usize),
        };
        let tid = |task: Task| self.tids[task.0 as usize];
        let subject = match request.target {
            Target::Cpu(Cpu(cpu)) => Subject::Cpu(cpu),
            Target::Task(task) => Subject::Thread(tid(task)),
            Target::TaskOnCpu(task, Cpu(cpu)) => Subject::ThreadOnCpu { tid: tid(task), cpu },
        };
        // Never on: slots are taken at the opening, and nobody is to stop.
        Event::open(&Attr::breakpoint(breakpoint).disabled(), subject)
    }

    /// `None`: no space.
    fn reserve(&self, request: Request) -> Option<Event> {
        match self.open(request) {
            Ok(event) => Some(event),
            Err(Refusal::NoSlot { .. }) => None,
            Err(error) => panic!("{request}: {error}"),
        }
    }

    /// Whether all registers of two processors can be had: else somebody else uses some.
    fn is_free(&self) -> bool {
        let all: Vec<_> = (0..2)
            .flat_map(|cpu| vec![Request::new(Target::Cpu(Cpu(cpu)), Kind::Data); SLOTS])
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
    type Held = Event;

    fn take(&mut self, place: Place) -> Option<Event> {
        let task = |who| Task(u64::from(who != Who::Current));
        let target = match place {
            Place::All(who) => Target::Task(task(who)),
            Place::On(cpu, who) => Target::TaskOnCpu(task(who), Cpu(cpu)),
            Place::Cpu(cpu) => Target::Cpu(Cpu(cpu)),
        };
        self.reserve(Request::new(target, Kind::Data))
    }

    fn release(&mut self, held: Event) {
        drop(held);
    }
}

/// The kernel with all its registers free; or why not, counted and said.
fn kernel() -> Option<Kernel> {
    let kernel = Kernel::new();
    // Closed again at once: it would be in the way of the next question.
    let refused = kernel.open(Request::new(Target::Cpu(Cpu(1)), Kind::Data)).err();
    let reason = match refused {
        Some(error) => format!("perf_event_open for processor 1: {error}"),
        None if !cfg!(target_arch = "x86_64") => "the table is that of x86".to_owned(),
        None if !kernel.is_free() => "somebody else holds breakpoints".to_owned(),
        None => return Some(kernel),
    };
    println!("1 skipped: {reason}");
    None
}

/// One test for both: side by side they would take each other's registers.
#[test]
fn the_kernel_decides_as_its_cases_say_and_as_we_do() {
    const NAME: &str = "the_kernel_decides_as_its_cases_say_and_as_we_do";
    const MARK: &str = "DORMOUSE_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|test| test == NAME) {
        return ask_the_kernel();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, NAME)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let summary = said.lines().find(|line| line.contains("skipped: ") || line.contains("decided alike"));
    println!("{}", summary.unwrap_or_default());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && summary.is_some(), "{}\n{said}{errors}", output.status);
}

fn ask_the_kernel() {
    let Some(mut kernel) = kernel() else { return };
    for case in CASES {
        run(&mut kernel, case);
    }
    if let Err(difference) = differ(&kernel, 0x2545_f491_4f6c_dd1d) {
        // What others open meanwhile is in the kernel's answers and not in ours.
        assert!(!kernel.is_free(), "{difference}");
        println!("1 skipped: somebody else took breakpoints meanwhile");
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
        let (task, cpu) = (Task(random(TASKS) as u64), Cpu(random(2) as u32));
        let (what, target) = match random(7) {
            0..3 => ("task", Target::Task(task)),
            3..6 => ("task on cpu", Target::TaskOnCpu(task, cpu)),
            _ => ("cpu", Target::Cpu(cpu)),
        };
        let kind = if random(4) == 0 { Kind::Execute } else { Kind::Data };
        let request = Request::new(target, kind);
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
