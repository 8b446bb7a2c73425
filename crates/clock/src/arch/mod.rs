//! The parts that differ between architectures: the counter, and the store that is atomic with
//! respect to signal handlers.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::rdtsc;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86_64::{advance, tsc_faults, tsc_readable};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod portable;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub use portable::rdtsc;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use portable::{advance, tsc_faults, tsc_readable};
