//! The samplers of all kinds, on the keeper's thread.

use std::time::Duration;

use super::{alloc, cpu, faults};
use crate::options::Options;
use crate::profile::ProfileKind;
use crate::{Error, Profile};

/// The duty of the keeper: each kind's sampler while profiles of the kind are taken.
#[derive(Debug, Default)]
pub(super) struct Duty {
    cpu: Option<cpu::Sampler>,
    alloc: alloc::Sampler,
    faults: faults::Sampler,
}

impl Duty {
    /// Whether nobody profiles.
    pub(super) fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.alloc.is_empty() && self.faults.is_empty()
    }

    /// Begins a profile.
    pub(super) fn start(&mut self, number: u64, options: &Options) -> Result<(), Error> {
        match options.kind {
            ProfileKind::Cpu => {
                let mut sampler = self.cpu.take().map_or_else(cpu::Sampler::new, Ok)?;
                let started = sampler.start(number, options);
                self.cpu = Some(sampler).filter(|sampler| !sampler.is_empty());
                started
            }
            ProfileKind::Alloc => self.alloc.start(number, options),
            ProfileKind::Faults => self.faults.start(number, options),
        }
    }

    /// The profile so far.
    pub(super) fn read(&mut self, kind: ProfileKind, number: u64) -> Option<Profile> {
        match kind {
            ProfileKind::Cpu => self.cpu.as_mut()?.read(number),
            ProfileKind::Alloc => self.alloc.read(number),
            ProfileKind::Faults => self.faults.read(number),
        }
    }

    /// Ends a profile.
    pub(super) fn end(&mut self, kind: ProfileKind, number: u64) {
        match kind {
            ProfileKind::Cpu => {
                if let Some(sampler) = &mut self.cpu {
                    sampler.end(number);
                }
                self.cpu.take_if(|sampler| sampler.is_empty());
            }
            ProfileKind::Alloc => self.alloc.end(number),
            ProfileKind::Faults => self.faults.end(number),
        }
    }

    /// Does the work that is due. Gives the time until the next step.
    pub(super) fn step(&mut self) -> Duration {
        let steps = [self.cpu.as_mut().map(cpu::Sampler::step), self.alloc.step(), self.faults.step()];
        steps.into_iter().flatten().min().unwrap_or(Duration::from_secs(1))
    }
}
