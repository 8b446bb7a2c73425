//! The engines of all kinds, on the keeper's thread.

use std::time::Duration;

use dormouse_protocol::profile::ProfileKind;
use dormouse_sys::{keeper, memory};
use dormouse_unwind::own;

use super::engine::Engine;
use super::{alloc, cpu, faults};
use crate::options::Options;
use crate::{Error, Profile};

/// The duty of the keeper: each engine, while profiles of its kind are taken.
#[derive(Debug, Default)]
pub(super) struct Duty {
    cpu: Option<cpu::Sampler>,
    alloc: alloc::Sampler,
    faults: faults::Sampler,
}

impl Duty {
    fn engines(&mut self) -> [&mut dyn Engine; 3] {
        [&mut self.cpu, &mut self.alloc, &mut self.faults]
    }

    fn engine(&mut self, kind: ProfileKind) -> Option<&mut dyn Engine> {
        self.engines().into_iter().find(|engine| engine.kind() == kind)
    }

    /// Begins a profile.
    pub(super) fn start(&mut self, number: u64, options: &Options) -> Result<(), Error> {
        let engine = self
            .engine(options.kind)
            .ok_or_else(|| Error::Unavailable("wall time is not sampled, but counted".into()))?;
        let note = own::begin().err().map(|why| format!("callers are found by frame pointers alone: {why}"));
        engine.start(number, options, note.as_deref())
    }

    /// The profile so far.
    pub(super) fn read(&mut self, kind: ProfileKind, number: u64) -> Result<Profile, Error> {
        let ended = || Error::Unavailable("the profile has ended with its sampler".into());
        let engine = self.engine(kind).ok_or_else(ended)?;
        if !memory::is_there(engine.size(number)) {
            return Err(Error::Unavailable("there is no memory for the profile".into()));
        }
        let profile = engine.read(number).ok_or_else(ended);
        own::step();
        profile
    }
}

impl keeper::Duty for Duty {
    type Id = (ProfileKind, u64);

    fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.alloc.is_empty() && self.faults.is_empty()
    }

    fn step(&mut self) -> Duration {
        let pause = self.engines().into_iter().filter_map(Engine::step).min();
        own::step();
        pause.unwrap_or(Duration::from_secs(1))
    }

    fn end(&mut self, (kind, number): Self::Id) {
        if let Some(engine) = self.engine(kind) {
            engine.end(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scarce::{limit_memory, rest_of_memory};

    impl Duty {
        fn take_in(&mut self, samples: std::ops::Range<u64>) {
            self.cpu.as_mut().unwrap().take_in(samples);
        }
    }

    fn weights(profile: &Profile) -> u64 {
        profile.samples.iter().map(|row| row.values[0]).sum()
    }

    #[test]
    fn a_profile_without_memory_says_so() {
        dormouse_testkit::in_child(|| {
            let mut duty = Duty::default();
            duty.start(1, &Options { hz: 1, timeline: true, ..Options::default() }).unwrap();
            duty.take_in(0..800);
            let before = duty.read(ProfileKind::Cpu, 1).unwrap();
            assert_eq!((before.coverage.merged, weights(&before)), (0, before.coverage.samples));
            // The allocator keeps some that it has had before.
            limit_memory(1 << 20);
            let rest = rest_of_memory();
            let refused = duty.read(ProfileKind::Cpu, 1).unwrap_err();
            assert!(refused.to_string().contains("memory"), "{refused}");
            // Tables would have to grow.
            duty.take_in(800..1200);
            drop(rest);
            limit_memory(1 << 40);
            let after = duty.read(ProfileKind::Cpu, 1).unwrap();
            assert!(after.coverage.merged > 0, "{:?}", after.coverage);
            assert_eq!(weights(&after), after.coverage.samples);
            assert!(after.coverage.samples >= before.coverage.samples + 400, "{:?}", after.coverage);
        });
    }
}
