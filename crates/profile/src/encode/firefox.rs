//! The Firefox Profiler's processed format.
//!
//! Each thread is a thread there. A group is the outermost frame of its stacks and, for the colour
//! of graphs, a category. A sample is placed at its time, if the profile has it. Otherwise the rows
//! of a thread lie one after the other over the whole time, each as wide as its share, so that the
//! graph shows how busy the thread was on average.

use std::io::Write as _;

use dormouse_protocol::profile::{NO_GROUP, Profile, ProfileKind, Sample};
use flate2::Compression;
use flate2::write::GzEncoder;
use fxprof_processed_profile as fx;
use serde_json::Value;

use crate::symbols::Symbols;

const COLOURS: [fx::CategoryColor; 9] = [
    fx::CategoryColor::Blue,
    fx::CategoryColor::Orange,
    fx::CategoryColor::Green,
    fx::CategoryColor::Purple,
    fx::CategoryColor::Red,
    fx::CategoryColor::Brown,
    fx::CategoryColor::LightBlue,
    fx::CategoryColor::Magenta,
    fx::CategoryColor::LightGreen,
];

/// A profile as a `.json.gz` file that <https://profiler.firefox.com> opens.
///
/// The weight of a sample is its value in the main column: milliseconds of CPU time, bytes, or
/// faults.
pub fn firefox(profile: &Profile, symbols: &Symbols) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    // Memory takes whatever is written.
    let packed = gzip.write_all(&firefox_plain(profile, symbols)).and_then(|()| gzip.finish());
    packed.unwrap_or_default()
}

/// A profile as in [`firefox`], but as uncompressed JSON.
pub fn firefox_plain(profile: &Profile, symbols: &Symbols) -> Vec<u8> {
    let name = profile.program.rsplit('/').next().unwrap_or_default();
    let start = fx::ReferenceTimestamp::from_millis_since_unix_epoch(profile.unix_ns as f64 / 1e6);
    let interval = if profile.kind == ProfileKind::Cpu { profile.period.max(1) } else { 1_000_000 };
    let mut out = fx::Profile::new(name, start, fx::SamplingInterval::from_nanos(interval));
    out.set_symbolicated(true);
    let groups: Vec<(fx::StringHandle, fx::CategoryHandle)> = profile
        .groups
        .iter()
        .enumerate()
        .map(|(index, group)| {
            let is_one = index != NO_GROUP as usize;
            let name = if is_one { &group.name } else { "(no group)" };
            let colour = if is_one { COLOURS[index % COLOURS.len()] } else { fx::CategoryColor::Gray };
            (out.intern_string(name), out.add_category(name, colour))
        })
        .collect();

    let moments = moments(profile);
    let largest = moments.iter().flatten().map(|it| it.value).max().unwrap_or_default();
    // The library's weights are small integers: this is what one of them stands for.
    let unit = largest.div_ceil(1 << 30).max(1);
    let (weights, factor) = match profile.kind {
        ProfileKind::Cpu | ProfileKind::Wall => (fx::WeightType::TracingMs, unit as f64 / 1e6),
        ProfileKind::Alloc => (fx::WeightType::Bytes, unit as f64),
        ProfileKind::Faults => (fx::WeightType::Samples, unit as f64),
    };
    let begin = fx::Timestamp::from_nanos_since_reference(0);
    let end = fx::Timestamp::from_nanos_since_reference(profile.duration_ns);
    let process = out.add_process(name, profile.pid, begin);
    out.set_process_end_time(process, end);
    for (thread, moments) in profile.threads.iter().zip(moments) {
        let handle = out.add_thread(process, thread.tid, begin, thread.tid == profile.pid);
        // Time without samples belongs to no known thread.
        out.set_thread_name(handle, if thread.name.is_empty() { "(no thread)" } else { &thread.name });
        out.set_thread_end_time(handle, end);
        out.set_thread_samples_weight_type(handle, weights.clone());
        for moment in moments {
            let group = groups.get(moment.sample.group as usize).or(groups.first());
            let category = group.map_or(fx::CategoryHandle::OTHER, |it| it.1);
            let mut labels: Vec<_> = group.map(|it| it.0).into_iter().collect();
            for frame in symbols.stack(profile, moment.sample).iter().rev() {
                labels.push(out.intern_string(&frame.name));
            }
            let frames = labels.into_iter().map(|label| fx::FrameInfo {
                frame: fx::Frame::Label(label),
                category_pair: category.into(),
                flags: fx::FrameFlags::empty(),
            });
            let stack = out.intern_stack_frames(handle, frames);
            let cpu = if profile.kind == ProfileKind::Cpu { moment.value } else { 0 };
            let at = fx::Timestamp::from_nanos_since_reference(moment.ns);
            let weight = (moment.value as f64 / unit as f64).round() as i32;
            out.add_sample(handle, at, stack, fx::CpuDelta::from_nanos(cpu), weight);
        }
    }
    plain(&out, factor).unwrap_or_default()
}

