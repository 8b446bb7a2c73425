//! `dormouse serve`, and how to ask it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::daemon::Daemon;
use crate::support::{Service, Wire, command};

/// The secret of all servers of these tests.
pub(crate) const TOKEN: &str = "not-much-of-a-secret";

/// A server, and how to ask it.
pub(crate) struct Serving {
    pub(crate) daemon: Daemon,
}

impl Serving {
    /// Serves one service: others of this host are other tests'.
    #[track_caller]
    pub(crate) fn of(service: &Service) -> Serving {
        Serving::with(service, &[])
    }

    /// Starts `serve` with these variables.
    #[track_caller]
    pub(crate) fn with(service: &Service, variables: &[(&str, &str)]) -> Serving {
        Serving::start(service.runtime(), &[&service.target()], variables)
    }

    /// Serves what the arguments say, from a runtime directory.
    #[track_caller]
    pub(crate) fn start(runtime: &Path, args: &[&str], variables: &[(&str, &str)]) -> Serving {
        let directory = tempfile::tempdir().expect("a directory");
        let token = directory.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).expect("a file");
        let mut command = command(["serve", "--listen", "127.0.0.1:0", "--token-file"]);
        command.arg(&token).args(args).env("DORMOUSE_RUNTIME_DIR", runtime);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        command.envs(variables.iter().copied());
        Serving { daemon: Daemon::start(command, directory) }
    }

    /// The file with the token.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.daemon.file("token")
    }

    /// The answer to a request with the token.
    pub(crate) fn get(&self, path: &str, accept: &str) -> Result<Vec<u8>, ureq::Error> {
        let request = ureq::get(self.daemon.url(path))
            .header("Authorization", format!("Bearer {TOKEN}"))
            .header("Accept", accept);
        let mut answer = request.call()?;
        answer.body_mut().with_config().limit(64 << 20).read_to_vec()
    }

    /// The text of `/metrics`, in the format of everybody.
    #[track_caller]
    pub(crate) fn metrics(&self) -> String {
        let text = self
            .get("/metrics", "text/plain")
            .unwrap_or_else(|error| panic!("{error}: {}", self.daemon.log()));
        String::from_utf8(text).expect("UTF-8")
    }

    /// The totals of a service, as its agent has them. The server has its conversation by then.
    #[track_caller]
    pub(crate) fn totals(&self, service: &Service) -> Value {
        self.totals_of(service.pid(), &service.socket())
    }

    /// The totals of any process, whose agent listens at `socket`.
    #[track_caller]
    pub(crate) fn totals_of(&self, pid: u32, socket: &Path) -> Value {
        let url = self.daemon.url(&format!("/api/processes/{pid}/live"));
        let request = ureq::get(url).header("Authorization", format!("Bearer {TOKEN}"));
        let answer = request.call().unwrap_or_else(|error| panic!("{error}: {}", self.daemon.log()));
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(answer.into_body().into_reader()));
        lines
            .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data:")))
            .expect("a sample")
            .unwrap();
        let mut wire = Wire::open(socket);
        wire.ask(r#"{"v":1,"id":1,"op":"hello","client":"fleet"}"#);
        wire.ask(r#"{"v":1,"id":2,"op":"waits","exemplars":true,"calls":true}"#);
        wire.ask(r#"{"v":1,"id":3,"op":"stat"}"#)["ok"].take()
    }
}
