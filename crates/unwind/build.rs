//! Tells how much of the stack a walk takes, which depends on the optimisation of this crate.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(dormouse_unoptimized)");
    if var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo:rustc-cfg=dormouse_unoptimized");
    }
}
