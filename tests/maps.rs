//! `dormouse maps` on live processes: services, copies of them that are hard to read, and what is
//! no service.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{DORMOUSE, NOBODY, Run, Service, command, finish, run, skip};
use serde_json::Value;

/// Where a process began: the function `_start` of its program.
fn entry(pid: u32) -> u64 {
    const AT_ENTRY: u64 = 9;
    let vector = fs::read(format!("/proc/{pid}/auxv")).expect("its auxiliary vector");
    let words: Vec<u64> = vector
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
        .collect();
    words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY).expect("an entry")[1]
}

/// The answer about an address.
fn at(pid: u32, addr: u64) -> Value {
    let run = run(["--json", "maps", &pid.to_string(), &format!("{addr:#x}")]);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.json()
}

fn mappings(pid: u32) -> Vec<Value> {
    let run = run(["--json", "maps", &pid.to_string()]);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.json()["mappings"].as_array().expect("a list").clone()
}

/// The first and the last but one address of a mapping.
fn range(mapping: &Value) -> (u64, u64) {
    let number = |key: &str| {
        let text = mapping[key].as_str().and_then(|text| text.strip_prefix("0x")).expect("a number");
        u64::from_str_radix(text, 16).expect("hex")
    };
    (number("start"), number("end"))
}

/// The functions at `places` places of a mapping, requested through standard input.
fn functions_in(pid: u32, mapping: &Value, places: u64) -> Vec<String> {
    let (start, end) = range(mapping);
    let step = ((end - start) / places).max(1) as usize;
    let addrs: Vec<String> = (start..end).step_by(step).map(|addr| format!("{addr:x}")).collect();
    let run: Run = assert_cmd::Command::from_std(command(["--json", "maps", &pid.to_string(), "-"]))
        .write_stdin(addrs.join("\n"))
        .timeout(crate::support::HANG)
        .output()
        .expect("the command runs")
        .into();
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let lines = run.json_lines();
    assert!(lines.len() as u64 >= places.min(end - start), "{} answers", lines.len());
    let frames = lines.iter().flat_map(|line| line["frames"].as_array().expect("a list"));
    frames.map(|frame| frame["function"].as_str().expect("a name").to_owned()).collect()
}

fn code_of<'a>(mappings: &'a [Value], name: &str) -> &'a Value {
    let is = |mapping: &&Value| {
        mapping["perms"] == "r-xp" && mapping["name"].as_str().is_some_and(|path| path.contains(name))
    };
    mappings.iter().find(is).unwrap_or_else(|| panic!("code of {name}"))
}

/// A service whose program is a copy in a directory of its own.
fn service_of_copy(change: impl FnOnce(&Path)) -> (tempfile::TempDir, PathBuf, Service) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("tea house");
    fs::copy(DORMOUSE, &program).expect("a copy");
    change(&program);
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start_as(program.as_os_str(), runtime, |_| {}).expect("a service");
    (directory, program, service)
}

#[test]
fn a_service_lists_what_it_has_mapped() {
    let service = Service::idle();
    let text = run(["maps", &service.target()]);
    assert_eq!(text.code, Some(0));
    let head = text.stdout.lines().next().expect("a head");
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["START", "END", "PERMS", "OFFSET", "KIND", "NAME"]
    );
    assert!(text.stdout.contains("[vdso]") && text.stdout.contains(" r-xp "), "{}", text.stdout);

    let all = mappings(service.pid());
    let code = code_of(&all, DORMOUSE);
    assert_eq!(code["kind"], "file");
    assert!(code["inode"].as_u64() > Some(0) && code["device"].as_str().is_some_and(|d| d.contains(':')));
    let kernels: Vec<String> = fs::read_to_string(format!("/proc/{}/maps", service.pid()))
        .expect("its maps")
        .lines()
        .map(|line| line.split(' ').next().expect("a range").to_owned())
        .collect();
    let (start, end) = range(code);
    assert!(kernels.contains(&format!("{start:x}-{end:x}")), "the kernel has the same");
}

#[test]
fn its_own_functions_are_found_with_their_lines() {
    let service = Service::idle();
    let start = entry(service.pid());
    let text = run(["maps", &service.target(), &format!("{start:x}"), &format!("{:#x}", start + 4)]);
    assert_eq!(text.code, Some(0), "{text:?}");
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines[0].starts_with(&format!("{start:#x}  _start+0x0")), "{lines:?}");
    assert!(lines[1].trim_start().starts_with(DORMOUSE) && lines[1].ends_with("r-xp file"), "{lines:?}");
    assert!(text.stdout.contains("_start+0x4"), "{lines:?}");

    // By name, and many at once.
    let names = functions_in(service.pid(), code_of(&mappings(service.pid()), DORMOUSE), 1_500);
    assert!(names.iter().any(|name| name.contains("dormouse")), "{} names, none of ours", names.len());
    assert!(names.iter().all(|name| !name.starts_with("_ZN")), "as people write them");
}

