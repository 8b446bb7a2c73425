//! The model: families of points, for processes.
//!
//! A point has a value and two sets of labels, by number: one is mostly the group's, which the
//! group's points share in all families. So a name is stored once, and each encoder escapes it
//! once.

use std::borrow::Cow;

use crate::bounds::ClassicBounds;
use crate::family::{MetricFamily, MetricKind};
use crate::histogram::ExponentialHistogram;
use crate::labels::{LabelSet, Labels};
use crate::value::MetricValue;

/// The figures of one or several processes, as families of points. All formats are made from it.
#[derive(Debug, Clone, Default)]
pub struct Exposition {
    /// Whether points have labels for their process.
    pub(crate) is_of_several: bool,
    /// Whether counters and histograms are differences.
    pub(crate) is_of_differences: bool,
    /// The ends of classic buckets, if they are not those of the families.
    bounds: Option<ClassicBounds>,
    pub(crate) processes: Vec<ExposedProcess>,
    pub(crate) labels: Labels,
    pub(crate) families: Vec<FamilyPoints>,
}

/// A process to which points belong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExposedProcess {
    /// The process's name.
    pub name: String,
    /// The process id.
    pub pid: u32,
    /// The process's user, if points have a label for it.
    pub user: Option<String>,
    /// An id that is unique among all processes, also of other hosts and times.
    pub instance: String,
    /// The version of the dormouse in the process.
    pub version: String,
    /// When the process's counters were zero, in nanoseconds since 1970. It is the same in each
    /// exposition of one process: counters with another beginning are other counters. Of
    /// differences it is the beginning of their interval.
    pub start_unix_ns: u64,
    /// When the process's values were read, in nanoseconds since 1970.
    pub read_unix_ns: u64,
}

/// A family's points, process by process.
#[derive(Debug, Clone)]
pub(crate) struct FamilyPoints {
    pub(crate) family: &'static MetricFamily,
    /// The points of a counter, a gauge or an info.
    pub(crate) values: Vec<MetricPoint<MetricValue>>,
    /// The points of a distribution.
    pub(crate) histograms: Vec<MetricPoint<ExponentialHistogram>>,
}

#[derive(Debug, Clone)]
pub(crate) struct MetricPoint<Value> {
    pub(crate) process: u32,
    pub(crate) labels: [LabelSet; 2],
    pub(crate) value: Value,
}

/// One process of an exposition, to add points to.
#[derive(Debug)]
pub struct ProcessPart<'a> {
    to: &'a mut Exposition,
    process: u32,
}

impl ExposedProcess {
    /// The labels of its points.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let user = self.user.iter().map(|user| ("user", Cow::from(user)));
        [("process", Cow::from(&self.name)), ("pid", self.pid.to_string().into())].into_iter().chain(user)
    }
}

impl Exposition {
    /// An empty exposition, of one process.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty exposition, of several processes: points have labels `process` and `pid`, and
    /// `user` if the process has one.
    pub fn of_processes() -> Self {
        Self { is_of_several: true, ..Self::default() }
    }

    /// An empty exposition of several processes, whose counters and histograms are differences: for
    /// OTLP alone.
    pub fn of_differences() -> Self {
        Self { is_of_differences: true, ..Self::of_processes() }
    }

    /// Chooses the ends of the classic buckets of all histograms that have any.
    pub fn set_bounds(&mut self, bounds: ClassicBounds) {
        self.bounds = Some(bounds);
    }

    /// The ends of a family's classic buckets, if it has any.
    pub(crate) fn bounds_of(&self, family: &MetricFamily) -> Option<ClassicBounds> {
        match family.kind {
            MetricKind::Histogram(powers @ [_, ..]) => {
                Some(self.bounds.clone().unwrap_or_else(|| ClassicBounds::of_powers(powers)))
            }
            _ => None,
        }
    }

    /// The process that was added last, to add more to it.
    pub fn last_process(&mut self) -> Option<ProcessPart<'_>> {
        let process = self.processes.len().checked_sub(1)? as u32;
        Some(ProcessPart { to: self, process })
    }

    /// Adds a process.
    pub fn process(&mut self, process: ExposedProcess) -> ProcessPart<'_> {
        self.processes.push(process);
        let process = self.processes.len() as u32 - 1;
        ProcessPart { to: self, process }
    }

    /// The values of a family, with their labels, except those of processes.
    pub fn values_of(
        &self,
        family: &MetricFamily,
    ) -> impl Iterator<Item = (MetricValue, impl Iterator<Item = (&'static str, &str)>)> {
        let of = self.families.iter().find(|of| std::ptr::eq(of.family, family));
        of.into_iter().flat_map(|of| &of.values).map(|point| {
            let labels = point.labels.into_iter().flat_map(|set| self.labels.of(set));
            (point.value, labels)
        })
    }

    /// The number of points.
    pub fn points(&self) -> usize {
        self.families.iter().map(|of| of.values.len() + of.histograms.len()).sum()
    }
}

impl ProcessPart<'_> {
    /// The process: its times may be changed.
    pub fn process_mut(&mut self) -> Option<&mut ExposedProcess> {
        self.to.processes.get_mut(self.process as usize)
    }

    /// Makes a set of labels for any number of points. Their values may be any text; their names
    /// are `[a-z_]+`.
    pub fn labels(&mut self, labels: &[(&'static str, &str)]) -> LabelSet {
        self.to.labels.add(labels)
    }

    /// Adds a point of the family, with the labels of both sets. No two points of a process may
    /// have the same family and labels.
    pub fn add(&mut self, family: &'static MetricFamily, labels: [LabelSet; 2], value: MetricValue) {
        self.add_all(family, [(labels, value)]);
    }

    /// Calls [`ProcessPart::add`] for several points.
    pub fn add_all(
        &mut self,
        family: &'static MetricFamily,
        points: impl IntoIterator<Item = ([LabelSet; 2], MetricValue)>,
    ) {
        debug_assert!(!matches!(family.kind, MetricKind::Histogram(_)), "{family:?}");
        let (process, mut points) = (self.process, points.into_iter().peekable());
        // A family has a point.
        if points.peek().is_some() {
            let points = points.map(|(labels, value)| MetricPoint { process, labels, value });
            self.of(family).values.extend(points);
        }
    }

    /// Adds histograms of a family of distributions. An invalid one
    /// ([`ExponentialHistogram::is_valid`]) is left out.
    pub fn add_histograms(
        &mut self,
        family: &'static MetricFamily,
        points: impl IntoIterator<Item = ([LabelSet; 2], ExponentialHistogram)>,
    ) {
        debug_assert!(matches!(family.kind, MetricKind::Histogram(_)), "{family:?}");
        let (process, points) = (self.process, points.into_iter());
        let count = points.size_hint().0;
        let mut valid = points.filter(|(_, of)| of.is_valid()).peekable();
        if valid.peek().is_some() {
            let to = &mut self.of(family).histograms;
            to.reserve(count);
            to.extend(valid.map(|(labels, value)| MetricPoint { process, labels, value }));
        }
    }

    fn of(&mut self, family: &'static MetricFamily) -> &mut FamilyPoints {
        let families = &mut self.to.families;
        // The callers go from family to family, mostly.
        let at = families.iter().rposition(|of| std::ptr::eq(of.family, family)).unwrap_or_else(|| {
            families.push(FamilyPoints { family, values: Vec::new(), histograms: Vec::new() });
            families.len() - 1
        });
        &mut families[at]
    }
}
