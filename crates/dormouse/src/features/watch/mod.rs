//! Watches: each access to a variable, with the thread, the task and the group that made it.
//!
//! `dormouse-breakpoints` arms and reports, and identifies groups only by their numbers. Here a
//! watch also becomes an event that is counted per group, and a watch of a group follows its tasks
//! from thread to thread.
//!
//! # How a watch of a group follows its tasks
//!
//! The group counts an event whose unit is called by the task switch when a thread comes to the
//! group's tasks and leaves them. The functions below pass that on, by the place of the event's
//! number. A client that counts `watch:NAME:w` counts another event, which arms nothing.
//!
//! # Async-signal-safety
//!
//! The four functions for the task switch and the signal handler load a word, and call others that
//! are signal-safe.

pub(crate) mod client;
pub(crate) mod rows;
pub(crate) mod verb;

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_breakpoints::{self as breakpoints, Access, WatchHit, WatchReport, WatchSpec};
use dormouse_events::pmu::breakpoint::{self as hits, MAX_BREAKPOINTS, Registration};
use dormouse_events::{self as events, Counting, Event, Mode};
use dormouse_sys::process::identity;
use dormouse_sys::thread;

use crate::core::group::Group;

/// By the place of its event: 1 more than the number of the last watch of a group there.
static SCOPED: [AtomicU64; MAX_BREAKPOINTS] = [const { AtomicU64::new(0) }; MAX_BREAKPOINTS];

