//! What a thread does at the end of a stay and the beginning of the next: it charges the one and reads for the other.
//!
//! Where task-clock is all that is counted, which is the way of most polls, that is one read of the clock and some
//! stores. Everything else is out of its way.
//!
//! # Safety
//!
//! The unsafe code follows what a task has of its own; see invariant 3 of [`super`].
#![allow(unsafe_code)]

use dormouse_keys::unlikely;

use super::kept::Kept;
use super::{Here, MAX_DEPTH, SWITCH, Stack, Switched};
use crate::account::CLOCK;
use crate::context::Context;
use crate::control::{generation, is_awake_in};
use crate::layout::{Layout, Readings};
use crate::stay::{Counted, Part, Stay};
use crate::task::Own;

impl Stack {
    /// Charges what was counted since the last change to what it was for, which was inside of `depth` entries, and goes
    /// on for `context`, inside of `after`.
    #[inline]
    pub(super) fn pass(
        &self,
        here: Here,
        depth: usize,
        after: usize,
        context: &'static Context,
        own: *const Own,
    ) -> Switched {
        let stay = here.stay;
        let number = stay.begin();
        self.kept_as.set(Kept::NOT);
        // Before the layout: one that is newer than the generation is settled, one that is older never would be.
        let generation = generation();
        // SAFETY: invariant 3: `own` is that of an entry, or of the task that the caller has.
        let special = unsafe { own.as_ref() };
        let did = if unlikely!(SWITCH) || is_awake_in(generation) || !stay.is_empty(number) {
            self.pass_awake(stay, depth, number, generation, context, special)
        } else {
            Switched::Asleep
        };
        match special {
            Some(own) => stay.set_special(context.id(), own.set()),
            None => stay.set_context(context.id()),
        }
        self.charged.set(Some(context));
        self.charged_own.set(own);
        self.cut(depth, after);
        stay.end(number);
        did
    }

    /// What [`Stack::pass`] reads and charges.
    #[inline]
    fn pass_awake(
        &self,
        stay: &Stay,
        depth: usize,
        number: u64,
        generation: u64,
        context: &'static Context,
        special: Option<&Own>,
    ) -> Switched {
        let shared = context.layout();
        let layout = special.map_or(shared, |own| own.layout(shared));
        let did = match stay.counted(number, generation) {
            counted @ (Counted::Nothing | Counted::Clock { .. })
                if layout.is_clock() || layout.is_empty() =>
            {
                self.pass_by_clock(stay, depth, counted, layout)
            }
            _ => self.pass_by_reading(stay, depth, number, generation, layout),
        };
        if !stay.is_owed_to(context.id()) {
            self.pay(stay, Some(context));
        }
        if special.is_some() {
            stay.share(shared.mask());
        }
        if !is_awake_in(generation) {
            stay.set_asleep();
        }
        did
    }

    /// As [`Stack::pass`], where nothing comes after it: no entry is left.
    #[inline]
    pub(super) fn go_idle(&self, here: Here, depth: usize) -> Switched {
        let stay = here.stay;
        let number = stay.begin();
        self.kept_as.set(Kept::NOT);
        let generation = generation();
        let asleep = !(unlikely!(SWITCH) || is_awake_in(generation)) && stay.is_empty(number);
        let counted = if asleep { Counted::Nothing } else { stay.counted(number, generation) };
        let did = match counted {
            Counted::Nothing => Switched::Asleep,
            Counted::Clock { since } => {
                self.charge_clock(stay, depth, since, dormouse_clock::thread_cpu_ns());
                Switched::Read
            }
            Counted::Else => self.end_by_reading(stay, depth, number, generation),
        };
        let keeps = self.charged.get().filter(|charged| self.can_keep(charged));
        self.charged_own.set(std::ptr::null());
        self.cut(depth, 0);
        // Before the end: who begins to count looks at it then. Not earlier: a handler would show the entry again.
        here.block.set_task(0);
        if let Some(charged) = keeps
            && asleep
        {
            self.keep(charged, Kept::there(generation));
            stay.end(number);
            return did;
        }
        // At the end of its tasks a lazy thread wants to go on.
        if let Some(charged) = keeps
            && matches!(counted, Counted::Clock { .. })
            && !self.lazy.get()
        {
            self.keep(charged, Kept::idle(generation));
        }
        if !is_awake_in(generation) {
            stay.set_asleep();
        }
        stay.end_idle(number);
        did
    }

