//! Programs with one library each, and their builds.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::workloads::teaparty::{first_error, root};

/// Compilers at once.
pub(super) const JOBS: u32 = 2;

/// The name of the program without a library.
pub(super) const BASE: &str = "hello";

/// A program: `hello` with one library.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Whether a quick run builds it.
    pub(super) is_quick: bool,
    /// Lines of the manifest; `{root}` is this workspace.
    dependencies: &'static str,
    /// The first lines of `main`.
    begin: &'static str,
    /// A method call on the router.
    layer: &'static str,
    /// The listener that is served.
    listener: &'static str,
    /// `RUSTFLAGS`.
    flags: &'static str,
}

const HELLO: Program = Program {
    name: BASE,
    is_quick: true,
    dependencies: "",
    begin: "",
    layer: "",
    listener: "listener",
    flags: "",
};

const DORMOUSE: Program = Program {
    name: "dormouse",
    dependencies: r#"dormouse = { path = "{root}/crates/dormouse", features = ["axum", "tower", "tracing"] }"#,
    begin: r#"
        if let Err(why) = dormouse::init() {
            eprintln!("dormouse is off: {why}");
        }
        let route = dormouse::tower::GroupLayer::new(|request: &axum::extract::Request| {
            let path = request.extensions().get().map_or("unmatched", axum::extract::MatchedPath::as_str);
            path.to_owned().into()
        });"#,
    layer: ".layer(route)",
    listener: r#"dormouse::axum::listener(listener, dormouse::Group::new("connections"))"#,
    ..HELLO
};

