//! Decides, in one place, whether sites are patched: Linux on x86-64 and arm64, and no checker that
//! runs no machine code. Where dormouse is off (`--cfg dormouse_off`), sites are constants.

use std::env::var_os;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(dormouse_patching)");
    let is = |name: &str, value: &str| var_os(name).is_some_and(|v| v == value);
    let forbidden =
        ["CARGO_CFG_DORMOUSE_FALLBACK", "CARGO_CFG_DORMOUSE_OFF", "CARGO_CFG_MIRI", "CARGO_CFG_LOOM"];
    if (is("CARGO_CFG_TARGET_ARCH", "x86_64") || is("CARGO_CFG_TARGET_ARCH", "aarch64"))
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_POINTER_WIDTH", "64")
        && !forbidden.iter().any(|name| var_os(name).is_some())
    {
        println!("cargo:rustc-cfg=dormouse_patching");
    }
}
