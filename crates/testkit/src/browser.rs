//! A headless Chromium, driven by its debugging protocol over a pair of pipes.
//!
//! `DORMOUSE_SCREENSHOTS=directory` saves screenshots of the tests.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::{HANG, skip};

/// The browser of all tests of a program, who have it one after another: to start one takes longer
/// than most of them.
static CHROMIUM: Mutex<Option<Chromium>> = Mutex::new(None);

/// A browser, which ends with the program that started it: as soon as its pipe is closed.
#[derive(Debug)]
struct Chromium {
    _child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    /// The number of the last request.
    number: u64,
}

/// A page in a window of its own, which shares nothing with others, until it is dropped.
#[derive(Debug)]
pub struct Browser {
    chromium: MutexGuard<'static, Option<Chromium>>,
    context: Value,
    session: Value,
    events: VecDeque<Value>,
    folder: tempfile::TempDir,
}

/// Keys that a browser itself acts on, by their numbers in the protocol.
const CODES: [(&str, u32); 10] = [
    ("Tab", 9),
    ("Enter", 13),
    ("Escape", 27),
    (" ", 32),
    ("End", 35),
    ("Home", 36),
    ("ArrowLeft", 37),
    ("ArrowUp", 38),
    ("ArrowRight", 39),
    ("ArrowDown", 40),
];

fn installed() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let said = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        said.is_ok_and(|status| status.success())
    })
}

impl Chromium {
    fn start(name: &str) -> Self {
        // The protocol's pipes are descriptors 3 and 4. The shell takes the profile away when the
        // browser has ended; a shell that is killed leaves it.
        let script = "folder=$(mktemp -d); \"$0\" \"$@\" --user-data-dir=\"$folder\" 3<&0 4>&1 \
                      </dev/null >/dev/null 2>&1; rm -rf \"$folder\" || { sleep 1; rm -rf \"$folder\"; }";
        let mut child = Command::new("sh")
            .args(["-c", script, name])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--remote-debugging-pipe", "--window-size=1280,800"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let (send, messages) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let _ = send.send(serde_json::from_slice(&message).unwrap());
            }
        });
        Self { _child: child, requests, messages, number: 0 }
    }

    /// Sends a request, and gives its number.
    fn send(&mut self, method: &str, parameters: &Value, session: &Value) -> std::io::Result<u64> {
        self.number += 1;
        let mut request = json!({ "id": self.number, "method": method, "params": parameters });
        if session.is_string() {
            request["sessionId"] = session.clone();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).map(|()| self.number)
    }
}

impl Browser {
    /// An empty page; `None`, and a skip, if no browser is installed.
    #[track_caller]
    pub fn start() -> Option<Self> {
        let Some(name) = installed() else {
            skip("no Chromium is installed");
            return None;
        };
        let mut chromium = CHROMIUM.lock().unwrap_or_else(PoisonError::into_inner);
        chromium.get_or_insert_with(|| Chromium::start(name));
        let folder = tempfile::tempdir().unwrap();
        let events = VecDeque::new();
        let mut browser = Self { chromium, context: Value::Null, session: Value::Null, events, folder };
        browser.context = browser.ask("Target.createBrowserContext", &json!({}))["browserContextId"].take();
        let window = json!({ "url": "about:blank", "browserContextId": browser.context });
        let target = browser.ask("Target.createTarget", &window)["targetId"].take();
        let attach = json!({ "targetId": target, "flatten": true });
        browser.session = browser.ask("Target.attachToTarget", &attach)["sessionId"].take();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.ask(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    fn chromium(&mut self) -> &mut Chromium {
        self.chromium.as_mut().expect("a browser that was started")
    }

    /// Sends one request of the protocol, and returns its answer.
    pub fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        let session = self.session.clone();
        let number = self.chromium().send(method, parameters, &session).unwrap();
        loop {
            let mut message = self.message(method);
            if message["id"] == number {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            // Others are of an earlier page, which is being closed.
            if message["sessionId"] == self.session {
                self.events.push_back(message);
            }
        }
    }

    fn message(&mut self, wanted: &str) -> Value {
        let message = self.chromium().messages.recv_timeout(HANG);
        message.unwrap_or_else(|error| panic!("{wanted}: the browser: {error}"))
    }

    /// Loads a page anew, and waits until it has run its scripts.
    pub fn open(&mut self, url: &str) {
        self.events.clear();
        // The same page with another hash would not be loaded anew.
        for url in ["about:blank", url] {
            self.ask("Page.navigate", &json!({ "url": url }));
            self.until("Page.loadEventFired");
        }
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub fn await_true(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression) != true {
            assert!(begun.elapsed() < HANG, "{expression}: {}", self.text("document.body.innerText"));
            self.settle();
        }
    }

    fn until(&mut self, method: &str) {
        loop {
            let at = self.events.iter().position(|event| event["method"] == method);
            if let Some(at) = at {
                self.events.remove(at);
                return;
            }
            let event = self.message(method);
            if event["sessionId"] == self.session {
                self.events.push_back(event);
            }
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.ask("Runtime.evaluate", &wanted);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// The value of an expression that is text.
    pub fn text(&mut self, expression: &str) -> String {
        let value = self.value(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression}: {value}")).to_owned()
    }

    /// Presses a key as a user does: it goes to the element with focus.
    pub fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            one if one.chars().count() == 1 => one,
            _ => "",
        };
        let code = CODES.iter().find(|(name, _)| *name == key).map_or(0, |(_, code)| *code);
        let mut down = json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code });
        if !text.is_empty() {
            down["text"] = json!(text);
        }
        self.ask("Input.dispatchKeyEvent", &down);
        self.ask("Input.dispatchKeyEvent", &json!({ "type": "keyUp", "key": key, "code": key }));
    }

