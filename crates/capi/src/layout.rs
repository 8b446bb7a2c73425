//! Checks that the committed headers match the Rust types: a C file of static assertions, generated
//! from here, compiles.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use dormouse::{Key, Probe};

use crate::error::{Code, Error, Report};
use crate::groups::{EnteredId, GroupId, TaskId};
use crate::list::KeyInfo;
use crate::metrics::{FORMATS, Measured, WAITS};
use crate::probe::{Value, kind};
use crate::profile::{KINDS, LIVE, UNWIND, Wanted};
use crate::waits::{Durations, Times};
use crate::watch::{ACCESSES, Counts, Place, Spec, State, flag};

/// C's name of a structure, its size, and its fields with their offsets.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layout {
    ($name:literal, $type:ty, $($field:ident),+) => {
        ($name, size_of::<$type>(), vec![$((stringify!($field), offset_of!($type, $field))),+])
    };
}

fn layouts() -> Vec<Layout> {
    vec![
        ("struct dormouse_key", size_of::<Key>(), Key::LAYOUT.to_vec()),
        ("struct dormouse_probe", size_of::<Probe>(), Probe::LAYOUT.to_vec()),
        layout!("struct dormouse_error", Error, size, code, os_error, reserved, address, message),
        layout!(
            "struct dormouse_report",
            Report,
            size,
            reserved,
            keys,
            sites,
            skipped,
            pages,
            barriers,
            traps,
            unsealed,
            elapsed_ns
        ),
        layout!(
            "struct dormouse_key_info",
            KeyInfo,
            size,
            line,
            key,
            name,
            file,
            object,
            sites,
            leases,
            on,
            baseline,
            reserved
        ),
        layout!("struct dormouse_group", GroupId, number, flags),
        layout!("struct dormouse_task", TaskId, number, group),
        layout!("struct dormouse_entered", EnteredId, task, place),
        layout!(
            "struct dormouse_watch_spec",
            Spec,
            size,
            access,
            address,
            length,
            name,
            group,
            flags,
            rate,
            most,
            equals,
            mask
        ),
        layout!(
            "struct dormouse_watch_report",
            Counts,
            size,
            state,
            hits,
            delivered,
            passed,
            lost,
            sites,
            other_sites,
            threads_armed,
            threads_alive,
            armed_ns,
            wall_ns,
            late,
            unread,
            unarmed,
            rests,
            signal_taken
        ),
        layout!(
            "struct dormouse_watch_site",
            Place,
            size,
            thread,
            address,
            group,
            hits,
            before,
            after,
            task,
            time_ns,
            stack,
            depth,
            has_values,
            reserved
        ),
        layout!("struct dormouse_profile_spec", Wanted, size, kind, hz, flags, bytes, groups),
        ("struct dormouse_value", size_of::<Value>(), {
            vec![("kind", offset_of!(Value, kind)), ("as", offset_of!(Value, of))]
        }),
        ("struct dormouse_text", 16, vec![("start", 0), ("length", 8)]),
    ]
}

fn layouts_of_waits() -> Vec<Layout> {
    vec![
        layout!("struct dormouse_metrics_spec", Measured, size, flags),
        layout!("struct dormouse_durations", Durations, count, p50_ns, p90_ns, p99_ns, max_ns, max_task),
        layout!(
            "struct dormouse_group_waits",
            Times,
            size,
            reserved,
            poll_ns,
            runnable_ns,
            await_ns,
            requests,
            polls,
            delays,
            awaits
        ),
    ]
}

fn constants() -> Vec<(&'static str, u32)> {
    [
        ("OK", Code::Ok),
        ("INVALID", Code::Invalid),
        ("UNEXPECTED_TEXT", Code::UnexpectedText),
        ("NOT_TEXT", Code::NotText),
        ("DENIED", Code::Denied),
        ("TRAPS_BLOCKED", Code::TrapsBlocked),
        ("TOO_MANY_LEASES", Code::TooManyLeases),
        ("REENTRANT", Code::Reentrant),
        ("BAD_GLOB", Code::BadGlob),
        ("NO_AGENT", Code::NoAgent),
        ("OTHER", Code::Other),
        ("BUG", Code::Bug),
        ("NO_MEMORY", Code::NoMemory),
        ("NO_REGISTER", Code::NoRegister),
        ("NO_PROFILE", Code::NoProfile),
    ]
    .map(|(name, code)| (name, code as u32))
    .into_iter()
    .chain([
        ("VALUE_NOTHING", 0),
        ("VALUE_SIGNED", kind::SIGNED),
        ("VALUE_UNSIGNED", kind::UNSIGNED),
        ("VALUE_FLOAT", kind::FLOAT),
        ("VALUE_BOOLEAN", kind::BOOLEAN),
        ("VALUE_TEXT", kind::TEXT),
        ("WRITE", ACCESSES[0].0),
        ("READ_WRITE", ACCESSES[1].0),
        ("EXECUTE", ACCESSES[2].0),
        ("WATCH_CHANGED", flag::CHANGED),
        ("WATCH_EQUALS", flag::EQUALS),
        ("WATCH_SCOPED", flag::SCOPED),
        ("WATCH_FLEXIBLE", flag::FLEXIBLE),
        ("WATCH_ALL_SLOTS", flag::ALL_SLOTS),
        ("WATCH_ARMED", State::Armed as u32),
        ("WATCH_RESTING", State::Resting as u32),
        ("WATCH_OVER", State::Over as u32),
        ("PROFILE_CPU", KINDS[0].0),
        ("PROFILE_ALLOC", KINDS[1].0),
        ("PROFILE_FAULTS", KINDS[2].0),
        ("PROFILE_WALL", KINDS[3].0),
        ("PROFILE_LIVE", LIVE),
        ("PROFILE_UNWIND", UNWIND),
        ("METRICS_OPENMETRICS", FORMATS[0].0),
        ("METRICS_TEXT", FORMATS[1].0),
        ("METRICS_PROTOBUF", FORMATS[2].0),
        ("METRICS_WAITS", WAITS),
    ])
    .collect()
}

/// Compiles the assertions; the error is the compiler's message.
fn compile(assertions: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.c");
    std::fs::write(&file, format!("#include <dormouse/dormouse.h>\n{assertions}")).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&file)
        .output()
        .expect("a C compiler");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn assertion(what: &str, value: usize) -> String {
    format!("_Static_assert({what} == {value}, \"{what}\");\n")
}

#[test]
fn the_headers_lay_out_what_rust_does() {
    let mut all = String::new();
    for (name, size, fields) in layouts().into_iter().chain(layouts_of_waits()) {
        all += &assertion(&format!("sizeof({name})"), size);
        for (field, offset) in fields {
            all += &assertion(&format!("offsetof({name}, {field})"), offset);
        }
    }
    for (name, value) in constants() {
        writeln!(all, "{}", assertion(&format!("DORMOUSE_{name}"), value as usize)).unwrap();
    }
    all += &assertion("sizeof(enum dormouse_code)", size_of::<Code>());
    compile(&all).unwrap();
}

#[test]
fn a_layout_that_differs_is_noticed() {
    let wrong = assertion("offsetof(struct dormouse_key, leases)", 12);
    assert!(compile(&wrong).unwrap_err().contains("leases"));
}
