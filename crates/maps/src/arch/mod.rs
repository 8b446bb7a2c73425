//! Functions that are written for a processor, because its compiler makes more instructions of
//! them.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "portable.rs")]
mod processor;

pub(crate) use processor::below;
