//! A server for batch jobs on threads: each connection has a thread, and the jobs are rayon's.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::panic::catch_unwind;
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse::rayon::{InGroup as _, join, scope};
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

use crate::known;

/// The time that a piece of a job takes.
const PIECE: Duration = Duration::from_millis(8);

pub(crate) fn run() -> io::Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2);
    pool.build_global().map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    known::serve(listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(|| serve(stream));
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    let (jobs, reader) = (Jobs::new(), BufReader::new(stream.try_clone()?));
    for line in reader.lines() {
        let result = match &*line? {
            "map" => jobs.map.scope(|| catch_unwind(map)),
            "halves" => jobs.halves.scope(|| catch_unwind(|| halves(16))),
            "nested" => jobs.nested.scope(|| catch_unwind(nested)),
            "fail" => jobs.fail.scope(|| catch_unwind(fail)),
            _ => jobs.unknown.scope(|| Ok(0)),
        };
        let answer = result.map_or_else(|_| "failed".to_owned(), |pieces| pieces.to_string());
        stream.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

struct Jobs {
    map: Group,
    halves: Group,
    nested: Group,
    fail: Group,
    unknown: Group,
}

impl Jobs {
    fn new() -> Jobs {
        Jobs {
            map: Group::new("map"),
            halves: Group::new("halves"),
            nested: Group::new("nested"),
            fail: Group::new("fail"),
            unknown: Group::new("unknown job"),
        }
    }
}

fn piece(group: &str) -> u64 {
    known::burn(group, PIECE);
    1
}

fn map() -> u64 {
    (0..16).into_par_iter().map(|_| piece("map")).in_group().sum()
}

/// Halves of halves, down to single pieces.
fn halves(pieces: u64) -> u64 {
    if pieces == 1 {
        return piece("halves");
    }
    let (one, other) = join(|| halves(pieces / 2), || halves(pieces - pieces / 2));
    one + other
}

/// Joins and scopes inside of a parallel iterator.
fn nested() -> u64 {
    let both = |_| {
        let (one, other) = join(|| piece("nested"), || piece("nested"));
        scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|_| {
                    piece("nested");
                });
            }
        });
        one + other + 2
    };
    (0..4).into_par_iter().map(both).in_group().sum()
}

fn fail() -> u64 {
    let work = |number| match number {
        7 => panic!("a piece fails"),
        _ => piece("fail"),
    };
    (0..16).into_par_iter().map(work).in_group().sum()
}
