//! Everything that differs between processors, for this crate: registers, instructions that Rust
//! has no word for, numbers of the kernel's interface. A new processor is a file here.

/// System calls, each with the name of its constant.
macro_rules! calls {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}
pub(crate) use calls;

#[cfg_attr(all(target_os = "linux", target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_os = "linux", target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(
    not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))),
    path = "portable.rs"
)]
mod processor;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod naked;

#[cfg(target_arch = "x86_64")]
mod cpuid;

#[cfg(target_arch = "x86_64")]
pub use cpuid::cpuid;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(crate) use naked::counting_entry;
pub use processor::*;
