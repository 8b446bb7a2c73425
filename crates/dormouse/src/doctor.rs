//! `doctor`: what dormouse can do in this process, and what prevents the rest.

use std::os::unix::fs::MetadataExt as _;

use dormouse_protocol::{Check, CheckState, Doctor, DoctorRequest, WireError};
use dormouse_sys::process::{identity, schedstat::Schedstat};
use dormouse_sys::{Capability, State, records, thread};

use crate::agent::{Answered, Asked};
use crate::core::asleep::asleep;
use crate::core::{ends, objectives, panics, ungrouped};
use crate::environment;
use crate::features::cost::cost_check;
use crate::features::objectives::unmatched_checks;
use crate::features::{publish, stalls, stat, triggers, watch};

/// Reads of a clock that are timed together.
const READS: u32 = 1000;

fn threads_check() -> Capability {
    match (thread::refused(), dormouse_events::overflows()) {
        (0, 0) => Capability::ok("records.threads", format!("room for {} threads", thread::MAX_THREADS)),
        (refused, deep) => Capability::limited(
            "records.threads",
            format!("{refused} threads found no place, {deep} tasks were nested too deep to be counted"),
        ),
    }
}

/// The cost of a read of the clock on this thread, beside that of the counter alone and of the
/// system call.
fn clock_cost() -> Capability {
    let [clock, counter, call] = [
        cost(|| _ = dormouse_clock::thread_cpu_ns()),
        cost(|| _ = dormouse_clock::rdtsc()),
        cost(|| _ = dormouse_sys::clock::ask(libc::CLOCK_THREAD_CPUTIME_ID)),
    ];
    let tier = dormouse_clock::tier();
    Capability::ok(
        "clock.read",
        format!("{clock:.0} ns by {tier}; the counter alone {counter:.0} ns, the system call {call:.0} ns"),
    )
}

/// Nanoseconds that `read` takes: the best of a few rounds, since a disturbance makes one longer.
fn cost(read: impl Fn()) -> f64 {
    let round = |_| {
        let start = std::time::Instant::now();
        (0..READS).for_each(|_| read());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

/// Without `/proc` much is answered, with holes that this explains.
fn proc_check() -> Option<Capability> {
    let why = std::fs::metadata("/proc/self/task").err()?;
    let detail = format!("/proc/self/task: {why}; threads are not listed, names are missing");
    Some(Capability::unavailable("host.proc", detail).with_fix("mount /proc where the service runs"))
}

/// The files of `/proc` about a process that has changed its user are root's.
fn dumpable_check() -> Option<Capability> {
    const MISSING: &str = "the process is not dumpable, as after a change of its user: no long polls and no stacks of \
                           single threads; memory, and the system calls of stalled threads, may be unknown";
    let owner = |path| std::fs::metadata(path).map(|of| of.uid()).ok();
    (owner("/proc/thread-self/mem")? != owner("/proc/thread-self")?).then(|| {
        let fix = "call prctl(PR_SET_DUMPABLE, 1) after the change of user, if that user may read its memory";
        Capability::limited("host.dumpable", MISSING).with_fix(fix)
    })
}

fn outcomes_check() -> Option<Capability> {
    let refused = ends::refused_words();
    let detail = format!("{refused} calls of dormouse::outcome had no place for their words");
    (refused > 0).then(|| {
        Capability::limited("requests.outcomes", detail).with_fix(
            "name kinds of outcomes: a process has room for 6 words, in some thousand tasks at once",
        )
    })
}

fn asleep_check() -> Option<Capability> {
    let detail = format!("dormouse is {}", asleep()?);
    Some(Capability::limited("agent.asleep", detail).with_fix("run dormouse wake on it"))
}

/// Whether the kernel reports for how long threads wait for a CPU. Checked on this thread, which
/// has run.
fn runnable_check() -> Capability {
    const NAME: &str = "host.schedstat";
    match Schedstat::of_own(identity::tid()) {
        Some(Schedstat { runnable_ns: Some(_), .. }) => {
            Capability::ok(NAME, "the kernel reports how long each thread waited for a CPU")
        }
        Some(_) => Capability::limited(NAME, "the kernel does not count how long threads wait for a CPU")
            .with_fix("boot it with `delayacct`, or with CONFIG_SCHEDSTATS"),
        None => {
            Capability::limited(NAME, "/proc has no schedstat: how long threads wait for a CPU is not known")
                .with_fix("mount /proc where the service runs, on a kernel with CONFIG_SCHED_INFO")
        }
    }
}

impl Answered for DoctorRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Doctor, WireError> {
        let settings = environment::capabilities();
        let rings = match records::dropped() {
            0 => Capability::ok(
                "records.rings",
                format!("{} rings of {} KiB, nothing dropped", records::RINGS, records::RING_BYTES / 1024),
            ),
            dropped => Capability::limited("records.rings", format!("{dropped} records dropped so far")),
        };
        let checks = dormouse_keys::capability()
            .into_iter()
            .chain(settings)
            .chain(asleep_check())
            .chain(dormouse_clock::capability())
            .chain([watch::client::capability(), dormouse_profile::capability(), clock_cost(), rings])
            .chain(dormouse_profile::unwind_tables::capability())
            .chain([threads_check(), runnable_check(), stalls::block_io_check(), stat::cpu_limits_check()])
            .chain([stat::pressure_check()])
            .chain(dormouse_waits::capability())
            .chain(dormouse_waits::calls::capability())
            .chain(dormouse_locks::capability())
            .chain([publish::capability()])
            .chain(panics::capability())
            .chain(outcomes_check())
            .chain(objectives::capability())
            .chain(unmatched_checks())
            .chain(triggers::unmatched_checks())
            .chain(ungrouped::capability())
            .chain([cost_check()])
            .chain(stat::outliving_check())
            .chain(proc_check())
            .chain(dumpable_check())
            .chain(dormouse_sys::descriptors::capability())
            .chain(asked.place.check());
        Ok(Doctor { checks: checks.map(check).collect() })
    }
}

fn check(of: Capability) -> Check {
    Check {
        name: of.name.to_owned(),
        state: match of.state {
            State::Ok => CheckState::Ok,
            State::Limited => CheckState::Limited,
            State::Unavailable => CheckState::Unavailable,
        },
        detail: of.detail.into_owned(),
        fix: of.fix.map(std::borrow::Cow::into_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_testkit::{in_child, skip};

    #[test]
    fn an_untraceable_process_says_so() {
        in_child(|| {
            assert!(dumpable_check().is_none());
            if let Err(why) = rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)) {
                return skip(format_args!("no change of user: {why}"));
            }
            assert!(dumpable_check().unwrap().detail.contains("not dumpable"));
        });
    }
}
