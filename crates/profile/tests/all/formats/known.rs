//! A profile whose shares are known.
//!
//! | group | thread | stack | seconds |
//! |---|---|---|---|
//! | GET /blend | worker-0 | main, serve, blend, mix (inlined) | 4 |
//! | GET /blend | worker-1 | main, serve, blend | 1 |
//! | GET /steep | worker-1 | main, serve, steep | 3 |
//! | GET /steep | worker-0 | no sample | 0.5 |
//! | none | worker-1 | main, poll | 1 |
//! | none | worker-0 | not known | 0.5 |

use dormouse_profile::{
    MappedRange, Node, Profile, ProfileGroup, ProfileKind, Sample, SourceFrame, Symbols, Thread,
};

pub(crate) const BLEND: &str = "<tea::Blend as tea::Make>::blend";
pub(crate) const MIX: &str = "tea::mix::{{closure}}";
pub(crate) const STEEP: &str = "tea::steep::<[u8; 4]>";
pub(crate) const POLL: &str = "mio::poll";

/// Functions with their own and their whole share of the CPU time, in hundredths.
pub(crate) const SHARES: [(&str, f64, f64); 8] = [
    ("main", 0.0, 90.0),
    ("tea::serve", 0.0, 80.0),
    (BLEND, 10.0, 50.0),
    (MIX, 40.0, 40.0),
    (STEEP, 30.0, 30.0),
    (POLL, 10.0, 10.0),
    ("(not sampled)", 5.0, 5.0),
    ("(stack unknown)", 5.0, 5.0),
];

const SECOND: u64 = 1_000_000_000;
const PROGRAM: u64 = 0x5555_5555_0000;
const LIBRARY: u64 = 0x7f00_0000_0000;

fn mapping(start: u64, path: &str, build_id: &str) -> MappedRange {
    MappedRange {
        start,
        end: start + 0x10000,
        offset: 0x1000,
        path: path.to_owned(),
        build_id: build_id.to_owned(),
    }
}

pub(crate) fn symbols() -> Symbols {
    let frame = |function: &str, file: &str, line, inlined| SourceFrame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
        inlined,
    };
    let mut symbols = Symbols::default();
    symbols.insert(PROGRAM, vec![frame("main", "src/main.rs", 3, false)]);
    symbols.insert(PROGRAM + 1, vec![frame("tea::serve", "src/serve.rs", 10, false)]);
    symbols.insert(
        PROGRAM + 2,
        vec![frame(MIX, "src/mix.rs", 7, true), frame(BLEND, "src/blend.rs", 21, false)],
    );
    symbols.insert(PROGRAM + 3, vec![frame(BLEND, "src/blend.rs", 22, false)]);
    symbols.insert(PROGRAM + 4, vec![frame(STEEP, "src/steep.rs", 5, false)]);
    symbols.insert(LIBRARY, vec![frame(POLL, "", 0, false)]);
    symbols
}

pub(crate) fn profile() -> Profile {
    let mut profile = Profile {
        kind: ProfileKind::Cpu,
        unix_ns: 1_763_800_000 * SECOND,
        duration_ns: 10 * SECOND,
        period: 10_000_000,
        pid: 4000,
        program: "/opt/tea party/teaparty".to_owned(),
        groups: ["", "GET /blend", "GET /steep"]
            .iter()
            .zip(0..)
            .map(|(name, id)| ProfileGroup { id, name: (*name).to_owned(), total: None })
            .collect(),
        threads: ["worker-0", "worker-1"]
            .iter()
            .zip(4001..)
            .map(|(name, tid)| Thread { tid, name: (*name).to_owned() })
            .collect(),
        mappings: vec![
            mapping(LIBRARY, "/usr/lib/libmio.so", "abcdef01"),
            mapping(PROGRAM, "/opt/tea party/teaparty", "0123456789abcdef0123456789abcdef01234567"),
        ],
        ..Profile::default()
    };
    profile.coverage.total = 10 * SECOND;
    profile.coverage.in_groups = 85 * SECOND / 10;
    profile.coverage.notes.push("2 threads were refused a timer: RLIMIT_SIGPENDING".to_owned());
    let main = node(&mut profile, 0, PROGRAM);
    let serve = node(&mut profile, main, PROGRAM + 1);
    let mix = node(&mut profile, serve, PROGRAM + 2);
    let blend = node(&mut profile, serve, PROGRAM + 3);
    let steep = node(&mut profile, serve, PROGRAM + 4);
    let poll = node(&mut profile, main, LIBRARY);
    for (group, thread, stack, samples, tenths) in [
        (1, 0, mix, 400, 40),
        (1, 1, blend, 100, 10),
        (2, 1, steep, 300, 30),
        (2, 0, 0, 0, 5),
        (0, 1, poll, 100, 10),
        (0, 0, 0, 50, 5),
    ] {
        let values = [samples, tenths * SECOND / 10, 0, 0];
        profile.samples.push(Sample { group, thread, stack, values });
    }
    profile
}

fn node(profile: &mut Profile, parent: u32, address: u64) -> u32 {
    profile.stacks.push(Node { parent, address });
    profile.stacks.len() as u32
}
