//! Profilers find the groups of `demo`: the linker leaves the name of their
//! pointer out of an executable unless it is told. One without shared libraries could not start
//! with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if !features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1");
    }
}
