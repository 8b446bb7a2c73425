//! A server of the page, and a browser that looks at it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dormouse_testkit::Browser;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RUNTIME_VARIABLES, command, signal_to};

/// The token of all servers here.
pub(super) const TOKEN: &str = "c0ffee-and-tea-for-all-who-test-this-page";

/// `dormouse serve` for one service.
pub(super) struct Server {
    child: Child,
    /// Its address, with the slash.
    pub(super) url: String,
}

impl Server {
    pub(super) fn of(runtime: &Path, pid: u32) -> Server {
        Server::at(runtime, pid, "127.0.0.1:0")
    }

    /// One that listens there.
    pub(super) fn at(runtime: &Path, pid: u32, listen: &str) -> Server {
        let file = runtime.join("token");
        std::fs::write(&file, TOKEN).expect("a file");
        let mut serve = command(["--json", "serve", &pid.to_string(), "--listen", listen, "--token-file"]);
        serve.arg(file).env("DORMOUSE_RUNTIME_DIR", runtime);
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = serve.spawn().expect("the server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Server { child, url: said["url"].as_str().expect("an address").to_owned() }
    }

    /// `127.0.0.1:PORT`.
    pub(super) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    /// Ends it, and waits for that.
    pub(super) fn end(&mut self) {
        signal_to(self.child.id(), Signal::INT);
        self.child.wait().expect("its end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A browser with the page of a server open at a place.
pub(super) struct Visit {
    pub(super) browser: Browser,
    url: String,
}

impl Visit {
    /// Comes with the token, as the server's printed address does. The browser is there before the
    /// server and its service: there is one at a time, and a service that waits for it would take
    /// the processor from the test that has it.
    #[track_caller]
    pub(super) fn start(mut browser: Browser, server: &Server, place: &str) -> Visit {
        let url = server.url.clone();
        browser.open(&format!("{url}#token={TOKEN}&{place}"));
        Visit { browser, url }
    }

    /// Comes without it.
    #[track_caller]
    pub(super) fn without_token(mut browser: Browser, server: &Server) -> Visit {
        browser.open(&server.url);
        Visit { browser, url: server.url.clone() }
    }

    /// Goes to another place of the page.
    pub(super) fn go(&mut self, place: &str) {
        self.browser.value(&format!("void (location.hash = {})", Value::from(place)));
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub(super) fn until(&mut self, expression: &str) {
        self.browser.await_true(&format!("Boolean({expression})"));
    }

    /// Waits until an element's text holds all of these.
    #[track_caller]
    pub(super) fn shows(&mut self, element: &str, parts: &[&str]) {
        let text = format!("(document.querySelector({})?.innerText || '')", Value::from(element));
        let parts = Value::from(parts.to_vec());
        self.until(&format!("{parts}.every((part) => {text}.includes(part))"));
    }

    /// Clicks on an element as a mouse does, once it is there and nothing lies over it.
    #[track_caller]
    pub(super) fn click(&mut self, element: &str) {
        self.until(&format!(
            "(() => {{ const of = document.querySelector({}); const at = of?.getBoundingClientRect(); \
             return at?.width > 0 && \
             of.contains(document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2)); }})()",
            Value::from(element)
        ));
        let place = format!(
            "(() => {{ const of = document.querySelector({}).getBoundingClientRect(); \
             return [of.x + of.width / 2, of.y + of.height / 2]; }})()",
            Value::from(element)
        );
        let place = self.browser.value(&place);
        let at = |index: usize| place[index].as_f64().expect("a place");
        self.browser.mouse(at(0), at(1), true);
    }

    /// Nothing has failed but requests that were refused, run that should not, or asked anybody but
    /// the server.
    #[track_caller]
    pub(super) fn assert_calm(&mut self) {
        let url = self.url.clone();
        let errors = self.browser.errors(|_, asked| asked.starts_with(&url) || asked == "data:,");
        let refused = |said: &String| said.contains("\"source\":\"network\"");
        assert_eq!(
            errors.into_iter().filter(|said| !refused(said)).collect::<Vec<_>>(),
            Vec::<String>::new()
        );
        assert_eq!(self.browser.value("window.hit === undefined"), true, "a name has run");
    }
}

/// A test of this program that is a service of other tests, started on its own.
pub(super) struct Host {
    child: Child,
    runtime: tempfile::TempDir,
}

impl Host {
    /// The test with that path, by a program of that name.
    pub(super) fn start(test: &str, name: &str) -> Host {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let program = runtime.path().join(name);
        std::os::unix::fs::symlink(std::env::current_exe().expect("this program"), &program).expect("a link");
        let mut command = Command::new(program);
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).env("DORMOUSE_WAITS", "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready")));
        Host { child, runtime }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn runtime(&self) -> &Path {
        self.runtime.path()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
