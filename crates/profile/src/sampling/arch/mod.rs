//! Everything that differs between processors, for samples. A new processor is a file here.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "portable.rs")]
mod processor;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod naked;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use naked::*;
pub(super) use processor::*;
