//! The model: families of points, of processes.
//!
//! A point has a value and two sets of labels, by number: one is mostly the group's, which all
//! families of the group share. So a name is stored once, and each encoder escapes it once.

use crate::family::MetricFamily;
use crate::histogram::ExponentialHistogram;

/// Families of points.
#[derive(Debug, Clone, Default)]
pub struct Exposition {
    /// Whether points say which process they are of.
    pub(crate) is_of_several: bool,
    pub(crate) processes: Vec<ExposedProcess>,
    pub(crate) labels: Vec<Vec<(&'static str, String)>>,
    pub(crate) families: Vec<FamilyPoints>,
}

/// A process that points are of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExposedProcess {
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: u32,
    /// Tells it from all other processes, also of other hosts and times.
    pub instance: String,
    /// The version of what reads the process: of dormouse in it.
    pub version: String,
    /// When its counters stood at zero, in nanoseconds since 1970. The same in each exposition of
    /// one process: counters that have another beginning are other counters.
    pub start_unix_ns: u64,
    /// When its values were read, in nanoseconds since 1970.
    pub read_unix_ns: u64,
}

/// Labels that several points have in common. Valid in its exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelSet(pub(crate) u32);

impl LabelSet {
    /// No labels.
    pub const NONE: Self = Self(0);
}

/// The value of a point.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricValue {
    /// How many things or bytes.
    Count(u64),
    /// Nanoseconds, in a family of seconds.
    Nanoseconds(u64),
    /// Any number, in the family's unit.
    Number(f64),
    /// A distribution.
    Histogram(Box<ExponentialHistogram>),
}

#[derive(Debug, Clone)]
pub(crate) struct FamilyPoints {
    pub(crate) family: &'static MetricFamily,
    pub(crate) points: Vec<MetricPoint>,
}

#[derive(Debug, Clone)]
pub(crate) struct MetricPoint {
    pub(crate) process: u32,
    pub(crate) labels: [LabelSet; 2],
    pub(crate) value: MetricValue,
}

/// One process of an exposition, to which points are added.
#[derive(Debug)]
pub struct ProcessPart<'a> {
    to: &'a mut Exposition,
    process: u32,
}

impl Exposition {
    /// An empty one, of one process.
    pub fn new() -> Self {
        Self { labels: vec![Vec::new()], ..Self::default() }
    }

    /// An empty one, of several processes: points have labels `process` and `pid`.
    pub fn of_processes() -> Self {
        Self { is_of_several: true, ..Self::new() }
    }

    /// Adds a process.
    pub fn process(&mut self, process: ExposedProcess) -> ProcessPart<'_> {
        if self.labels.is_empty() {
            self.labels.push(Vec::new());
        }
        self.processes.push(process);
        let process = self.processes.len() as u32 - 1;
        ProcessPart { to: self, process }
    }

    /// The points of a family, with their labels, without those of processes.
    pub fn points_of(
        &self,
        family: &MetricFamily,
    ) -> impl Iterator<Item = (&MetricValue, impl Iterator<Item = (&'static str, &str)>)> {
        let of = self.families.iter().find(|of| std::ptr::eq(of.family, family));
        of.into_iter().flat_map(|of| &of.points).map(|point| {
            let sets = point.labels.iter().filter_map(|set| self.labels.get(set.0 as usize));
            let labels = sets.flatten().map(|(name, value)| (*name, value.as_str()));
            (&point.value, labels)
        })
    }

    /// How many points there are.
    pub fn points(&self) -> usize {
        self.families.iter().map(|of| of.points.len()).sum()
    }
}

impl ProcessPart<'_> {
    /// Labels for any number of points. Their values may be any text, their names are `[a-z_]+`.
    pub fn labels(&mut self, labels: &[(&'static str, &str)]) -> LabelSet {
        self.to.labels.push(labels.iter().map(|&(name, value)| (name, value.to_owned())).collect());
        LabelSet(self.to.labels.len() as u32 - 1)
    }

    /// Adds a point of the family, with the labels of both sets. No two points of a process have
    /// the same family and labels. A histogram that is none ([`ExponentialHistogram::is_valid`]) is
    /// left out.
    pub fn add(&mut self, family: &'static MetricFamily, labels: [LabelSet; 2], value: MetricValue) {
        if matches!(&value, MetricValue::Histogram(of) if !of.is_valid()) {
            return;
        }
        let point = MetricPoint { process: self.process, labels, value };
        let families = &mut self.to.families;
        // The callers go from family to family, mostly.
        match families.iter_mut().rev().find(|of| std::ptr::eq(of.family, family)) {
            Some(of) => of.points.push(point),
            None => families.push(FamilyPoints { family, points: vec![point] }),
        }
    }
}
