//! A service's own account of what it has used: a test compares dormouse's figures with it.
//!
//! The test talks to the service by its standard input and output. The service writes the address
//! where it listens. Then it answers each line by a JSON object, its account so far; the line
//! `release` also ends all that [`hold`] has blocked. The service ends with its standard input, so
//! also with the test.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use dormouse_testkit::{spin_for, thread_cpu};

/// Nanoseconds, or how often, by the name of what it is: `cpu GET /burn`.
static ACCOUNT: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Whether blocked threads may go on.
static RELEASED: Mutex<bool> = Mutex::new(false);
static RELEASE: Condvar = Condvar::new();

/// Uses this much CPU time on the calling thread for `group`.
pub(crate) fn burn(group: &str, time: Duration) {
    let before = thread_cpu();
    spin_for(time);
    note("cpu", group, thread_cpu().saturating_sub(before).as_nanos() as u64);
}

/// Adds to the account.
pub(crate) fn note(what: &str, group: &str, amount: u64) {
    *account().entry(format!("{what} {group}")).or_default() += amount;
}

/// Keeps the largest amount in the account.
pub(crate) fn note_most(what: &str, group: &str, amount: u64) {
    let mut account = account();
    let most = account.entry(format!("{what} {group}")).or_default();
    *most = amount.max(*most);
}

/// The number of workers that the test asks for: the first argument of a service.
pub(crate) fn workers() -> usize {
    std::env::args().nth(2).and_then(|workers| workers.parse().ok()).unwrap_or(2)
}

/// Blocks the calling thread until the test releases it.
pub(crate) fn hold(group: &str) {
    note("held", group, 1);
    let released = RELEASED.lock().expect("nobody panics with it");
    drop(RELEASE.wait_while(released, |released| !*released));
}

/// Tells the test where the service listens, and answers it from now on.
pub(crate) fn serve(address: SocketAddr) {
    println!("{address}");
    thread::spawn(|| {
        for line in io::stdin().lines().map_while(Result::ok) {
            if line == "release" {
                *RELEASED.lock().expect("nobody panics with it") = true;
                RELEASE.notify_all();
            }
            let account = serde_json::json!(&*account());
            println!("{account}");
            let _ = io::stdout().flush();
        }
        std::process::exit(0);
    });
}

fn account() -> MutexGuard<'static, BTreeMap<String, u64>> {
    ACCOUNT.lock().expect("nobody panics with it")
}
