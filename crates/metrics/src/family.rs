//! Families: points with one name, unit and kind.

/// A family of points: the name, the unit and the kind that its points share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricFamily {
    /// The name, with dots and without the unit.
    pub name: &'static str,
    /// One sentence of help.
    pub help: &'static str,
    /// The unit of the family's values.
    pub unit: MetricUnit,
    /// The kind of the family's values.
    pub kind: MetricKind,
}

/// The unit of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share of a whole, from 0 to 1.
    Ratio,
    /// A number of things, with OpenTelemetry's annotation for them, such as `{request}`.
    Things(&'static str),
    /// No unit: the information is in the labels.
    Nothing,
}

impl MetricUnit {
    /// The unit in a name of Prometheus, if it stands there.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Seconds => Some("seconds"),
            Self::Bytes => Some("bytes"),
            Self::Ratio => Some("ratio"),
            Self::Things(_) | Self::Nothing => None,
        }
    }

    /// The unit in the code of units (UCUM), as in OpenTelemetry.
    pub fn code(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Bytes => "By",
            Self::Ratio => "1",
            Self::Things(thing) => thing,
            Self::Nothing => "",
        }
    }
}

/// The kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum since the start of the process, which never decreases.
    Counter,
    /// A sum that never decreases and began at another time than the process, nobody knows when. A
    /// lower sum has begun anew.
    OlderCounter,
    /// A value at this moment.
    Gauge,
    /// Always 1: the information is in the labels. Its name ends in `info`.
    Info,
    /// A distribution since the start of the process. In the text formats its buckets end at 2 to
    /// these powers, in the family's unit, if no other ends are chosen; if there are none, the text
    /// formats leave it out.
    Histogram(&'static [i32]),
}

impl MetricFamily {
    /// The name as Prometheus has it, without the suffixes of its samples.
    pub(crate) fn base(&self) -> String {
        let name = match self.kind {
            MetricKind::Info => self.name.strip_suffix(".info").unwrap_or(self.name),
            _ => self.name,
        };
        let mut base = name.replace('.', "_");
        if let Some(unit) = self.unit.word() {
            base.push('_');
            base.push_str(unit);
        }
        base
    }

    /// The name of the family's samples, as Prometheus has it.
    pub fn prometheus_name(&self) -> String {
        let suffix = match self.kind {
            MetricKind::Counter | MetricKind::OlderCounter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram(_) => "",
        };
        self.base() + suffix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_unit_and_kind() {
        let name = |name, unit, kind| MetricFamily { name, help: "", unit, kind }.prometheus_name();
        let seconds = MetricUnit::Seconds;
        assert_eq!(
            name("dormouse.cpu.time", seconds, MetricKind::Counter),
            "dormouse_cpu_time_seconds_total"
        );
        assert_eq!(name("a.b", seconds, MetricKind::Histogram(&[])), "a_b_seconds");
        assert_eq!(name("a.tasks", MetricUnit::Things("{task}"), MetricKind::Gauge), "a_tasks");
        assert_eq!(name("a.agent.info", MetricUnit::Nothing, MetricKind::Info), "a_agent_info");
        assert_eq!(name("a.share", MetricUnit::Ratio, MetricKind::Gauge), "a_share_ratio");
    }
}
