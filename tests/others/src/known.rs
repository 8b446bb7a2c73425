//! A service's own account of what it has used: a test compares dormouse's figures with it.
//!
//! The test talks to the service by its standard input and output. The service writes the address
//! where it listens; then it answers each line by a JSON object of what it has used so far. It ends
//! with its standard input, so also with the test.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use dormouse_testkit::{spin_for, thread_cpu};

/// Nanoseconds by the name of what has used them: `cpu GET /burn`.
static USED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Uses this much CPU time on the calling thread, and writes down how much it was.
pub(crate) fn burn(group: &str, time: Duration) {
    let before = thread_cpu();
    spin_for(time);
    let used = thread_cpu() - before;
    note("cpu", group, used);
}

/// Writes down that work of `group` has used this much of `what`.
pub(crate) fn note(what: &str, group: &str, time: Duration) {
    let mut all = USED.lock().expect("nobody panics with it");
    *all.entry(format!("{what} {group}")).or_default() += time.as_nanos() as u64;
}

/// Tells the test where the service listens, and answers it from now on.
pub(crate) fn serve(address: SocketAddr) {
    println!("{address}");
    thread::spawn(|| {
        for line in io::stdin().lines() {
            let _ = line;
            let used = serde_json::json!(&*USED.lock().expect("nobody panics with it"));
            println!("{used}");
            let _ = io::stdout().flush();
        }
        std::process::exit(0);
    });
}
