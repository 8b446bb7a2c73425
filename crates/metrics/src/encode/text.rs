//! The two text formats: `OpenMetrics` 1.0, and Prometheus's text 0.0.4.
//!
//! They differ in the names of counters' families, in units and exemplars, which only `OpenMetrics`
//! has, in the numbers of buckets, and in the end.
//!
//! # References
//!
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>,
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::io::Write;
use std::ops::Range;

use dormouse_encode::hex::IdDigits;

use crate::bounds::{ClassicBounds, ScaledBounds};
use crate::exposition::{Exposition, MetricPoint};
use crate::family::{MetricFamily, MetricKind};
use crate::histogram::{ExponentialHistogram, MetricExemplar};
use crate::labels::LabelSet;
use crate::value::MetricValue;

/// About as long as a line is.
const LINE: usize = 80;

pub(crate) fn openmetrics(of: &Exposition) -> Vec<u8> {
    let mut text = Writer::new(of, true).write(of);
    text.extend(b"# EOF\n");
    text
}

pub(crate) fn prometheus(of: &Exposition) -> Vec<u8> {
    Writer::new(of, false).write(of)
}

/// Labels as they stand in a line, without braces: each set of the exposition, escaped once.
struct Escaped {
    text: Vec<u8>,
    sets: Vec<Range<usize>>,
    processes: Vec<Range<usize>>,
}

impl Escaped {
    fn of(of: &Exposition) -> Self {
        let mut labels = Self { text: Vec::new(), sets: Vec::new(), processes: Vec::new() };
        for set in of.labels.sets() {
            let range = labels.add(set);
            labels.sets.push(range);
        }
        for process in &of.processes {
            let range = labels.add(process.labels().filter(|_| of.is_of_several));
            labels.processes.push(range);
        }
        labels
    }

    fn add(&mut self, labels: impl Iterator<Item = (&'static str, impl AsRef<str>)>) -> Range<usize> {
        let start = self.text.len();
        for (name, value) in labels {
            if self.text.len() > start {
                self.text.push(b',');
            }
            self.text.extend(name.as_bytes());
            self.text.extend(b"=\"");
            escape(&mut self.text, value.as_ref());
            self.text.push(b'"');
        }
        start..self.text.len()
    }

    fn set(&self, set: LabelSet) -> &[u8] {
        self.sets.get(set.index()).map_or(&[], |range| &self.text[range.clone()])
    }
}

fn escape(to: &mut Vec<u8>, value: &str) {
    for &byte in value.as_bytes() {
        match byte {
            b'\\' => to.extend(b"\\\\"),
            b'"' => to.extend(b"\\\""),
            b'\n' => to.extend(b"\\n"),
            // Prometheus reads no text that has it.
            0 => to.extend("\u{fffd}".as_bytes()),
            _ => to.push(byte),
        }
    }
}

struct Writer {
    text: Vec<u8>,
    labels: Escaped,
    /// The labels of the point whose lines are written.
    own: Vec<u8>,
    /// The beginning of the lines of its buckets, if it is a histogram: there are a dozen of them.
    bucket: Vec<u8>,
    is_open: bool,
}

impl Writer {
    fn new(exposition: &Exposition, is_open: bool) -> Self {
        let lines = exposition.families.iter().map(|of| {
            // Beside the chosen buckets one without an end, the sum, and the count.
            let each = exposition.bounds_of(of.family).map_or(0, |bounds| bounds.len() + 3);
            of.values.len() + of.histograms.len() * each
        });
        Self {
            text: Vec::with_capacity(lines.sum::<usize>() * LINE),
            labels: Escaped::of(exposition),
            own: Vec::new(),
            bucket: Vec::new(),
            is_open,
        }
    }

    fn write(mut self, exposition: &Exposition) -> Vec<u8> {
        for of in &exposition.families {
            let name = of.family.prometheus_name();
            if let Some(bounds) = exposition.bounds_of(of.family) {
                self.head(of.family);
                let mut lines = HistogramLines::of(&name, bounds, self.is_open);
                of.histograms.iter().for_each(|point| self.histogram(&mut lines, point));
            } else if !matches!(of.family.kind, MetricKind::Histogram(_)) {
                self.head(of.family);
                of.values.iter().for_each(|point| self.point(&name, point));
            }
        }
        self.text
    }

