//! The registers that watches hold.
//!
//! A watch of all threads takes its registers on every thread, and a group's while a task of the
//! group runs. So one *processor* of [`Slots`] stands for any thread: a watch of all threads is the
//! processor's breakpoint, a group's is a task's. Watches of different groups share registers,
//! because no thread runs two tasks at once. One register is reserved for debuggers, unless a watch
//! asks for all. Flexible watches together hold as many as the widest of them needs, and take turns
//! in all that are free.
//!
//! # Locking
//!
//! The lock of watches ([`lock`], of [`Phase::Watches`]) is held for moments: no system call is
//! made under it but those of the allocator. It is also the lock of the table of entries
//! (`entry.rs`). Only the locks of [`Slots`] are taken under it. A fork waits for it, and finds
//! them free. The child's handler ends all entries, and frees nothing; the first thread that takes
//! the lock in the child drops what belonged to its parent.

use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::arch::{USER_END, WATCH_REGISTERS, WATCH_REGISTERS_VARY};
use dormouse_sys::perf::{Access, WatchLen};
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::identity;

use super::entry;
use super::spec::WatchSpec;
use super::split::{Piece, Unfit, WIDEST, split};
use crate::{Cpu, Error, HeldSlot, Registers, Reservation, SlotKind, SlotRequest, Slots, Target, TaskId};

/// The processor that stands for any thread.
const ANY_THREAD: Target = Target::Cpu(Cpu(0));

/// The debug registers of a thread that watch memory; 0 until they are counted.
static REGISTERS: AtomicU32 = AtomicU32::new(if WATCH_REGISTERS_VARY { 0 } else { WATCH_REGISTERS });

/// The debug registers of a thread that watch memory; 0 if they are not counted yet.
pub(super) fn registers() -> u32 {
    REGISTERS.load(Ordering::Relaxed)
}

/// Sets their number: the most that were ever counted. Of two threads that count, the second may
/// come after the first has armed; and at any count another program may have some of them.
pub(super) fn set_registers(counted: u32) {
    REGISTERS.fetch_max(counted, Ordering::Relaxed);
}

/// Registers that are reserved for a watch but not armed yet, with the pieces that they are to
/// watch.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) pieces: Vec<Piece>,
    group: Option<u32>,
    is_flexible: bool,
    /// None: a flexible watch's, which are held with the others'.
    reservation: Option<Reservation<'static>>,
}

