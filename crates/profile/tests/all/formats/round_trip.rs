//! A written profile is read again; any bytes are read or refused.

use std::io::{Read as _, Write as _};

use dormouse_profile::{
    Error, MappedRange, Node, Profile, ProfileCoverage, ProfileGroup, ProfileKind, Sample, SourceFrame,
    Symbols, Thread, decode, encode,
};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::known;

/// A sample with everything that it refers to.
#[derive(Debug, PartialEq)]
struct Whole {
    group: String,
    thread: Thread,
    stack: Vec<(u64, Vec<SourceFrame>)>,
    values: [u64; 4],
}

fn samples(profile: &Profile, symbols: &Symbols) -> Vec<Whole> {
    let whole = |it: &Sample| Whole {
        group: profile.groups[it.group as usize].name.clone(),
        thread: profile.threads[it.thread as usize].clone(),
        stack: profile.stack(it.stack).map(|at| (at, symbols.get(at).to_vec())).collect(),
        values: it.values,
    };
    profile.samples.iter().map(whole).collect()
}

fn assert_comes_back(profile: &Profile, symbols: &Symbols) {
    let file = encode::pprof(profile, symbols);
    let (read, names) = decode::pprof(&file).unwrap();
    assert_eq!(samples(&read, &names), samples(profile, symbols));
    // Fields that the format lacks are as in a profile of nothing; numbers may be others.
    let same = Profile {
        pid: profile.pid,
        program: profile.program.clone(),
        groups: profile.groups.clone(),
        threads: profile.threads.clone(),
        stacks: profile.stacks.clone(),
        samples: profile.samples.clone(),
        mappings: profile.mappings.clone(),
        ..read.clone()
    };
    assert_eq!(&same, profile);
    let sorted = |profile: &Profile| {
        let mut mappings = profile.mappings.clone();
        mappings.sort_by_key(|it| it.path != profile.program);
        mappings
    };
    assert_eq!(read.mappings, sorted(profile));
    assert_eq!(encode::pprof(&read, &names), file, "a file that was read is written as it was");
}

