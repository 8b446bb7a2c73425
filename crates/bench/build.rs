//! Hands the compiler's version to the report: a number without its compiler is half a number. And
//! keeps the name of the pointer by which profilers find groups, as in the command.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let version = version.as_deref().map_or("unknown", str::trim);
    println!("cargo::rustc-env=DORMOUSE_BENCH_RUSTC={version}");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=DORMOUSE_BENCH_PROFILE={profile}");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if !features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1");
    }
}
