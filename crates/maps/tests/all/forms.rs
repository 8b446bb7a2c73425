//! Names from debug information in the forms that distributions and build tools write.

use crate::{code, program};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use code::symbol_in;
use dormouse_maps::symbols::{Symbol, Symbolizer};
use dormouse_testkit::skip;
use program::{Language, build, run_tool};

/// A function that only its own file knows, with another one inlined into it at line 4.
const SOURCE: &str = "#include <unistd.h>
static inline __attribute__((always_inline)) long stir(volatile long *tea, long n)
{ for (long i = 0; i < n; i++)
    *tea += i * 3; return *tea; }
static __attribute__((noinline)) long pour(volatile long *tea, long n) { return stir(tea, n) + 1; }
int main(int argc, char **argv) { long tea = argc; return (int)pour(&tea, argc) & 1; }";

/// The functions at the places of `pour` in the file `path`, each once: `stir/pour`.
fn poured(path: &Path, pour: (u64, u64), symbolizer: &mut Symbolizer) -> Vec<String> {
    let names = |symbol: &Symbol| {
        let names: Vec<&str> = symbol.frames.iter().map(|frame| &*frame.function).collect();
        names.join("/")
    };
    let mut found: Vec<String> =
        (pour.0..pour.0 + pour.1).map(|at| names(&symbol_in(path, at, symbolizer))).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Where `pour` is in a program that has its symbols: the programs here are linked so that
/// addresses are places in the file.
fn pour_in(path: &Path) -> (u64, u64) {
    let output = Command::new("nm").arg("-S").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(" pour")).expect("it has that function");
    let mut words = line.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

/// The lines that another tool prints.
fn second_opinion(tool: &str, args: &[&str], path: &Path) -> Option<String> {
    let output = Command::new(tool).args(args).arg(path).output();
    if output.is_err() {
        skip(format!("there is no {tool}"));
    }
    Some(String::from_utf8_lossy(&output.ok()?.stdout).into_owned())
}

fn objcopy(args: &[&dyn AsRef<std::ffi::OsStr>]) -> bool {
    run_tool("objcopy", &args.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

fn middle(pour: (u64, u64)) -> String {
    format!("{:#x}", pour.0 + pour.1 / 2)
}

struct Shop {
    directory: tempfile::TempDir,
    path: PathBuf,
}

impl Shop {
    fn built(flags: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tea");
        let flags = [flags, &["-O2", "-no-pie", "-Wl,-Ttext-segment=0", "-Wl,-z,norelro"]].concat();
        build(Language::C, SOURCE, &path, &flags).then_some(Self { directory, path })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn without_dirs() -> Symbolizer {
    Symbolizer::with_debug_dirs([""; 0])
}

#[test]
fn packed_symbols_name_static_functions() {
    let Some(shop) = Shop::built(&[]) else { return };
    let pour = pour_in(&shop.path);
    let (mini, packed, keep) = (shop.at("mini"), shop.at("mini.xz"), shop.at("keep"));
    fs::write(&keep, "pour\n").unwrap();
    let keep = format!("--keep-symbols={}", keep.display());
    let section = format!(".gnu_debugdata={}", packed.display());
    let bare = shop.at("bare");
    let is_done = objcopy(&[&"--only-keep-debug", &shop.path, &mini])
        && objcopy(&[&"-S", &keep, &mini])
        && run_tool("xz", &["-9".as_ref(), mini.as_ref()])
        && objcopy(&[&"-S", &shop.path, &bare]);
    if !is_done {
        return;
    }
    assert_eq!(poured(&bare, pour, &mut without_dirs()), [""]);
    if !objcopy(&[&"--add-section", &section, &bare]) {
        return;
    }
    assert_eq!(poured(&bare, pour, &mut without_dirs()), ["pour"]);
    let asked = format!("info symbol {}", middle(pour));
    if let Some(told) = second_opinion("gdb", &["-nx", "-batch", "-ex", &asked], &bare)
        && !told.contains("pour")
    {
        skip(format!("this gdb does not read it either: {told}"));
    }
    // 300 MiB of zeros.
    let zeros = shop.at("zeros");
    fs::File::create(&zeros).unwrap().set_len(300 << 20).unwrap();
    if run_tool("xz", &["-1".as_ref(), zeros.as_ref()]) {
        let update = format!(".gnu_debugdata={}", shop.at("zeros.xz").display());
        assert!(objcopy(&[&"--update-section", &update, &bare]));
        assert_eq!(poured(&bare, (pour.0, 1), &mut without_dirs()), [""]);
    }
}

#[test]
fn sections_compressed_by_zstd_are_read() {
    let Some(shop) = Shop::built(&["-g"]) else { return };
    let (pour, packed) = (pour_in(&shop.path), shop.at("packed"));
    let plain = poured(&shop.path, pour, &mut without_dirs());
    assert!(plain.contains(&"stir/pour".to_owned()), "{plain:?}");
    if !objcopy(&[&"--compress-debug-sections=zstd", &shop.path, &packed]) {
        return;
    }
    assert!(fs::read(&packed).unwrap().windows(4).any(|it| it == [0x28, 0xb5, 0x2f, 0xfd]), "it is packed");
    assert_eq!(poured(&packed, pour, &mut without_dirs()), plain);
    let told = second_opinion("addr2line", &["-i", "-f", &middle(pour), "-e"], &packed);
    assert!(told.is_none_or(|told| told.contains("pour")), "binutils read it, too");
}

#[test]
fn packages_of_split_information_are_read() {
    for (flags, tools) in [
        (["-g", "-gdwarf-5", "-gsplit-dwarf"], ["llvm-dwp", "dwp"]),
        (["-g", "-gdwarf-4", "-gsplit-dwarf"], ["dwp", "llvm-dwp"]),
    ] {
        let Some(shop) = Shop::built(&flags) else { return };
        let pour = pour_in(&shop.path);
        let package = shop.path.with_extension("dwp");
        let args =
            ["-e", &shop.path.display().to_string(), "-o", &package.display().to_string()].map(Into::into);
        let args: Vec<&std::ffi::OsStr> = args.iter().map(|it: &std::ffi::OsString| &**it).collect();
        assert_eq!(poured(&shop.path, pour, &mut without_dirs()), ["pour"], "without a package");
        if !tools.iter().any(|tool| run_tool(tool, &args)) {
            return;
        }
        let found = poured(&shop.path, pour, &mut without_dirs());
        assert!(found.contains(&"stir/pour".to_owned()), "{flags:?}: {found:?}");
        let args = [format!("--obj={}", shop.path.display()), middle(pour)];
        if let Some(told) = second_opinion("llvm-symbolizer", &[&args[0]], Path::new(&args[1])) {
            assert!(told.contains("pour"), "{told}");
        }
    }
}

#[test]
fn package_of_a_rust_program_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tea");
    let source =
        "#[inline(always)] fn stir(n: u64) -> u64 { (0..std::hint::black_box(n)).map(|i| i * n).sum() }
        #[inline(never)] #[no_mangle] pub extern \"C\" fn pour(n: u64) -> u64 { stir(n) + 1 }
        fn main() { println!(\"{}\", pour(std::env::args().count() as u64)); }";
    let flags = ["-Cdebuginfo=2", "-Copt-level=2", "-Csplit-debuginfo=packed", "-Crelocation-model=static"];
    if !build(Language::Rust, source, &path, &flags) {
        return;
    }
    if !path.with_extension("dwp").exists() {
        skip("this rustc makes no package");
        return;
    }
    let output = Command::new("readelf").arg("-lW").arg(&path).output().unwrap();
    let headers = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = headers.lines().find(|line| line.contains("LOAD") && line.contains("R E")).unwrap();
    let hex = |at: usize| {
        u64::from_str_radix(code.split_whitespace().nth(at).unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let (start, size) = pour_in(&path);
    let found = poured(&path, (start - (hex(2) - hex(1)), size), &mut without_dirs());
    assert!(found.iter().any(|names| names.contains("stir/") && names.ends_with("pour")), "{found:?}");
}

#[test]
fn debug_files_are_found_by_build_id() {
    let Some(shop) = Shop::built(&["-g", "-Wl,--build-id=0x0123456789abcdef"]) else { return };
    let (pour, debug, bare) = (pour_in(&shop.path), shop.at("debug"), shop.at("bare"));
    if !objcopy(&[&"--only-keep-debug", &shop.path, &debug]) || !objcopy(&[&"-S", &shop.path, &bare]) {
        return;
    }
    for place in ["system/.build-id/01/23456789abcdef.debug", "cache/0123456789abcdef/debuginfo"] {
        let (to, first) = (shop.at(place), place.split('/').next().unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&debug, to).unwrap();
        // A file of another id stands before it.
        let other = shop.at("other").join(place.split_once('/').unwrap().1);
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::copy(std::env::current_exe().unwrap(), other).unwrap();
        let dirs = [shop.at("other"), shop.at(first)];
        let found = poured(&bare, pour, &mut Symbolizer::with_debug_dirs(dirs));
        assert!(found.contains(&"stir/pour".to_owned()), "{place}: {found:?}");
    }
}
