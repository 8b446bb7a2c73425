//! `teaparty-menu-instructions/…`: instructions of a request to the cheapest route, as Valgrind
//! counts them in user mode, on the thread that serves it.
//!
//! A service answers a short and a long run of requests; the difference leaves out its start and
//! its end. Threads of dormouse have nothing to do meanwhile and are left out.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::load::{Clients, MENU};
use super::server::{SIDES, Server};
use super::tea_house;
use crate::bench::Bench;
use crate::row::{Better, Row, Spec};

/// Adds the rows, and that of the difference.
pub(super) fn rows(bench: &mut Bench, without: &Path, directory: &Path) {
    let runs = bench.pick([100, 2100], [50, 250]);
    for side in SIDES {
        bench.say("counting instructions");
        let program = if side == "with" { tea_house() } else { Ok(Command::new(without)) };
        let counted = program.and_then(|program| {
            per_request(&program, runs, directory).map_err(|error| format!("not counted: {error:#}"))
        });
        let spec = Spec::new(format!("teaparty-menu-instructions/{side}"), "instructions")
            .per("request")
            .better(Better::Lower)
            .with("requests", runs[1] - runs[0]);
        bench.rows.push(Row::new(&spec, counted.map(|count| vec![count])));
    }
    let [with, without] = SIDES.map(|side| bench.row(&format!("teaparty-menu-instructions/{side}")));
    let spec = Spec::new("teaparty-menu-instructions/added", "instructions").per("request");
    bench.rows.push(Row::paired(spec, &with, &without, |with, without| with - without));
}

fn per_request(program: &Command, [short, long]: [usize; 2], directory: &Path) -> anyhow::Result<f64> {
    let mut counted = [0; 2];
    for (counted, requests) in counted.iter_mut().zip([short, long]) {
        *counted = count(program, requests, directory)?;
    }
    Ok((counted[1] as f64 - counted[0] as f64) / (long - short) as f64)
}

/// The instructions of the busiest thread of a service that answers this many requests.
fn count(program: &Command, requests: usize, directory: &Path) -> anyhow::Result<u64> {
    let directory = tempfile::tempdir_in(directory)?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .arg(format!("--callgrind-out-file={}", directory.path().join("counts").display()))
        .arg(program.get_program())
        .args(program.get_args())
        .args(["--workers", "1"]);
    let server = Server::start(valgrind, false, directory.path()).context("valgrind")?;
    Clients::connect(server.addr, 1)?.answer(&MENU, requests)?;
    server.end()?;
    let counts = fs::read_dir(directory.path())?.flatten().filter_map(|file| {
        let text = fs::read_to_string(file.path()).ok()?;
        text.lines().find_map(|line| line.strip_prefix("totals: ")?.parse().ok())
    });
    let most = counts.max().unwrap_or(0);
    ensure!(most > 0, "Valgrind has written no count");
    Ok(most)
}
