//! What a thread does at the end of a stay and the beginning of the next: it charges the one and reads for the other.
//!
//! Where task-clock is all that is counted, which is the way of most polls, that is one read of the clock and some
//! stores. Everything else is out of its way.
//!
//! # Safety
//!
//! The unsafe code follows what a task has of its own; see invariant 3 of [`super`].
#![allow(unsafe_code)]

use super::{Here, MAX_DEPTH, Stack, Switched};
use crate::account::CLOCK;
use crate::context::Context;
use crate::control::{generation, is_awake};
use crate::layout::{Layout, NOTHING, Readings};
use crate::stay::{ASLEEP, Counted, Part, Stay};
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
        context: Option<&'static Context>,
        own: *const Own,
    ) -> Switched {
        let number = here.stay.begin();
        self.pass_from(here, number, depth, after, context, own)
    }

    /// The same, of the stay `number` whose change has begun.
    #[inline(always)]
    fn pass_from(
        &self,
        here: Here,
        number: u64,
        depth: usize,
        after: usize,
        context: Option<&'static Context>,
        own: *const Own,
    ) -> Switched {
        let stay = here.stay;
        self.kept_generation.set(ASLEEP);
        // Before the layout: one that is newer than the generation is settled, one that is older never would be.
        let generation = generation();
        let counted = stay.counted(generation);
        // SAFETY: invariant 3: `own` is that of an entry, or of the task that the caller has.
        let special = unsafe { own.as_ref() };
        let shared = context.map_or(&NOTHING, Context::layout);
        let layout = special.map_or(shared, |own| own.layout(shared));
        let did = match counted {
            Counted::Nothing | Counted::Clock { .. } if layout.is_clock() || layout.is_empty() => {
                self.pass_by_clock(stay, depth, counted, layout)
            }
            _ => self.pass_by_reading(stay, depth, number, generation, layout),
        };
        if let Some(context) = context
            && !stay.is_owed_to(context.id())
        {
            self.pay(stay, Some(context));
        }
        let id = context.map_or(0, Context::id);
        if let Some(own) = special {
            stay.share(shared.mask());
            stay.set_special(id, own.set());
        } else {
            stay.set_context(id);
        }
        self.charged.set(context);
        self.charged_own.set(own);
        self.cut(depth, after);
        stay.end(number);
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
            return Switched::Asleep;
        }
        let now = dormouse_clock::thread_cpu_ns();
        if let Counted::Clock { since } = counted {
            // Saturating: a fork child's clock begins again.
            let ns = now.saturating_sub(since);
            let is_owed = self.charged.get().is_some_and(|context| stay.is_owed_to(context.id()));
            if is_owed && depth <= 1 && self.charged_own.get().is_null() {
                stay.owe(ns);
            } else {
                self.charge(depth, stay.shared(), std::iter::once((CLOCK, ns)));
            }
        }
        stay.set_first(layout, now);
        Switched::Read
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
        if !rest.layout.is_empty() {
            rest.layout.read(&mut readings);
            self.charge(depth, rest.shared, rest.until(&readings, u32::MAX));
            if rest.taken.is_some() {
                self.charge_taken(depth, &rest);
            }
        }
        // What goes and what comes do so at one moment: one reading of the same counters does for both.
        if !std::ptr::eq(layout, rest.layout) {
            layout.read(&mut readings);
        }
        stay.set(generation, layout, &readings);
        if layout.is_empty() && rest.layout.is_empty() { Switched::Asleep } else { Switched::Read }
    }

    /// The same while nothing is counted.
    #[inline]
    pub(super) fn pass_asleep(
        &self,
        here: Here,
        depth: usize,
        after: usize,
        context: Option<&'static Context>,
        own: *const Own,
    ) -> Switched {
        let number = here.stay.begin();
        if is_awake() {
            return self.pass_late(here, number, depth, after, context, own);
        }
        here.stay.set_asleep();
        let id = context.map_or(0, Context::id);
        // SAFETY: as in `pass`.
        match unsafe { own.as_ref() } {
            Some(own) => here.stay.set_special(id, own.set()),
            None => here.stay.set_context(id),
        }
        self.charged.set(context);
        self.charged_own.set(own);
        self.cut(depth, after);
        here.stay.end(number);
        Switched::Asleep
    }

    /// The hook was found asleep, and has been woken since: who woke it may have settled the stay.
    #[cold]
    #[inline(never)]
    fn pass_late(
        &self,
        here: Here,
        number: u64,
        depth: usize,
        after: usize,
        context: Option<&'static Context>,
        own: *const Own,
    ) -> Switched {
        self.pass_from(here, number, depth, after, context, own)
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
