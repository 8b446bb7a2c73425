//! The engine of CPU time: a [`Sampler`] while profiles are taken, and else nothing.

use std::time::Duration;

use dormouse_protocol::profile::{Profile, ProfileKind};

use super::sampler::Sampler;
use crate::Error;
use crate::options::Options;
use crate::sampling::engine::Engine;

impl Engine for Option<Sampler> {
    fn kind(&self) -> ProfileKind {
        ProfileKind::Cpu
    }

    fn start(&mut self, number: u64, options: &Options, note: Option<&str>) -> Result<(), Error> {
        let mut sampler = self.take().map_or_else(Sampler::new, Ok)?;
        let started = sampler.start(number, options, note);
        *self = Some(sampler).filter(|sampler| !sampler.is_empty());
        started
    }

    fn size(&self, number: u64) -> usize {
        self.as_ref().map_or(0, |sampler| sampler.size(number))
    }

    fn read(&mut self, number: u64) -> Option<Profile> {
        self.as_mut()?.read(number)
    }

    fn end(&mut self, number: u64) {
        if let Some(sampler) = self {
            sampler.end(number);
        }
        self.take_if(|sampler| sampler.is_empty());
    }

    fn step(&mut self) -> Option<Duration> {
        self.as_mut().map(super::sampler::Sampler::step)
    }
}
