//! Programs of C and C++, compiled against the installed library as a user's are.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

mod codegen;
mod layout;
mod package;
mod publish;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use dormouse_testkit::c::{
    self as tools, Build, CLANG, Compiler, GCC, Language, Link, have, have_basics, run,
};
use dormouse_testkit::is_long;

/// Compilers that are here, by name.
fn compilers() -> Vec<(&'static str, Compiler)> {
    let mut all = vec![("gcc", GCC)];
    if have(&[CLANG.c, CLANG.cxx]) {
        all.push(("clang", CLANG));
    }
    all
}

/// Compiles one file to a program, as C and as C++, links it both ways, and has it say `expected`.
/// In a long run each compiler does both.
fn says(source: &str, flags: &str, expected: &str) {
    if !have_basics() {
        return;
    }
    let ways = [(Language::C, Link::Shared), (Language::CAsCxx, Link::Static)];
    let compilers = compilers();
    let does_all = is_long() || compilers.len() < ways.len();
    for (number, &(name, compiler)) in compilers.iter().enumerate() {
        let ways = if does_all { &ways[..] } else { &ways[number..=number] };
        for &(language, link) in ways {
            let build = Build::new(&format!("{source}-{name}-{language:?}"), compiler, flags);
            let program = build.link("program-api", &[build.compile(source, language, &[])], link, &[]);
            assert_eq!(run(&program), format!("{expected}\n"), "{name} {language:?}");
        }
    }
}

#[test]
fn functions_do_and_refuse_what_the_headers_say() {
    says("api.c", "-O1", "as promised");
}

#[test]
fn the_example_says_what_it_does() {
    if !have_basics() {
        return;
    }
    let build = Build::new("example", GCC, "-O2");
    let object = build.compile("../../examples/tea.c", Language::C, &[]);
    let said = "tea as it is\ntea with milk: 1 site written\ntea as it is\n\
                tea.milk: off, 1 site\ntea.order: off, 1 site\n";
    for link in [Link::Shared, Link::Static] {
        let all = run(&build.link("tea", std::slice::from_ref(&object), link, &[]));
        let metrics = all.strip_prefix(said).unwrap_or_else(|| panic!("{all}"));
        let of_orders = |name: &str, labels: &str| {
            let line = format!("\n{name}{{group=\"POST /orders\"{labels}}} ");
            let (_, rest) = metrics.split_once(&line)?;
            rest.lines().next()?.parse::<f64>().ok()
        };
        assert_eq!(of_orders("dormouse_requests_total", ",outcome=\"completed\""), Some(3.0), "{metrics}");
        assert!(of_orders("dormouse_cpu_time_seconds_total", "") > Some(0.0), "{metrics}");
    }
}

#[test]
fn refusals_leave_keys_as_they_were() {
    says("refused.c", "-O2", "refused");
}

#[test]
fn running_threads_take_no_wrong_branch() {
    says("threads.c", "-O2 -pthread", "no wrong branch");
}

#[test]
fn threads_cancelled_inside_any_function_end_after_it() {
    if !have_basics() {
        return;
    }
    says("cancel.c", "-O2 -pthread", "cancelled");
    // No function is forgotten.
    let build = Build::new("cancel-names", GCC, "-O2 -pthread");
    let program = build.link("program", &[build.compile("cancel.c", Language::C, &[])], Link::Shared, &[]);
    let said = tools::succeed(tools::running(&program).arg("names")).stdout;
    let called: BTreeSet<_> =
        String::from_utf8(said).unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(called, package::exported());
}

#[test]
fn groups_are_left_as_the_header_says() {
    says("groups.c", "-O2 -pthread", "left");
}

#[test]
fn watches_find_who_writes() {
    says("watch.c", "-O1 -fno-omit-frame-pointer -pthread", "found");
}

#[test]
fn profiles_are_read_and_written() {
    says("profile.c", "-O1 -fno-omit-frame-pointer", "profiled");
}

