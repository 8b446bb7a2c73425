//! `teaparty-menu-instructions/…`: instructions of a request to the cheapest route, as Valgrind
//! counts them in user mode, on the thread that serves it.
//!
//! A service answers a short and a long run of requests; the difference leaves out its start and
//! its end. Of all threads the one that serves has the largest difference. Threads of dormouse have
//! nothing to do meanwhile and are left out.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

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
    let before = count(program, short, directory)?;
    let after = count(program, long, directory)?;
    let more = after.iter().map(|(thread, count)| count - before.get(thread).unwrap_or(&0.0));
    let most = more.fold(0.0, f64::max);
    ensure!(most > 0.0, "no thread has run more instructions for more requests");
    Ok(most / (long - short) as f64)
}

/// The instructions of each thread of a service that answers this many requests, by its number.
fn count(program: &Command, requests: usize, directory: &Path) -> anyhow::Result<HashMap<u32, f64>> {
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
    let files = fs::read_dir(directory.path())?.flatten();
    Ok(files.filter_map(|file| of_thread(&fs::read_to_string(file.path()).ok()?)).collect())
}

/// A thread's number and its instructions, of the file that Valgrind writes for it.
fn of_thread(text: &str) -> Option<(u32, f64)> {
    fn value<T: FromStr>(text: &str, name: &str) -> Option<T> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
    Some((value(text, "thread:")?, value(text, "totals:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_thread_has_its_count() {
        let text =
            "# callgrind format\npid: 71\nthread: 3\n\nevents: Ir\nfn=(1) main\n1 20\ntotals: 5320028\n";
        assert_eq!(of_thread(text), Some((3, 5_320_028.0)));
        assert_eq!(of_thread("pid: 71\npart: 1\n"), None);
    }
}
