//! The tasks of the services, by the names of the functions in profiles from outside: nothing of
//! what dormouse does in them is used.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dormouse_profile::{NameFinder, Options, OutsideProfiling, Profile, Symbols, Tasks};
use dormouse_testkit::{StopOnDrop, eventually, is_long, skip};

use crate::lines::Lines;
use crate::support::Service;
use crate::{grpc, web};

/// The samples of a profile, at least.
const SAMPLES: u64 = 150;

/// The share that must have names, in percent.
const NAMED: f64 = 95.0;

/// A round of requests to a service.
type Work = fn(SocketAddr);

/// The program without debug information, whose symbols contain types (as Rust makes them from 1.97
/// on). Optimised, so that functions are inlined, of which nothing is left then.
static BY_SYMBOLS: LazyLock<PathBuf> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("v0");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--package", "dormouse-others", "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "-C symbol-mangling-version=v0 -C debuginfo=0 -C opt-level=1")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.is_ok_and(|built| built.success()));
    target.join("debug/others")
});

/// A profile of the service while it has this load; `None`: the kernel does not allow one.
fn profile(service: &Service, work: Work) -> Option<(Profile, Symbols)> {
    let mut profiling = match OutsideProfiling::start(service.pid(), &Options::default()) {
        Ok(profiling) => profiling,
        Err(error) => {
            skip(format!("no profiles from outside here: {error}"));
            return None;
        }
    };
    let is_over = AtomicBool::new(false);
    let profile = thread::scope(|scope| {
        let _ends = StopOnDrop(&is_over);
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    work(service.address);
                }
            });
        }
        let mut profile = Profile::default();
        eventually(|| {
            assert!(profiling.pass(), "the service goes on");
            profile = profiling.read();
            profile.coverage.samples >= SAMPLES
        });
        profile
    });
    let symbols = NameFinder::of(service.pid()).expect("a process").symbols(&profile);
    Some((profile, symbols))
}

/// Asserts that nearly all CPU time of a service has the name of a task: by the line tables of a
/// build for debugging, where these are among the names, and in a long run also by symbols alone,
/// where a handler that was inlined has the name of what is around it.
#[track_caller]
fn assert_named(name: &str, arguments: &[&str], work: Work, right: &[&str]) {
    let mut builds = vec![(Path::new(env!("CARGO_BIN_EXE_others")), right)];
    if is_long() {
        builds.push((&BY_SYMBOLS, &[]));
    }
    for (build, right) in builds {
        let service = Service::of_build(build, name, arguments);
        let Some((profile, symbols)) = profile(&service, work) else { return };
        let tasks = Tasks::of(&profile, &symbols);
        let (named, all) = tasks.named();
        let share = named as f64 * 100.0 / all as f64;
        let parts = tasks.regroup(&profile);
        let names: Vec<&str> = parts.groups.iter().map(|group| &*group.name).collect();
        eprintln!("{}, {name}: {share:.1} % of {:.0} ms: {names:?}", build.display(), all as f64 / 1e6);
        assert!(share >= NAMED, "{share:.1} %: {:?}", tasks.notes());
        for task in right {
            assert!(names.contains(task), "no {task} in {names:?}");
        }
    }
}

fn get(address: SocketAddr, path: &str) {
    let answer = ureq::get(format!("http://{address}{path}")).call();
    answer.and_then(|mut answer| answer.body_mut().read_to_vec()).expect("an answer");
}

#[test]
fn tasks_of_actix_have_names() {
    let work = |address| {
        get(address, "/compute");
        Lines::get(address, "/events").skip_to("data:");
    };
    assert_named("actix", &[], work, &["handler others::actix::compute"]);
}

#[test]
fn tasks_of_axum_have_names() {
    let work = |address| {
        for path in ["/compute", "/report", "/events/2"] {
            get(address, path);
        }
    };
    let arguments = ["2", &web::upstream().to_string(), web::FILES];
    assert_named("web", &arguments, work, &["handler others::web::compute"]);
}

#[test]
fn tasks_of_tonic_have_names() {
    let work = |address| grpc::run(async { grpc::call_all(&mut grpc::client(address).await).await });
    for service in ["grpc", "grpc-by-itself"] {
        assert_named(service, &[], work, &["handler others::grpc::square"]);
    }
}

#[test]
fn tasks_of_tokio_have_names() {
    let work = |address| {
        let mut client = Lines::open(address);
        assert_eq!(client.ask("set key value"), "ok");
        assert_eq!(client.ask("get key"), "value");
    };
    assert_named("tcp", &[], work, &["task others::tcp::serve"]);
}

#[test]
fn jobs_of_rayon_have_names() {
    let work = |address| {
        let mut client = Lines::open(address);
        for job in ["map", "halves", "nested"] {
            assert_eq!(client.ask(job), "16");
        }
    };
    assert_named("batch", &[], work, &["rayon others::batch::map"]);
}
