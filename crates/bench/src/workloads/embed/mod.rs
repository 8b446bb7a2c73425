//! `bench embed`: how much a library adds to the build of a service: CPU and wall time of a clean
//! build for release with two jobs, the size of the stripped program, and the time of its link.
//!
//! | row | is |
//! |---|---|
//! | `build-cpu/NAME`, `build/NAME` | CPU and wall time of a clean build |
//! | `size/NAME` | bytes of the stripped program |
//! | `link/NAME` | wall time of the linker for the program alone |
//! | `…-added/NAME` | the same less that of `hello` |
//!
//! `hello` is axum with one route. Each other program is `hello` with one library, used as its
//! documentation begins: `dormouse` with the features of its README, `dormouse-bare` without any
//! feature, `dormouse-all` with those for profiles; the peers are `tracing` with its `fmt`
//! subscriber, `tokio-metrics`, `console-subscriber` and `pprof`. The programs are written into a
//! temporary directory, with the versions of this workspace's lock.

mod hello;

use std::rc::Rc;

use tempfile::TempDir;

use self::hello::{BASE, Hello, PROGRAMS};
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::{Failure, Plan};

/// Kinds of rows with their units, in the order of a sample's values.
const KINDS: [(&str, &str); 4] = [("build-cpu", "s"), ("build", "s"), ("size", "bytes"), ("link", "ms")];

pub(crate) fn run(bench: &mut Bench) {
    let programs: Vec<_> = PROGRAMS.iter().filter(|it| bench.pick(true, it.is_quick)).collect();
    let folder = TempDir::new().map(Rc::new);
    let specs = |name: &str| KINDS.map(|(kind, unit)| spec(format!("{kind}/{name}"), unit)).to_vec();
    for hello in &programs {
        bench.say(&format!("writing {}", hello.name));
        let made = folder.as_ref().map_err(Failure::from).and_then(|folder| {
            let built = Hello::write(hello, folder.path()).map_err(Failure::from)?;
            // The directory stays as long as a program in it.
            Ok((built, Rc::clone(folder)))
        });
        if let Some((built, folder)) = bench.need(specs(hello.name), made) {
            bench.sample(specs(hello.name), move || {
                let _folder = &folder;
                Ok(built.build()?)
            });
        }
    }
    bench.param("jobs", hello::JOBS);
    bench.measure("builds", Plan { warmup: 0, ..bench.plan(3, 2) });
    let names: Vec<_> = programs.iter().map(|it| it.name).filter(|name| *name != BASE).collect();
    for (kind, unit) in KINDS {
        for name in &names {
            let (one, base) = (format!("{kind}/{name}"), format!("{kind}/{BASE}"));
            bench.paired(spec(format!("{kind}-added/{name}"), unit), &one, &base, |one, base| one - base);
        }
    }
    bench.at_most("CPU seconds of a clean build, with dormouse", "build-cpu-added/dormouse", 20.0);
    bench.at_most("bytes of the stripped program, with dormouse", "size-added/dormouse", 700.0 * 1024.0);
    bench.explain(include_str!("notes.txt"));
}

fn spec(name: String, unit: &'static str) -> Spec {
    Spec::new(name, unit).better(Better::Lower)
}
