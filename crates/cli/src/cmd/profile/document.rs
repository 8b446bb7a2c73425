//! A profile in the JSON of `profile`.

use dormouse_profile::{ObjectEnd, Profile, ProfileCoverage, ProfileKind, StackEnds, Symbols};
use serde::Serialize;

use crate::render::profile::uses::{FunctionUse, percent, uses};

/// A profile; values are in `unit`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProfileDocument<'a> {
    pid: u32,
    program: &'a str,
    kind: ProfileKind,
    duration_ns: u64,
    /// The wanted distance of two samples.
    period: u64,
    /// The name and the unit of the values, as pprof has them.
    value: &'static str,
    unit: &'static str,
    /// `task` if the groups are tasks (`--by task`).
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    groups: Vec<GroupDocument>,
    coverage: &'a ProfileCoverage,
    /// Where stacks end that do not lead to the first function of a thread; most first.
    stack_ends: Vec<EndDocument>,
    /// Why functions have no names; null: they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    unnamed_because: Option<&'a str>,
    /// Why it ended before its time; null: it did not.
    ended_because: Option<&'a str>,
    /// The file that it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct GroupDocument {
    name: String,
    total: u64,
    functions: Vec<FunctionDocument>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FunctionDocument {
    function: String,
    #[serde(rename = "self")]
    own: u64,
    /// The share of the group, in percent.
    self_percent: f64,
    total: u64,
    total_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EndDocument {
    /// The file name of the object with the outermost function that was found.
    object: String,
    why: &'static str,
    stacks: u64,
    fix: &'static str,
}

/// The circumstances of a profile.
#[derive(Debug, Default, Clone)]
pub(crate) struct Circumstances<'a> {
    pub(crate) by: Option<&'static str>,
    pub(crate) unnamed_because: Option<&'a str>,
    pub(crate) ended_because: Option<&'a str>,
    pub(crate) file: Option<String>,
}

impl<'a> ProfileDocument<'a> {
    /// The document, with at most `most` functions of each group.
    pub(crate) fn new(
        profile: &'a Profile,
        symbols: &Symbols,
        (column, most): (usize, usize),
        circumstances: Circumstances<'a>,
    ) -> Self {
        let groups = uses(profile, symbols, column).into_iter().map(|group| GroupDocument {
            functions: group
                .functions
                .into_iter()
                .take(most)
                .map(|of| FunctionDocument::new(of, group.total))
                .collect(),
            name: group.name,
            total: group.total,
        });
        let Circumstances { by, unnamed_because, ended_because, file } = circumstances;
        Self {
            pid: profile.pid,
            program: &profile.program,
            kind: profile.kind,
            duration_ns: profile.duration_ns,
            period: profile.period,
            value: profile.kind.columns()[column].name,
            unit: profile.kind.columns()[column].unit,
            by,
            groups: groups.collect(),
            coverage: &profile.coverage,
            stack_ends: StackEnds::of(profile).others.into_iter().map(EndDocument::new).collect(),
            unnamed_because,
            ended_because,
            file,
        }
    }
}

impl EndDocument {
    fn new(of: ObjectEnd) -> Self {
        let ObjectEnd { object, why, stacks } = of;
        Self { object, why: why.name(), stacks, fix: why.fix() }
    }
}

impl FunctionDocument {
    fn new(of: FunctionUse, whole: u64) -> Self {
        let (file, line) = of.place.unzip();
        Self {
            function: of.name,
            own: of.own,
            self_percent: percent(of.own, whole),
            total: of.total,
            total_percent: percent(of.total, whole),
            file,
            line: line.filter(|&line| line > 0),
        }
    }
}
