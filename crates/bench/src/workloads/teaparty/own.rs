//! `bench self`: what dormouse reports of its own cost, compared with the truth: the CPU time of a
//! request to the tea house while a client looks, less that of one while nobody does.
//!
//! | row | is |
//! |---|---|
//! | `self-told/STATE` | what the service reports of itself (`own` of `stat`), in percent of its CPU time |
//! | `self-true/STATE` | the difference to the same service asleep, in percent of its CPU time in the state |
//! | `self-error/STATE` | the one less the other, in points |
//!
//! Both figures are of one process, which a client wakes and leaves again for each slice, asleep,
//! awake, awake, asleep: two programs differ by more than what is looked for, because the compiler
//! inlines differently. All requests go to the cheapest route, where the same cost is the largest
//! share. The cost asleep is counted by instructions, in `bench teaparty`.

use std::time::Duration;

use dormouse_statistics::Interval;
use tempfile::TempDir;

use super::load::{Clients, MENU};
use super::server::{Awake, Server, own};
use super::{TURN, has_tea_house, tea_house};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::{Failure, Plan};

const STATES: [(&str, Awake); 2] = [("counted", Awake::Counts), ("times", Awake::Times)];

/// How long a slice lasts: short against the drift of a shared machine, long against an answer to
/// `stat`, of which the report has a part that the CPU time between two of them has not.
const SLICE: Duration = Duration::from_millis(120);

/// How long the guests ask before each slice: what a client wakes has first uses, which a service
/// pays once, and a slice as short as this would show as a share of its time.
const LEAD: Duration = Duration::from_millis(40);

/// How close to the truth the report is to be, in points.
const BOUND: f64 = 0.2;

pub(crate) fn run(bench: &mut Bench) {
    let halves = Halves::of_this_thread();
    let made = has_tea_house().map_err(Failure::from).and_then(|()| House::start(&halves));
    if let Some(house) = bench.need(specs(), made) {
        rows(bench, house, halves);
    }
    bench.measure("reps", Plan { warmup: 1, ..bench.plan(80, 14) });
    bench.param("order", "asleep, awake, awake, asleep");
    for (state, _) in STATES {
        let of = |kind: &str| format!("self-{kind}/{state}");
        bench.paired(Spec::new(of("error"), "points"), &of("told"), &of("true"), |told, real| told - real);
        let verdict = match bench.row(&of("error")).ci95_median {
            Some(error) => verdict(&error),
            None => "not decided".to_owned(),
        };
        bench.notes.push(format!("goal, {state}: reported within {BOUND} points of the truth: {verdict}"));
    }
    bench.explain(include_str!("own.txt"));
}

/// By the 95 % interval of the error.
fn verdict(error: &Interval) -> String {
    let decided = if error.is_within(BOUND) {
        "met"
    } else if error.low > BOUND || error.high < -BOUND {
        "missed"
    } else {
        "not decided"
    };
    format!("{decided}; {error:.2}")
}

/// Rows of each state, as [`rows`] fills them.
fn specs() -> Vec<Spec> {
    let of_state = |(state, _)| {
        ["told", "true"].map(|kind| {
            let spec = Spec::new(format!("self-{kind}/{state}"), "%");
            spec.with("of", "the service's CPU time").better(Better::Lower)
        })
    };
    STATES.into_iter().flat_map(of_state).collect()
}

/// A running service, and the guests that ask it.
struct House {
    server: Server,
    guests: Clients,
    directory: TempDir,
}

impl House {
    fn start(halves: &Halves) -> Result<Self, Failure> {
        let directory = TempDir::with_prefix("dormouse-bench-")?;
        let program = tea_house()?;
        let server = halves.on_first(|| Server::start(program, true, directory.path()))??;
        // With several, each answer wakes its client or finds it awake, which depends on how fast
        // the service is; and a wake takes more CPU time than all that is measured here.
        let guests = Clients::connect(server.addr, 1)?;
        Ok(Self { server, guests, directory })
    }

    /// A slice, in which the service is kept awake if there is a state.
    fn slice(&mut self, awake: Option<Awake>, halves: &Halves) -> Result<Used, Failure> {
        let Self { server, guests, directory } = self;
        let mut client = awake.map(|awake| server.wake(awake, directory.path())).transpose()?;
        // `stat` itself counts as long as its client is connected: asleep nobody asks.
        let mut own = || client.as_mut().map(own).transpose();
        halves.on_second(|| guests.run(&MENU, LEAD))??;
        let (own_before, cpu_ns) = (own()?, server.cpu_ns()?);
        let answered = halves.on_second(|| guests.run(&MENU, SLICE))??.answered;
        let cpu_ns = (server.cpu_ns()? - cpu_ns) as f64;
        let told = own()?.zip(own_before).map(|(after, before)| after.since(before).cpu_ns());
        drop(client);
        server.falls_asleep()?;
        Ok(Used { told_ns: told.unwrap_or(0) as f64, cpu_ns, answered: answered as f64 })
    }
}

/// The use of a service in some slices.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Used {
    /// As it reports.
    told_ns: f64,
    cpu_ns: f64,
    answered: f64,
}

impl Used {
    fn and(self, other: Self) -> Self {
        Self {
            told_ns: self.told_ns + other.told_ns,
            cpu_ns: self.cpu_ns + other.cpu_ns,
            answered: self.answered + other.answered,
        }
    }
}

fn rows(bench: &mut Bench, mut house: House, halves: Halves) {
    bench.sample(specs(), move || {
        let mut values = Vec::new();
        for (_, awake) in STATES {
            let mut sums = [Used::default(); 2];
            for side in TURN {
                let used = house.slice((side == 1).then_some(awake), &halves)?;
                sums[side] = sums[side].and(used);
            }
            values.extend(told_and_true(sums));
        }
        Ok(values)
    });
}

/// In percent of the CPU time of a request while the service is awake: what it reports more than
/// asleep, and what the request takes more. Answers to the client of this bench are in both.
fn told_and_true([asleep, awake]: [Used; 2]) -> [f64; 2] {
    let more = |of: fn(&Used) -> f64| of(&awake) / awake.answered - of(&asleep) / asleep.answered;
    let whole = awake.cpu_ns / awake.answered;
    [100.0 * more(|used| used.told_ns) / whole, 100.0 * more(|used| used.cpu_ns) / whole]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_shares_of_the_same_time() {
        // 20 ns a request awake, 19 asleep, where more requests were answered.
        let asleep = Used { told_ns: 100.0, cpu_ns: 1900.0, answered: 100.0 };
        let awake = Used { told_ns: 90.0, cpu_ns: 1000.0, answered: 50.0 };
        let [told, real] = told_and_true([asleep, awake]);
        assert!((told - 4.0).abs() < 1e-9 && (real - 5.0).abs() < 1e-9, "{told} {real}");
    }

    #[test]
    fn only_a_clear_interval_decides() {
        let decided = |low, high| {
            let interval = Interval { low, high, of: String::new(), method: String::new() };
            verdict(&interval).split(';').next().unwrap_or_default().to_owned()
        };
        assert_eq!(decided(-0.1, 0.2), "met");
        assert_eq!(decided(0.1, 0.3), "not decided");
        assert_eq!(decided(-0.9, -0.3), "missed");
    }
}
