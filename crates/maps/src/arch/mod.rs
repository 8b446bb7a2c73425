//! What is written for a processor because its compiler makes more of it.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "portable.rs")]
mod processor;

pub(crate) use processor::below;
