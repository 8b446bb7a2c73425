//! Experiments on simulated services: with drift, periods, outliers, and a known effect.

use std::collections::HashMap;
use std::time::Duration;

use dormouse::waits::Histogram;
use dormouse_statistics::buckets::place;
use dormouse_testkit::short_or_long;

use super::judge::{ERROR, Finding, Judge, Verdict};
use super::metric::{Turn, Use};
use super::pairs::{Contrast, Pair, Statistic, Whose};
use super::plan::Plan;

const LENGTH: Duration = Duration::from_secs(60);
/// Requests of this length have long turns, and so few pairs that a test can make a thousand times
/// more.
const LONG: Duration = Duration::from_secs(1);
/// The length of an experiment with a third of the pairs.
const SHORT: Duration = Duration::from_millis(2_700);

/// A service with two routes, and the dice that its requests are thrown with.
struct Simulated {
    state: u64,
    /// How much more a request of the first route costs with the key on, as a part.
    effect: f64,
    /// The length of the experiment.
    length: Duration,
    /// Since the start.
    ns: u64,
}

impl Simulated {
    fn new(seed: u64, effect: f64) -> Simulated {
        Simulated { state: seed, effect, length: LENGTH, ns: 0 }
    }

    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, with the deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// One turn: the machine gets slower by a third in all, does something else as often as there
    /// are turns, and now and then has a bad moment.
    fn turn(&mut self, is_on: bool, length: Duration) -> Turn {
        let elapsed_ns = length.as_nanos() as u64;
        self.ns += elapsed_ns;
        let t = self.ns as f64 / self.length.as_nanos() as f64;
        let drift = 1.0 + t / 3.0 + 0.03 * (400.0 * std::f64::consts::TAU * t).sin();
        let mut groups = HashMap::new();
        for (id, each_turn, cpu_ns) in [(1, 60.0, 40_000.0), (2, 9.0, 900_000.0)] {
            let turns = 20_000_000_f64.max(self.length.as_nanos() as f64 / 400.0);
            let requests = (each_turn * elapsed_ns as f64 / turns + self.normal()).max(0.0) as u64;
            let outlier = if self.uniform() < 0.02 { 3.0 } else { 1.0 };
            let effect = if is_on && id == 1 { 1.0 + self.effect } else { 1.0 };
            let each = cpu_ns * drift * outlier * effect * (1.0 + 0.03 * self.normal());
            groups.insert(id, Use::of(requests, (each * requests as f64) as u64));
        }
        Turn { elapsed_ns, own_ns: 0, whole: None, groups }
    }

    /// A whole experiment, as judges with these errors see it; the part of the time after which all
    /// found it clear.
    fn experiment<const N: usize>(mut self, seed: u64, errors: [f64; N]) -> ([Judge; N], f64) {
        let (mut plan, mut pairs) = (Plan::seeded(self.length, LONG, seed), Vec::new());
        let mut judges = errors.map(|error| (Judge::new(error), false));
        loop {
            let draw = plan.draw();
            let first = self.turn(draw.on_first, draw.length);
            let second = self.turn(!draw.on_first, draw.length);
            let (on, off) = if draw.on_first { (first, second) } else { (second, first) };
            pairs.push(Pair { off, on });
            let t = self.ns as f64 / self.length.as_nanos() as f64;
            for (judge, is_clear) in judges.iter_mut().filter(|(_, is_clear)| !is_clear) {
                *is_clear = judge.look(t, t >= 1.0, || Contrast::of(&pairs, false));
            }
            if t >= 1.0 || judges.iter().all(|(_, is_clear)| *is_clear) {
                return (judges.map(|(judge, _)| judge), t);
            }
        }
    }
}

fn shows(finding: &Finding) -> bool {
    matches!(finding.verdict, Verdict::More | Verdict::Less)
}

fn of_group(judge: &Judge, id: u32) -> &Finding {
    judge.findings.iter().find(|finding| finding.contrast.whose == Whose::Group(id)).expect("a row")
}

#[test]
fn nulls_stay_quiet_over_all_looks() {
    // The level of experiments, and one at which errors can be counted.
    let mut alarms = [0_u32, 0];
    let experiments = short_or_long(150, 1000);
    for seed in 0..experiments {
        let service = Simulated { length: SHORT, ..Simulated::new(seed, 0.0) };
        for (alarms, judge) in alarms.iter_mut().zip(service.experiment(!seed, [ERROR, 0.2]).0) {
            assert_eq!(judge.findings.len(), 4, "two groups, all, and the average");
            *alarms += u32::from(judge.findings.iter().any(shows));
        }
    }
    // Of a thousand two are expected, of 150 none.
    assert!(alarms[0] <= short_or_long(1, 3), "{alarms:?}");
    // Three deviations more than a fifth at most. (Rows and looks are not independent: it is on the
    // safe side.)
    let expected = experiments as f64 * 0.2;
    assert!(f64::from(alarms[1]) <= expected + 3.0 * (expected * 0.8).sqrt(), "{alarms:?}");
    assert!(u64::from(alarms[1]) >= experiments / 50, "{alarms:?}");
}

