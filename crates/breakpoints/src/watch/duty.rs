//! The keeper's duty: the lines of all watches, and the plan of their rests and turns.
//!
//! Only the keeper's thread accesses it; other threads send errands (`keeper.rs`). It takes the
//! lock of watches (`holders.rs`) for moments.
//!
//! | watch | its lines |
//! |---|---|
//! | of all threads, pinned | its own; disarmed while it rests |
//! | flexible | taken when its turn begins, from those at rest, else opened; given back when it ends |
//! | of a group | none: threads open their own (`sched.rs`) |
//!
//! # Invariants
//!
//! 1. Lines of flexible watches and lines at rest together are never more than the registers in the
//!    plan: [`Duty::shrink`] closes lines before a pinned watch takes their registers.

use std::time::{Duration, Instant};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::keeper;
use dormouse_sys::perf::{Attr, is_filtered};
use dormouse_sys::trap::{self, Disposition};

use super::entry::Claimed;
use super::holders;
use super::known::Known;
use super::line::{Line, PATIENCE};
use super::plan::{HitCounts, Order, Plan, Request, Stage};
use super::sched;
use crate::Error;

/// The approximate length of a turn, where few threads must be armed for it.
const SLICE_NS: u64 = 20_000_000;
/// And where very many.
const LONGEST_SLICE_NS: u64 = 4_000_000_000;
/// A turn takes this many times longer than the keeper's work at its beginning.
const WORTH: u64 = 100;

/// The reasons why a watch cannot go on.
const FILTERED: &str = "a filter of system calls has come, which may end the process for arming it again";
const SIGNAL_TAKEN: &str =
    "the program has taken SIGTRAP's handler from dormouse: hits could end the process";

/// How many times the keeper waits for a last signal.
const LAST_SIGNALS: u32 = 10;

#[derive(Debug)]
pub(super) struct Duty {
    plan: Plan,
    watches: Vec<Watched>,
    /// Lines of flexible watches that are at rest.
    at_rest: Vec<Line>,
    /// The number of registers that flexible watches share.
    shared_registers: u32,
    slice_ns: u64,
    /// The reason why the last step could not begin a turn.
    refusal: Option<Error>,
    /// Watches of all threads that have ended, whose registers are not released yet.
    over: Vec<u32>,
}

#[derive(Debug)]
struct Watched {
    number: u32,
    claimed: Claimed,
    group: Option<u32>,
    is_flexible: bool,
    /// One for each piece, while it has them.
    lines: Vec<Line>,
    /// The hits of lines that it has had before.
    earlier: u64,
    /// Hits whose signal had not come when they were last read: of threads that block it. Without
    /// them a storm there would never rest.
    unsignalled: u64,
}

impl Default for Duty {
    fn default() -> Self {
        Self {
            plan: Plan::new(monotonic_ns()),
            watches: Vec::new(),
            at_rest: Vec::new(),
            shared_registers: 0,
            slice_ns: SLICE_NS,
            refusal: None,
            over: Vec::new(),
        }
    }
}

impl keeper::Duty for Duty {
    type Id = u32;

    fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    fn step(&mut self) -> Duration {
        self.check_signal();
        loop {
            self.share();
            let next = self.follow_plan();
            if !self.release_over() {
                return next.unwrap_or(Duration::MAX);
            }
        }
    }

    fn step_without_memory(&mut self) {
        let at = monotonic_ns();
        for watch in &mut self.watches {
            match self.plan.rest(watch.number, at, watch.counts()) {
                // A flexible one keeps its lines, disarmed, until the next step.
                Some(Order::Disarm(number)) => {
                    watch.disarm();
                    sched::set_resting(number, true);
                }
                Some(Order::Alarm(_, hits)) => watch.set_alarm(hits),
                Some(Order::Arm(_)) | None => {}
            }
        }
    }

    fn end(&mut self, number: u32) {
        self.leave(number, false);
    }
}