/// Go's runtime has one handler for all signals, on an alternate stack.
#[test]
fn a_program_of_go_is_profiled() {
    if !have_basics() || Command::new("go").arg("version").output().is_err() {
        return dormouse_testkit::skip("go is not installed");
    }
    let folder = tools::scratch().join("go");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("runtime");
    let mut command = Command::new("go");
    command
        .args(["build", "-o"])
        .arg(&program)
        .arg("runtime.go")
        .current_dir(tools::crate_folder().join("tests/programs"));
    // Go's own cache: its runtime is built once on this machine.
    command.env("GO111MODULE", "off").env("CGO_ENABLED", "1");
    command.env("CGO_CFLAGS", format!("-O1 {}", tools::cflags().join(" ")));
    command.env("CGO_LDFLAGS", tools::libs(Link::Static).join(" "));
    tools::succeed(&mut command);
    assert_eq!(run(&program), "profiled\n");
}

#[test]
fn waits_of_groups_are_read() {
    says("waits.c", "-O1", "waited");
}

#[test]
fn tasks_have_times_whoever_begins_them() {
    says("times.c", "-O1 -pthread", "timed");
}

#[test]
fn metrics_are_read_in_each_format() {
    says("metrics.c", "-O1", "told");
}

#[test]
fn without_memory_functions_refuse_and_nothing_aborts() {
    says("memory.c", "-O2", "refused");
}

#[test]
fn memory_that_goes_during_a_call_aborts_nothing() {
    says("starved.c", "-O2", "refused or done");
}

#[test]
fn sites_follow_keys_of_both_objects() {
    if !have_basics() {
        return;
    }
    for (name, compiler) in compilers() {
        for (number, (language, flags)) in [
            (Language::C, "-O2 -fPIC"),
            (Language::CAsCxx, "-O0 -fPIC"),
            (Language::CAsCxx, "-O2 -fPIC"),
            // Not position-independent: keys of the shared object are copied into the program.
            (Language::C, "-O2 -fno-pie -no-pie"),
        ]
        .into_iter()
        .enumerate()
        {
            let build = Build::new(&format!("table-{name}-{number}"), compiler, flags);
            let other = build.compile("table.c", language, &["-DTABLE_OTHER", "-fPIC"]);
            let own = build.compile("table.c", language, &[]);
            let other = build.link("libother.so", &[other], Link::Shared, &["-shared"]);
            let program = build.link("program", &[own, other], Link::Shared, &["-rdynamic"]);
            assert_eq!(run(&program), "the table holds\n", "{name} {language:?} {flags}");
        }
    }
}

#[test]
fn standards_compile_or_are_refused() {
    if !have_basics() {
        return;
    }
    for (name, compiler) in compilers() {
        for (language, standard, compiles) in [
            (Language::C, "-std=c99", false),
            (Language::C, "-std=c17", true),
            (Language::C, "-std=c2x", true),
            (Language::CAsCxx, "-std=c++14", false),
            (Language::CAsCxx, "-std=c++20", true),
            (Language::CAsCxx, "-std=c++2b", true),
        ] {
            let build = Build::new(&format!("standards-{name}"), compiler, standard);
            let output = build.command(language).args(["-fsyntax-only", "service.c"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), compiles, "{name} {standard}: {said}");
            assert!(compiles || said.contains("C11 or C++17 is needed"), "{name} {standard}: {said}");
        }
    }
}

#[test]
fn a_key_on_the_stack_does_not_compile() {
    if !have_basics() {
        return;
    }
    let stack = "#include <dormouse/keys.h>\n\
                 int f(void) { DORMOUSE_KEY(on_the_stack, false); return dormouse_unlikely(on_the_stack); }";
    let number =
        "#include <dormouse/keys.h>\nstatic int number;\nint f(void) { return dormouse_likely(number); }";
    let fine = "#include <dormouse/keys.h>\n\
                static DORMOUSE_KEY(at_file_scope, false);\n\
                int f(void) { return dormouse_unlikely(at_file_scope); }";
    for (name, compiler) in compilers() {
        let build = Build::new(&format!("refused-{name}"), compiler, "");
        for language in [Language::C, Language::CAsCxx] {
            for (source, compiles) in [(stack, false), (number, false), (fine, true)] {
                let file = tools::scratch().join(format!("refused-{name}-{language:?}.c"));
                fs::write(&file, format!("{source}\n")).unwrap();
                let output = build.command(language).arg("-fsyntax-only").arg(&file).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.success(), compiles, "{name} {language:?}: {source}\n{said}");
            }
        }
    }
}
