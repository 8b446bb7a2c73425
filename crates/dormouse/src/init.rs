//! The start of everything that needs one.

use crate::agent::{self, Agent, Client, Companion, InitError};
use crate::core::{library, panics};
use crate::environment;
use crate::features::{hello, limit, publish, stat};

/// The features that come with a key.
static COMPANIONS: [Companion; 1] = [publish::verb::COMPANION];

impl Agent {
    /// The faults of settings from the environment, one sentence each; the default is used instead.
    /// All of `DORMOUSE` and `DORMOUSE_*` are checked; `_RECORD_DIR` only if `_TRIGGERS` is set.
    /// For the service's log; `dormouse doctor` reports the same.
    pub fn warnings(&self) -> Vec<String> {
        let keys = dormouse_keys::Protocol::config_error();
        let clock = dormouse_clock::config_error().map(str::to_owned);
        let tables = dormouse_profile::unwind_tables::config_error();
        let own = self.config_error().map(str::to_owned).into_iter().chain(keys);
        let all = own.chain(environment::config_errors()).chain(clock).chain(tables);
        all.chain(library::install()).collect()
    }
}

/// Starts the agent, unless it runs already.
///
/// The socket is `$DORMOUSE_RUNTIME_DIR/dormouse/<pid>.sock`, else
/// `$XDG_RUNTIME_DIR/dormouse/<pid>.sock`, else `/tmp/dormouse-<uid>/<pid>.sock`. If none of these
/// is possible, it has an abstract name, and [`Agent::warnings`] contains the reason. Only root and
/// the process's own user may talk to it.
///
/// There is one agent in a process, however many copies of dormouse it contains: that of the copy
/// which called this first. It lists and switches the keys of all copies, and traces the probes of
/// all; groups belong to one copy.
///
/// If the environment has `DORMOUSE_COUNT=task-clock,page-faults`, these events are counted for all
/// groups from here on; `dormouse doctor` reports the result. If it has
/// `DORMOUSE_ON=db.*,shopd::orders:*`, the keys with these names are switched on, as by `dormouse
/// on --keep`.
///
/// ```no_run
/// match dormouse::init() {
///     Ok(agent) => {
///         eprintln!("dormouse listens on {}", agent.path().display());
///         agent.warnings().iter().for_each(|warning| eprintln!("{warning}"));
///     }
///     // The service goes on.
///     Err(why) => eprintln!("dormouse is off: {why}"),
/// }
/// ```
///
/// # Cost
///
/// A few system calls and four threads: the agent's, that of its sockets, and the two that end
/// timed holds and watch budgets. They sleep until a client connects, or something ends. Steps that
/// need rights which the process may give up next, for example by a seccomp filter, are done here
/// (see [`dormouse_keys::prepare`]): in a process with several threads the membarrier registration
/// takes some milliseconds, and the clock's calibration one. `DORMOUSE_COUNT` adds the cost of
/// [`start_counting`](crate::start_counting), and `DORMOUSE_ON` that of a batch of keys.
///
/// # Errors
///
/// If the environment has `DORMOUSE=off`, and then nothing is started; if there is no socket, or
/// this copy of dormouse cannot take part (see [`InitError`]). The service goes on without an
/// agent; the events in `DORMOUSE_COUNT` are counted all the same, and the two threads that end
/// timed holds and watch budgets may stay.
pub fn init() -> Result<Agent, InitError> {
    if dormouse_sys::environment::is_off() {
        return Err(InitError::Off);
    }
    library::install();
    environment::begin();
    panics::put_first();
    agent::start(&COMPANIONS, look)
}

/// The agent's look from time to time.
fn look(clients: &mut [Client]) -> Option<std::time::Duration> {
    hello::remember();
    stat::remember();
    limit::look(clients)
}
