//! Programs whose allocations are counted. Each module runs in a process of its own.

mod call_memory;
mod group_memory;
mod profile_kinds;

#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

dormouse_testkit::isolate_modules!();
