//! Hosts that are programs of their own: they fork, fail, or have all descriptors closed, with no
//! thread of a test harness beside them. Each runs in a process of its own.

mod asleep;
mod awake;
mod descriptors;
mod environment;
mod filtered;
mod fork;
mod fork_allocator;
mod forked_agent;
mod forked_trace;
mod limited;
mod memory;
mod metrics_fork;
mod turned_off;

fn main() {
    dormouse_testkit::run_programs(&[
        ("asleep", asleep::main),
        ("awake", awake::main),
        ("descriptors", descriptors::main),
        ("environment", environment::main),
        ("filtered", filtered::main),
        ("fork", fork::main),
        ("fork_allocator", fork_allocator::main),
        ("forked_agent", forked_agent::main),
        ("forked_trace", forked_trace::main),
        ("limited", limited::main),
        ("memory", memory::main),
        ("metrics_fork", metrics_fork::main),
        ("turned_off", turned_off::main),
    ]);
}
