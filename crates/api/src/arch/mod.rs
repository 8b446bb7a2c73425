//! A site: one instruction, in the form of `crates/keys/src/macros/site.rs`, which explains it. The
//! entries lie in the same section; the constructor that passes on its bounds is dormouse's own. A
//! new processor is a file here.

#[cfg(not(dormouse_off))]
#[cfg_attr(
    all(
        target_arch = "x86_64",
        target_os = "linux",
        target_pointer_width = "64",
        not(any(dormouse_fallback, loom, miri))
    ),
    path = "x86_64.rs"
)]
#[cfg_attr(
    all(
        target_arch = "aarch64",
        target_os = "linux",
        target_pointer_width = "64",
        not(any(dormouse_fallback, loom, miri))
    ),
    path = "aarch64.rs"
)]
#[cfg_attr(
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_os = "linux",
        target_pointer_width = "64",
        not(any(dormouse_fallback, loom, miri))
    )),
    path = "portable.rs"
)]
mod processor;

#[cfg(dormouse_off)]
mod off;
