//! Programs that are nothing like the test: linked statically, without Rust, without threads'
//! library.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use dormouse_breakpoints::{Access, Outside, OutsideBudget, WatchSpec};
use dormouse_testkit::skip;

use super::{report, with_registers};

/// Tells where its variable is, and writes it when told to: by itself, in a child of `vfork`, and
/// in one of `fork`.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long watched;
int main(void) {
    char byte;
    printf("%lx\n", (long)&watched);
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 1;
    for (int i = 0; i < 7; i++) watched = i;
    if (vfork() == 0) { watched = 42; _exit(0); }
    if (fork() == 0) { watched = 43; _exit(0); }
    while (wait(0) > 0) {}
    puts("done");
    fflush(stdout);
    return read(0, &byte, 1) == 1 ? 0 : 1;
}
"#;

#[test]
fn a_static_program_is_watched() {
    with_registers(|| {
        let folder = tempfile::tempdir().unwrap();
        let [source, program] = ["program.c", "program"].map(|name| folder.path().join(name));
        std::fs::write(&source, PROGRAM).unwrap();
        let compiled = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            return skip("no static programs are compiled here");
        }
        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut tell, told) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lines = BufReader::new(told).lines().map(Result::unwrap);
        let addr = usize::from_str_radix(&lines.next().unwrap(), 16).unwrap();
        let spec = WatchSpec::new(addr, 8, Access::Write);
        let mut outside = Outside::open(child.id(), &[spec], OutsideBudget::default()).unwrap();
        tell.write_all(b"x").unwrap();
        assert_eq!(lines.next().unwrap(), "done");
        let watch = report(&mut outside).watch;
        // Nothing of the children, though one shares the memory.
        assert_eq!((watch.hits, watch.delivered, watch.sites.len()), (7, 7, 1));
        assert_eq!(watch.sites[0].new, Some(42), "read when the hits were seen, not when they were made");
        tell.write_all(b"x").unwrap();
        assert!(child.wait().unwrap().success());
    });
}
