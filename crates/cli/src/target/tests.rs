//! Which process a target means, and which socket is its agent's.

use std::os::unix::net::UnixListener;

use super::*;

fn report(failure: Failure) -> crate::exit::Report {
    match failure {
        Failure::Said(report) => *report,
        Failure::StdoutClosed => panic!("it has something to say"),
    }
}

/// A `/proc` with the given processes, all in the namespace of this test, and one table of
/// sockets.
fn machine(processes: &[(u32, &str, &str)], paths: &[&str]) -> (tempfile::TempDir, Finder) {
    let dir = tempfile::tempdir().unwrap();
    let rows = paths.iter().map(|path| format!("0: 00000002 00000000 00010000 0001 01 9 {path}\n"));
    let table = rows.collect::<Vec<_>>().concat();
    // No process of the machine has it, and no test gives it to another one.
    let own = 5_000_000;
    let me = (own, "dormouse", "NSpid:\t1\n");
    for &(pid, comm, status) in processes.iter().chain([&me]) {
        process::tests::put(dir.path(), pid, comm, Some(&format!("/bin/{comm}")), status);
        let net = dir.path().join(pid.to_string()).join("net");
        fs::create_dir(&net).unwrap();
        fs::write(net.join("unix"), &table).unwrap();
    }
    std::os::unix::fs::symlink(own.to_string(), dir.path().join("self")).unwrap();
    let finder = Finder { proc: Proc::at(dir.path()) };
    (dir, finder)
}

#[test]
fn numbers_are_process_ids() {
    assert_eq!("12".parse(), Ok(Target::Pid(12)));
    assert_eq!("12a".parse(), Ok(Target::Name("12a".into())));
    assert_eq!("99999999999".parse(), Ok(Target::Name("99999999999".into())));
    assert_eq!("tea.dormouse".parse(), Ok(Target::File("tea.dormouse".into())));
    assert_eq!("./12".parse(), Ok(Target::File("./12".into())));
    assert_eq!("12@345".parse(), Ok(Target::Exact(12, 345)));
    assert_eq!("tea@home".parse(), Ok(Target::Name("tea@home".into())));
    assert!("0".parse::<Target>().is_err());
    assert!("".parse::<Target>().is_err());
}

#[test]
fn a_process_is_found_by_its_inner_number() {
    let (_dir, finder) = machine(
        &[(10, "tea", "NSpid:\t10\t1\n"), (11, "shop", "NSpid:\t11\n")],
        &["/run/dormouse/1.sock", "/run/dormouse/11.sock", "/run/dormouse/12.sock"],
    );
    assert_eq!(finder.find(&Target::Pid(10)).unwrap().sockets, [PathBuf::from("/run/dormouse/1.sock")]);
    let shop = finder.find(&Target::Name("shop".into())).unwrap();
    assert_eq!((shop.process.pid, shop.sockets), (11, vec![PathBuf::from("/run/dormouse/11.sock")]));
}

#[test]
fn what_is_not_there_is_told_apart() {
    let (_dir, finder) = machine(
        &[(10, "teaparty", ""), (11, "teaparty", ""), (12, "cat", ""), (13, "thread", "")],
        &["/run/dormouse/10.sock", "/run/dormouse/11.sock"],
    );
    let fails = |target: &str| report(finder.find(&target.parse().unwrap()).unwrap_err());

    assert_eq!(fails("10@1").message, "process 10 has ended");
    let dead = fails("77");
    assert_eq!((dead.exit, dead.message.as_str()), (Exit::NoTarget, "there is no process 77"));

    let without = fails("12");
    assert_eq!(
        (without.exit, without.message.as_str()),
        (Exit::NoTarget, "cat (process 12) has no dormouse in it")
    );
    assert_eq!(without.hint.as_deref(), Some(INIT_HINT));
    assert_eq!(fails("cat"), without);

    let several = fails("teaparty");
    assert_eq!(several.exit, Exit::Usage);
    assert!(several.message.contains("teaparty (process 10), teaparty (process 11)"), "{}", several.message);

    let unknown = fails("teaprty");
    assert_eq!((unknown.exit, unknown.near), (Exit::NoTarget, vec!["teaparty".to_owned()]));
}

#[test]
fn a_thread_is_not_taken_for_its_process() {
    let dir = tempfile::tempdir().unwrap();
    process::tests::put(dir.path(), 20, "tea", None, "");
    let status = dir.path().join("20/status");
    let text = fs::read_to_string(&status).unwrap().replace("Tgid:\t20", "Tgid:\t19");
    fs::write(status, text).unwrap();
    let finder = Finder { proc: Proc::at(dir.path()) };
    let thread = report(finder.find(&Target::Pid(20)).unwrap_err());
    assert_eq!((thread.exit, thread.message.as_str()), (Exit::NoTarget, "20 is a thread of process 19"));
}

#[test]
fn full_sockets_share_one_wait() {
    let dir = tempfile::tempdir().unwrap();
    let [crowded, open] = ["a.sock", "b.sock"].map(|name| dir.path().join(name));
    let listener = UnixListener::bind(&crowded).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&crowded).unwrap();
    let finder = Finder::new();
    let process = finder.process(&Target::Pid(std::process::id())).unwrap();
    let connect = |sockets, patience| finder.connect(&Found { process: process.clone(), sockets }, patience);

    let start = Instant::now();
    let failed = report(connect(vec![crowded.clone(); 20], Duration::from_secs(1)).unwrap_err());
    assert!(failed.message.contains("has accepted no connection for 1.00 s"), "{}", failed.message);
    let _open = UnixListener::bind(&open).unwrap();
    assert!(connect(vec![crowded, open], Duration::from_secs(30)).unwrap().1);
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn near_names_are_ranked() {
    let names = ["teaparty", "teapartie", "party", "sh", "cat", "teaparty"];
    assert_eq!(near("teapart", names.into_iter()), ["teaparty", "teapartie"]);
    assert_eq!(near("party", names.into_iter()), ["party", "teaparty"]);
    assert_eq!(near("xy", names.into_iter()), [] as [&str; 0]);
}