/// A sample at its time.
struct Timed<'a> {
    ns: u64,
    value: u64,
    sample: &'a Sample,
}

/// The samples of each thread, in order.
fn moments(profile: &Profile) -> Vec<Vec<Timed<'_>>> {
    let main = profile.main_column();
    let mut threads: Vec<Vec<Timed>> = profile.threads.iter().map(|_| Vec::new()).collect();
    let mut sums = vec![0_u64; profile.samples.len()];
    for moment in &profile.timeline {
        if let Some(sum) = sums.get_mut(moment.sample as usize) {
            *sum = sum.saturating_add(moment.value);
        }
    }
    // The part of a row that no moment has. Moments were scaled to the account as the row was; less
    // than a sample is rounding.
    let rest = |at: usize| {
        let rest = profile.samples[at].values[main].saturating_sub(sums[at]);
        if sums[at] == 0 || rest >= profile.period.max(1) { rest } else { 0 }
    };
    for moment in &profile.timeline {
        let at = moment.sample as usize;
        let Some(sample) = profile.samples.get(at) else { continue };
        let Some(thread) = threads.get_mut(sample.thread as usize) else { continue };
        let share = moment.value as f64 / sums[at].max(1) as f64;
        let value = ((sample.values[main] - rest(at)) as f64 * share).round() as u64;
        thread.push(Timed { ns: moment.at_ns, value, sample });
    }
    let mut totals = vec![0_u128; threads.len()];
    let rests = || profile.samples.iter().enumerate().map(|(at, sample)| (sample, rest(at)));
    let rests = || rests().filter(|(_, value)| *value > 0);
    for (sample, value) in rests() {
        if let Some(total) = totals.get_mut(sample.thread as usize) {
            *total += u128::from(value);
        }
    }
    // Samples without moments are those after a full timeline.
    let full_ns = profile.timeline.iter().map(|it| it.at_ns).max().unwrap_or(0).min(profile.duration_ns);
    let mut passed = vec![0_u128; threads.len()];
    for (sample, value) in rests() {
        let index = sample.thread as usize;
        let Some(thread) = threads.get_mut(index) else { continue };
        passed[index] += u128::from(value);
        let begin = if sample.values[0] > 0 { full_ns } else { 0 };
        let left = u128::from(profile.duration_ns - begin);
        let ns = begin + (passed[index] * left / totals[index].max(1)) as u64;
        thread.push(Timed { ns, value, sample });
    }
    for thread in &mut threads {
        thread.sort_by_key(|it| it.ns);
    }
    threads
}

/// The JSON, with weights in their unit.
fn plain(profile: &fx::Profile, factor: f64) -> Option<Vec<u8>> {
    let mut json = serde_json::to_value(profile).ok()?;
    for thread in json["threads"].as_array_mut()? {
        for weight in thread["samples"]["weight"].as_array_mut()? {
            *weight = Value::from(weight.as_f64()? * factor);
        }
    }
    serde_json::to_vec(&json).ok()
}
