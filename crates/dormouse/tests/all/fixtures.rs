//! Builds the programs and objects of `tests/copies`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of what is built.
pub(crate) fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copies");
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copies/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        target.join("debug")
    })
}