fn unpacked(file: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

fn refused(bytes: &[u8]) -> String {
    match decode::pprof(bytes) {
        Err(Error::Unreadable(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), prop::sample::select(vec!["GET /", "main", "group"]).prop_map(str::to_owned)]
}

prop_compose! {
    fn frame()(function in text(), file in text(), line in any::<u32>()) -> SourceFrame {
        SourceFrame { function, file, line, inlined: false }
    }
}

prop_compose! {
    fn mapping()(index in 0_u64..4, offset in any::<u64>(), path in text(), build_id in "[0-9a-f]{0,40}")
        -> MappedRange {
        MappedRange { start: index << 16, end: (index + 1) << 16, offset, path, build_id }
    }
}

prop_compose! {
    fn coverage()(figures in any::<[u64; 14]>(), notes in prop::collection::vec(any::<String>(), 0..3)) -> ProfileCoverage {
        let [total, in_groups, threads, armed, refused, blocking, samples, dropped, overruns, ended, cut, in_library, uncopied, merged] =
            figures;
        ProfileCoverage {
            total, in_groups, threads, armed, refused, blocking, samples, dropped, overruns, ended, cut, in_library, uncopied, merged, notes,
        }
    }
}

prop_compose! {
    fn any_profile()(
        kind in prop::sample::select(vec![ProfileKind::Cpu, ProfileKind::Alloc, ProfileKind::Faults]),
        times in any::<[u32; 3]>(),
        names in prop::collection::vec(text(), 0..3),
        threads in prop::collection::vec((any::<u32>(), text()), 1..3),
        addresses in prop::collection::vec((any::<prop::sample::Index>(), 1_u64..0x5_0000), 1..12),
        named in prop::collection::vec(prop::collection::vec(frame(), 0..3), 12),
        rows in prop::collection::vec((any::<[prop::sample::Index; 3]>(), any::<[u32; 4]>()), 0..8),
        mappings in prop::collection::vec(mapping(), 0..3),
        coverage in coverage(),
    ) -> (Profile, Symbols) {
        let mut profile = Profile {
            kind,
            unix_ns: times[0].into(),
            duration_ns: times[1].into(),
            period: times[2].into(),
            program: mappings.last().map(|it| it.path.clone()).unwrap_or_default(),
            groups: vec![ProfileGroup::default()],
            threads: threads.into_iter().map(|(tid, name)| Thread { tid, name }).collect(),
            mappings,
            coverage,
            ..Profile::default()
        };
        profile.groups.extend(names.into_iter().zip(1..).map(|(name, id)| ProfileGroup { id, name, total: None }));
        let mut symbols = Symbols::default();
        for ((parent, address), mut frames) in addresses.into_iter().zip(named) {
            let parent = parent.index(profile.stacks.len() + 1) as u32;
            profile.stacks.push(Node { parent, address });
            let inlined = frames.len().saturating_sub(1);
            frames[..inlined].iter_mut().for_each(|it| it.inlined = true);
            symbols.insert(address, frames);
        }
        for (at, mut values) in rows {
            values[kind.columns().len()..].fill(0);
            profile.samples.push(Sample {
                group: at[0].index(profile.groups.len()) as u32,
                thread: at[1].index(profile.threads.len()) as u32,
                stack: at[2].index(profile.stacks.len() + 1) as u32,
                values: values.map(u64::from),
            });
        }
        (profile, symbols)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_profile_is_read_again((profile, symbols) in any_profile()) {
        assert_comes_back(&profile, &symbols);
    }

    #[test]
    fn a_damaged_profile_is_read_or_refused(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = unpacked(&encode::pprof(&known::profile(), &known::symbols()));
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            if let Ok((profile, symbols)) = decode::pprof(bytes) {
                let file = encode::pprof(&profile, &symbols);
                prop_assert_eq!(samples(&profile, &symbols).len(), profile.samples.len());
                prop_assert!(decode::pprof(&file).is_ok());
            }
        }
    }
}

#[test]
fn the_known_profile_is_read_again() {
    assert_comes_back(&known::profile(), &known::symbols());
    assert_comes_back(&known::profile(), &Symbols::default());
}

#[test]
fn an_unpacked_profile_is_read_too() {
    let file = encode::pprof(&known::profile(), &known::symbols());
    let unpacked = decode::pprof(&unpacked(&file)).unwrap();
    assert_eq!(unpacked, decode::pprof(&file).unwrap());
}

#[test]
fn other_files_are_refused_with_the_reason() {
    assert!(refused(b"").contains("no values"));
    assert!(refused(b"main;blend 12\n").contains("not a profile"), "{}", refused(b"main;blend 12\n"));
    assert!(refused(b"\x1f\x8bnothing").contains("damaged"));
    let file = encode::pprof(&known::profile(), &known::symbols());
    assert!(refused(&file[..file.len() / 2]).contains("damaged"));
    // A profile of something else: one column, whose name is the second string.
    let locks = b"\x0a\x04\x08\x01\x10\x02\x32\x00\x32\x05delay\x32\x0bnanoseconds";
    assert!(refused(locks).contains(r#""delay" in "nanoseconds""#), "{}", refused(locks));
}

#[test]
fn a_bomb_is_refused() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0_u8; 1 << 20];
    for _ in 0..=decode::UNPACKED >> 20 {
        gzip.write_all(&zeros).unwrap();
    }
    assert!(refused(&gzip.finish().unwrap()).contains("too large"));
    // A few bytes each ask for a copy of a long name.
    let mut asks = b"\x0a\x04\x08\x01\x10\x02\x32\x00\x32\x03cpu\x32\x0bnanoseconds".to_vec();
    asks.extend(b"\x32\x80\x80\x40"); // a string of 1 MiB
    asks.extend(vec![b'x'; 1 << 20]);
    let mappings = decode::TEXT >> 20;
    asks.extend(b"\x1a\x02\x28\x03".repeat(mappings)); // mappings of that name
    assert!(decode::pprof(&asks).is_ok());
    asks.extend(b"\x1a\x02\x28\x03");
    assert!(refused(&asks).contains("too large"));
}

#[test]
fn endless_stacks_of_inlined_functions_are_refused() {
    let frame = SourceFrame { function: "f".into(), file: "f.rs".into(), line: 1, inlined: true };
    let mut symbols = Symbols::default();
    symbols.insert(0x1000, vec![frame; 2000]);
    let mut profile = known::profile();
    profile.samples.truncate(1);
    let mut read = |depth| {
        profile.stacks = (0..depth).map(|parent| Node { parent, address: 0x1000 }).collect();
        profile.samples[0].stack = depth;
        decode::pprof(&encode::pprof(&profile, &symbols))
    };
    let most = decode::ENTRIES as u32 / 2000;
    assert!(read(most).is_ok());
    assert!(read(most + 1).is_err());
}

#[test]
fn values_that_would_overflow_are_refused() {
    let mut profile = known::profile();
    profile.samples[0].values[1] = i64::MAX as u64 - 1;
    let file = encode::pprof(&profile, &known::symbols());
    assert!(refused(&file).contains("too large"));
}

#[test]
fn locations_that_share_an_address_keep_their_names() {
    // Tools that drop addresses leave 0 at each location.
    let (profile, symbols) = (known::profile(), known::symbols());
    let bytes = without_addresses(&unpacked(&encode::pprof(&profile, &symbols)));
    let (read, names) = decode::pprof(&bytes).unwrap();
    let stacks = |profile: &Profile, symbols: &Symbols| -> Vec<Vec<String>> {
        let names = |it: &Sample| symbols.stack(profile, it).iter().map(|it| it.name.to_string()).collect();
        profile.samples.iter().map(names).collect()
    };
    assert_eq!(stacks(&read, &names), stacks(&profile, &symbols));
}

/// Locations (field 4) without their addresses (field 3).
fn without_addresses(bytes: &[u8]) -> Vec<u8> {
    fn varint(bytes: &[u8], at: &mut usize) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let begin = at;
        let key = varint(bytes, &mut at);
        let length = varint(bytes, &mut at);
        let end = if key & 7 == 2 { at + length as usize } else { at };
        if key == 4 << 3 | 2 {
            let (mut location, mut inner) = (Vec::<u8>::new(), at);
            while inner < end {
                let begin = inner;
                let key = varint(bytes, &mut inner);
                let length = varint(bytes, &mut inner);
                inner += if key & 7 == 2 { length as usize } else { 0 };
                if key >> 3 != 3 {
                    location.extend(&bytes[begin..inner]);
                }
            }
            out.extend([4 << 3 | 2, u8::try_from(location.len()).unwrap()]);
            out.extend(location);
        } else {
            out.extend(&bytes[begin..end]);
        }
        at = end;
    }
    out
}
