//! A library that uses `dormouse-api` alone (this module), in a service with dormouse.
#![cfg(not(dormouse_fallback))]

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dormouse::record::Field;
use dormouse::{Event, Group, keys};
use dormouse_api::{Host, probe, set_host, static_key, unlikely};
use dormouse_testkit::in_child;

static_key! { static CHECKED: "library.checked" = false; }
static POOL: dormouse_api::Group = dormouse_api::Group::new("library pool");

#[inline(never)]
fn query(sql: &str, rows: Option<i32>) {
    probe!("library.query", sql, rows = rows, ok = true, share = 0.5, bytes = 8_usize, order = ?Some(7));
}

#[test]
fn the_services_trace_has_a_librarys_records() {
    in_child(|| {
        query("asleep", None);
        let mut trace = dormouse::trace("library.*").unwrap();
        Group::new("route").scope(|| query("select 1", Some(-3)));
        query("", None);
        let mut seen = Vec::new();
        trace.poll(|key, _, record| {
            let probe = key.attached::<dormouse::Probe>().unwrap();
            assert_eq!(probe.fields().collect::<Vec<_>>(), ["sql", "rows", "ok", "share", "bytes", "order"]);
            assert_eq!(record.values.len(), 6);
            seen.push((Group::by_id(record.group), format!("{:?}", record.values)));
        });
        let fields = |sql, rows| {
            let last =
                [Field::Boolean(true), Field::Float(0.5), Field::Unsigned(8), Field::Formatted("Some(7)")];
            format!("{:?}", [&[Field::Text(sql), rows][..], &last].concat())
        };
        let route = Some(Group::new("route"));
        assert_eq!(
            seen,
            [(route, fields("select 1", Field::Signed(-3))), (None, fields("", Field::Nothing))]
        );
    });
}

#[test]
fn a_librarys_keys_are_switched_by_name() {
    in_child(|| {
        // One site, whatever the compiler puts into its callers.
        #[inline(never)]
        fn look() -> bool {
            unlikely!(CHECKED)
        }
        assert!(!look());
        let all = keys::all();
        let key =
            |name: &str| all.iter().find(|used| used.key.name() == name).map(|used| (used.key, used.sites));
        let (checked, sites) = key("library.checked").unwrap();
        assert_eq!(sites, 1);
        assert!(key("library.query").is_some());
        checked.enable().unwrap();
        assert!(look() && CHECKED.key().is_enabled());
        checked.disable().unwrap();
        assert!(!look());
    });
}

#[test]
fn a_librarys_group_counts_from_init_on() {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: no other thread of this child reads the environment.
        unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", directory.path()) };
        POOL.scope(|| assert_eq!(Group::current(), None));
        dormouse::init().unwrap();
        let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let group = Group::new("library pool");
        POOL.scope(|| assert_eq!(Group::current(), Some(group)));
        let mut polls = 0;
        let future = POOL.instrument(std::future::poll_fn(|_| {
            assert_eq!(Group::current(), Some(group));
            polls += 1;
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        }));
        {
            let mut future = pin!(future);
            while future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                assert_eq!((Group::current(), group.read().alive), (None, 1));
            }
        }
        let read = group.read();
        assert_eq!((read.started, read.finished, read.entries), (2, 2, 4));
    });
}

#[test]
fn a_second_host_is_told_who_was_first() {
    static OTHER: Host = Host::new("another dormouse 9", |_, _| ());
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: no other thread of this child reads the environment.
        unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", directory.path()) };
        set_host(&OTHER).unwrap();
        let warnings = dormouse::init().unwrap().warnings().join("\n");
        assert!(warnings.contains("go to another dormouse 9, which began before dormouse 0."), "{warnings}");
    });
}
