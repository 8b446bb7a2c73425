//! Whether a program's own code keeps frame pointers. Stacks are whole without them, by unwind
//! tables.
//!
//! With frame pointers a function begins by `push rbp` and `mov rbp, rsp`, or does so after a check
//! whether it has anything to do; gcc puts other instructions between the two. On arm64 these are
//! `stp x29, x30, [sp, …]` and `add x29, sp, …`. Functions that call no other need none, and
//! functions from the C library's objects (`_start` and the like) have none.
//!
//! The language of `main` decides which functions are the program's own. In a Rust program they are
//! those of Rust except std's, which is compiled with frame pointers and so shows nothing about the
//! rest. In a program of another language with Rust inside, such as a C service with libdormouse,
//! they are the other ones.

use std::fs::File;

use object::read::ReadCache;
use object::{Architecture, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

/// `push rbp`, and `mov rbp, rsp` as LLVM and GCC write it.
const PUSH: u8 = 0x55;
const MOVE: [u8; 3] = [0x48, 0x89, 0xe5];
/// The same on arm64, and calls. Each is the bits that an instruction has, and those that count:
/// the store of both registers with or without a change of `sp`, and the frame pointer from `sp`.
const STORE: (u32, u32) = (0xa900_7bfd, 0xff40_7fff);
const ADD: (u32, u32) = (0x9100_03fd, 0xffc0_03ff);
const BL: (u32, u32) = (0x9400_0000, 0xfc00_0000);
const BLR: (u32, u32) = (0xd63f_0000, 0xffff_fc1f);
/// How far into a function they are looked for.
const WINDOW: usize = 64;
/// Shorter functions mostly call no other.
const LEAST: u64 = 32;
/// Functions of the objects that a linker adds to each program.
const OF_LINKER: [&str; 4] =
    ["_start", "register_tm_clones", "deregister_tm_clones", "__do_global_dtors_aux"];
/// The beginnings of names that Rust code exports to C: of libdormouse, of std, and of compiler
/// support code.
const EXPORTED: [&str; 3] = ["dormouse_", "rust_", "__"];
/// Bytes in front of the code where its stubs for functions of other objects are.
const STUBS: i64 = 1 << 20;
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
    /// Reads the program in `file`; `None` if it has no symbols or cannot be read.
    ///
    /// # Cost
    ///
    /// Its symbols and its code are read: some tens of milliseconds for a large program.
    pub(crate) fn read(file: File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let program = object::File::parse(&cache).ok()?;
        let has_words = match program.architecture() {
            Architecture::X86_64 => false,
            Architecture::Aarch64 => true,
            _ => return None,
        };
        let text = program.section_by_name(".text")?;
        let code = Code { from: text.address(), bytes: text.data().ok()?, has_words };
        let (mut rust, mut others, mut has_rust_main) = (Self::default(), Self::default(), false);
        for symbol in program.symbols() {
            let Ok(name) = symbol.name() else { continue };
            has_rust_main |= is_rust_main(name);
            if symbol.kind() != SymbolKind::Text || symbol.size() < LEAST {
                continue;
            }
            let kind = match rustc_demangle::try_demangle(name) {
                Ok(name) if is_of_std(&format!("{name:#}")) => continue,
                Ok(_) => &mut rust,
                // A part that another function jumps to has the frame of that one.
                Err(_) if OF_LINKER.contains(&name) || name.contains(".cold") => continue,
                Err(_) if EXPORTED.iter().any(|begin| name.starts_with(begin)) => continue,
                Err(_) => &mut others,
            };
            // None: it lies in another section.
            let Some(function) = code.function(symbol.address(), symbol.size()) else { continue };
            if code.has_call(function) {
                kind.all += 1;
                kind.keep += usize::from(code.has_frame(function));
            }
        }
        let order = if has_rust_main { [rust, others] } else { [others, rust] };
        order.into_iter().find(|functions| functions.all > 0)
    }

    /// Whether stacks can be walked through them. A few are written by hand, or have no frame.
    pub(crate) fn is_most(self) -> bool {
        self.keep * 10 >= self.all * 9
    }
}

/// The instructions of a program.
struct Code<'a> {
    from: u64,
    bytes: &'a [u8],
    /// Each instruction is a word, as on arm64.
    has_words: bool,
}

