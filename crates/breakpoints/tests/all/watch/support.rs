//! The tests' common ground: a variable to watch, and a child process that can watch.

use std::sync::atomic::AtomicU64;

use dormouse_breakpoints::{Access, Error, WatchSpec};
use dormouse_sys::perf::Error as Refusal;
use dormouse_testkit::{Child, skip};

pub(crate) use crate::arch::write_to;

/// The variable that tests watch.
pub(crate) static VALUE: AtomicU64 = AtomicU64::new(0);

/// A watch of writes to [`VALUE`], at any rate.
pub(crate) fn of_value() -> WatchSpec {
    of(&VALUE).named("value")
}

/// A watch of writes to a word, at any rate.
pub(crate) fn of(word: &AtomicU64) -> WatchSpec {
    WatchSpec::new(word.as_ptr().addr(), 8, Access::Write).rate(u32::MAX)
}

/// One write, in this function also where nothing is inlined.
#[inline(never)]
pub(crate) fn write(value: u64) {
    write_to(VALUE.as_ptr(), value);
}

/// Runs `body` in a child, if watches work here.
#[track_caller]
pub(crate) fn in_child<F: FnOnce()>(body: F) {
    in_child_with(Child::new(), body);
}

/// [`in_child`], with other expectations.
#[track_caller]
pub(crate) fn in_child_with<F: FnOnce()>(child: Child<'_>, body: F) {
    child.run(|| {
        if let Some(obstacle) = obstacle() {
            return skip(obstacle);
        }
        body();
    });
}

/// The reason why nothing can be watched here.
pub(crate) fn obstacle() -> Option<String> {
    let error = of_value().arm().err()?;
    let is_of_the_machine = match &error {
        Error::Filtered => true,
        Error::Thread { source: Refusal::TooOld { .. }, .. } => kernel() < (5, 19),
        Error::Thread { source, .. } => {
            matches!(source, Refusal::Denied { .. } | Refusal::NoEvents(_) | Refusal::NoSlot(_))
        }
        _ => false,
    };
    assert!(is_of_the_machine, "{error}");
    Some(error.to_string())
}

/// The version of the kernel, by its first two numbers.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
