//! `promtool check metrics` has nothing to say about our text.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use dormouse::metrics::{Metrics, MetricsFormat, MetricsSpec};
use dormouse::{Call, CallKind, Group};
use dormouse_testkit::{in_child, spin_for};

use super::daemon::found;
use super::serving::Serving;
use crate::support::{Service, skip};

/// Gives text to the checker; `None` where that is not installed.
#[track_caller]
fn remarks(text: &str) -> Option<String> {
    let Some(program) = found("promtool") else {
        skip("promtool is not installed");
        return None;
    };
    let mut command = Command::new(program);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("text that it reads");
    let output = child.wait_with_output().expect("its end");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some(format!("{}{}{}", said[0], said[1], if output.status.success() { "" } else { "(failed)" }))
}

#[test]
fn hostile_names_are_fine_in_a_services_text() {
    in_child(|| {
        let names = ["\"", "\\", "a\nb", "\r\n# TYPE x y", "{}", "ä\u{202e}", "", "</script>", "a\0b"];
        let metrics = Metrics::start(&MetricsSpec::new().waits()).expect("metrics");
        let mut outcomes = 0;
        for name in names {
            Group::new(name).scope(|| {
                spin_for(Duration::from_millis(1));
                outcomes += usize::from(dormouse::outcome(name));
                Call::begin(CallKind::Other, name).end(false);
            });
        }
        assert_eq!(outcomes, dormouse::MAX_OUTCOMES);
        let text = String::from_utf8(metrics.exposition().encode(MetricsFormat::Text)).expect("UTF-8");
        assert!(text.matches("\ndormouse_cpu_time_seconds_total{").count() >= names.len(), "{text}");
        assert_eq!(text.matches("\ndormouse_call_duration_seconds_count{").count(), names.len(), "{text}");
        if let Some(remarks) = remarks(&text) {
            assert_eq!(remarks, "", "{text}");
        }
    });
}

#[test]
fn the_checker_is_silent() {
    let service = Service::visited();
    let serving = Serving::of(&service);
    let text = serving.metrics();
    assert!(text.contains("dormouse_cpu_time_seconds_total{"), "{text}");
    if let Some(remarks) = remarks(&text) {
        assert_eq!(remarks, "", "{text}");
        // It does speak.
        assert_ne!(self::remarks("# TYPE a_ms counter\na_ms 1\n").expect("promtool"), "");
    }
}
