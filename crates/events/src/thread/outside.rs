//! The polls of threads, as another thread sees them.
//!
//! A thread gives a number, a token, to each task that it enters; the tokens are on its stack. A
//! poll lasts as long as its token is there. So whoever reads the stack twice and finds the same
//! token has seen one poll, however many scopes and polls were entered inside of it. The switch
//! does no extra work for that.
//!
//! The stack of tasks lies in its thread's own storage, which is unmapped with the thread. A load
//! could fault, so the stack is read through the process's memory file. The topmost token is read
//! before and after the others: each token is used once, so if it is the same, so is the stack.
//!
//! # Safety
//!
//! No unsafe code: an address is only a number here.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_sys::process::identity;
use dormouse_sys::thread::{self, MAX_THREADS, ThreadBlock};

use super::stack::{Frame, Stack};
use super::token::{MAX_DEPTH, Token};

/// How often the reading of a thread that goes from task to task meanwhile begins again.
const PATIENCE: usize = 4;

const FRAME: usize = size_of::<Frame>();

/// The addresses of the stacks of threads, by the index of the thread's block; 0: none.
static STACKS: [AtomicUsize; MAX_THREADS] = [const { AtomicUsize::new(0) }; MAX_THREADS];

/// Others may read the stack from now on. On its thread.
pub(super) fn publish(block: &ThreadBlock, stack: &Stack) {
    STACKS[block.index()].store(std::ptr::from_ref(stack).addr(), Ordering::Relaxed);
}

/// The thread that has the block ends.
pub(super) fn withdraw(block: &ThreadBlock) {
    STACKS[block.index()].store(0, Ordering::Relaxed);
}

/// Reads which polls the threads of this process are in.
#[derive(Debug)]
pub struct PollScanner {
    /// The process whose memory that is: not a child's.
    process: u64,
    memory: File,
}

/// The thread has gone on to another task during the scan.
struct GoneOn;

/// A poll that a thread was in a moment ago: the outermost one, if polls are nested. Work that is
/// entered by hand (scopes, threads, runs) is no poll, but a poll inside of it is one.
#[derive(Debug, Clone, Copy)]
pub struct SeenPoll {
    block: &'static ThreadBlock,
    start: u64,
    /// The id of the thread.
    pub tid: u32,
    /// The number of the poll, which no other poll of the thread has.
    pub poll: u64,
    /// The number of the task that is polled.
    pub polled: u64,
    /// The number of the task that is charged now: the polled one, or one entered inside of the
    /// poll.
    pub task: u64,
    /// The number of the group that is charged now.
    pub group: u32,
}

impl PollScanner {
    /// Opens the process's memory file.
    ///
    /// # Errors
    ///
    /// An error of opening a file of `/proc`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { process: identity::id(), memory: File::open("/proc/self/mem")? })
    }

    /// The polls that threads are in, at most one for each thread. Empty in a fork child of the
    /// process that made this.
    ///
    /// # Cost
    ///
    /// Visits each thread's block, and makes a system call for each thread with a task, or three
    /// where tasks are nested. No thread waits for it.
    pub fn polls(&self) -> impl Iterator<Item = SeenPoll> + '_ {
        thread::live().filter_map(|block| self.of(block))
    }

    /// The same poll as it is now, or `None` if the poll is over.
    pub fn again(&self, seen: &SeenPoll) -> Option<SeenPoll> {
        self.of(seen.block).filter(|now| now.is_same(seen))
    }

    fn of(&self, block: &'static ThreadBlock) -> Option<SeenPoll> {
        (0..PATIENCE).find_map(|_| self.try_of(block).ok())?
    }

    /// The poll of a thread, if there is one.
    fn try_of(&self, block: &'static ThreadBlock) -> Result<Option<SeenPoll>, GoneOn> {
        let start = block.start();
        let current = block.seen_current();
        let stack = STACKS[block.index()].load(Ordering::Relaxed);
        if current.task == 0 || stack == 0 || self.process != identity::id() {
            return Ok(None);
        }
        let at_top = stack + offset_of!(Stack, top);
        // A thread that has ended has no memory.
        let Some(top) = self.word(at_top).map(Token) else { return Ok(None) };
        let found = match top.depth() {
            0 => None,
            1 => top.is_poll().then_some((top, current.task)),
            depth => {
                let mut bytes = [0; MAX_DEPTH * FRAME];
                let bytes = &mut bytes[..depth.min(MAX_DEPTH) * FRAME];
                if self.memory.read_exact_at(bytes, (stack + offset_of!(Stack, frames)) as u64).is_err() {
                    return Ok(None);
                }
                if self.word(at_top) != Some(top.0) {
                    return Err(GoneOn);
                }
                outermost(bytes, top)
            }
        };
        if block.start() != start || STACKS[block.index()].load(Ordering::Relaxed) != stack {
            return Ok(None);
        }
        let (tid, group, task) = (block.tid(), current.group, current.task);
        let of = |(token, polled): (Token, u64)| SeenPoll {
            block,
            start,
            tid,
            poll: token.0,
            polled,
            task,
            group,
        };
        Ok(found.map(of))
    }

    /// A word of this process's memory; `None` if there is none at that address.
    pub fn word(&self, at: usize) -> Option<u64> {
        let mut bytes = [0; size_of::<u64>()];
        self.memory.read_exact_at(&mut bytes, at as u64).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }
}

