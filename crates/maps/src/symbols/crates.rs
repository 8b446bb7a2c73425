//! The crates of a program in Rust, and the directory in which its own crates are compiled.
//!
//! Each unit of debug information contains the root file of its crate, the crate's name, and the
//! directory in which the compiler ran: `src/main.rs/@/tea.1a2b3c-cgu.0` in `/home/a/tea`. Cargo
//! runs the compiler in the workspace's root for crates of the workspace, elsewhere for all others.
//! So the program's own code lies below the directory of the crate that has `main`, and no list of
//! the directories of package managers is needed.
//!
//! `main` is found by its symbol. Units that were compiled incrementally do not name their crate:
//! then the root file has to be the `main.rs`, or have the crate's name.
//!
//! # Cost
//!
//! Reads the names of symbols, and makes six small reads for each unit.

use std::collections::HashSet;
use std::io;

use super::copy::Copied;
use super::elf::Elf;
use super::statics::UnitRoots;

/// Bytes of the names of symbols that are looked through.
const MOST_NAMES: u64 = 256 << 20;
/// Between a unit's root file and the part of the crate that it is.
const PART: &str = "/@/";
/// The end of the name of such a part, but for its number, where that begins with the crate's name.
const NUMBERED: &str = "-cgu.";

/// A crate with code in a program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    /// The crate's name, as in paths of items.
    pub name: String,
    /// The path of the crate's root file.
    pub root: String,
}

/// The crates of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Crates {
    /// The crates whose names are known, once for each root file.
    pub all: Vec<Crate>,
    /// The directory in which the crate with `main` was compiled; in a cargo workspace its root.
    /// `None` if there is no such crate, or if it cannot be determined.
    pub workspace: Option<String>,
    /// Some of the debug information is in other files.
    pub(super) is_split: bool,
}

/// The crate of a unit.
struct Unit {
    /// `None`: it was compiled incrementally.
    krate: Option<String>,
    root: String,
    directory: String,
}

impl Crates {
    /// The crates in the debug information of a copy; empty if that is broken.
    pub(super) fn of(copied: &Copied) -> Self {
        Self::read(copied).unwrap_or_default()
    }

    fn read(copied: &Copied) -> io::Result<Self> {
        let elf = Elf::read(&copied.file)?;
        let mut units = Vec::new();
        let mut is_split = false;
        for root in UnitRoots::of(&elf)?.into_iter().flatten() {
            is_split |= root.is_split;
            units.extend(unit(&root.name, root.directory));
        }
        if units.is_empty() {
            return Ok(Self { is_split, ..Self::default() });
        }
        let names = match elf.find(b".strtab") {
            Some(section) if section.size <= MOST_NAMES => elf.bytes(section.offset, section.size)?,
            _ => Vec::new(),
        };
        let workspace = workspace(&units, &mains(&names));
        let named = units.into_iter().filter_map(|unit| Some(Crate { name: unit.krate?, root: unit.root }));
        let mut all: Vec<Crate> = named.collect();
        all.sort_unstable();
        all.dedup();
        Ok(Self { all, workspace, is_split })
    }
}

/// The crate by the name and the directory of a unit, if that is one of Rust's.
fn unit(name: &str, directory: String) -> Option<Unit> {
    let (file, part) = name.rsplit_once(PART)?;
    let is_whole = file.starts_with('/') || directory.is_empty();
    let root = if is_whole { file.to_owned() } else { format!("{directory}/{file}") };
    let krate = part.split_once(NUMBERED).and_then(|(part, _)| part.rsplit_once('.'));
    Some(Unit { krate: krate.map(|(krate, _)| krate.to_owned()), root, directory })
}

/// The directory of the crate with `main`, of which there has to be one.
fn workspace(units: &[Unit], mains: &[&str]) -> Option<String> {
    let mut found = HashSet::new();
    for unit in units {
        let is_it = if let Some(krate) = &unit.krate {
            mains.contains(&&**krate)
        } else {
            let file = unit.root.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            file == "main" || mains.contains(&&*file.replace('-', "_"))
        };
        if is_it {
            found.insert(&*unit.directory);
        }
    }
    let mut directories = found.into_iter();
    let only = directories.next()?;
    directories.next().is_none().then(|| only.to_owned())
}

/// The crates of the functions `main` among the names of symbols.
fn mains(names: &[u8]) -> Vec<&str> {
    let mut crates: Vec<&str> = memchr::memmem::find_iter(names, b"4main")
        .filter_map(|at| {
            let begin = memchr::memrchr(0, &names[..at]).map_or(0, |zero| zero + 1);
            let symbol = std::str::from_utf8(&names[begin..]).or_else(|error| {
                // The names behind may be anything.
                std::str::from_utf8(&names[begin..][..error.valid_up_to()])
            });
            crate_of_main(symbol.ok()?.split('\0').next()?)
        })
        .collect();
    crates.sort_unstable();
    crates.dedup();
    crates
}

/// The crate, if this is the symbol of a function `main` at its root: `_ZN3tea4main17h…E`, or
/// `_RNvCs1234_3tea4main`.
fn crate_of_main(symbol: &str) -> Option<&str> {
    let named = if let Some(rest) = symbol.strip_prefix("_ZN") {
        rest.split_once("4main17h")?.0
    } else {
        let rest = symbol.strip_prefix("_RNvC")?.strip_suffix("4main")?;
        rest.strip_prefix('s').and_then(|rest| Some(rest.split_once('_')?.1)).unwrap_or(rest)
    };
    let digits = named.bytes().take_while(u8::is_ascii_digit).count();
    let (length, name) = named.split_at(digits);
    let name = if symbol.starts_with("_R") { name.strip_prefix('_').unwrap_or(name) } else { name };
    (length.parse() == Ok(name.len())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_of_a_crate_is_told_from_others() {
        for (symbol, krate) in [
            ("_ZN3tea4main17h0123456789abcdefE", Some("tea")),
            ("_RNvCs1234_3tea4main", Some("tea")),
            ("_RNvC3tea4main", Some("tea")),
            ("_ZN3tea3pot4main17h0123456789abcdefE", None),
            ("_ZN3tea4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE", None),
            ("main", None),
        ] {
            assert_eq!(crate_of_main(symbol), krate, "{symbol}");
        }
        let names = b"\0main\0_ZN3tea4main17h01234567E\0_ZN1x4main17h01234567E\0\xff\0";
        assert_eq!(mains(names), ["tea", "x"]);
    }

    #[test]
    fn workspace_is_where_main_was_compiled() {
        let units = |names: &[(&str, &str)]| -> Vec<Unit> {
            names.iter().map(|(name, directory)| unit(name, (*directory).to_owned()).unwrap()).collect()
        };
        let tokio = ("src/lib.rs/@/tokio.12-cgu.0", "/usr/local/cargo/registry/src/i/tokio-1");
        let shop = units(&[tokio, ("src/main.rs/@/shop.34-cgu.1", "/app")]);
        assert_eq!(workspace(&shop, &["shop"]).as_deref(), Some("/app"));
        assert_eq!((&*shop[1].root, shop[1].krate.as_deref()), ("/app/src/main.rs", Some("shop")));
        assert_eq!(workspace(&shop, &[]), None);
        assert_eq!(workspace(&shop, &["shop", "tokio"]), None, "two of them");
        let incremental = units(&[("src/main.rs/@/1b2c3d", "/app"), ("src/lib.rs/@/9f", "/x")]);
        assert_eq!(workspace(&incremental, &["shop"]).as_deref(), Some("/app"));
        assert!(unit("tea.c", "/app".to_owned()).is_none());
    }
}
