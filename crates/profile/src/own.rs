//! Whether a function belongs to the service itself: not to a library, a runtime, or dormouse.
//!
//! Debug information contains the directory in which the crate with `main` was compiled, which for
//! a crate of a workspace is the workspace's root. Everything below it is the service's own, except
//! for folders there that contain code of others. Only if there is no such crate, the usual
//! directories of library code and the first parts of names decide.

/// Folders of the code of others: registries and checkouts of cargo, wherever its home is; vendored
/// code, also that of Bazel and Nix; Rust's own library, as it was built and as it is installed.
const OF_OTHERS: [&str; 9] = [
    "/registry/src/",
    "/git/checkouts/",
    "/vendor/",
    "/cargo-vendor-dir/",
    "/external/",
    "/nix/store/",
    "/rustc/",
    "/rustlib/src/rust/",
    "/rust/deps/",
];

/// Library crates, for functions whose file is unknown.
const CRATES_OF_OTHERS: [&str; 42] = [
    "core",
    "std",
    "alloc",
    "actix_http",
    "actix_rt",
    "actix_server",
    "actix_service",
    "actix_web",
    "axum",
    "axum_core",
    "async_channel",
    "bb8",
    "bytes",
    "crossbeam_deque",
    "crossbeam_epoch",
    "deadpool",
    "flume",
    "h2",
    "http_body",
    "http_body_util",
    "mio",
    "mobc",
    "parking_lot",
    "rayon",
    "rayon_core",
    "rustls",
    "serde_json",
    "sqlx",
    "sqlx_core",
    "tonic",
    "tower_http",
    "tokio",
    "tokio_util",
    "tokio_stream",
    "futures",
    "futures_core",
    "futures_util",
    "futures_channel",
    "hyper",
    "hyper_util",
    "tower",
    "tracing",
];

/// Crates of the language, through which libraries call each other and themselves.
const OF_LANGUAGE: [&str; 3] = ["core", "std", "alloc"];

/// The crates of dormouse that are in a service.
const CRATES_OF_DORMOUSE: [&str; 13] = [
    "dormouse",
    "dormouse_breakpoints",
    "dormouse_clock",
    "dormouse_events",
    "dormouse_keys",
    "dormouse_locks",
    "dormouse_macros",
    "dormouse_maps",
    "dormouse_metrics",
    "dormouse_profile",
    "dormouse_statistics",
    "dormouse_sys",
    "dormouse_waits",
];

/// The rule by which functions count as one program's own code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnCode {
    /// Where the crate with `main` was compiled.
    workspace: Option<String>,
    /// The folders of dormouse's sources: a service may have them by path, in its workspace even.
    dormouse: Vec<String>,
}

impl OwnCode {
    /// The rule for a program whose crate with `main` was compiled in `workspace`.
    pub fn of_workspace(workspace: Option<String>) -> Self {
        Self { workspace, dormouse: Vec::new() }
    }

    /// Adds a crate of the program, by its name and the path of its root file.
    pub fn learn_crate(&mut self, name: &str, root: &str) {
        if let Some((folder, _)) = root.rsplit_once('/').filter(|_| CRATES_OF_DORMOUSE.contains(&name)) {
            self.dormouse.push(format!("{folder}/"));
        }
    }

    /// Sets the directory in which the crate with `main` was compiled, unless it is known already.
    pub fn learn_workspace(&mut self, workspace: &str) {
        self.workspace.get_or_insert_with(|| workspace.to_owned());
    }

    /// Whether a function is the program's own; `file` is the path of its source, if it is known.
    pub fn is_own(&self, function: &str, file: Option<&str>) -> bool {
        let krate = first_name(function);
        if krate.is_empty() || CRATES_OF_DORMOUSE.contains(&krate) {
            return false;
        }
        let Some(file) = file.filter(|file| !file.is_empty()) else {
            // A name without a path is one of C, or stands for an address.
            // One that begins with a type parameter (`<F as axum::Handler>::call`) has no crate.
            let is_crate = !krate.starts_with(char::is_uppercase);
            return is_crate && function.contains("::") && !CRATES_OF_OTHERS.contains(&krate);
        };
        if self.dormouse.iter().any(|folder| file.starts_with(&**folder)) {
            return false;
        }
        let is_of_others = |path: &str| OF_OTHERS.iter().any(|folder| path.contains(folder));
        match self.workspace.as_deref().map(|root| root.trim_end_matches('/')) {
            // Paths that were made relative to it: `src/main.rs`.
            Some("" | ".") => !file.starts_with('/') && !is_of_others(&format!("/{file}")),
            Some(root) => {
                file.strip_prefix(root).is_some_and(|path| path.starts_with('/') && !is_of_others(path))
            }
            None => !is_of_others(file) && !CRATES_OF_OTHERS.contains(&krate),
        }
    }
}

/// The index of the most informative frame in a waiting task's stack: the innermost one of the
/// program's own code. If there is none, the function by which the innermost library was called:
/// functions inside of it (`into_waker`, `poll_readiness`) only register the wait.
pub fn place<T>(frames: &[T], is_own: impl Fn(&T) -> bool, name: impl Fn(&T) -> &str) -> usize {
    if let Some(own) = frames.iter().position(is_own) {
        return own;
    }
    let krate = |frame: &T| {
        let krate = first_name(name(frame)).to_owned();
        let is_between = CRATES_OF_DORMOUSE.contains(&&*krate) || OF_LANGUAGE.contains(&&*krate);
        (!is_between).then_some(krate)
    };
    let mut known = frames.iter().enumerate().filter_map(|(at, frame)| Some((at, krate(frame)?)));
    let Some((first, library)) = known.next() else { return 0 };
    known.take_while(|(_, other)| *other == library).last().map_or(first, |(at, _)| at)
}