/// The token and the task of the outermost poll among frames, of which `top` is the last one.
fn outermost(frames: &[u8], top: Token) -> Option<(Token, u64)> {
    let word = |frame: &[u8], at: usize| {
        frame[at..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes))
    };
    let last = frames.len() / FRAME - 1;
    frames.chunks_exact(FRAME).enumerate().find_map(|(place, frame)| {
        // The topmost frame's own is written when another one comes on top of it.
        let token = if place == last { top } else { Token(word(frame, offset_of!(Frame, token))) };
        token.is_poll().then(|| (token, word(frame, offset_of!(Frame, task))))
    })
}

impl SeenPoll {
    /// The index of the thread's block.
    pub fn block(&self) -> usize {
        self.block.index()
    }

    /// Whether both are the same poll of the same thread.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.start, self.poll) == (other.start, other.poll)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Context, Kind, Task, enter, switch, without_tasks};

    /// The poll of the calling thread, as another thread sees it.
    fn own() -> Option<SeenPoll> {
        let tid = dormouse_sys::process::identity::tid();
        std::thread::scope(|scope| {
            let scan = || PollScanner::new().unwrap().polls().find(|poll| poll.tid == tid);
            scope.spawn(scan).join().unwrap()
        })
    }

    #[test]
    fn a_poll_stays_whatever_runs_inside() {
        let (outer, inner) = (Context::new(), Context::new());
        let mut task = Task::new(outer, 71);
        assert!(own().is_none());
        let poll = enter(&mut task, Kind::Poll);
        let first = own().unwrap();
        assert_eq!((first.polled, first.task, first.group), (71, 71, outer.id()));
        for (n, kind) in [Kind::Scope, Kind::Poll, Kind::Run].into_iter().enumerate() {
            let mut inside = Task::new(inner, 100 + n as u64);
            let _inside = enter(&mut inside, kind);
            let now = own().unwrap();
            assert!(now.is_same(&first), "{now:?} {first:?}");
            assert_eq!((now.polled, now.task, now.group), (71, 100 + n as u64, inner.id()));
        }
        without_tasks(|| assert!(own().is_none(), "work of nobody"));
        assert!(own().is_some_and(|now| now.is_same(&first)), "the poll goes on");
        assert!(PollScanner::new().unwrap().again(&first).is_some());
        drop(poll);
        assert!(own().is_none() && PollScanner::new().unwrap().again(&first).is_none());
    }

    #[test]
    fn the_next_poll_of_a_task_is_another() {
        let mut task = Task::new(Context::new(), 72);
        let seen = [(); 3].map(|()| {
            let _poll = enter(&mut task, Kind::Poll);
            own().unwrap()
        });
        assert!(!seen[0].is_same(&seen[1]) && !seen[1].is_same(&seen[2]) && !seen[0].is_same(&seen[2]));
    }

    #[test]
    fn switches_are_polls_and_scopes_are_none() {
        let context = Context::new();
        let (mut one, mut other) = (Task::new(context, 73), Task::new(context, 74));
        switch(Some(&mut one));
        let first = own().unwrap();
        switch(Some(&mut other));
        let second = own().unwrap();
        assert!(!first.is_same(&second) && second.task == 74);
        switch(None);
        assert!(own().is_none());
        let mut thread = Task::new(context, 75);
        let _scope = enter(&mut thread, Kind::Scope);
        assert!(own().is_none());
        let mut task = Task::new(context, 76);
        let poll = enter(&mut task, Kind::Poll);
        assert_eq!(own().map(|poll| poll.polled), Some(76), "a poll inside of a scope is one");
        drop(poll);
        assert!(own().is_none());
        let _drop = enter(&mut task, Kind::Drop);
        assert_eq!(own().map(|poll| poll.polled), Some(76), "a destructor takes a worker's time");
    }

    #[test]
    fn a_thread_that_ends_is_seen_no_more() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut task = Task::new(Context::new(), 77);
            let poll = enter(&mut task, Kind::Poll);
            std::mem::forget(poll);
            tell.send(dormouse_sys::process::identity::tid()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let scanner = PollScanner::new().unwrap();
        let seen = scanner.polls().find(|poll| poll.tid == tid).unwrap();
        drop(end);
        thread.join().unwrap();
        assert!(scanner.again(&seen).is_none());
    }
}
