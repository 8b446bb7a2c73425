//! Threads that go from group to group and say at each moment where they are; commands by standard
//! input.
//!
//! A thread's word is `moves << 16 | before << 8 | after`: the numbers of the groups between which
//! it moves. Where it does not, it is in `after`. Group 0 is none.

use std::future::Future;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::{future, thread};

use dormouse::events::MAX_DEPTH;
use dormouse::{Event, Group, Publishing};

static STOP: AtomicBool = AtomicBool::new(false);

/// Names by number, from 1.
fn names() -> [String; 3] {
    ["GET /menu".to_owned(), "tea".to_owned(), "long ".repeat(40)]
}

fn group(number: u64) -> Group {
    Group::new(&names()[number as usize - 1])
}

/// Where its thread is.
struct Place(&'static AtomicU64);

impl Place {
    fn announce(kind: &str) -> Self {
        let word: &'static AtomicU64 = Box::leak(Box::default());
        // SAFETY: takes nothing.
        let tid = unsafe { libc::gettid() };
        say(&format!("{kind} {tid} {}", std::ptr::from_ref(word) as usize));
        Self(word)
    }

    /// From here on the thread is on the way to `group`.
    fn leave_for(&self, group: u64) {
        let here = self.0.load(Ordering::Relaxed) & 0xff;
        self.0.store(1 << 16 | here << 8 | group, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// It has got there.
    fn stay(&self) {
        compiler_fence(Ordering::SeqCst);
        let there = self.0.load(Ordering::Relaxed) & 0xff;
        self.0.store(there << 8 | there, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        for n in 0..500_u64 {
            black_box(n);
        }
        compiler_fence(Ordering::SeqCst);
    }

    fn go<T>(&self, to: u64, move_there: impl FnOnce() -> T) -> T {
        self.leave_for(to);
        let moved = move_there();
        self.stay();
        moved
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
}

fn publish() -> Option<Publishing> {
    Publishing::start().map_err(|why| say(&why.to_string())).ok()
}

/// Guards, nested, of which one is dropped too early.
fn scopes() {
    let place = Place::announce("thread");
    while !STOP.load(Ordering::Relaxed) {
        let menu = place.go(1, || group(1).enter());
        let tea = place.go(2, || group(2).enter());
        let again = place.go(1, || group(1).enter());
        place.go(1, || drop(tea));
        // The last of them is too deep: its guard is inert.
        let deep: Vec<_> = place.go(1, || (0..MAX_DEPTH).map(|_| group(1).enter()).collect());
        let inert = place.go(1, || group(2).enter());
        place.go(1, || drop(inert));
        place.go(1, || drop(deep));
        place.go(1, || drop(again));
        let long = place.go(3, || group(3).enter());
        place.go(1, || drop(long));
        place.go(0, || drop(menu));
    }
}

/// Polls of a task that enters another group, whose guard is left behind at the end of the poll.
fn polls() {
    let place = Place::announce("thread");
    while !STOP.load(Ordering::Relaxed) {
        let mut step = 0;
        let future = future::poll_fn(|_: &mut Context<'_>| {
            place.stay();
            let tea = place.go(2, || group(2).enter());
            if step < 3 {
                place.go(1, || drop(tea));
            } else {
                std::mem::forget(tea);
            }
            step += 1;
            // The end of the poll comes next.
            place.leave_for(0);
            if step < 4 { Poll::Pending } else { Poll::Ready(()) }
        });
        let mut task = pin!(group(1).instrument(future));
        loop {
            place.leave_for(1);
            let poll = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            place.stay();
            if poll.is_ready() {
                break;
            }
        }
    }
}

/// Panics out of runs, and switches from task to task.
fn switches() {
    let place = Place::announce("thread");
    let (mut one, mut other) = (group(1).task(), group(3).task());
    while !STOP.load(Ordering::Relaxed) {
        place.go(1, || one.switch_to());
        place.go(3, || other.switch_to());
        place.go(0, dormouse::idle);
        let _payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            place.leave_for(2);
            group(2).task().run(|| {
                place.stay();
                place.leave_for(0);
                std::panic::resume_unwind(Box::new(()));
            });
        }));
        place.stay();
    }
}

/// Stays in a group from one command to the next.
fn holder(commands: &Receiver<()>) {
    let place = Place::announce("holder");
    while commands.recv().is_ok() {
        let menu = place.go(1, || group(1).enter());
        say("holds");
        let _ended = commands.recv();
        place.go(0, || drop(menu));
        say("holds nothing");
    }
}

/// Begins and ends to publish while the process forks; each child publishes for itself.
fn storm() {
    let changes = || (0..100).for_each(|_| drop(Publishing::start().unwrap()));
    let changer = thread::spawn(changes);
    while !changer.is_finished() {
        // SAFETY: the child publishes and ends; its parent waits for it.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(Publishing::start().is_err())),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    assert_eq!(status, 0, "the child has published");
                }
            }
        }
    }
    changer.join().unwrap();
}

/// Runs until the input ends.
pub fn serve() {
    std::panic::set_hook(Box::new(|_| {}));
    let (mut publishing, mut counting) = (publish(), None);
    let (hold, commands) = channel();
    thread::spawn(move || holder(&commands));
    let threads = [scopes, polls, switches].map(thread::spawn);
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "on" => {
                publishing = publish();
                say("on");
            }
            "count" => {
                counting = dormouse::start_counting(&[Event::TASK_CLOCK]).ok();
                say(if counting.is_some() { "counts" } else { "counts nothing" });
            }
            "off" => {
                drop(publishing.take());
                say("off");
            }
            "storm" => {
                drop(publishing.take());
                storm();
                say("weathered");
            }
            "hold" => hold.send(()).unwrap(),
            "fork" => group(1).scope(|| {
                // SAFETY: the child makes system calls alone, and enters groups.
                let parent = std::process::id();
                match unsafe { libc::fork() } {
                    0 => {
                        while unsafe { libc::getppid() }.cast_unsigned() == parent {
                            group(2).scope(|| unsafe { libc::usleep(1000) });
                        }
                        unsafe { libc::_exit(0) }
                    }
                    pid => say(&format!("forked {pid}")),
                }
            }),
            other => say(&format!("unknown: {other}")),
        }
    }
    STOP.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// [`serve`], for a program that opens this library.
#[unsafe(no_mangle)]
pub extern "C" fn serve_published() {
    serve();
}
