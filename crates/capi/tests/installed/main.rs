//! Programs of C and C++, compiled against the installed library as a user's are.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

mod codegen;
mod layout;
mod package;
mod tools;

use std::fs;

use tools::{Build, CLANG, Compiler, GCC, Language, Link, have, have_basics, run};

/// Compilers that are here, by name.
fn compilers() -> Vec<(&'static str, Compiler)> {
    let mut all = vec![("gcc", GCC)];
    if have(&[CLANG.c, CLANG.cxx]) {
        all.push(("clang", CLANG));
    }
    all
}

/// Compiles one file to a program, as C and as C++, links it both ways, and has it say `expected`.
fn says(source: &str, flags: &str, expected: &str) {
    if !have_basics() {
        return;
    }
    for (name, compiler) in compilers() {
        for (language, link) in [(Language::C, Link::Shared), (Language::CAsCxx, Link::Static)] {
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
fn refusals_are_typed_and_leave_keys_as_they_were() {
    says("refused.c", "-O2", "refused");
}

#[test]
fn the_example_of_the_readme_compiles_and_runs() {
    if !have_basics() {
        return;
    }
    let readme = fs::read_to_string(tools::crate_folder().join("README.md")).unwrap();
    let example = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let file = tools::scratch().join("readme.c");
    fs::write(&file, example).unwrap();
    let build = Build::new("readme", GCC, "-O2");
    let object = file.with_extension("o");
    tools::succeed(build.command(Language::C).arg("-c").arg(&file).arg("-o").arg(&object));
    run(&build.link("tea", &[object], Link::Shared, &[]));
}

#[test]
fn threads_that_run_sites_meanwhile_take_no_wrong_branch() {
    says("threads.c", "-O2 -pthread", "no wrong branch");
}

#[test]
fn sites_follow_keys_of_their_own_and_of_the_other_object() {
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
fn a_key_that_is_not_static_does_not_compile() {
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