#[derive(Debug)]
pub(super) struct Holders {
    /// The process that the rest belongs to.
    process: u64,
    /// The account of that many registers.
    slots: Option<(u32, &'static Slots)>,
    list: Vec<(HeldSlot, Option<Reservation<'static>>)>,
    for_debuggers: Option<Reservation<'static>>,
    for_turns: Option<Reservation<'static>>,
}

static HOLDERS: Mutex<Holders> = Mutex::with_child(Phase::Watches, Holders::new(0), |_| entry::end_all());

/// Takes the lock of watches.
pub(super) fn lock() -> Result<MutexGuard<Holders>, Error> {
    let mut holders = HOLDERS.lock().map_err(|_| Error::Reentrant)?;
    let process = identity::id();
    if holders.process != process {
        *holders = Holders::new(process);
    }
    Ok(holders)
}

impl Holders {
    const fn new(process: u64) -> Self {
        Self { process, slots: None, list: Vec::new(), for_debuggers: None, for_turns: None }
    }

    /// All watches that hold registers.
    pub(super) fn list(&self) -> Vec<HeldSlot> {
        self.list.iter().map(|(slot, _)| slot.clone()).collect()
    }

    /// Registers for a watch, or the watches in the way.
    pub(super) fn admit(&mut self, spec: &WatchSpec, group: Option<u32>) -> Result<Admitted, Error> {
        let slots = self.slots()?;
        self.leave_one(slots);
        if spec.all_slots {
            self.for_debuggers = None;
        }
        let is_flexible = spec.flexible && group.is_none();
        let result = if is_flexible {
            self.admit_to_turns(slots, spec)
        } else {
            let target = group.map_or(ANY_THREAD, |group| Target::Task(TaskId(group.into())));
            self.pieces(spec, group, free_for(slots, target)).and_then(|pieces| {
                let request =
                    SlotRequest { weight: pieces.len() as u32, ..SlotRequest::new(target, SlotKind::Data) };
                Ok((pieces, Some(slots.reserve(request)?)))
            })
        };
        if spec.all_slots {
            // If it was not needed.
            self.leave_one(slots);
        }
        let (pieces, reservation) = result?;
        Ok(Admitted { pieces, group, is_flexible, reservation })
    }

    /// The watch with this number holds what was admitted.
    pub(super) fn hold(&mut self, number: u32, name: &str, admitted: Admitted) -> Vec<Piece> {
        let Admitted { pieces, group, is_flexible, reservation } = admitted;
        let slot = HeldSlot { number, name: name.to_owned(), group, slots: pieces.len() as u32, is_flexible };
        self.list.push((slot, reservation));
        pieces
    }

    /// The watch holds nothing any more.
    pub(super) fn release(&mut self, number: u32) {
        self.list.retain(|(slot, _)| slot.number != number);
        if let Ok(slots) = self.slots() {
            self.for_turns = None;
            self.for_turns = self.reserve_turns(slots, 0);
        }
    }

    /// Reserves a register for debuggers, unless a watch that has asked for all holds it.
    fn leave_one(&mut self, slots: &'static Slots) {
        if self.for_debuggers.is_none() {
            self.for_debuggers = slots.reserve(of_any_thread(1)).ok();
        }
    }

    /// The registers that flexible watches share.
    pub(super) fn shared_registers(&mut self) -> u32 {
        let held: u32 = self.turns_need(0);
        let Ok(slots) = self.slots() else { return 0 };
        // A watch that asked for all may have ended since.
        self.leave_one(slots);
        if held == 0 { 0 } else { held + free_for(slots, ANY_THREAD) }
    }

    /// The registers that the widest flexible watch needs, or one of the width `also`.
    fn turns_need(&self, also: u32) -> u32 {
        let flexible = self.list.iter().filter(|(slot, _)| slot.is_flexible);
        flexible.map(|(slot, _)| slot.slots).max().unwrap_or(0).max(also)
    }

    /// Reserves as many registers as the widest flexible watch needs; `also` is the width of one
    /// that is about to be added.
    fn reserve_turns(&self, slots: &'static Slots, also: u32) -> Option<Reservation<'static>> {
        slots.reserve(of_any_thread(self.turns_need(also))).ok()
    }

    fn admit_to_turns(
        &mut self,
        slots: &'static Slots,
        spec: &WatchSpec,
    ) -> Result<(Vec<Piece>, Option<Reservation<'static>>), Error> {
        self.for_turns = None;
        let pieces = self.pieces(spec, None, free_for(slots, ANY_THREAD));
        let widest = pieces.as_ref().map_or(0, |pieces| pieces.len() as u32);
        self.for_turns = self.reserve_turns(slots, widest);
        Ok((pieces?, None))
    }

    /// The pieces of a watch for this many free registers.
    fn pieces(&self, spec: &WatchSpec, group: Option<u32>, free: u32) -> Result<Vec<Piece>, Error> {
        let &WatchSpec { addr, len, access, .. } = spec;
        let unwatchable = |reason| Error::Unwatchable { addr, len, reason };
        let end = addr.checked_add(len).filter(|&end| end <= USER_END);
        if end.is_none() {
            return Err(unwatchable("it does not lie in the memory of a program"));
        }
        let no_register = |asked| Error::NoRegister {
            name: spec.name.clone(),
            asked,
            free,
            holders: self.in_the_way(group),
        };
        if access == Access::Execute {
            let piece = Piece { addr, len: WatchLen::Eight, watched: u64::MAX };
            return if free > 0 { Ok(vec![piece]) } else { Err(no_register(1)) };
        }
        if len > WIDEST && (spec.filter.equals.is_some() || spec.filter.mask.is_some()) {
            return Err(unwatchable(
                "filters by `equals` and `mask` compare 8 bytes at most: name a part of it, or cut it off, as in NAME:8",
            ));
        }
        // A read changes no value from which an access beside the range could be recognised.
        split(addr, len, free, access == Access::Write).map_err(|unfit| match unfit {
            Unfit::Empty => unwatchable("it is empty"),
            Unfit::Wraps => unwatchable("it ends behind the last address"),
            Unfit::TooLong { needs: Some(needs), .. } if registers() == 0 || needs <= registers() => {
                no_register(needs)
            }
            Unfit::TooLong { .. } => unwatchable("it is longer than all debug registers together can watch"),
        })
    }

    /// The watches with which one of this group, or of all threads, would share threads.
    fn in_the_way(&self, group: Option<u32>) -> Vec<HeldSlot> {
        let meets = |slot: &HeldSlot| group.is_none() || slot.group.is_none() || slot.group == group;
        let mut list: Vec<_> = self.list().into_iter().filter(meets).collect();
        if self.for_debuggers.is_some() {
            let name = "the register left to debuggers, by asking for all".to_owned();
            list.push(HeldSlot { number: 0, name, group: None, slots: 1, is_flexible: false });
        }
        list
    }

    /// The account, a new one if more registers were counted while no watch holds any.
    fn slots(&mut self) -> Result<&'static Slots, Error> {
        let counted = registers();
        match self.slots {
            Some((of, slots)) if of == counted || !self.list.is_empty() => Ok(slots),
            _ => {
                (self.for_debuggers, self.for_turns) = (None, None);
                let slots = Box::leak(Box::new(Slots::new(Registers::Shared(counted), 1)?));
                Ok(self.slots.insert((counted, slots)).1)
            }
        }
    }
}

fn of_any_thread(weight: u32) -> SlotRequest {
    SlotRequest { weight, ..SlotRequest::new(ANY_THREAD, SlotKind::Data) }
}

/// The registers that such a request could have.
fn free_for(slots: &Slots, target: Target) -> u32 {
    let fits = |&weight: &u32| {
        let request = SlotRequest { weight, ..SlotRequest::new(target, SlotKind::Data) };
        slots.reserve(request).is_ok()
    };
    (1..=registers()).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(
        holders: &mut Holders,
        number: u32,
        spec: &WatchSpec,
        group: Option<u32>,
    ) -> Result<usize, Error> {
        set_registers(4);
        let admitted = holders.admit(spec, group)?;
        Ok(holders.hold(number, &spec.name, admitted).len())
    }

    fn word(at: usize) -> WatchSpec {
        WatchSpec::new(0x1000 + 8 * at, 8, Access::Write).named(&format!("word {at}"))
    }

    fn refused(result: Result<usize, Error>) -> (u32, u32, Vec<String>) {
        match result {
            Err(Error::NoRegister { asked, free, holders, .. }) => {
                (asked, free, holders.into_iter().map(|holder| holder.name).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_register_stays_for_debuggers() {
        let mut holders = Holders::new(0);
        for at in 0..3 {
            assert_eq!(admit(&mut holders, at as u32, &word(at), None).unwrap(), 1);
        }
        let (asked, free, names) = refused(admit(&mut holders, 3, &word(3), None));
        assert_eq!((asked, free), (1, 0));
        assert!(names.len() == 4 && names[0] == "word 0" && names[3].contains("debuggers"), "{names:?}");
        assert_eq!(admit(&mut holders, 3, &word(3).all_slots(), None).unwrap(), 1);
        assert!(!refused(admit(&mut holders, 4, &word(4), None)).2.iter().any(|name| name.contains("debug")));
        holders.release(3);
        // The register is the debuggers' again.
        refused(admit(&mut holders, 4, &word(4), None));
        holders.release(0);
        assert_eq!(admit(&mut holders, 4, &word(4), None).unwrap(), 1);
        assert_eq!(holders.list().len(), 3);
    }

    #[test]
    fn a_released_register_is_left_to_debuggers_first() {
        let mut holders = Holders::new(0);
        admit(&mut holders, 0, &word(0).flexible(), None).unwrap();
        for at in 1..3 {
            admit(&mut holders, at as u32, &word(at), None).unwrap();
        }
        admit(&mut holders, 3, &word(3).all_slots(), None).unwrap();
        assert_eq!(holders.shared_registers(), 1);
        holders.release(3);
        assert_eq!(holders.shared_registers(), 1, "the fourth is the debuggers' again");
        holders.release(2);
        assert_eq!(holders.shared_registers(), 2);
    }

    #[test]
    fn groups_share_registers_and_all_threads_do_not() {
        let mut holders = Holders::new(0);
        for (number, group) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)] {
            assert_eq!(admit(&mut holders, number, &word(0), Some(group)).unwrap(), 1);
        }
        assert_eq!(refused(admit(&mut holders, 6, &word(0), Some(1))).2.len(), 4);
        assert_eq!(refused(admit(&mut holders, 6, &word(0), None)).2.len(), 7);
        holders.release(0);
        holders.release(3);
        assert_eq!(admit(&mut holders, 6, &word(0), None).unwrap(), 1);
        refused(admit(&mut holders, 7, &word(0), Some(2)));
    }

    #[test]
    fn flexible_watches_keep_the_widest_ones_registers() {
        let mut holders = Holders::new(0);
        let wide = WatchSpec::new(0x1000, 16, Access::Write).flexible();
        for number in 0..10 {
            assert_eq!(admit(&mut holders, number, &word(0).flexible(), None).unwrap(), 1);
        }
        assert_eq!(holders.shared_registers(), 3);
        assert_eq!(admit(&mut holders, 10, &wide, None).unwrap(), 2);
        assert_eq!(admit(&mut holders, 11, &word(5), None).unwrap(), 1);
        assert_eq!(holders.shared_registers(), 2);
        refused(admit(&mut holders, 12, &word(6), None));
        holders.release(10);
        assert_eq!(admit(&mut holders, 12, &word(6), None).unwrap(), 1);
        assert_eq!(holders.shared_registers(), 1);
        refused(admit(&mut holders, 13, &wide, None));
        (0..10).for_each(|number| holders.release(number));
        assert_eq!(holders.shared_registers(), 0);
    }

    /// Where their number varies, another program may have all of them at the first watch.
    #[test]
    fn registers_that_come_free_are_used() {
        dormouse_testkit::in_child(|| {
            REGISTERS.store(0, Ordering::Relaxed);
            let mut holders = Holders::new(0);
            let wide = WatchSpec::new(0x1000, 16, Access::Write).named("wide");
            let refused = holders.admit(&wide, None).unwrap_err().to_string();
            assert!(refused.contains("wide needs 2") && refused.contains("debugger"), "{refused}");
            set_registers(1);
            let word = word(0).all_slots();
            let admitted = holders.admit(&word, None).unwrap();
            holders.hold(1, "word", admitted);
            set_registers(4);
            assert!(holders.admit(&word, None).is_err(), "the account is that of the watch's beginning");
            holders.release(1);
            assert_eq!(holders.admit(&wide, None).unwrap().pieces.len(), 2);
        });
    }

    #[test]
    fn ranges_without_a_cover_are_refused() {
        let mut holders = Holders::new(0);
        for (addr, len, expected) in [
            (0x1000, 0, "it is empty"),
            (0x1000, 100, "longer than all debug registers"),
            (0x1001, 23, "longer than all debug registers"),
            (USER_END, 8, "memory of a program"),
            (usize::MAX - 3, 8, "memory of a program"),
            (0x1001, 15, "needs 4"),
        ] {
            let spec = WatchSpec::new(addr, len, Access::ReadWrite).named("it");
            let message = admit(&mut holders, 0, &spec, None).unwrap_err().to_string();
            assert!(message.contains(expected), "{addr:#x} {len}: {message}");
        }
        for filtered in [WatchSpec::equals, WatchSpec::masked] {
            let spec = |len| filtered(WatchSpec::new(0x1000, len, Access::Write), 1);
            let message = admit(&mut holders, 0, &spec(9), None).unwrap_err().to_string();
            assert!(message.contains("compare 8 bytes at most"), "{message}");
            assert_eq!(admit(&mut holders, 0, &spec(8), None).unwrap(), 1);
            holders.release(0);
        }
        assert_eq!(admit(&mut holders, 0, &WatchSpec::new(7, 1, Access::Execute), None).unwrap(), 1);
    }
}
