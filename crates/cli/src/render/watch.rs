//! Views of a process, one after the other at fixed times.

use std::time::{Duration, Instant};

use super::view::View;
use crate::exit::{Failure, Outcome};
use crate::sample::source::Source;
use crate::sample::totals::Sample;

/// A process that is watched since the first sample.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) source: Source,
    interval: Duration,
    first: Sample,
    before: Sample,
    /// When the next view is due.
    pub(crate) due: Instant,
    /// Events with a column.
    events: Vec<String>,
}

impl Watch {
    /// Takes the first sample; the first view is due after `wait`.
    pub(crate) fn start(mut source: Source, wait: Duration, interval: Duration) -> Outcome<Watch> {
        let first = next(&mut source)?;
        let (before, due, events) = (first.clone(), Instant::now() + wait, source.columns());
        Ok(Watch { source, interval, first, before, due, events })
    }

    /// Has the next view begin now.
    #[cfg(feature = "demo")]
    pub(crate) fn restart(&mut self) -> Outcome<()> {
        self.before = next(&mut self.source)?;
        self.due = Instant::now() + self.interval;
        Ok(())
    }

    /// The view from the sample before to one that is taken now.
    pub(crate) fn view(&mut self) -> Outcome<View> {
        let after = next(&mut self.source)?;
        self.begin_waits(&after);
        let view = View::between(&self.first, &self.before, &after, &self.events);
        self.before = after;
        // Totals of CPU time that lack some begin anew as soon as it is counted again.
        let is_counted = self.before.inside.as_ref().is_some_and(|inside| inside.cpu_refused.is_none());
        if is_counted && view.has_refused_cpu() {
            self.first.clone_from(&self.before);
        }
        // A late view does not bring the next one closer.
        self.due = (self.due + self.interval).max(Instant::now());
        Ok(view)
    }

    /// Times of tasks may be taken later than the first sample: they are since the first sample
    /// that has them.
    fn begin_waits(&mut self, now: &Sample) {
        let Some((first, now)) = self.first.inside.as_mut().zip(now.inside.as_ref()) else { return };
        if first.groups.iter().any(|group| group.waits.is_some()) {
            return;
        }
        for group in &mut first.groups {
            let now = now.groups.iter().find(|now| now.id == group.id);
            group.waits = now.and_then(|now| now.waits.clone());
        }
    }
}

/// The next sample; the end of the process is a failure here.
fn next(source: &mut Source) -> Outcome<Sample> {
    let sample = source.sample()?;
    sample.ok_or_else(|| Failure::failed(format!("{} has ended", source.who)))
}
