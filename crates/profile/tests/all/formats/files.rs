//! Folded stacks, to the letter; and the numbers of the Firefox Profiler's format.

use std::io::Read as _;

use dormouse_profile::encode::{firefox, folded, folded_diff, html_data, pprof};
use dormouse_profile::{Diff, Moment, Profile, ProfileKind, Symbols, decode};
use dormouse_testkit::wire_text;
use flate2::read::GzDecoder;
use serde_json::Value;

use super::known::{profile, symbols};

#[test]
fn folded_stacks_begin_with_their_group() {
    let mut profile = profile();
    profile.groups[2].name = "GET /steep;\nslowly".to_owned();
    let expected = "\
(no group);(stack unknown) 500000000
(no group);main;mio::poll 1000000000
GET /blend;main;tea::serve;<tea::Blend as tea::Make>::blend 1000000000
GET /blend;main;tea::serve;<tea::Blend as tea::Make>::blend;tea::mix::{{closure}} 4000000000
GET /steep: slowly;(not sampled) 500000000
GET /steep: slowly;main;tea::serve;tea::steep::<[u8: 4]> 3000000000
";
    assert_eq!(folded(&profile, &symbols()), expected);
}

#[test]
fn addresses_without_names_are_places_in_files() {
    let mut profile = profile();
    let text = folded(&profile, &Symbols::default());
    assert!(text.contains("(no group);teaparty+0x1000;libmio.so+0x1000 1000000000\n"), "{text}");
    profile.mappings.clear();
    let text = folded(&profile, &Symbols::default());
    assert!(text.contains("(no group);0x555555550000;0x7f0000000000 1000000000\n"), "{text}");
}

#[test]
fn a_folded_difference_has_both_values() {
    let (old, mut new) = (profile(), profile());
    new.duration_ns /= 2;
    new.samples.truncate(3);
    let diff = Diff::between((&old, &symbols()), (&new, &symbols())).unwrap();
    let expected = "\
(no group);(stack unknown) 250000000 0
(no group);main;mio::poll 500000000 0
GET /blend;main;tea::serve;<tea::Blend as tea::Make>::blend 500000000 1000000000
GET /blend;main;tea::serve;<tea::Blend as tea::Make>::blend;tea::mix::{{closure}} 2000000000 4000000000
GET /steep;(not sampled) 250000000 0
GET /steep;main;tea::serve;tea::steep::<[u8: 4]> 1500000000 3000000000
";
    assert_eq!(folded_diff(&diff), expected);
}

/// A tenth of the bytes of each row is still live.
fn live() -> Profile {
    let mut profile = Profile { kind: ProfileKind::Alloc, live: true, ..profile() };
    profile.samples.retain(|row| row.stack != 0);
    profile.samples.iter_mut().for_each(|row| row.values[3] = row.values[1] / 10);
    profile
}

#[test]
fn live_allocations_are_in_every_form() {
    let profile = live();
    let text = folded(&profile, &symbols());
    assert!(text.contains("(no group);main;mio::poll 100000000\n"), "{text}");
    assert!((threads(&profile)[0].1[0][1] - 4e8).abs() < 1.0, "a tenth of four billion bytes");
    let data: Value = serde_json::from_str(&html_data(&profile, &symbols())).unwrap();
    assert_eq!((&data["main"], &data["columns"][3]["name"]), (&3.into(), &"inuse_space".into()));
    assert!(decode::pprof(&pprof(&profile, &symbols())).unwrap().0.live, "it is what the file shows");
    let all = Profile { live: false, ..profile };
    assert!(folded(&all, &symbols()).contains("(no group);main;mio::poll 1000000000\n"));
    assert!(!decode::pprof(&pprof(&all, &symbols())).unwrap().0.live);
}

#[test]
fn live_allocations_are_not_scaled_by_time() {
    let (new, mut old) = (live(), live());
    old.duration_ns *= 10;
    let between = |new: &Profile| Diff::between((&old, &symbols()), (new, &symbols())).unwrap();
    let text = folded_diff(&between(&new));
    assert!(text.contains("(no group);main;mio::poll 100000000 100000000\n"), "{text}");
    assert!((0..4).all(|row| between(&new).change(row) == 0.0));
    let all = folded_diff(&between(&Profile { live: false, ..new }));
    assert!(all.contains("(no group);main;mio::poll 100000000 1000000000\n"), "{all}");
}