/// The first name in a path, which may begin with a type: `core` of `<core::pin::Pin<P> as …>`.
fn first_name(function: &str) -> &str {
    let path = function.trim_start_matches(['<', '&', '(', '*']);
    let path = ["dyn ", "mut ", "impl "].iter().fold(path, |path, word| path.trim_start_matches(word));
    path.split([':', '<', ' ', '>']).next().unwrap_or_default()
}

/// The path of a source inside its package, if that is in a registry or a checkout of cargo's;
/// otherwise the whole path. Paths in a registry begin with the package's name and version.
pub fn path_in_package(file: &str) -> &str {
    let below = |folder: &str, levels: usize| {
        let (_, path) = file.rsplit_once(folder)?;
        path.splitn(levels + 1, '/').last()
    };
    below(OF_OTHERS[0], 1).or_else(|| below(OF_OTHERS[1], 2)).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_is_what_the_workspace_has() {
        let mut own = OwnCode::of_workspace(Some("/app".into()));
        own.learn_crate("dormouse_waits", "/app/third/dormouse/crates/waits/src/lib.rs");
        own.learn_crate("house", "/app/house/src/lib.rs");
        for (function, file, is_own) in [
            ("shop::main", "/app/src/main.rs", true),
            ("house::brew", "/app/house/src/brew.rs", true),
            ("tokio_tungstenite::compat::wake", "/usr/local/cargo/registry/src/i/tungstenite/a.rs", false),
            ("reqwest::wait", "/opt/x/anything/reqwest/src/wait.rs", false),
            ("poll", "/app/.cargo/registry/src/i/x/src/lib.rs", false),
            ("poll", "/app/vendor/x/src/lib.rs", false),
            ("poll", "/application/src/lib.rs", false),
            ("waits::task::poll_inside<u8>", "/app/third/dormouse/crates/waits/src/task.rs", false),
            ("<core::pin::Pin<P> as core::future::Future>::poll", "/rustc/1/library/core/src/pin.rs", false),
            ("dormouse::task::poll<shop::pour>", "/elsewhere/task.rs", false),
            ("", "/app/src/main.rs", false),
        ] {
            assert_eq!(own.is_own(function, Some(file)), is_own, "{function} {file}");
        }
        assert!(own.is_own("shop::pour", None) && !own.is_own("<&mut tokio::time::Sleep>::poll", None));
    }

    #[test]
    fn the_librarys_entry_is_the_last_resort() {
        fn at<'a>(frames: &[&'a str]) -> &'a str {
            frames[place(frames, |name| name.starts_with("shop::"), |name| name)]
        }
        let leaf =
            ["dormouse_waits::waker::clone", "<core::task::Waker as Clone>::clone", "tokio::a::into_waker"];
        let entry = ["core::pin::poll", "tokio::net::TcpStream::poll_read", "hyper::conn::poll", "tokio::b"];
        assert_eq!(at(&[&leaf[..], &entry].concat()), "tokio::net::TcpStream::poll_read");
        assert_eq!(at(&[&leaf[..], &["shop::pour"], &entry].concat()), "shop::pour");
        assert_eq!(at(&["dormouse::task::poll", "0x1"]), "0x1");
        assert_eq!(at(&["dormouse::task::poll"]), "dormouse::task::poll", "there is nothing else");
    }

    #[test]
    fn a_program_from_a_registry_has_own_code() {
        let root = "/root/.cargo/registry/src/i/ripgrep-14";
        let own = OwnCode::of_workspace(Some(root.into()));
        assert!(own.is_own("rg::main", Some(&format!("{root}/src/main.rs"))));
        let relative = OwnCode::of_workspace(Some(String::new()));
        assert!(relative.is_own("shop::main", Some("src/main.rs")));
        assert!(
            !relative.is_own("x::y", Some("vendor/x/src/lib.rs")) && !relative.is_own("x::y", Some("/y.rs"))
        );
    }

    #[test]
    fn lists_serve_where_no_workspace_is_known() {
        let own = OwnCode::default();
        for file in
            ["/root/.cargo/registry/src/i/a/b.rs", "/usr/local/cargo/git/checkouts/a/1/b.rs", "/rustc/1/a.rs"]
        {
            assert!(!own.is_own("a::b", Some(file)), "{file}");
        }
        assert!(own.is_own("shop::main", Some("/src/main.rs")) && own.is_own("shop::main", None));
        assert!(!own.is_own("tokio::spawn", Some("/src/tokio.rs")));
    }

    #[test]
    fn a_path_begins_with_its_package() {
        for (file, path) in [
            ("/usr/local/cargo/registry/src/i-1949/axum-0.8.9/src/serve.rs", "axum-0.8.9/src/serve.rs"),
            ("/home/x/.cargo/git/checkouts/tea-0123/4567/src/lib.rs", "src/lib.rs"),
            ("src/db.rs", "src/db.rs"),
        ] {
            assert_eq!(path_in_package(file), path);
        }
    }
}
