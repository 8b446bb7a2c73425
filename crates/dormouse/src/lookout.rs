//! The lookout: the thread `dormouse-look`, which observes the service while a feature needs it,
//! and writes files of what it saw, so that the agent never waits for a disk.
//!
//! It runs the [`Engine`] of each feature in use: the first errand for an engine creates it, and
//! the thread ends when all engines are empty, and nothing is to be learned.

mod learning;

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use dormouse_clock::thread_cpu_ns_of;
use dormouse_sys::keeper::{Duty, Keeper};
use dormouse_sys::process::fork::Phase;
use dormouse_sys::process::identity;

use self::learning::Learning;
use crate::core::asleep::is_asleep;

/// The name of the thread.
pub(crate) const NAME: &str = "dormouse-look";

/// The thread lists `/proc`, and writes files.
const STACK: usize = 256 * 1024;

/// The memory that a step may take, beside that of queues and files, which ask by themselves.
const STEP: usize = 512 * 1024;

/// The lookout of this process.
pub(crate) static LOOKOUT: Keeper<Engines> = Keeper::new(Phase::Lookout, NAME, STACK, STEP);

/// CPU time of the calling thread, for the lookout to bound what it takes; 0 where the kernel
/// refuses the call.
pub(crate) fn own_cpu() -> Duration {
    Duration::from_nanos(thread_cpu_ns_of(identity::tid()).unwrap_or(0))
}

/// The work that the lookout does for one feature.
pub(crate) trait Engine: Any + Debug {
    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool;

    /// Does what is due, and gives the moment of the next step. The engines before this one have
    /// done theirs.
    fn step(&mut self, now: Instant, before: &mut [Box<dyn Engine>]) -> Option<Instant>;

    /// Ends what would go on by itself during a sleep. Called in place of steps.
    fn rest(&mut self, _before: &mut [Box<dyn Engine>]) {}

    /// Ends the thing with this number.
    fn end(&mut self, number: u64);

    /// Whether it judges what the other engines have seen, and so comes after them.
    fn judges(&self) -> bool {
        false
    }
}

/// The engines of the lookout.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    all: Vec<Box<dyn Engine>>,
    learning: Learning,
}

/// A thing that an engine watches, by its number there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched(Option<(TypeId, u64)>);

impl Watched {
    /// Something that needs the thread, and no engine.
    pub(crate) const NOTHING: Self = Self(None);

    pub(crate) fn by<E: Engine>(number: u64) -> Self {
        Self(Some((TypeId::of::<E>(), number)))
    }
}

impl Engines {
    /// The engine of this type.
    pub(crate) fn get<E: Engine + Default>(&mut self) -> &mut E {
        if find::<E>(&mut self.all).is_none() {
            let engine = E::default();
            let at = if engine.judges() { self.all.len() } else { 0 };
            self.all.insert(at, Box::new(engine));
        }
        find(&mut self.all).expect("it was just added")
    }
}

/// The engine of this type, if it is one of these.
pub(crate) fn find<E: Engine>(engines: &mut [Box<dyn Engine>]) -> Option<&mut E> {
    engines.iter_mut().find_map(|engine| (&mut **engine as &mut dyn Any).downcast_mut())
}

impl Duty for Engines {
    type Id = Watched;

    fn is_empty(&self) -> bool {
        self.all.iter().all(|engine| engine.is_empty()) && !Learning::is_needed()
    }

    fn step(&mut self) -> Duration {
        let (now, is_asleep) = (Instant::now(), is_asleep());
        let mut next = if is_asleep { None } else { self.learning.step() };
        for at in 0..self.all.len() {
            match self.all.split_at_mut(at) {
                (before, [engine, ..]) if is_asleep => engine.rest(before),
                (before, [engine, ..]) => next = next.into_iter().chain(engine.step(now, before)).min(),
                _ => {}
            }
        }
        // Errands and panics wake the thread, and so do `sleep` and `wake`.
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()))
    }

    fn end(&mut self, Watched(watched): Watched) {
        let Some((of, number)) = watched else { return };
        let is_it = |engine: &&mut Box<dyn Engine>| (&***engine as &dyn Any).type_id() == of;
        if let Some(engine) = self.all.iter_mut().find(is_it) {
            engine.end(number);
        }
    }
}
