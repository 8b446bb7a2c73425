//! A profile of this process, taken and named as a service's is, in all formats.

use std::time::Duration;

use dormouse_profile::{NameFinder, Options, Profile, Profiling, Symbols, encode};
use dormouse_testkit::viewers::Pq;
use dormouse_testkit::{in_child, thread_cpu};

use super::consumers::{Shares, file, functions, go, speedscope, top};

// Two functions that use CPU time and call nobody, however the test was compiled.

#[inline(never)]
fn grinds(mut rounds: u64) -> u64 {
    let mut x = rounds;
    while rounds != 0 {
        x ^= x << 13;
        x ^= x >> 7;
        rounds -= 1;
    }
    std::hint::black_box(x)
}

#[inline(never)]
fn boils(mut rounds: u64) -> u64 {
    let mut x = rounds;
    while rounds != 0 {
        x ^= x << 17;
        x ^= x >> 5;
        rounds -= 1;
    }
    std::hint::black_box(x)
}

/// Three parts of grinding, seven of boiling. Returns the share of grinding, in hundredths.
///
/// Rounds differ in length: the kernel's tick would meet equal ones again and again at one place.
/// They are long, because the clock takes some of the time: most on emulated processors.
fn work() -> f64 {
    // So that it is sampled at once.
    dormouse_sys::thread::current();
    let (mut grinding, mut boiling) = (Duration::ZERO, Duration::ZERO);
    let mut length = 1_u64;
    while grinding + boiling < Duration::from_secs(3) {
        length = length.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let part = length >> 43;
        let start = thread_cpu();
        grinds(3 * part);
        let middle = thread_cpu();
        boils(7 * part);
        grinding += middle.saturating_sub(start);
        boiling += thread_cpu().saturating_sub(middle);
    }
    grinding.as_secs_f64() / (grinding + boiling).as_secs_f64() * 100.0
}

fn taken() -> (Profile, Symbols, f64) {
    let mut options = Options::default();
    options.hz = 250;
    let profiling = Profiling::start(&options).unwrap();
    let worker = std::thread::Builder::new().name("teapot".to_owned()).spawn(work).unwrap();
    let share = worker.join().unwrap();
    let mut profile = profiling.read();
    // Other threads of the test have hardly worked.
    let worker = profile.threads.iter().position(|it| it.name == "teapot").unwrap() as u32;
    profile.samples.retain(|it| it.thread == worker);
    let symbols = NameFinder::own().unwrap().symbols(&profile);
    (profile, symbols, share)
}

/// The whole shares of both functions.
fn both(shares: &Shares) -> [f64; 2] {
    ["real::grinds", "real::boils"].map(|function| {
        let found: Vec<_> = shares.iter().filter(|(name, _)| name.ends_with(function)).collect();
        assert_eq!(found.len(), 1, "{function}: {shares:?}");
        found[0].1.1
    })
}

#[test]
fn all_formats_have_the_shares_of_a_program() {
    in_child(|| {
        let (profile, symbols, share) = taken();
        let folded = encode::folded(&profile, &symbols);
        let (mut ours, mut total) = ([0.0; 2], 0.0);
        for line in folded.lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap();
            total += value;
            for (sum, function) in ours.iter_mut().zip(["real::grinds", "real::boils"]) {
                *sum += if stack.split(';').any(|it| it.ends_with(function)) { value } else { 0.0 };
            }
        }
        let ours = ours.map(|it| it / total * 100.0);
        // Six times the deviation that chance gives: 10 for seven hundred samples, and more on a
        // busy machine, where there are fewer.
        let deviation = 100.0 * (0.3 * 0.7 / profile.coverage.samples as f64).sqrt();
        assert!((ours[0] - share).abs() < 6.0 * deviation, "{ours:?}, not {share}: {folded}");
        assert!(ours[0] + ours[1] > 95.0, "{ours:?}: {folded}");

        let pprof = file("teapot.pb.gz", encode::pprof(&profile, &symbols));
        let folded = file("teapot.folded", folded);
        let firefox = file("teapot.json.gz", encode::firefox(&profile, &symbols));
        let mut read = Vec::new();
        read.extend(go(&pprof, &["-top", "-nodecount=999"]).map(|text| both(&top(&text))));
        read.extend(speedscope(&pprof).map(|it| both(&it[0].1)));
        read.extend(speedscope(&folded).map(|it| both(&it[0].1)));
        read.extend(Pq::load(&firefox.path).map(|pq| both(&functions(&pq, "teapot"))));
        for theirs in read {
            let differ = ours.iter().zip(theirs).any(|(ours, theirs)| (ours - theirs).abs() > 0.2);
            assert!(!differ, "{theirs:?}, not {ours:?}");
        }
    });
}