impl<'a> Code<'a> {
    fn function(&self, at: u64, size: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(at.checked_sub(self.from)?).ok()?;
        self.bytes.get(at..)?.get(..usize::try_from(size).ok()?)
    }

    /// Whether there is a call in a function: the bytes of one to an address in the program's code
    /// or just in front of it, where the linker's stubs are, or of one by a register or a pointer.
    fn has_call(&self, function: &[u8]) -> bool {
        let begin = function.as_ptr() as usize - self.bytes.as_ptr() as usize;
        let is_there = |to: i64| (-STUBS..self.bytes.len() as i64).contains(&to);
        if self.has_words {
            return words(function).enumerate().any(|(at, word)| {
                // 26 bits with a sign, in words.
                let distance = i64::from((word << 6).cast_signed() >> 4);
                is(word, BLR) || is(word, BL) && is_there((begin + 4 * at) as i64 + distance)
            });
        }
        let is_near = |at: usize, distance: [u8; 4]| {
            is_there((begin + at + 5) as i64 + i64::from(i32::from_le_bytes(distance)))
        };
        function.windows(5).enumerate().any(|(at, bytes)| match *bytes {
            [0xe8, a, b, c, d] => is_near(at, [a, b, c, d]),
            // `call [rip + …]`, `call reg`, `call [reg + …]`.
            [0xff, 0x15 | 0xd0..=0xd7 | 0x50..=0x57 | 0x90..=0x97, ..] => true,
            _ => false,
        })
    }

    fn has_frame(&self, function: &[u8]) -> bool {
        if self.has_words { has_frame_in_words(function) } else { has_frame(function) }
    }
}

