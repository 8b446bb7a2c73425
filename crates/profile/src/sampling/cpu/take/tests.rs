//! Samples of one profile, their weights and their threads.

use dormouse_unwind::WalkEnd;

use super::*;
use crate::sampling::cpu::handler::Tick;
use crate::sampling::walk::Frames;

/// A record of one frame, which is the outermost.
fn whole(of_kind: Tick) -> Record {
    Record { of_kind, at_ns: 0, group: 0, frames: frames(&[0x1000], WalkEnd::Outermost) }
}

fn frames(found: &[u64], end: WalkEnd) -> Frames {
    let mut frames = Frames::NONE;
    frames.set(found, end);
    frames
}

/// The samples that a profile takes of a thread in some seconds of CPU time, and their weight.
/// A timer leaves one at each tick of 4 ms, give or take a part of it.
fn taken(hz: u32, seconds: u64, jitter: u64) -> (u64, u64) {
    const TICK: u64 = 4_000_000;
    let options = Options { hz, ..Options::default() };
    let mut take = Take::new(&options, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(0));
    for tick in 1..=seconds * 250 {
        let cpu_ns = tick * TICK + arm::random() % (2 * jitter + 1) - jitter;
        let of_kind = Tick { value: id.to_value(), cpu_ns, overruns: 0, is_copied: false };
        let record = whole(of_kind);
        take.add(&record, cpu_ns, 1_000_000, &(0..0), || None);
    }
    let profile = take.read(0, 0, &Mappings::default());
    (profile.coverage.samples, profile.samples.iter().map(|row| row.values[1]).sum())
}

#[test]
fn slower_profiles_get_the_rate_they_asked_for() {
    for hz in [19, 50, 99, 100, 125, 200, 249, 250] {
        for jitter in [0, 100_000, 1_500_000] {
            let (samples, weight) = taken(hz, 10, jitter);
            let asked = u64::from(hz) * 10;
            assert!(samples.abs_diff(asked) <= 1 + asked / 100, "{samples} of {asked} ({jitter})");
            // But for the time since the last one, and before the first.
            let most = 2 * options_period(hz) + 8_000_000;
            assert!(weight.abs_diff(10_000_000_000) <= most, "{weight}");
        }
    }
}

#[test]
fn late_samples_are_counted() {
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(0));
    for cpu_ns in [9_000_000, 5_000_000, 12_000_000] {
        let of_kind = Tick { value: id.to_value(), cpu_ns, overruns: 0, is_copied: false };
        let record = whole(of_kind);
        take.add(&record, cpu_ns, 1_000_000, &(0..0), || None);
    }
    let profile = take.read(0, 0, &Mappings::default());
    assert_eq!((profile.coverage.samples, profile.coverage.dropped), (2, 1));
    assert_eq!(profile.samples.iter().map(|row| row.values[1]).sum::<u64>(), 12_000_000);
}

#[test]
fn a_full_timeline_is_noted() {
    let mut take = Take::new(&Options { hz: 1000, timeline: true, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(0));
    let moment = Moment { at_ns: 0, sample: 0, value: 1 };
    take.timeline = Some(vec![moment; MOST_MOMENTS - 1]);
    let notes = [4_000_000, 8_000_000].map(|cpu_ns| {
        let record = whole(Tick { value: id.to_value(), cpu_ns, overruns: 0, is_copied: false });
        take.add(&record, cpu_ns, 1_000_000, &(0..0), || None);
        take.coverage.notes.len()
    });
    assert_eq!(notes, [0, 1], "there was room for one");
    assert_eq!(take.timeline.map(|timeline| timeline.len()), Some(MOST_MOMENTS));
}

#[test]
fn stacks_inside_of_libraries_have_not_ended() {
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(0));
    let mut add = |cpu_ns, innermost, is_missed| {
        let of_kind = Tick { value: id.to_value(), cpu_ns, overruns: 0, is_copied: false };
        let frames = Frames { is_missed, ..frames(&[innermost, 0x1000], WalkEnd::Unlearned) };
        let record = Record { frames, ..whole(of_kind) };
        take.add(&record, cpu_ns, 1_000_000, &(0x1000..0x2000), || None);
        let coverage = &take.coverage;
        (coverage.in_library, coverage.ended)
    };
    assert_eq!(add(2_000_000, 0x5000, true), (0, 1), "the library has started the thread");
    assert_eq!(add(4_000_000, 0x1800, true), (1, 1), "without a table");
    assert_eq!(add(6_000_000, 0x5000, false), (1, 1), "tables show where stacks end");
}