    fn head(&mut self, family: &MetricFamily) {
        let kind = match family.kind {
            MetricKind::Counter | MetricKind::OlderCounter => "counter",
            MetricKind::Info if self.is_open => "info",
            MetricKind::Gauge | MetricKind::Info => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        // A text in memory takes everything.
        if self.is_open {
            let base = family.base();
            let _ = writeln!(self.text, "# TYPE {base} {kind}");
            if let Some(unit) = family.unit.word() {
                let _ = writeln!(self.text, "# UNIT {base} {unit}");
            }
            let _ = writeln!(self.text, "# HELP {base} {}", family.help);
        } else {
            let name = family.prometheus_name();
            let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
        }
    }

    /// The lines that follow are of this point.
    fn begin<Value>(&mut self, point: &MetricPoint<Value>) {
        let process = self.labels.processes.get(point.process as usize);
        let process = process.map_or(&[][..], |range| &self.labels.text[range.clone()]);
        self.own.clear();
        for part in [process, self.labels.set(point.labels[0]), self.labels.set(point.labels[1])] {
            if !self.own.is_empty() && !part.is_empty() {
                self.own.push(b',');
            }
            self.own.extend(part);
        }
    }

    /// The beginning of a line: the name, and the labels of the point.
    fn name(&mut self, name: &str) {
        self.text.extend(name.as_bytes());
        if !self.own.is_empty() {
            self.text.push(b'{');
            self.text.extend(&self.own);
            self.text.push(b'}');
        }
        self.text.push(b' ');
    }

    fn point(&mut self, name: &str, point: &MetricPoint<MetricValue>) {
        self.begin(point);
        self.name(name);
        value(&mut self.text, point.value);
        self.text.push(b'\n');
    }

    fn histogram(&mut self, lines: &mut HistogramLines, point: &MetricPoint<ExponentialHistogram>) {
        self.begin(point);
        self.bucket.clear();
        self.bucket.extend(lines.bucket.as_bytes());
        self.bucket.extend(&self.own);
        if !self.own.is_empty() {
            self.bucket.push(b',');
        }
        let of = &point.value;
        for (bucket, label) in of.classic(lines.bounds.at_scale(of.scale)).zip(&lines.labels) {
            self.text.extend(&self.bucket);
            self.text.extend(label);
            decimal(&mut self.text, bucket.count);
            if let Some(one) = bucket.exemplar.filter(|_| self.is_open) {
                self.exemplar(one);
            }
            self.text.push(b'\n');
        }
        if let Some(sum) = of.sum {
            self.name(&lines.sum);
            value(&mut self.text, sum);
            self.text.push(b'\n');
        } else if self.is_open {
            // `OpenMetrics` has both lines, or none.
            return;
        }
        self.name(&lines.count);
        decimal(&mut self.text, of.count());
        self.text.push(b'\n');
    }

    fn exemplar(&mut self, one: &MetricExemplar) {
        self.text.extend(b" # {");
        if let Some((trace, span)) = one.trace {
            self.text.extend(b"trace_id=\"");
            self.text.extend(IdDigits::of(trace).as_bytes());
            self.text.extend(b"\",span_id=\"");
            self.text.extend(IdDigits::of(span).as_bytes());
            self.text.push(b'"');
        }
        if one.task != 0 {
            self.text.extend(if one.trace.is_some() { &b",task=\""[..] } else { b"task=\"" });
            decimal(&mut self.text, one.task);
            self.text.push(b'"');
        }
        if let Some(outcome) = one.outcome_label() {
            let is_first = one.trace.is_none() && one.task == 0;
            self.text.extend(if is_first { &b"outcome=\""[..] } else { b",outcome=\"" });
            escape(&mut self.text, outcome);
            self.text.push(b'"');
        }
        self.text.extend(b"} ");
        value(&mut self.text, one.value);
        if let Some(ns) = one.unix_ns {
            self.text.push(b' ');
            seconds(&mut self.text, ns);
        }
    }
}

/// The names of a histogram's lines, and the text that follows the point's labels in the lines of
/// its buckets.
struct HistogramLines {
    bucket: String,
    sum: String,
    count: String,
    bounds: ScaledBounds,
    labels: Vec<Vec<u8>>,
}

impl HistogramLines {
    fn of(name: &str, bounds: ClassicBounds, is_open: bool) -> Self {
        let label = |end: f64| {
            // `OpenMetrics` has whole numbers with a point.
            let end = if is_open { format!("{end:?}") } else { end.to_string() };
            format!("le=\"{end}\"}} ").into_bytes()
        };
        let labels = bounds.seconds().map(label).chain([b"le=\"+Inf\"} ".to_vec()]).collect();
        let line = |suffix| format!("{name}{suffix}");
        Self {
            bucket: line("_bucket{"),
            sum: line("_sum"),
            count: line("_count"),
            bounds: ScaledBounds::of(bounds),
            labels,
        }
    }
}

fn value(to: &mut Vec<u8>, value: MetricValue) {
    match value {
        MetricValue::Count(n) => decimal(to, n),
        MetricValue::Nanoseconds(ns) => seconds(to, ns),
        MetricValue::Number(number) => float(to, number),
    }
}

fn decimal(to: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    to.extend(&digits[at..]);
}

/// Nanoseconds as seconds, without a rounding.
fn seconds(to: &mut Vec<u8>, ns: u64) {
    const SECOND: u64 = 1_000_000_000;
    decimal(to, ns / SECOND);
    let mut rest = ns % SECOND;
    if rest == 0 {
        return;
    }
    let mut digits = *b".000000000";
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let end = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
    to.extend(&digits[..end]);
}

fn float(to: &mut Vec<u8>, number: f64) {
    // A text in memory takes everything.
    let _ = if number.is_infinite() {
        write!(to, "{}Inf", if number > 0.0 { '+' } else { '-' })
    } else {
        write!(to, "{number}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        write(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn nanoseconds_are_exact_seconds() {
        let cases = [
            (0, "0"),
            (1, "0.000000001"),
            (1_000_000_000, "1"),
            (12_340_000_000, "12.34"),
            (u64::MAX, "18446744073.709551615"),
        ];
        for (ns, shown) in cases {
            assert_eq!(written(|to| seconds(to, ns)), shown);
        }
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(written(|to| escape(to, "a\\b\"c\nd ä\0")), "a\\\\b\\\"c\\nd ä\u{fffd}");
    }
}