pub(super) const PROGRAMS: [Program; 8] = [
    HELLO,
    DORMOUSE,
    Program {
        name: "dormouse-bare",
        is_quick: false,
        dependencies: r#"dormouse = { path = "{root}/crates/dormouse", default-features = false }"#,
        begin: r#"
        if let Err(why) = dormouse::init() {
            eprintln!("dormouse is off: {why}");
        }
        let _entered = dormouse::Group::new("main").enter();"#,
        ..HELLO
    },
    Program {
        name: "dormouse-all",
        is_quick: false,
        dependencies: r#"dormouse = { path = "{root}/crates/dormouse", features = ["axum", "tower", "tracing", "symbols"] }"#,
        ..DORMOUSE
    },
    Program {
        name: "tracing-fmt",
        dependencies: "tracing = \"0.1\"\ntracing-subscriber = \"0.3\"",
        begin: "
        tracing_subscriber::fmt::init();
        tracing::info!(name = \"hello\", \"begins\");",
        ..HELLO
    },
    Program {
        name: "tokio-metrics",
        is_quick: false,
        dependencies: "tokio-metrics = \"0.5\"",
        begin: r#"
        let monitor = tokio_metrics::TaskMonitor::new();
        let metrics = monitor.clone();
        tokio::spawn(monitor.instrument(async move {
            for interval in metrics.intervals() {
                println!("{interval:?}");
                tokio::task::yield_now().await;
            }
        }));"#,
        ..HELLO
    },
    Program {
        name: "console-subscriber",
        is_quick: false,
        dependencies: "console-subscriber = \"0.5\"",
        begin: "
        console_subscriber::init();",
        flags: "--cfg tokio_unstable",
        ..HELLO
    },
    Program {
        name: "pprof",
        is_quick: false,
        dependencies: "pprof = \"0.15\"",
        begin: r#"
        let guard = pprof::ProfilerGuard::new(100).unwrap();
        std::thread::spawn(move || println!("{:?}", guard.report().build()));"#,
        ..HELLO
    },
];

/// A program that is written, with its sources fetched.
#[derive(Debug)]
pub(super) struct Hello {
    folder: PathBuf,
    flags: &'static str,
}

impl Hello {
    /// Writes the program below `folder`, and fetches what it is built from.
    pub(super) fn write(program: &Program, folder: &Path) -> Result<Self, String> {
        let root = root()?;
        let hello = Self { folder: folder.join(program.name), flags: program.flags };
        let manifest = format!(
            "[package]\nname = \"hello\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
             axum = \"0.8\"\ntokio = {{ version = \"1\", features = [\"macros\", \"net\", \"rt-multi-thread\"] }}\n\
             {}\n\n[profile.release]\nstrip = true\n\n[workspace]\n",
            program.dependencies.replace("{root}", &root.display().to_string())
        );
        let source = format!(
            "#[tokio::main]\nasync fn main() {{{}\n    \
             let app = axum::Router::<()>::new().route(\"/\", axum::routing::get(|| async {{ \"hello\" }})){};\n    \
             let listener = tokio::net::TcpListener::bind(\"127.0.0.1:8080\").await.unwrap();\n    \
             axum::serve({}, app).await.unwrap();\n}}\n",
            program.begin, program.layer, program.listener
        );
        let linker = "#!/bin/sh\nbegin=$(date +%s%N)\ncc \"$@\"\ncode=$?\n\
                      echo $(($(date +%s%N) - begin)) > \"$DORMOUSE_BENCH_LINK\"\nexit $code\n";
        let write = || -> io::Result<()> {
            fs::create_dir_all(hello.folder.join("src"))?;
            fs::write(hello.folder.join("Cargo.toml"), manifest)?;
            fs::write(hello.folder.join("src/main.rs"), source)?;
            fs::copy(root.join("Cargo.lock"), hello.folder.join("Cargo.lock"))?;
            fs::write(hello.linker(), linker)?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(hello.linker(), mode)
        };
        write().map_err(|why| format!("{}: {why}", hello.folder.display()))?;
        // A network is needed only if the cargo home lacks something.
        if hello.cargo("fetch", &["--offline"]).is_err() {
            hello.cargo("fetch", &[])?;
        }
        Ok(hello)
    }

    /// A clean build: its CPU seconds, its seconds, the program's bytes, and milliseconds of the
    /// link.
    pub(super) fn build(&self) -> Result<[f64; 4], String> {
        let target = self.folder.join("target");
        if target.exists() {
            fs::remove_dir_all(&target).map_err(|why| format!("{}: {why}", target.display()))?;
        }
        let (before, begun) = (children()?, Instant::now());
        self.cargo("build", &["--release", "--offline", "--jobs", &JOBS.to_string()])?;
        let (cpu, wall) = (children()? - before, begun.elapsed().as_secs_f64());
        let size = fs::metadata(target.join("release/hello")).map_err(|why| why.to_string())?.len();
        let link = fs::read_to_string(self.link()).map_err(|why| why.to_string())?;
        let link: f64 = link.trim().parse().map_err(|_| format!("the link took {link:?}"))?;
        fs::remove_dir_all(&target).map_err(|why| format!("{}: {why}", target.display()))?;
        Ok([cpu, wall, size as f64, link / 1e6])
    }

    fn linker(&self) -> PathBuf {
        self.folder.join("cc")
    }

    /// The file with the duration of the last link.
    fn link(&self) -> PathBuf {
        self.folder.join("link")
    }

    fn cargo(&self, verb: &str, arguments: &[&str]) -> Result<(), String> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        let target = self.folder.join("target");
        cargo.current_dir(&self.folder).arg(verb).args(arguments).env("CARGO_TARGET_DIR", target);
        // Those of the build that has made this program.
        for name in ["CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"] {
            cargo.env_remove(name);
        }
        cargo.env("RUSTFLAGS", format!("-Clinker={} {}", self.linker().display(), self.flags));
        cargo.env("DORMOUSE_BENCH_LINK", self.link());
        let output = cargo.output().map_err(|why| format!("cannot run cargo: {why}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(first_error(&String::from_utf8_lossy(&output.stderr)).to_owned())
        }
    }
}

/// CPU seconds of all children that have ended and their own.
///
/// # References
///
/// `proc_pid_stat(5)`: `cutime` and `cstime`, counted from the end of the name.
fn children() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|why| format!("/proc/self/stat: {why}"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