#[test]
fn the_kernels_code_and_libraries_have_names() {
    let service = Service::idle();
    let all = mappings(service.pid());
    let names = functions_in(service.pid(), code_of(&all, "libc"), 500);
    assert!(names.len() > 100, "{names:?}");
    let names = functions_in(service.pid(), code_of(&all, "[vdso]"), 500);
    assert!(names.iter().any(|name| name.contains("clock_gettime")), "{names:?}");
}

#[test]
fn a_replaced_program_is_still_found() {
    let (_directory, program, service) = service_of_copy(|_| {});
    fs::remove_file(&program).expect("a file to remove");
    fs::write(&program, "another program").expect("one in its place");
    let answer = at(service.pid(), entry(service.pid()));
    assert_eq!((&answer["mapping"]["kind"], &answer["object"]), (&"deleted".into(), &"tea house".into()));
    assert_eq!(
        (&answer["frames"][0]["function"], &answer["frames"][0]["offset"]),
        (&"_start".into(), &0.into())
    );
    let names = functions_in(service.pid(), code_of(&mappings(service.pid()), "tea house"), 1_500);
    assert!(names.iter().any(|name| name.contains("dormouse")), "{} names, none of ours", names.len());
}

#[test]
fn a_stripped_program_has_its_libraries_names() {
    let mut stripped = false;
    let (_directory, _, service) = service_of_copy(|program| {
        stripped = Command::new("strip").arg(program).status().is_ok_and(|status| status.success());
    });
    if !stripped {
        return skip("there is no strip");
    }
    let answer = at(service.pid(), entry(service.pid()));
    assert_eq!((&answer["object"], &answer["frames"]), (&"tea house".into(), &Value::Array(Vec::new())));
    assert!(answer["offset"].as_u64() > Some(0), "{answer}");
    let names = functions_in(service.pid(), code_of(&mappings(service.pid()), "libc"), 500);
    assert!(names.len() > 100, "{names:?}");
}

#[test]
fn a_program_in_memory_is_found() {
    let memory = rustix::fs::memfd_create("tea in memory", rustix::fs::MemfdFlags::empty()).expect("a memfd");
    let mut memory = fs::File::from(memory);
    memory.write_all(&fs::read(DORMOUSE).expect("the program")).expect("a copy");
    let program = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start_as(program.as_ref(), runtime, |_| {}).expect("a service");
    let answer = at(service.pid(), entry(service.pid()));
    assert_eq!(
        (&answer["mapping"]["kind"], &answer["object"]),
        (&"memfd".into(), &"memfd:tea in memory".into())
    );
    assert_eq!(answer["frames"][0]["function"], "_start", "{answer}");
}

/// Something that runs and has nothing of ours in it.
struct Cat(Child);

impl Cat {
    fn start() -> Cat {
        Cat(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat"))
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn any_process_is_a_target_of_maps() {
    let cat = Cat::start();
    let target = cat.0.id().to_string();
    assert!(run(["maps", &target]).stdout.contains("[stack]"));

    let nothing = run(["maps", &target, "0"]);
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    assert!(nothing.stdout.starts_with("0x000000000000  nothing is mapped there"), "{nothing:?}");
    let nothing = run(["--json", "maps", &target, "0x0"]);
    assert_eq!((nothing.code, &nothing.json()["mapping"]), (Some(1), &Value::Null));

    run(["maps", &target, "tea"]).assert_fails(2, &["no address in hex"]);
    let mut asked = assert_cmd::Command::from_std(command(["maps", &target, "-"]));
    let broken: Run = asked.write_stdin("0x0\ntea\n").output().expect("the command runs").into();
    assert_eq!(broken.code, Some(2), "{broken:?}");
    assert!(
        broken.stderr.contains("standard input, line 2") && broken.stdout.lines().count() == 1,
        "{broken:?}"
    );
    run(["maps", "no-such-service-anywhere"]).assert_fails(3, &["no process is named"]);

    drop(cat);
    run(["maps", &target]).assert_fails(3, &[&format!("there is no process {target}")]);
}

#[test]
fn a_process_of_somebody_else_is_exit_4() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be somebody else");
    }
    let service = Service::idle();
    let mut stranger = command(["maps", &service.target()]);
    stranger.uid(NOBODY).gid(NOBODY);
    if let Err(error) = stranger.output() {
        return skip(format_args!("other users may not run the command: {error}"));
    }
    finish(stranger).assert_fails(4, &["may not be read", "root"]);
}
