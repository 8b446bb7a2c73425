//! Advice on how to build a program so that the stacks of its profiles have all callers, for the
//! language in which it is written.
//!
//! Compilers leave their names in the section `.comment`. A Rust program has that of a C compiler
//! too, from the few objects that the C library adds, so a Rust `main` decides. For a program in
//! another language (or one without that section) there is no advice, because it would be about
//! another compiler.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use object::read::ReadCache;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

/// Larger files are not read.
const LARGEST: u64 = 1 << 30;

/// The compilers that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    /// C or C++, which have the same flag.
    C,
    /// Both are in it, and it is unknown which one has `main`.
    RustOrC,
}

impl Language {
    /// The language of the program in `file`; `None` if nothing is known that could help.
    ///
    /// # Cost
    ///
    /// Its section headers, and the names of its symbols if Rust is in it.
    pub(crate) fn of(file: File) -> Option<Self> {
        if file.metadata().ok()?.len() > LARGEST {
            return None;
        }
        let cache = ReadCache::new(file);
        let program = object::File::parse(&cache).ok()?;
        let comment = program.section_by_name(".comment")?;
        let compilers = comment.data().ok()?;
        let has = |word: &str| memchr::memmem::find(compilers, word.as_bytes()).is_some();
        // Go's linker writes no comment of its own, but cgo's objects bring one along.
        if program.section_by_name(".go.buildinfo").is_some() {
            return None;
        }
        let has_c = has("GCC: ") || has("clang version");
        if !has("rustc version") {
            return has_c.then_some(Self::C);
        }
        match has_rust_main(&program) {
            _ if !has_c => Some(Self::Rust),
            Some(true) => Some(Self::Rust),
            Some(false) => Some(Self::C),
            None => Some(Self::RustOrC),
        }
    }

    /// The advice, as the end of a sentence.
    pub(crate) fn frame_pointers(self) -> &'static str {
        match self {
            Self::Rust => "build with RUSTFLAGS=\"-C force-frame-pointers=yes\"",
            Self::C => "build with -fno-omit-frame-pointer",
            Self::RustOrC => {
                "build Rust with RUSTFLAGS=\"-C force-frame-pointers=yes\", C and C++ with \
                 -fno-omit-frame-pointer"
            }
        }
    }
}

/// The advice for a process. If `program` is given and the process has ended (or executes another
/// program), the file at that path is read.
pub(crate) fn of_process(pid: u32, program: Option<&str>) -> Option<&'static str> {
    type Known = (u32, Option<String>, Option<Language>);
    static LAST: Mutex<Option<Known>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let is_it = |(of, path, _): &&Known| (*of, path.as_deref()) == (pid, program);
    if let Some((.., language)) = last.as_ref().filter(is_it) {
        return language.map(Language::frame_pointers);
    }
    let exe = format!("/proc/{pid}/exe");
    let is_program = |path: &Path| program.is_none_or(|program| path == Path::new(program));
    let runs = std::fs::read_link(&exe).is_ok_and(|path| is_program(&path));
    let file = if runs { File::open(exe).ok() } else { program.and_then(|path| File::open(path).ok()) };
    let language = file.and_then(Language::of);
    *last = Some((pid, program.map(str::to_owned), language));
    language.map(Language::frame_pointers)
}

/// Whether a crate's `main` is in a program; `None` if it has no symbols.
fn has_rust_main<'a>(program: &object::File<'a, &'a ReadCache<File>>) -> Option<bool> {
    let mut symbols = program.symbols().filter_map(|symbol| symbol.name().ok()).peekable();
    symbols.peek()?;
    Some(symbols.any(is_rust_main))
}

/// Whether a symbol is the function `main` at the root of a crate.
pub(crate) fn is_rust_main(symbol: &str) -> bool {
    symbol.contains("4main")
        && rustc_demangle::try_demangle(symbol).is_ok_and(|name| {
            format!("{name:#}").split_once("::").is_some_and(|(krate, main)| {
                main == "main" && krate.chars().all(|c| c == '_' || c.is_alphanumeric())
            })
        })
}

#[cfg(test)]
mod tests {
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

    fn compiled(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Option<Language> {
        let folder = tempfile::tempdir().unwrap();
        let (input, program) = (folder.path().join(name), folder.path().join("tea"));
        std::fs::write(&input, source).unwrap();
        let output = Command::new(compiler).args(flags).arg("-o").args([&program, &input]).output();
        let output = output.expect("compilers of tests are there");
        assert!(output.status.success(), "{output:?}");
        Language::of(File::open(program).unwrap())
    }

    #[test]
    fn advice_names_the_language_of_main() {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let rust = |flags: &[&str]| compiled(&rustc, "tea.rs", "fn main() {}", flags);
        let c = |flags: &[&str]| compiled("cc", "tea.c", "int main(void) { return 0; }", flags);
        assert_eq!(rust(&[]), Some(Language::Rust));
        assert_eq!(rust(&["-C", "strip=symbols"]), Some(Language::RustOrC), "which one is not known");
        assert_eq!((c(&[]), c(&["-s"])), (Some(Language::C), Some(Language::C)));
        assert_eq!(c(&["-Wl,--strip-all", "-fno-ident", "-nostdlib", "-Wl,-emain"]), None);
        for (language, word) in [(Language::Rust, "-fno-omit"), (Language::C, "RUSTFLAGS")] {
            assert!(!language.frame_pointers().contains(word), "{language:?}");
        }
    }

    #[test]
    fn an_ended_process_is_known_by_path() {
        let own = std::env::current_exe().unwrap();
        let rust = Some(Language::Rust.frame_pointers());
        assert_eq!(of_process(std::process::id(), None), rust);
        assert_eq!(of_process(u32::MAX, own.to_str()), rust);
        assert_eq!(of_process(u32::MAX, Some("/nowhere")), None);
    }
}