    /// Charges what is owed, and owes to another context from now on.
    #[inline(never)]
    pub(super) fn pay(&self, stay: &Stay, to: Option<&'static Context>) {
        let (entries, ns) = stay.pay(to.map_or(0, Context::id));
        if let Some(context) = self.owed_to.replace(to) {
            context.count_entries(self.start.get(), entries);
            context.charge(self.start.get(), CLOCK, ns);
        }
    }

    /// Where task-clock is all that is counted, before and after, or nothing.
    #[inline(always)]
    fn pass_by_clock(
        &self,
        stay: &Stay,
        depth: usize,
        counted: Counted,
        layout: &'static Layout,
    ) -> Switched {
        if counted == Counted::Nothing && layout.is_empty() {
            stay.set_one(layout, 0);
            return Switched::Asleep;
        }
        let now = dormouse_clock::thread_cpu_ns();
        if let Counted::Clock { since } = counted {
            self.charge_clock(stay, depth, since, now);
        }
        stay.set_one(layout, now);
        Switched::Read
    }

    #[inline]
    fn charge_clock(&self, stay: &Stay, depth: usize, since: u64, now: u64) {
        // Saturating: a fork child's clock begins again.
        let ns = now.saturating_sub(since);
        let is_owed = self.charged.get().is_some_and(|context| stay.is_owed_to(context.id()));
        if is_owed && depth <= 1 && self.charged_own.get().is_null() {
            stay.owe(ns);
        } else {
            self.charge(depth, stay.shared(), std::iter::once((CLOCK, ns)));
        }
    }

    #[inline(never)]
    fn pass_by_reading(
        &self,
        stay: &Stay,
        depth: usize,
        number: u64,
        generation: u64,
        layout: &'static Layout,
    ) -> Switched {
        let mut readings = Readings::default();
        let rest = stay.rest(number, generation);
        self.charge_rest(depth, &rest, &mut readings);
        // What goes and what comes do so at one moment: one reading of the same counters does for both.
        if !std::ptr::eq(layout, rest.layout) {
            layout.read(&mut readings);
        }
        stay.set(generation, layout, &readings);
        if layout.is_empty() && rest.layout.is_empty() { Switched::Asleep } else { Switched::Read }
    }

    #[inline(never)]
    fn end_by_reading(&self, stay: &Stay, depth: usize, number: u64, generation: u64) -> Switched {
        let rest = stay.rest(number, generation);
        self.charge_rest(depth, &rest, &mut Readings::default());
        if rest.layout.is_empty() { Switched::Asleep } else { Switched::Read }
    }

    /// Charges what is left to charge of a stay, until what is read now.
    #[inline]
    fn charge_rest(&self, depth: usize, rest: &Part, readings: &mut Readings) {
        if rest.layout.is_empty() {
            return;
        }
        rest.layout.read(readings);
        self.charge(depth, rest.shared, rest.until(readings, u32::MAX));
        if rest.taken.is_some() {
            self.charge_taken(depth, rest);
        }
    }

    #[inline]
    fn charge(&self, depth: usize, shared: u64, counts: impl Iterator<Item = (usize, u64)>) {
        let Some(charged) = self.charged.get() else { return };
        // SAFETY: invariant 3: what is charged is an entry's until the entry goes, which passes on first.
        let own = unsafe { self.charged_own.get().as_ref() };
        for (account, n) in counts {
            let is_shared = shared & 1 << account != 0;
            if is_shared {
                charged.charge(self.start.get(), account, n);
            }
            if let Some(own) = own {
                own.charge(account, n);
            }
            if depth > 1 && is_shared {
                self.charge_around(charged, depth, account, n);
            }
        }
    }

    /// Charges what settlers have left to the owner.
    #[cold]
    fn charge_taken(&self, depth: usize, rest: &Part) {
        let Some(charged) = self.charged.get() else { return };
        // SAFETY: as in `charge`.
        let own = unsafe { self.charged_own.get().as_ref() };
        for (account, n) in rest.taken() {
            if let Some(own) = own {
                own.charge(account, n);
            }
            if depth > 1 && rest.is_shared(account) {
                self.charge_around(charged, depth, account, n);
            }
        }
    }

    /// Charges the contexts around what is charged: once each, however often they are there.
    #[cold]
    fn charge_around(&self, charged: &'static Context, depth: usize, account: usize, n: u64) {
        let entries = &self.entries[..depth.min(MAX_DEPTH)];
        for (place, entry) in entries.iter().enumerate() {
            let Some(context) = entry.context.get() else { continue };
            let is = |other: &Context| std::ptr::eq(other, context);
            if !is(charged) && !entries[..place].iter().any(|below| below.context.get().is_some_and(is)) {
                context.charge_nested(account, n);
            }
        }
    }
}
