//! Everything that differs between processors, for samples. A new processor is a file here.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "portable.rs")]
mod processor;

pub(super) use processor::*;