#[test]
#[cfg_attr(miri, ignore = "names of threads")]
fn threads_that_ended_have_names() {
    let name = |begin: fn(&mut Take, SlotId, u32)| {
        let (mut take, id) = (Take::new(&Options::default(), 0, 0), SlotId { index: 3, generation: 4 });
        begin(&mut take, id, dormouse_sys::process::identity::tid());
        let of_kind = Tick { value: id.to_value(), cpu_ns: 0, overruns: 0, is_copied: false };
        take.add(&whole(of_kind), 1 << 40, 1_000_000, &(0..0), || None);
        take.read(0, 0, &Mappings::default()).threads.remove(0).name
    };
    let own = thread_name(dormouse_sys::process::identity::tid()).unwrap();
    assert_eq!(name(|take, id, tid| take.find_thread(id, tid, Some(0))), own);
    assert_eq!(name(|take, id, tid| take.add_thread(id, tid, Some(0))), ENDED);
}

#[test]
#[cfg_attr(miri, ignore = "clocks of threads")]
fn time_behind_a_mask_stays_its_own() {
    let tid = dormouse_sys::process::identity::tid();
    let used = || thread_cpu_ns_of(tid).unwrap();
    let work = || {
        let begin = used();
        while used() - begin < 5_000_000 {}
    };
    // The weights of time with samples, and of time without.
    let weights = |take: &mut Take| -> [u64; 2] {
        take.look_at_unsampled();
        let samples = take.read(0, 0, &Mappings::default()).samples;
        [1, 0].map(|met| samples.iter().filter(|row| row.values[0] == met).map(|row| row.values[1]).sum())
    };
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    let begin = used();
    take.block(tid);
    work();
    let open = used();
    take.find_thread(id, tid, Some(open));
    let of_kind = Tick { value: id.to_value(), cpu_ns: open + 1000, overruns: 0, is_copied: false };
    let record = whole(of_kind);
    take.add(&record, open + 1000, 1_000_000, &(0..0), || None);
    work();
    let [met, unmet] = weights(&mut take);
    assert_eq!(met, 1000);
    assert!((open - begin..=open).contains(&unmet), "{unmet}");
    // It blocks the signal again: what its samples met is not counted twice.
    take.disarm(id, None);
    let [met, all] = weights(&mut take);
    assert_eq!(met, 1000);
    assert!((unmet + 5_000_000 - 1000..=unmet + used() - open - 1000).contains(&all), "{all}");
}

#[test]
fn a_refused_threads_number_may_come_back() {
    let tid = dormouse_sys::process::identity::tid();
    let used = || thread_cpu_ns_of(tid).unwrap();
    let unmet = |take: &mut Take| -> u64 {
        take.look_at_unsampled();
        take.read(0, 0, &Mappings::default()).samples.iter().map(|row| row.values[1]).sum()
    };
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.refuse(tid, "no timer");
    let open = used();
    take.find_thread(id, tid, Some(open));
    // A sample from now on is not counted for the one that was refused, too.
    assert_eq!(take.threads[&id].last, Some(open));
    let before = unmet(&mut take);
    while used() - open < 5_000_000 {}
    assert_eq!(unmet(&mut take), before);
}

#[test]
fn samples_from_before_are_not_late() {
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(9_000_000));
    for cpu_ns in [8_000_000, 12_000_000] {
        let of_kind = Tick { value: id.to_value(), cpu_ns, overruns: 0, is_copied: false };
        take.add(&whole(of_kind), cpu_ns, 1_000_000, &(0..0), || None);
    }
    let coverage = take.read(0, 0, &Mappings::default()).coverage;
    assert_eq!((coverage.samples, coverage.dropped), (1, 0));
}

fn options_period(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz)
}

#[test]
fn samples_of_replaced_code_are_noted_once() {
    let mut take = Take::new(&Options { hz: 1000, ..Options::default() }, 0, 0);
    let id = SlotId { index: 3, generation: 4 };
    take.add_thread(id, 7, Some(0));
    let of_kind = Tick { value: id.to_value(), cpu_ns: 9_000_000, overruns: 0, is_copied: false };
    take.add(&whole(of_kind), 9_000_000, 1_000_000, &(0..0), || None);
    let mut notes = |ranges: &[Range<u64>]| {
        take.replace(ranges);
        take.read(0, 0, &Mappings::default()).coverage.notes
    };
    assert!(notes(&[]).is_empty() && notes(&[0x800..0x1000, 0x1001..0x2000]).is_empty());
    for _ in 0..2 {
        assert_eq!(notes(&[0x800..0x900, 0x1000..0x1001]), [REPLACED]);
    }
}