impl Duty {
    /// Takes a watch over: a pinned one of all threads is armed, or refused as a whole; a flexible
    /// one has its turn, if all that are there fit, or is refused if it can never have one.
    pub(super) fn take(&mut self, claimed: Claimed, group: Option<u32>) -> Result<(), Error> {
        self.share();
        let tally = &claimed.tally;
        let is_flexible = tally.spec.flexible && group.is_none();
        tally.look();
        let mut lines = Vec::new();
        if !is_flexible && group.is_none() {
            let until = Instant::now() + PATIENCE;
            for piece in 0..tally.pieces.len() {
                lines.push(open_line(&tally.attr(piece), until)?);
            }
            tally.set_armed(true);
        }
        let number = claimed.number();
        let request = Request {
            number,
            flexible: is_flexible.then_some(tally.pieces.len() as u32),
            rate: tally.spec.rate,
            max_hits: Some(tally.spec.max_hits).filter(|&most| most < u64::MAX),
        };
        let weight = tally.pieces.len();
        self.watches.push(Watched { number, claimed, group, is_flexible, lines, earlier: 0, unsignalled: 0 });
        self.plan.join(monotonic_ns(), request);
        if is_flexible {
            self.follow_plan();
            if let Some(error) = self.refusal.take().filter(|_| self.shared_lines() < weight) {
                self.leave(number, false);
                return Err(error);
            }
        }
        // For a report to which this thread does not answer.
        self.known(number);
        Ok(())
    }

