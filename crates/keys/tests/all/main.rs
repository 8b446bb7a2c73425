//! Static keys of this program, switched while it runs. Each module runs in a process of its own.

mod arch;
mod emulated;
mod fixtures;
mod fork;
mod fork_handlers;
mod fork_leases;
mod keys;
mod layout;
mod objects;
mod patching;
mod process;
mod processors;
mod resist;
mod sites;
mod timer;
mod traps;
mod writers;

dormouse_testkit::isolate_modules!();
