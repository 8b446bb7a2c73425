//! Whether a program's own code keeps frame pointers, without which a profile's stacks leave
//! callers out. Such a stack may still end as it should, in the next frame of std or the C library.
//!
//! With them a function begins by `push rbp; mov rbp, rsp`, or does so after a look whether it has
//! anything to do. Rust's std comes compiled that way and says nothing about the rest, so only
//! other functions of Rust are looked at. In a program without any it is all functions.

use std::fs::File;

use object::read::ReadCache;
use object::{Architecture, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

/// `push rbp; mov rbp, rsp`, as LLVM and GCC write it.
const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
/// How far into a function it is looked for.
const WINDOW: usize = 64;
/// Shorter functions call nobody, most of them.
const LEAST: u64 = 32;
/// Crates that rustc brings along in compiled form: std, and those that it uses itself.
const OF_STD: [&str; 15] = [
    "__rustc",
    "adler2",
    "std",
    "core",
    "alloc",
    "std_detect",
    "panic_unwind",
    "compiler_builtins",
    "hashbrown",
    "rustc_demangle",
    "addr2line",
    "gimli",
    "object",
    "miniz_oxide",
    "memchr",
];

/// How many functions keep them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Prologues {
    pub(crate) keep: usize,
    pub(crate) all: usize,
}

impl Prologues {
    /// Of the program in `file`; `None` if it has no symbols, or is none that can be read.
    ///
    /// # Cost
    ///
    /// Its symbols and its code are read: some tens of milliseconds for a large program.
    pub(crate) fn read(file: File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let program = object::File::parse(&cache).ok()?;
        if program.architecture() != Architecture::X86_64 {
            return None;
        }
        let text = program.section_by_name(".text")?;
        let (from, code) = (text.address(), text.data().ok()?);
        let (mut rust, mut others) = (Self::default(), Self::default());
        for symbol in program.symbols() {
            if symbol.kind() != SymbolKind::Text || symbol.size() < LEAST {
                continue;
            }
            let kind = match symbol.name().map(rustc_demangle::try_demangle) {
                Ok(Ok(name)) if is_of_std(&format!("{name:#}")) => continue,
                Ok(Ok(_)) => &mut rust,
                _ => &mut others,
            };
            // None: it lies in another section.
            let at = symbol.address().checked_sub(from).and_then(|at| usize::try_from(at).ok());
            let Some(function) = at.and_then(|at| code.get(at..)) else { continue };
            let begin = &function[..function.len().min(WINDOW).min(symbol.size() as usize)];
            kind.all += 1;
            kind.keep += usize::from(begin.windows(FRAME.len()).any(|bytes| bytes == FRAME));
        }
        [rust, others].into_iter().find(|functions| functions.all > 0)
    }

    /// Whether stacks can be walked through them. A few are written by hand, or have no frame.
    pub(crate) fn is_most(self) -> bool {
        self.keep * 10 >= self.all * 9
    }
}

/// Whether a function is std's: the first path in its name is, as in
/// `<&u8 as core::fmt::Debug>::fmt` or `<[u8]>::copy_within`.
fn is_of_std(name: &str) -> bool {
    let Some((before, _)) = name.split_once("::") else { return false };
    let krate = before.rsplit(|c: char| c != '_' && !c.is_alphanumeric()).next();
    krate.is_none_or(|krate| krate.is_empty() || OF_STD.contains(&krate))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn functions_of_std_do_not_count() {
        for name in ["std::io::read", "<alloc::vec::Vec<T> as tea::Brew>::brew", "<&core::x as y>::z"] {
            assert!(is_of_std(name), "{name}");
        }
        for name in ["<&i32 as core::fmt::Debug>::fmt", "<[u8]>::copy_within", "__rustc::rust_begin_unwind"] {
            assert!(is_of_std(name), "{name}");
        }
        for name in ["tea::brew", "<tea::Pot as core::fmt::Debug>::fmt", "main", "stdlike::x"] {
            assert!(!is_of_std(name), "{name}");
        }
        assert!(!is_of_std("<u8 as tea::Brew>::brew"));
    }

    /// Of a program of twenty functions, compiled with these flags.
    fn compiled(flags: &[&str]) -> Option<Prologues> {
        let folder = tempfile::tempdir().unwrap();
        let (mut functions, mut calls) = (String::new(), String::new());
        for n in 0..20 {
            let body = format!("for cup in 0..tea.len() {{ tea.push(format!(\"{{cup}} {n}\")); }}");
            let _ = writeln!(functions, "#[inline(never)] fn pour_{n}(tea: &mut Vec<String>) {{ {body} }}");
            let _ = write!(calls, "pour_{n}(&mut tea);");
        }
        let source = format!("{functions} fn main() {{ let mut tea = vec![]; {calls} drop(tea); }}");
        let (input, program) = (folder.path().join("tea.rs"), folder.path().join("tea"));
        std::fs::write(&input, source).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let output = Command::new(rustc)
            .args(["-O", "-C", "codegen-units=1"])
            .args(flags)
            .arg("-o")
            .args([&program, &input])
            .output()
            .expect("cargo has run rustc");
        assert!(output.status.success(), "{output:?}");
        Prologues::read(File::open(program).unwrap())
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_program_is_told_by_its_build() {
        let with = compiled(&["-C", "force-frame-pointers=yes"]).expect("it has symbols");
        assert!(with.all >= 20 && with.is_most(), "{with:?}");
        let without = compiled(&["-C", "force-frame-pointers=no"]).expect("it has symbols");
        assert!(without.all >= 20 && without.keep * 4 < without.all, "{without:?}");
        assert_eq!(compiled(&["-C", "strip=symbols"]), None);
    }
}