    /// Disarms a watch, and forgets it: the keeper's knowledge of it. If `exactly`, its last
    /// signals are waited for, for a moment.
    pub(super) fn leave(&mut self, number: u32, exactly: bool) -> Option<Known> {
        let place = self.watches.iter().position(|watch| watch.number == number)?;
        let mut watch = self.watches.swap_remove(place);
        watch.disarm();
        let mut known = watch.known(&self.plan);
        if exactly {
            for _ in 0..LAST_SIGNALS {
                // The threads' descriptors have reported their counts for a group's watch.
                let again = watch.claimed.tally.again();
                if watch.claimed.tally.counts().delivered
                    >= (watch.counted() + sched::hits(number)).saturating_sub(again)
                {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // Handlers that were on their way have found out what was counted twice.
            known.hits = watch.hits();
            watch.claimed.tally.last_known.set(known);
        }
        if watch.is_flexible {
            watch.give_back(&mut self.at_rest);
        }
        if self.watches.is_empty() {
            // Before the keeper ends: the next one counts on their registers.
            self.at_rest.clear();
        }
        self.plan.leave(number);
        Some(known)
    }

    /// The keeper's knowledge of a watch.
    pub(super) fn known(&mut self, number: u32) -> Option<Known> {
        let watch = self.watches.iter_mut().find(|watch| watch.number == number)?;
        let known = watch.known(&self.plan);
        watch.unsignalled = known.hits.saturating_sub(known.delivered);
        Some(known)
    }

    /// Does what the plan wants now. Returns the time until its next order, if there is one.
    fn follow_plan(&mut self) -> Option<Duration> {
        self.refusal = None;
        // A step without memory has left the lines with watches that it disarmed. Now others get
        // them: otherwise a turn of theirs could never begin.
        let has_left = |watch: &&mut Watched| watch.is_flexible && !watch.claimed.tally.is_armed();
        for watch in self.watches.iter_mut().filter(has_left) {
            watch.give_back(&mut self.at_rest);
        }
        loop {
            let at = monotonic_ns();
            let watches = &self.watches;
            let counts = |number| {
                let watch = watches.iter().find(|watch| watch.number == number);
                watch.map_or(HitCounts::default(), Watched::counts)
            };
            let (orders, wake_at) = self.plan.step(at, self.slice_ns, counts);
            let is_turn = |order: &Order| matches!(*order, Order::Arm(number) if self.is_flexible(number));
            let (begun, is_turn) = (cpu_ns(), orders.iter().any(is_turn));
            let lines = self.shared_lines();
            let mut is_whole = true;
            for order in orders {
                is_whole &= self.carry_out(order);
            }
            // To open a line takes longer, once.
            if is_turn && lines == self.shared_lines() {
                let took = cpu_ns().saturating_sub(begun);
                self.slice_ns = (WORTH * took).clamp(SLICE_NS, LONGEST_SLICE_NS);
            }
            if is_whole {
                return wake_at.map(|wake_at| Duration::from_nanos(wake_at.saturating_sub(monotonic_ns())));
            }
            // A register that no watch of this process holds is taken: by a debugger. The number
            // only shrinks here, so this ends; the next watch that begins or ends tries for all
            // again.
            self.shared_registers = self.shared_lines() as u32;
            self.plan.set_registers(self.shared_registers);
        }
    }

    /// Releases the registers of watches that are over since the last call. Returns whether there
    /// were any.
    fn release_over(&mut self) -> bool {
        let plan = &self.plan;
        let is_new = |watch: &&mut Watched| {
            let is_over = matches!(plan.look(watch.number, monotonic_ns()), Some((Stage::Over, ..)));
            is_over && !watch.claimed.tally.is_over()
        };
        for watch in self.watches.iter_mut().filter(is_new) {
            watch.close(&mut self.over);
            watch.claimed.tally.set_over();
        }
        let over = std::mem::take(&mut self.over);
        for &number in &over {
            if let Ok(mut holders) = holders::lock() {
                holders.release(number);
            }
        }
        !over.is_empty()
    }

    /// Ends all watches if SIGTRAP's action is not ours any more: their hits would end the process,
    /// or go to a handler that does not expect them. Under a filter this is not checked.
    pub(super) fn check_signal(&mut self) {
        if self.watches.iter().all(|watch| watch.claimed.tally.is_over()) || is_filtered() {
            return;
        }
        if !matches!(trap::disposition(), Ok(Disposition::Ours) | Err(_)) {
            let all: Vec<u32> = self.watches.iter().map(|watch| watch.number).collect();
            for number in all {
                self.end(number, SIGNAL_TAKEN);
            }
        }
    }

    /// Ends a watch that cannot go on. Each thread switches that of a group off when it next hits
    /// it or switches tasks.
    fn end(&mut self, number: u32, reason: &'static str) {
        let Some(watch) = self.watches.iter_mut().find(|watch| watch.number == number) else { return };
        if watch.claimed.tally.is_over() {
            return;
        }
        watch.claimed.tally.set_armed(false);
        // Closed, lines are disarmed.
        watch.close(&mut self.over);
        if watch.group.is_some() {
            sched::set_resting(number, true);
        }
        watch.claimed.tally.end_for(reason);
        self.plan.end(monotonic_ns(), number);
    }

    /// False: a turn could not begin.
    fn carry_out(&mut self, order: Order) -> bool {
        let (Order::Arm(number) | Order::Disarm(number) | Order::Alarm(number, _)) = order;
        let Some(watch) = self.watches.iter_mut().find(|watch| watch.number == number) else { return true };
        if matches!(order, Order::Arm(_) | Order::Disarm(_)) && watch.group.is_none() && is_filtered() {
            self.end(number, FILTERED);
            return true;
        }
        match order {
            Order::Alarm(_, hits) => watch.set_alarm(hits),
            Order::Disarm(_) => {
                watch.disarm();
                if watch.is_flexible {
                    watch.give_back(&mut self.at_rest);
                }
                sched::set_resting(number, true);
            }
            Order::Arm(_) if watch.is_flexible => {
                watch.claimed.tally.look();
                if let Err(error) = watch.take_lines(&mut self.at_rest) {
                    watch.lines.iter_mut().for_each(Line::disable);
                    watch.give_back(&mut self.at_rest);
                    self.plan.refuse(monotonic_ns(), number);
                    self.refusal = Some(error);
                    return false;
                }
            }
            Order::Arm(_) => {
                watch.claimed.tally.look();
                watch.lines.iter().for_each(Line::enable);
                watch.claimed.tally.set_armed(watch.group.is_none());
                sched::set_resting(number, false);
            }
        }
        true
    }

    /// Flexible watches share as many registers as they may have by now. Closes lines that are too
    /// many for these.
    fn share(&mut self) {
        let registers = holders::lock().map_or(0, |mut holders| holders.shared_registers());
        if registers != self.shared_registers {
            self.shared_registers = registers;
            self.plan.set_registers(registers);
            self.follow_plan();
        }
        let in_turn = self.shared_lines() - self.at_rest.len();
        self.at_rest.truncate((registers as usize).saturating_sub(in_turn));
    }

    fn is_flexible(&self, number: u32) -> bool {
        self.watches.iter().any(|watch| watch.number == number && watch.is_flexible)
    }

    /// The lines of flexible watches, and those at rest.
    fn shared_lines(&self) -> usize {
        let flexible = self.watches.iter().filter(|watch| watch.is_flexible);
        flexible.map(|watch| watch.lines.len()).sum::<usize>() + self.at_rest.len()
    }
}

/// Opens a line. Meanwhile no thread takes a register for a watch of a group.
fn open_line(attr: &Attr, until: Instant) -> Result<Line, Error> {
    let _still = sched::hold_still();
    Line::open(attr, until, sched::registers_held)
}

impl Watched {
    fn counts(&self) -> HitCounts {
        let (counts, is_stuck) = (self.claimed.tally.counts(), self.claimed.tally.is_stuck());
        HitCounts { all: counts.delivered + self.unsignalled, passed: counts.passed, is_stuck }
    }

    fn set_alarm(&self, hits: u64) {
        self.claimed.tally.set_alarm(hits.saturating_sub(self.unsignalled));
    }

    fn disarm(&mut self) {
        self.claimed.tally.set_armed(false);
        self.lines.iter_mut().for_each(Line::disable);
    }

    /// Closes its lines. Those of a group's watch are its threads', and keep its registers: the
    /// guard closes them.
    fn close(&mut self, over: &mut Vec<u32>) {
        self.earlier = self.counted();
        self.lines.clear();
        if self.group.is_none() {
            over.push(self.number);
        }
    }

    /// Gives its lines back, but for those that were closed.
    fn give_back(&mut self, at_rest: &mut Vec<Line>) {
        self.earlier = self.counted();
        at_rest.extend(self.lines.drain(..).filter(Line::is_open));
    }

    fn hits(&self) -> u64 {
        let again = self.claimed.tally.again();
        self.counted().saturating_sub(again)
    }

    /// The kernel's count.
    fn counted(&self) -> u64 {
        self.earlier + self.lines.iter().map(Line::hits).sum::<u64>()
    }

    fn known(&self, plan: &Plan) -> Known {
        let hits = self.hits();
        let delivered = self.claimed.tally.counts().delivered;
        let Some((stage, armed_ns, wall_ns, rests)) = plan.look(self.number, monotonic_ns()) else {
            return Known { hits, delivered, ..Known::default() };
        };
        let is_armed = stage == Stage::Armed && self.group.is_none();
        let is_resting = stage == Stage::Resting;
        let known = Known { hits, delivered, is_resting, is_armed, armed_ns, wall_ns, rests };
        self.claimed.tally.last_known.set(known);
        known
    }

    /// Takes a line for each piece, and arms it.
    fn take_lines(&mut self, at_rest: &mut Vec<Line>) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        for piece in 0..self.claimed.tally.pieces.len() {
            let attr = self.claimed.tally.attr(piece);
            let line = match at_rest.pop() {
                Some(mut line) => line.retarget(&attr).map(|()| line),
                None => open_line(&attr, until),
            };
            self.lines.push(line?);
        }
        self.claimed.tally.set_armed(true);
        Ok(())
    }
}

/// The CPU time of this thread: unlike wall time, it does not include the wait for other threads.
fn cpu_ns() -> u64 {
    dormouse_sys::clock::ask(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}
