//! Events of allocations: the allocator of this program is dormouse's. Each module runs in a
//! process of its own.

mod alloc;
mod heap;

#[global_allocator]
static ALLOC: dormouse_events::Alloc = dormouse_events::Alloc::new();

dormouse_testkit::isolate_modules!();