/// Why a watch cannot be armed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// No register is free, or hits cannot be delivered.
    #[error(transparent)]
    Arming(#[from] breakpoints::Error),
    /// No static variable has the name, or several have.
    #[cfg(feature = "symbols")]
    #[error("{0}")]
    Name(String),
    /// The tasks of its group cannot be followed.
    #[error("the group's tasks cannot be followed: {0}")]
    Following(#[from] events::Error),
}

/// A watch: a debug register of every thread, or of those that run a group's tasks, reports each
/// access to a variable. It ends when this is dropped.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use dormouse::{Group, Watch};
///
/// static BALANCE: AtomicU64 = AtomicU64::new(100);
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let armed = Watch::write(&BALANCE);
/// # if armed.is_err() { return Ok(()); } // no registers here
/// # drop(armed);
/// let watch = Watch::write(&BALANCE)?;
/// Group::new("POST /transfer").scope(|| BALANCE.store(70, Ordering::Relaxed));
///
/// let report = watch.report();
/// for site in &report.sites {
///     let group = Group::by_id(site.group).map_or("no group", Group::name);
///     println!("{} of {group}: {:?} became {:?}", site.hits, site.old, site.new);
/// }
/// # assert_eq!((report.hits, report.sites[0].new), (1, Some(70)));
/// # Ok(())
/// # }
/// ```
///
/// It watches an address and does not keep the variable there: end the watch before the variable's
/// lifetime ends.
///
/// # Cost
///
/// Nothing for code that does not touch the variable. A hit takes some ten microseconds of its
/// thread, so a watch that is hit more than 10,000 times a second ([`WatchSpec::rate`]) rests,
/// which its report shows. Starting a thread takes some microseconds more, because the kernel arms
/// it.
///
/// # Blind spots
///
/// It does not see writes by the kernel (a `read` into the variable), through another mapping of
/// its page, or by devices. [`WatchReport::coverage`] has the rest.
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watch {
    // Dropped in this order: the watch ends when no switch looks for it any more, and its number
    // goes to another only then.
    counting: Option<Counting>,
    armed: breakpoints::Watch,
    registration: Option<Registration>,
}

impl Watch {
    /// Reports each write to `value`, by any thread. Its length is at most 8 bytes, or as much as
    /// the free registers can cover.
    ///
    /// # Errors
    ///
    /// See [`Watch::arm`].
    ///
    /// # Cost
    ///
    /// See [`Watch::arm`].
    pub fn write<T>(value: &T) -> Result<Self, WatchError> {
        Self::arm(&spec_of(value, Access::Write))
    }

    /// Reports each read and write. (No register traps on reads only.)
    ///
    /// # Errors
    ///
    /// See [`Watch::arm`].
    ///
    /// # Cost
    ///
    /// See [`Watch::arm`].
    pub fn read_write<T>(value: &T) -> Result<Self, WatchError> {
        Self::arm(&spec_of(value, Access::ReadWrite))
    }

    /// Finds the variable of that name and describes a watch of it: `orders::TOTAL`, `TOTAL`,
    /// `HOUSE.rooms[2]`, `HOUSE+8`, `*HEAD` (see `dormouse_maps::symbols::Statics`). Parts of
    /// variables, and lengths that no symbol contains, need debug information.
    ///
    /// ```
    /// use dormouse::{Access, Watch};
    ///
    /// static SCONES: u64 = 9;
    ///
    /// # std::hint::black_box(&SCONES);
    /// let spec = Watch::find("SCONES", Access::Write)?.changed();
    /// assert!(spec.name().ends_with("SCONES"));
    /// # Ok::<(), dormouse::WatchError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WatchError::Name`] with similar names, or with the variables that have that name.
    ///
    /// # Cost
    ///
    /// Reads the symbols of the program and its libraries, on the calling thread: milliseconds, and
    /// seconds for a gigabyte of debug information.
    #[cfg(feature = "symbols")]
    pub fn find(name: &str, access: Access) -> Result<WatchSpec, WatchError> {
        let fail = |why: &dyn std::fmt::Display| WatchError::Name(why.to_string());
        let space = dormouse_maps::AddressSpace::own().map_err(|why| fail(&why))?;
        let found = dormouse_maps::symbols::Statics::new().find(&space, name).map_err(|why| fail(&why))?;
        let [place] = &found[..] else {
            let all: Vec<_> =
                found.iter().map(|place| format!("{} in {}", place.name, place.object)).collect();
            return Err(WatchError::Name(format!("`{name}` stands for several: {}", all.join(", "))));
        };
        Ok(WatchSpec::new(place.addr as usize, place.len as usize, access).named(&place.name))
    }

    /// Arms `spec` on all present and future threads, or on none.
    ///
    /// ```
    /// use dormouse::{Access, Group, Watch, WatchSpec};
    ///
    /// let limits = [0_u32; 4];
    /// let group = Group::new("reload");
    /// let spec = WatchSpec::new((&raw const limits[2]).addr(), 4, Access::Write)
    ///     .named("limits[2]")
    ///     .changed()
    ///     .in_group(group.id());
    /// match Watch::arm(&spec) {
    ///     Ok(watch) => assert_eq!(watch.event().unwrap().name(), "watch:limits[2]:w"),
    ///     Err(why) => println!("not here: {why}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WatchError::Arming`] with the obstacle, and what to release.
    ///
    /// # Cost
    ///
    /// A few system calls for each thread of the process: 36 ms for 1,000 threads.
    pub fn arm(spec: &WatchSpec) -> Result<Self, WatchError> {
        Ok(Self::on_all_threads(spec)?)
    }

    /// [`Watch::arm`], which is refused for one sort of reasons.
    pub(crate) fn on_all_threads(spec: &WatchSpec) -> Result<Self, breakpoints::Error> {
        join();
        // Without a number, where 16 events of watches are in use, it reports all the same.
        let registration = register(spec).ok();
        let spec = match &registration {
            Some(registration) => spec.clone().event(registration.number()),
            None => spec.clone(),
        };
        Ok(Self { counting: None, armed: spec.arm()?, registration })
    }

    /// Arms `spec` while tasks of `group` run, on the threads that run them. Other groups may watch
    /// as many variables in the same registers.
    ///
    /// On a lazy thread ([`dormouse_events::set_lazy`]) it is armed until a task of another group
    /// comes. Elsewhere it also stays armed at the end of a task, until another group's task comes
    /// or other code hits it: so tasks of one group in a row cost nothing. Hits outside of the
    /// group are not reported.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use dormouse::{Access, Group, Watch, WatchSpec};
    ///
    /// static STOCK: AtomicU64 = AtomicU64::new(9);
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = Group::new("orders");
    /// let spec = WatchSpec::new(STOCK.as_ptr().addr(), 8, Access::Write).named("stock");
    /// # if Watch::arm(&spec).is_err() { return Ok(()); } // no registers here
    /// let watch = Watch::for_group(orders, &spec)?;
    /// orders.scope(|| STOCK.fetch_sub(1, Ordering::Relaxed));
    /// STOCK.fetch_sub(1, Ordering::Relaxed);
    /// assert_eq!(watch.report().passed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Watch::arm`], except those of single threads: a thread that cannot be armed runs
    /// its tasks unarmed, which [`WatchReport::coverage`] shows. [`WatchError::Following`] if
    /// nothing can be counted, or 16 events of watches are in use.
    ///
    /// # Cost
    ///
    /// A task of the group pays two system calls, less than two microseconds, if another group's
    /// task ran before it; another group's tasks pay nothing. Arming itself costs the same as
    /// [`Group::start_counting`].
    pub fn for_group(group: Group, spec: &WatchSpec) -> Result<Self, WatchError> {
        join();
        let registration = register(spec)?;
        let spec = spec.clone().event(registration.number());
        let armed = spec.arm_for_group(group.id())?;
        // Release: pairs with the load in `watch_of`.
        place_of(registration.number()).store(u64::from(armed.number()) + 1, Ordering::Release);
        let counting = group.start_counting(&[registration.arming()], Mode::GroupExact)?;
        Ok(Self { counting: Some(counting), armed, registration: Some(registration) })
    }

    /// The watch's result so far: where the variable was accessed, how often, and what the watch
    /// covers. [`Group::by_id`] returns the group of a [`WatchSite`](crate::WatchSite).
    ///
    /// # Cost
    ///
    /// A system call for each thread, on another thread, for which this one waits.
    pub fn report(&self) -> WatchReport {
        self.armed.report()
    }

    /// The single hits since the last call, except those for which the queue had no room. The first
    /// call turns the stream on: earlier hits are not in it.
    pub fn take_hits(&self) -> Vec<WatchHit> {
        self.armed.take_hits()
    }

    /// Its number among the watches of the process, as in messages about holders of registers.
    pub(crate) fn number(&self) -> u32 {
        self.armed.number()
    }

    /// Whether the watch is disarmed for good: it has had its [`WatchSpec::max_hits`].
    pub fn is_over(&self) -> bool {
        self.armed.is_over()
    }

    /// Ends the watch, and returns its last result.
    pub fn close(self) -> WatchReport {
        drop(self.counting);
        self.armed.close()
    }

    /// The event that counts the watch's hits, `watch:NAME:w` (`rw`, `x`), which groups count as
    /// any other; `None` if 16 other watches have events. [`Event::by_name`] finds it while the
    /// watch exists.
    pub fn event(&self) -> Option<Event> {
        self.registration.as_ref().map(Registration::event)
    }
}

fn spec_of<T>(value: &T, access: Access) -> WatchSpec {
    WatchSpec::new(std::ptr::from_ref(value).addr(), size_of::<T>(), access)
}

/// The number of the watch's event. Where a watch of that name lives, its name gets a number.
fn register(spec: &WatchSpec) -> Result<Registration, events::Error> {
    let letters = match spec.access() {
        Access::Write => "w",
        Access::ReadWrite => "rw",
        Access::Execute => "x",
    };
    let name = spec.name();
    let first = hits::register(&format!("watch:{name}:{letters}"));
    let others = 2..=MAX_BREAKPOINTS;
    others.fold(first, |found, n| found.or_else(|_| hits::register(&format!("watch:{name}#{n}:{letters}"))))
}

/// Connects the crates: hits are counted as events, and counted events follow the tasks.
fn join() {
    breakpoints::on_hit(hit);
    breakpoints::on_stray(stray);
    hits::schedule_by(sched_in, sched_out);
}

fn place_of(event: u32) -> &'static AtomicU64 {
    &SCOPED[event as usize % MAX_BREAKPOINTS]
}

/// The watch of a group to which this event belongs. (A place keeps its watch until the next one
/// takes it: the event of a watch that has ended is not counted.)
fn watch_of(event: u32) -> Option<u32> {
    // Pairs with the store in `for_group`: the watch is there.
    place_of(event).load(Ordering::Acquire).checked_sub(1).map(|number| number as u32)
}

fn sched_in(event: u32) {
    if let Some(watch) = watch_of(event) {
        breakpoints::sched_in(watch);
    }
}

fn sched_out(event: u32) {
    if let Some(watch) = watch_of(event) {
        breakpoints::sched_out(watch);
    }
}

/// Counts a hit of a watch by the calling thread. A thread without a task charges no group, and may
/// not have touched thread-local storage yet, which would allocate in an object that was loaded
/// late.
fn hit(event: u32) {
    if thread::find(identity::tid()).is_some_and(thread::ThreadBlock::has_task) {
        hits::hit(event);
    }
}

/// Work outside of the group has hit a watch that stayed in: it goes out, and the group's next task
/// has it in again. The next task on a lazy thread would not, but all work there is tasks.
fn stray(watch: u32) {
    if !events::is_lazy() {
        breakpoints::sched_out(watch);
    }
}