/// The instructions of a function where each is a word.
fn words(function: &[u8]) -> impl Iterator<Item = u32> {
    function.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

fn is(word: u32, (bits, mask): (u32, u32)) -> bool {
    word & mask == bits
}

fn has_frame_in_words(function: &[u8]) -> bool {
    let mut begin = words(&function[..function.len().min(WINDOW)]);
    begin.any(|word| is(word, STORE)) && begin.any(|word| is(word, ADD))
}

fn has_frame(function: &[u8]) -> bool {
    let begin = &function[..function.len().min(WINDOW)];
    let push = begin.iter().position(|&byte| byte == PUSH);
    push.is_some_and(|push| begin[push + 1..].windows(MOVE.len()).any(|bytes| bytes == MOVE))
}

/// Whether a function is std's: the first path in its name is, as in
/// `<&u8 as core::fmt::Debug>::fmt` or `<[u8]>::copy_within`.
fn is_of_std(name: &str) -> bool {
    let Some((before, _)) = name.split_once("::") else { return false };
    let krate = before.rsplit(|c: char| c != '_' && !c.is_alphanumeric()).next();
    krate.is_none_or(|krate| krate.is_empty() || OF_STD.contains(&krate))
}

/// Whether a symbol is the function `main` at the root of a crate.
fn is_rust_main(symbol: &str) -> bool {
    symbol.contains("4main")
        && rustc_demangle::try_demangle(symbol).is_ok_and(|name| {
            format!("{name:#}").split_once("::").is_some_and(|(krate, main)| {
                main == "main" && krate.chars().all(|c| c == '_' || c.is_alphanumeric())
            })
        })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_crates_main_is_one() {
        for (symbol, is_main) in [
            ("_ZN3tea4main17h0123456789abcdefE", true),
            ("_RNvCs1234_3tea4main", true),
            ("_ZN3tea3pot4main17h0123456789abcdefE", false),
            ("main", false),
            ("_Z4mainv", false),
        ] {
            assert_eq!(is_rust_main(symbol), is_main, "{symbol}");
        }
    }

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

    /// The prologues in the program that `compiler` makes of this source, with these arguments.
    fn built(compiler: &str, name: &str, source: &str, arguments: &[&str]) -> Option<Prologues> {
        let folder = tempfile::tempdir().unwrap();
        let (input, program) = (folder.path().join(name), folder.path().join("program"));
        std::fs::write(&input, source).unwrap();
        let output = Command::new(compiler).arg("-o").args([&program, &input]).args(arguments).output();
        let output = output.expect("cargo has run rustc, which has run cc");
        assert!(output.status.success(), "{output:?}");
        Prologues::read(File::open(program).unwrap())
    }

    /// Reads a program of twenty functions, compiled with these flags.
    fn compiled(flags: &[&str]) -> Option<Prologues> {
        let (mut functions, mut calls) = (String::new(), String::new());
        for n in 0..20 {
            let body = format!("for cup in 0..tea.len() {{ tea.push(format!(\"{{cup}} {n}\")); }}");
            let _ = writeln!(functions, "#[inline(never)] fn pour_{n}(tea: &mut Vec<String>) {{ {body} }}");
            let _ = write!(calls, "pour_{n}(&mut tea);");
        }
        let source = format!("{functions} fn main() {{ let mut tea = vec![]; {calls} drop(tea); }}");
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        built(&rustc, "tea.rs", &source, &[&["-O", "-C", "codegen-units=1"], flags].concat())
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

    /// A function for which gcc puts other instructions into the prologue, one that calls no other,
    /// and one with a part that is seldom run.
    const OF_C: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        __attribute__((noinline)) long fill(long *tea, long n) {
            for (long i = 0; i < n; i++) tea[i] += i * n;
            return tea[n - 1] + tea[0] * n;
        }
        __attribute__((noinline)) long pour(long *tea, long n, const char *name, long cups) {
            if (n < 0) { fprintf(stderr, "cold %s\n", name); abort(); }
            printf("%s %ld\n", name, cups);
            return fill(tea, n) + cups;
        }
        int main(int argc, char **argv) {
            long tea[4] = {argc};
            return (int)pour(tea, 4, argv[0], argc) & 1;
        }"#;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn functions_of_gcc_are_told() {
        let c = |flag| built("gcc", "tea.c", OF_C, &["-O2", flag]).expect("it has symbols");
        let with = c("-fno-omit-frame-pointer");
        assert!(with.all == 2 && with.keep == 2, "main and pour: {with:?}");
        assert_eq!(c("-fomit-frame-pointer"), Prologues { keep: 0, all: 2 });
    }

    #[test]
    fn functions_for_arm64_are_told() {
        const GCC: &str = "aarch64-linux-gnu-gcc";
        if !dormouse_testkit::c::have(&[GCC]) {
            return;
        }
        let c = |flag| built(GCC, "tea.c", OF_C, &["-O2", flag]).expect("it has symbols");
        assert_eq!(c("-fno-omit-frame-pointer"), Prologues { keep: 2, all: 2 });
        assert_eq!(c("-fomit-frame-pointer"), Prologues { keep: 0, all: 2 });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_frame_may_have_instructions_in_it() {
        // push rbp; xor eax, eax; mov rbp, rsp
        assert!(has_frame(&[0x55, 0x31, 0xc0, 0x48, 0x89, 0xe5, 0xc3]));
        // mov rbp, rsp without, or before, a push.
        assert!(!has_frame(&[0x48, 0x89, 0xe5, 0xc3]) && !has_frame(&[0x48, 0x89, 0xe5, 0x55, 0xc3]));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_c_program_is_not_judged_by_rust() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libpot.a");
        let rust = "#[inline(never)] fn brew(n: usize) -> usize { println!(\"{n}\"); n * 2 }
            #[unsafe(no_mangle)] pub extern \"C\" fn dormouse_pot(n: usize) -> usize { brew(n) + brew(n + 1) }";
        std::fs::write(folder.path().join("pot.rs"), rust).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let flags = ["-O", "--edition=2024", "--crate-type=staticlib", "-Cforce-frame-pointers=no", "-o"];
        let output = Command::new(rustc)
            .args(flags)
            .args([&library, &folder.path().join("pot.rs")])
            .output()
            .expect("cargo has run rustc");
        assert!(output.status.success(), "{output:?}");
        let source = format!(
            "{OF_C}\nunsigned long dormouse_pot(unsigned long); void add(void) {{ dormouse_pot(1); }}"
        );
        let library = library.to_str().unwrap();
        let flags = ["-O2", "-fno-omit-frame-pointer", library, "-lpthread", "-ldl", "-lm"];
        let found = built("gcc", "tea.c", &source, &flags).expect("it has symbols");
        assert!(found.is_most(), "brew has none, main and pour have: {found:?}");
    }
}