#[test]
fn small_effects_are_found_with_their_size() {
    for seed in 0..20 {
        let ([judge], _) = Simulated::new(seed, 0.03).experiment(seed, [ERROR]);
        let found = of_group(&judge, 1);
        let [low, high] = found.interval.expect("an interval");
        assert_eq!(found.verdict, Verdict::More, "{found:?}");
        assert!((low..high).contains(&0.03), "{low} .. {high}");
        assert_eq!(of_group(&judge, 2).verdict, Verdict::Nothing);
    }
}

/// Where neither a group nor the process shows it, the average does: two routes are dear, rare and
/// anything, ten are cheap, often and steady; and the machine gets slower.
#[test]
fn a_common_effect_shows_first_on_average() {
    let of = |effect: f64| {
        let mut dice = Simulated::new(3, 0.0);
        let mut turn = |n: u32, effect: f64| {
            let drift = 1.0 + f64::from(n) / 200.0;
            let used = |id: u32| {
                let (requests, cpu_ns, noise) = if id > 10 { (9, 5e6, 0.9) } else { (20, 1e5, 0.45) };
                let each = cpu_ns * drift * (1.0 + effect) * (1.0 + noise / 4.0 * dice.normal());
                (id, Use::of(requests, (each.max(0.0) * requests as f64) as u64))
            };
            let groups: HashMap<u32, Use> = (1..=12).map(used).collect();
            Turn { whole: None, groups, ..Turn::default() }
        };
        let pairs: Vec<_> = (0..200).map(|n| Pair { off: turn(n, 0.0), on: turn(n, effect) }).collect();
        judged(&pairs).findings
    };
    let whose = |finding: &Finding| finding.contrast.whose;
    let shown = |findings: &[Finding]| findings.iter().filter(|it| shows(it)).map(whose).collect::<Vec<_>>();
    let found = of(0.02);
    assert_eq!(shown(&found), [Whose::Average]);
    let average = found.iter().find(|it| whose(it) == Whose::Average).expect("a row");
    let [low, high] = average.interval.expect("an interval");
    assert!((low..high).contains(&0.02) && average.contrast.values.is_none(), "{average:?}");
    assert_eq!(shown(&of(0.0)), []);
}

#[test]
fn groups_that_mix_states_are_in_no_average() {
    let with = |alive: u64| {
        let group = |at: u64| {
            let mut used = Use::of(10, 1_000 + at % 7);
            used.alive = alive;
            used
        };
        let turn = |at: u64| Turn {
            groups: HashMap::from([
                (1, group(at)),
                (2, Use::of(10, 900 + at % 5)),
                (3, Use::of(10, 90 + at % 3)),
            ]),
            whole: Some(2_000.0),
            ..Turn::default()
        };
        let pairs: Vec<_> = (0..40).map(|n| Pair { off: turn(n), on: turn(3 * n + 1) }).collect();
        let of =
            |whose| judged(&pairs).findings.into_iter().find(|it| it.contrast.whose == whose).expect("a row");
        (of(Whose::Average).contrast, of(Whose::All).contrast)
    };
    let (average, all) = with(0);
    assert_eq!((average.requests, average.is_mixed, all.is_mixed), ([1_200, 1_200], false, false));
    let (average, all) = with(5_000);
    assert_eq!((average.requests, average.is_mixed, all.is_mixed), ([800, 800], false, true));
}

#[test]
fn a_gain_is_less() {
    let ([judge], _) = Simulated::new(1, -0.3).experiment(1, [ERROR]);
    let found = of_group(&judge, 1);
    assert_eq!(found.verdict, Verdict::Less);
    assert!((found.change.expect("a change") + 0.3).abs() < 0.05, "{found:?}");
}

#[test]
fn a_clear_answer_ends_it_early() {
    for seed in 0..20 {
        let ([judge], t) = Simulated::new(seed, 1.0).experiment(seed, [ERROR]);
        let [low, high] = of_group(&judge, 1).interval.expect("an interval");
        assert!(t < 0.6 && (low..high).contains(&1.0), "{t}: {low} .. {high}");
    }
    let (_, t) = Simulated::new(1, 0.0).experiment(1, [ERROR]);
    assert!(t >= 1.0, "nothing is never clear");
}

#[test]
fn the_visible_effect_is_mostly_found() {
    let ([null], _) = Simulated::new(7, 0.0).experiment(7, [ERROR]);
    let visible = of_group(&null, 1).visible.expect("a bound");
    assert!((0.005..0.05).contains(&visible), "{visible}");
    let found = (0..40).filter(|&seed| {
        let ([judge], _) = Simulated::new(seed, visible).experiment(seed, [ERROR]);
        shows(of_group(&judge, 1))
    });
    assert!(found.count() >= 30);
}

/// Pairs in which a request uses `amounts`: off and on.
fn pairs(n: usize, requests: u64, amounts: [u64; 2]) -> Vec<Pair> {
    let turn = |amount| Turn {
        groups: HashMap::from([(5, Use::of(requests, amount * requests))]),
        ..Turn::default()
    };
    vec![Pair { off: turn(amounts[0]), on: turn(amounts[1]) }; n]
}