#[test]
fn an_empty_profile_is_a_file_too() {
    let (profile, symbols) = (dormouse_profile::Profile::default(), Symbols::default());
    assert_eq!(folded(&profile, &symbols), "");
    assert!(firefox(&profile, &symbols).starts_with(&[0x1f, 0x8b]));
}

#[test]
fn known_profile_has_known_pprof_fields() {
    let mut message = Vec::new();
    GzDecoder::new(&pprof(&profile(), &symbols())[..]).read_to_end(&mut message).unwrap();
    insta::assert_snapshot!(wire_text(&message));
}

/// The samples of each thread: times, weights and CPU time since the last.
/// Weights are in steps of a billionth of the largest.
fn threads(profile: &Profile) -> Vec<(Value, Vec<[f64; 3]>)> {
    let file = firefox(profile, &symbols());
    let json: Value = serde_json::from_reader(GzDecoder::new(&file[..])).unwrap();
    let threads = json["threads"].as_array().unwrap().iter().map(|thread| {
        let samples = &thread["samples"];
        let column = |name: &str| -> Vec<f64> {
            samples[name].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
        };
        let mut at = 0.0;
        let times = column("timeDeltas").into_iter().map(|delta| {
            at += delta;
            at
        });
        let rows = times.zip(column("weight")).zip(column("threadCPUDelta"));
        (
            samples["weightType"].clone(),
            rows.map(|((at, weight), cpu)| [at, (weight * 1e4).round() / 1e4, cpu]).collect(),
        )
    });
    threads.collect()
}

#[test]
fn samples_lie_over_the_whole_time() {
    // Milliseconds, and microseconds of CPU time.
    let worker_0 = vec![[8000.0, 4000.0, 4e6], [9000.0, 500.0, 5e5], [10_000.0, 500.0, 5e5]];
    let worker_1 = vec![[2000.0, 1000.0, 1e6], [8000.0, 3000.0, 3e6], [10_000.0, 1000.0, 1e6]];
    let unit = Value::from("tracing-ms");
    assert_eq!(threads(&profile()), [(unit.clone(), worker_0), (unit, worker_1)]);
}

#[test]
fn samples_stand_where_they_were_taken() {
    let mut profile = profile();
    // Two samples of 1 and 3 seconds in a row of 4.
    profile.timeline = [(7_000_000_000, 3_000_000_000), (5_000_000_000, 1_000_000_000)]
        .map(|(at_ns, value)| Moment { at_ns, sample: 0, value })
        .to_vec();
    let expected =
        [[5000.0, 500.0, 5e5], [5000.0, 1000.0, 1e6], [7000.0, 3000.0, 3e6], [10_000.0, 500.0, 5e5]];
    let mut read = threads(&profile).remove(0).1;
    read[..2].sort_by(|a, b| a[1].total_cmp(&b[1]));
    assert_eq!(read, expected);
}

#[test]
fn samples_beyond_the_timeline_come_after_it() {
    let mut profile = profile();
    // One second of the four in the row.
    profile.timeline = vec![Moment { at_ns: 5_000_000_000, sample: 0, value: 1_000_000_000 }];
    let expected =
        [[5000.0, 1000.0, 1e6], [8750.0, 3000.0, 3e6], [8750.0, 500.0, 5e5], [10_000.0, 500.0, 5e5]];
    assert_eq!(threads(&profile).remove(0).1, expected);
}

#[test]
fn large_weights_keep_their_share() {
    let mut profile = profile();
    profile.kind = ProfileKind::Alloc;
    profile.samples[0].values[1] = 1 << 50;
    profile.samples[1].values[1] = 1 << 49;
    let read = threads(&profile);
    assert_eq!(read[0].0, "bytes");
    let largest = |thread: usize| read[thread].1.iter().map(|it| it[1]).fold(0.0, f64::max);
    assert!((largest(0) / 2_f64.powi(50) - 1.0).abs() < 1e-6);
    assert!((largest(1) / 2_f64.powi(49) - 1.0).abs() < 1e-6);
    assert!(read.iter().flat_map(|it| &it.1).all(|it| it[2] == 0.0), "bytes are no CPU time");
}
