//! Series over forks and restarts of the service, and restarts of the server: no counter goes back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse::Group;
use dormouse_testkit::{StopOnDrop, eventually, fork, in_child, spin_for};

use super::serving::Serving;
use crate::support::{DORMOUSE, Service};

/// The counters of a text: series and value.
fn counters(text: &str) -> BTreeMap<String, f64> {
    let is_counter = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        ["_total", "_count", "_bucket", "_sum"].iter().any(|end| name.ends_with(end))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| line.rsplit_once(' '));
    values
        .filter(|(series, _)| is_counter(series))
        .map(|(series, value)| {
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("{series} {value}")))
        })
        .collect()
}

/// The last value of each series, which no later one is below.
#[derive(Default)]
struct Highest(BTreeMap<String, f64>);

impl Highest {
    #[track_caller]
    fn look(&mut self, serving: &Serving) -> String {
        let text = serving.metrics();
        for (series, value) in counters(&text) {
            let before = self.0.insert(series.clone(), value).unwrap_or_default();
            assert!(value >= before, "{series} went from {before} to {value}");
        }
        text
    }

    /// The CPU time of all groups.
    fn cpu(&self) -> f64 {
        let of_groups =
            self.0.iter().filter(|(series, _)| series.starts_with("dormouse_cpu_time_seconds_total"));
        of_groups.map(|(_, value)| value).sum()
    }

    /// Looks until the text is as it should be.
    #[track_caller]
    fn look_until(&mut self, serving: &Serving, is_so: impl Fn(&str) -> bool) {
        eventually(|| is_so(&self.look(serving)));
    }
}

/// Whether a service has served requests, by a text.
fn is_busy(service: &Service) -> impl Fn(&str) -> bool {
    let pid = format!("pid=\"{}\"", service.pid());
    move |text| {
        let of_requests =
            |series: &str| series.starts_with("dormouse_requests_total") && series.contains(&pid);
        counters(text).iter().any(|(series, value)| of_requests(series) && *value > 10.0)
    }
}

#[test]
fn no_counter_goes_back_over_a_restart() {
    let mut first = Service::visited();
    // By its name: the next process has another number.
    let serving = Serving::start(first.runtime(), &["teaparty"], &[]);
    let mut highest = Highest::default();
    highest.look_until(&serving, is_busy(&first));
    first.kill();
    let runtime = first.take_runtime();
    let second = Service::start_as(DORMOUSE.as_ref(), runtime, |command| {
        command.args(["--load", "40", "--for", "10m"]);
    });
    let second = second.expect("the service starts again");
    highest.look_until(&serving, is_busy(&second));
    let gone = format!("pid=\"{}\"", first.pid());
    highest.look_until(&serving, |text| !text.contains(&gone));
}

/// Totals are the process's: a server that begins anew, with new conversations, goes on where the
/// last one was.
#[test]
fn no_counter_goes_back_over_servers() {
    let service = Service::visited();
    let mut highest = Highest::default();
    let first = Serving::of(&service);
    highest.look_until(&first, is_busy(&service));
    let start = start_of(&highest.look(&first));
    first.daemon.end();
    let (series, before) = (highest.0.clone(), highest.cpu());
    let second = Serving::of(&service);
    assert_eq!(start_of(&highest.look(&second)), start);
    eventually(|| {
        highest.look(&second);
        highest.cpu() > before
    });
    let now = counters(&second.metrics());
    let lost: Vec<_> = series.keys().filter(|series| !now.contains_key(*series)).collect();
    assert!(lost.is_empty(), "the labels of these have changed: {lost:?}");
}

/// Scrapers tell two servers apart by their addresses. One that comes, or goes, is nothing to the
/// other.
#[test]
fn no_counter_goes_back_for_another_server() {
    let service = Service::visited();
    let [first, second] = [(); 2].map(|()| Serving::of(&service));
    let [mut of_first, mut of_second] = [(); 2].map(|()| Highest::default());
    of_first.look_until(&first, is_busy(&service));
    of_second.look_until(&second, is_busy(&service));
    let start = start_of(&of_first.look(&first));
    assert_eq!(start_of(&of_second.look(&second)), start, "they agree on when the process began");
    first.daemon.end();
    let before = of_second.cpu();
    eventually(|| {
        of_second.look(&second);
        of_second.cpu() > before
    });
}

#[test]
fn no_counter_goes_back_over_forks() {
    in_child(|| {
        dormouse::init().expect("an agent");
        let stop = AtomicBool::new(false);
        let group = Group::new("forks");
        let brew = || group.scope(|| spin_for(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    brew();
                }
            });
            let directory = tempfile::tempdir().expect("a directory");
            let serving = Serving::start(directory.path(), &[&std::process::id().to_string()], &[]);
            let mut highest = Highest::default();
            let has_used = |text: &str| {
                let of_group =
                    |series: &str| series.starts_with("dormouse_cpu_time") && series.contains("forks");
                counters(text).iter().any(|(series, value)| of_group(series) && *value > 0.0)
            };
            highest.look_until(&serving, has_used);
            for _ in 0..8 {
                // The child has what its parent had counted, and goes on from there.
                assert!(fork(|| (0..5).for_each(|_| brew())).success());
                // A snapshot is shared for a second: this one is newer.
                let before = highest.cpu();
                eventually(|| {
                    highest.look(&serving);
                    highest.cpu() > before
                });
            }
        });
    });
}

/// The line that says when the process began.
#[track_caller]
fn start_of(text: &str) -> String {
    let mut lines = text.lines().filter(|line| line.starts_with("dormouse_process_start_time_seconds"));
    lines.next().unwrap_or_else(|| panic!("no start in {text}")).to_owned()
}
