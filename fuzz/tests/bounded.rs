//! Each target for a second, with bytes of proptest: some at random, some like what is expected.
//!
//! Short by default; `DORMOUSE_STRESS_SECONDS` gives the time of each.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dormouse_fuzz::{
    agent, answers, command_line, mappings, network, object_file, profile, range_map, recorded_file, records,
    request, rule, trace_file, unwind_table,
};
use dormouse_unwind::{MappedBytes, UnwindTables};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// Bytes at random; or an example with some of its bytes changed, and cut or followed by others.
fn bytes(examples: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    let random = || prop::collection::vec(any::<u8>(), 0..400);
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    let like = (prop::sample::select(examples), changes, any::<Index>(), any::<bool>(), random()).prop_map(
        |(example, changes, at, is_cut, more)| {
            let mut bytes = example.to_vec();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if is_cut {
                bytes.truncate(at.index(bytes.len()));
                bytes.extend(more);
            }
            bytes
        },
    );
    prop_oneof![random(), like]
}

fn drive(check: fn(&[u8]), examples: &'static [&'static [u8]]) {
    let seconds = std::env::var("DORMOUSE_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    for example in examples {
        check(example);
    }
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let runs = Cell::new(0_u64);
    while Instant::now() < until {
        // A new one each time: it counts its cases, and is done when it has had them.
        let result = TestRunner::new(config.clone()).run(&bytes(examples), |bytes| {
            runs.set(runs.get() + 1);
            check(&bytes);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(runs.get() > 0, "nothing was tried");
    println!("{} inputs", runs.get());
}

#[test]
fn a_range_map_does_what_a_tree_does() {
    drive(range_map::check, &[&[0, 1, 9, 0x82, 4, 6, 7, 4, 5, 3, 0, 255, 4, 0, 255, 7, 255, 1]]);
}

#[test]
fn a_trace_is_written_as_it_was_read() {
    drive(
        trace_file::check,
        &[&[1, 2, 0, 3, 0, 4, 0, 8, 3, 0, 10, 2, 1, 3, 1, 5, 1, 1, 9, 1, 1, 12, 6, 0], &[0]],
    );
}

#[test]
fn a_request_is_read_or_refused() {
    drive(
        request::check,
        &[
            br#"{"v":1,"id":7,"op":"on","glob":"db.{a,b}*,![x-z]?","for_ms":5,"keep":false}"#,
            br#"{"v":1,"id":7,"op":"keys","glob":"\\*"}"#,
            b"{{a,[]]b},c}*,!**",
        ],
    );
}

#[test]
fn an_agent_survives_what_it_is_sent() {
    drive(
        agent::check,
        &[
            b"{\"v\":1,\"id\":2,\"op\":\"keys\"}\n{\"v\":1,\"id\":3,\"op\":\"stat\"}\n",
            b"{\"v\":1,\"id\":2,\"op\":\"trace\",\"glob\":\"*\"}\n",
            b"\0{\"v\":2,\"id\":1,\"op\":\"hello\",\"client\":\"\"}\n\n",
        ],
    );
}

#[test]
fn durations_and_socket_tables_are_read_or_refused() {
    drive(
        command_line::check,
        &[
            b"1h30m0.25s",
            b"18446744073709551615ns",
            b"0: 00000002 00000000 00010000 0001 01 9 /run/dormouse/12.sock\n",
        ],
    );
}

#[test]
fn records_are_read_up_to_the_first_fault() {
    const RECORD: &[u8] = &[
        56, 0, 1, 2, 7, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 5,
        3, 0, b't', b'e', b'a', 1, 255, 255, 255, 255, 255, 255, 255, 255, 4, 1, 6, 1, 0, 27, 0, 0, 0,
    ];
    drive(records::check, &[RECORD]);
}

#[test]
fn a_profile_is_read_or_refused() {
    // Columns, three samples with a group, a mapping, two locations, a function, the strings.
    const PROFILE: &[u8] = b"\x0a\x04\x08\x01\x10\x02\
        \x12\x0d\x0a\x02\x01\x02\x12\x01\x07\x1a\x04\x08\x05\x10\x06\
        \x12\x06\x0a\x01\x02\x12\x01\x05\x12\x03\x12\x01\x01\
        \x1a\x08\x08\x01\x10\x10\x18\x20\x28\x04\
        \x22\x0c\x08\x01\x10\x01\x18\x11\x22\x04\x08\x01\x10\x09\
        \x22\x06\x08\x02\x10\x01\x18\x12\
        \x2a\x06\x08\x01\x10\x03\x20\x04\
        \x32\x00\x32\x03cpu\x32\x0bnanoseconds\x32\x05blend\x32\x06tea.rs\x32\x05group\x32\x06GET /a\
        \x48\x05\x50\x06\x60\x07\x6a\x01\x04";
    assert!(dormouse_profile::decode::pprof(PROFILE).is_ok());
    drive(profile::check, &[PROFILE]);
}

#[test]
fn a_recorded_file_is_read_or_refused() {
    drive(recorded_file::check, &[
        b"\x51\0\0\0\x03\x04file\0\0\0\0\0\0\0\0\x01{\"version\":1,\"seen\":\"x\",\"real_ns\":0,\"mono_ns\":0,\"pid\":1}",
    ]);
}

#[test]
fn a_rule_is_armed_as_understood() {
    drive(
        rule::check,
        &[
            b"request>500ms in POST *,!POST /health every 10m; panic",
            b"cpu>90% for 10s; brew.step.cups>=-1.5; db.query.sql==\"tea\"",
        ],
    );
}

#[test]
fn an_answer_is_read_or_refused() {
    drive(
        answers::check,
        &[
            br#"{"protocol":1,"version":"0","pid":1,"start_ticks":1,"name":"hatter","exe":"/hatter","uid":0,"keys":1,"sites":1}"#,
            br#"{"keys":[{"name":"a.b","file":"a.rs","line":1,"kind":"probe","on":true,"initial":false,"sites":2}]}"#,
            br#"{"mono_ns":1,"process_cpu_ns":1,"unattributed_cpu_ns":0,"groups":[],"threads":[],"keys_on":0,"dropped":0}"#,
            br#"{"matched":["a"],"probes":[{"id":7,"name":"a","file":"a.rs","line":1,"fields":["n"]}],"batch":{"keys":1,"sites":1,"pages":1,"barriers":1,"traps":0,"elapsed_ns":5},"clock":{"tsc":0,"tsc_hz":1e9,"mono_ns":0,"real_ns":0}}"#,
            br#"{"dropped":{"rings":3,"client":4}}"#,
            br#"{"reports":[],"more":true,"lost":2,"look_us":1000}"#,
        ],
    );
}

#[test]
fn mappings_are_read_up_to_a_fault() {
    drive(
        mappings::check,
        &[
            b"1000-3000 r-xp 00002000 fe:01 12    /bin/tea\n7000-8000 rw-p 00000000 00:00 0 \n",
            b"fffffffff000-ffffffffffff ---s 00000000 00:01 7   /memfd:a\\012b (deleted)\n",
            b"7f00-7fff rw-p 00000000 00:00 0   [heap]\nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n",
        ],
    );
}

#[test]
fn texts_of_networks_are_read_or_refused() {
    drive(
        network::check,
        &[
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
            b"service.name=tea,deployment.environment=a%20b,x-y=%C3%A9",
            b"\x0a\x0b\x08\x03\x12\x07too old",
        ],
    );
}

#[test]
fn symbols_of_any_object_have_answers() {
    // A word of the header, and places all over the file.
    drive(object_file::check, &[b"\0", b"\x28\0\0\xff", b"\0\x10\0\x80\0\x20\0\x01\0\x30\0\xff"]);
}

#[test]
fn a_table_of_callers_is_read_or_refused() {
    // An index of one function, the common entry, and its own.
    const TABLE: &[u8] = &[
        1, 27, 3, 59, 16, 0, 0, 0, 1, 0, 0, 0, 0, 64, 0, 0, 44, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 1, 122, 82,
        0, 1, 120, 16, 1, 27, 12, 7, 8, 144, 1, 0, 0, 44, 0, 0, 0, 28, 0, 0, 0, 204, 63, 0, 0, 64, 0, 0, 0,
        0, 65, 14, 16, 134, 2, 67, 13, 6, 10, 2, 9, 12, 7, 8, 198, 65, 11, 3, 4, 0, 15, 2, 119, 8, 46, 4, 0,
        0, 0, 0, 0,
    ];
    let bytes: &[u8] = object(TABLE).leak();
    let mut tables = UnwindTables::new(MappedBytes { address: 0x1000, bytes });
    tables.update(b"1000-6000 r-xp 00000000 fe:01 7 /object\n");
    assert_eq!(tables.read_whole(0x1000).map_or(0, |table| table.rows().count()), 6);
    drive(unwind_table::check, vec![bytes].leak());
}

/// An object with a head, of which the index of its entries is the last segment.
fn object(table: &[u8]) -> Vec<u8> {
    const HEAD: u64 = 64 + 2 * 56;
    let mut bytes = vec![0; HEAD as usize];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &[0x7f, b'E', b'L', b'F', 2, 1]);
    put(32, &64_u64.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &2_u16.to_le_bytes());
    for (segment, kind, start, length) in [(64, 1_u32, 0, 0x5000_u64), (120, 0x6474_e550, HEAD, 44)] {
        put(segment, &kind.to_le_bytes());
        put(segment + 8, &start.to_le_bytes());
        put(segment + 16, &start.to_le_bytes());
        put(segment + 40, &length.to_le_bytes());
    }
    bytes.extend(table);
    bytes
}