fn judged(pairs: &[Pair]) -> Judge {
    let mut judge = Judge::new(ERROR);
    judge.look(1.0, true, || Contrast::of(pairs, false));
    judge
}

#[test]
fn an_event_that_begins_comes_from_nothing() {
    let judge = judged(&pairs(40, 10, [0, 2]));
    let found = of_group(&judge, 5);
    assert_eq!((found.verdict, found.change), (Verdict::More, Some(f64::INFINITY)));
    assert_eq!(found.contrast.values.unwrap().map(|value| value as u64), [0, 2]);
}

#[test]
fn an_event_that_never_happens_shows_nothing() {
    let judge = judged(&pairs(40, 10, [0, 0]));
    let found = of_group(&judge, 5);
    assert_eq!((found.verdict, found.change, found.visible), (Verdict::Nothing, Some(0.0), Some(0.0)));
}

#[test]
fn all_groups_have_the_amounts_of_their_requests() {
    let mut pairs = pairs(40, 10, [100, 100]);
    // Of a group with too few requests nothing is known, and so not how much is usual.
    for pair in &mut pairs {
        pair.on.groups.insert(6, Use::of(1, 90_000));
    }
    let all = judged(&pairs).findings.into_iter().find(|it| it.contrast.whose == Whose::All);
    let all = all.expect("a row");
    assert_eq!((all.verdict, all.contrast.values), (Verdict::Nothing, Some([100.0, 100.0])));
}

#[test]
fn latencies_are_off_by_their_own_buckets() {
    let verdict = |scale| {
        let turn = |ns| {
            let mut all = Histogram { scale, sum_ns: 200 * ns, max_ns: ns, ..Histogram::default() };
            all.buckets[place(ns)] = 200;
            Turn { groups: HashMap::from([(5, Use::of_latencies(&all))]), ..Turn::default() }
        };
        let pairs: Vec<_> = (0..40).map(|_| Pair { off: turn(1_000_000), on: turn(1_140_000) }).collect();
        let mut judge = Judge::new(ERROR);
        judge.look(1.0, true, || Contrast::of(&pairs, true));
        judge.findings.iter().find(|it| it.contrast.statistic == Statistic::P99).expect("a row").verdict
    };
    assert_eq!((verdict(4), verdict(2)), (Verdict::More, Verdict::Nothing));
}

#[test]
fn few_requests_are_pooled_or_left_out() {
    // Two a turn: four pairs make a block.
    let contrasts = Contrast::of(&pairs(80, 2, [100, 110]), false);
    assert_eq!(contrasts.iter().map(|row| row.differences.len()).collect::<Vec<_>>(), [20, 20]);
    let few = judged(&pairs(40, 2, [100, 110]));
    let [finding] = &few.findings[..] else { panic!("one row: {:?}", few.findings) };
    assert_eq!((finding.verdict, finding.contrast.requests), (Verdict::TooFew, [80, 80]));
}

#[test]
fn requests_longer_than_turns_are_marked() {
    let with_alive = |alive| {
        let mut pairs = pairs(40, 10, [100, 100]);
        for turn in pairs.iter_mut().flat_map(|pair| [&mut pair.off, &mut pair.on]) {
            turn.groups.get_mut(&5).expect("a group").alive = alive;
        }
        of_group(&judged(&pairs), 5).contrast.is_mixed
    };
    assert!(!with_alive(4), "they last for less than half a turn");
    assert!(with_alive(40), "they last for four turns");
}

#[test]
fn one_look_has_too_few_blocks() {
    let judge = judged(&pairs(16, 10, [100, 900]));
    assert!(judge.findings.iter().all(|finding| finding.verdict != Verdict::Nothing));
    let mut early = Judge::new(ERROR);
    assert!(!early.look(0.125, false, || Contrast::of(&pairs(16, 10, [100, 900]), false)));
    assert!(early.findings.iter().all(|finding| finding.verdict == Verdict::TooFew));
}

#[test]
fn turns_are_drawn_evenly() {
    let mut plan = Plan::seeded(LENGTH, LONG, 9);
    let draws: Vec<_> = (0..1000).map(|_| plan.draw()).collect();
    let on_first = draws.iter().filter(|draw| draw.on_first).count();
    assert!((430..570).contains(&on_first), "{on_first}");
    let whole = |draw: &super::plan::Draw| draw.settling + draw.length;
    let ms = |ms| Duration::from_millis(ms);
    assert!(draws.iter().all(|draw| (ms(75)..=ms(225)).contains(&whole(draw)) && draw.settling > ms(7)));
    // As short as requests allow.
    let mean = |request| {
        let mut plan = Plan::seeded(LENGTH, request, 9);
        (0..1000).map(|_| whole(&plan.draw())).sum::<Duration>() / 1000
    };
    for (request, least, most) in [(0, 45, 55), (12, 90, 102), (400, 140, 160)] {
        let mean = mean(ms(request));
        assert!((ms(least)..ms(most)).contains(&mean), "{request}: {mean:?}");
    }
    // However short: a turn is longer than a look.
    assert!(whole(&Plan::seeded(ms(10), LONG, 9).draw()) >= ms(10));
}