    /// Types text into the element with focus, letter by letter.
    pub fn write(&mut self, text: &str) {
        text.chars().for_each(|letter| self.press(letter.encode_utf8(&mut [0; 4])));
    }

    /// Moves the mouse to a point, and clicks there if `click`.
    pub fn mouse(&mut self, x: f64, y: f64, click: bool) {
        let event = |kind: &str, buttons: u32| {
            json!({ "type": kind, "x": x, "y": y, "button": if kind == "mouseMoved" { "none" } else { "left" },
                    "buttons": buttons, "clickCount": 1 })
        };
        self.ask("Input.dispatchMouseEvent", &event("mouseMoved", 0));
        if click {
            self.ask("Input.dispatchMouseEvent", &event("mousePressed", 1));
            self.ask("Input.dispatchMouseEvent", &event("mouseReleased", 0));
        }
    }

    /// Drags the element at a point sideways.
    pub fn drag(&mut self, x: f64, y: f64, by: f64) {
        for (kind, x, buttons) in [
            ("mousePressed", x, 1),
            ("mouseMoved", x + by / 2.0, 1),
            ("mouseMoved", x + by, 1),
            ("mouseReleased", x + by, 0),
        ] {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
            self.ask("Input.dispatchMouseEvent", &event);
        }
    }

    /// Sets the size of the page, in pixels of the page, each of `scale` pixels of the screen.
    pub fn size(&mut self, width: u32, height: u32, scale: f64, mobile: bool) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile });
        self.ask("Emulation.setDeviceMetricsOverride", &metrics);
        self.settle();
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", &json!({ "features": features }));
        self.settle();
    }

    /// Waits until changes are on the screen.
    pub fn settle(&mut self) {
        let frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";
        self.value(&format!("{frame}.then(() => 0)"));
    }

    /// Requests that `ours` does not accept by their kind and address, errors and dialogs: things
    /// that should not happen.
    pub fn errors(&mut self, ours: impl Fn(&str, &str) -> bool) -> Vec<String> {
        // All that was before this answer has come.
        self.settle();
        let bad = |event: &Value| match event["method"].as_str()? {
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                let kind = event["params"]["type"].as_str().unwrap_or_default();
                (!ours(kind, url) && url != "about:blank").then(|| format!("{kind}: {url}"))
            }
            "Runtime.exceptionThrown" | "Log.entryAdded" | "Page.javascriptDialogOpening" => {
                Some(event.to_string())
            }
            _ => None,
        };
        self.events.iter().filter_map(bad).collect()
    }

    /// Saves a screenshot of the page in `DORMOUSE_SCREENSHOTS`.
    pub fn picture(&mut self, name: &str) {
        self.draw(name, false);
    }

    /// [`Browser::picture`] of the whole page, including the part below the window.
    pub fn whole_picture(&mut self, name: &str) {
        self.draw(name, true);
    }

    fn draw(&mut self, name: &str, beyond: bool) {
        let Some(directory) = std::env::var_os("DORMOUSE_SCREENSHOTS") else { return };
        self.settle();
        let mut wanted = json!({ "format": "png", "captureBeyondViewport": beyond });
        if beyond {
            let mut size = self.ask("Page.getLayoutMetrics", &json!({}))["cssContentSize"].take();
            size["scale"] = json!(1);
            wanted["clip"] = size;
        }
        let picture = self.ask("Page.captureScreenshot", &wanted);
        let file = std::fs::File::create(Path::new(&directory).join(format!("{name}.png"))).unwrap();
        let mut decode = Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(file).spawn().unwrap();
        decode.stdin.take().unwrap().write_all(picture["data"].as_str().unwrap().as_bytes()).unwrap();
        assert!(decode.wait().unwrap().success());
    }

    /// Saves text to a file and returns its address.
    pub fn save(&self, page: &str) -> String {
        let path = self.folder.path().join("page.html");
        std::fs::write(&path, page).unwrap();
        format!("file://{}", path.display())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let close = json!({ "browserContextId": self.context });
        let is_closing = self.chromium().send("Target.disposeBrowserContext", &close, &Value::Null).is_ok();
        // It may be the browser that has made a test fail: the next one gets another.
        if !is_closing || std::thread::panicking() {
            *self.chromium = None;
        }
    }
}
