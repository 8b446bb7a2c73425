//! `resolve/…`: from an address to its function, line and inlined functions; for the first time,
//! and again.
//!
//! The peer is the reader on which ours is built, as others use it: by process and address. Both
//! resolve the same addresses of this program, and must return the same names.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use blazesym::Pid;
use blazesym::symbolize::cache::{Cache, Process as Cached};
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolizer as Reader};
use dormouse_maps::symbols::{Symbolizer, survive_cut_files};
use dormouse_maps::{AddressSpace, Cache as OwnCache};

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Addresses of this program's code.
const ADDRESSES: u64 = 512;
/// Addresses of a large profile.
const MANY: u64 = 10_000;

/// The name of an address's function, empty for none.
type Ask = Box<dyn FnMut(u64) -> Result<String, Failure>>;

/// A reader that has opened nothing yet.
type New = fn() -> Result<Ask, Failure>;

const PEERS: [(&str, bool, New); 3] = [
    ("blazesym", true, || blazesym(false)),
    // Cold, it does the same as without.
    ("blazesym-maps", false, || blazesym(true)),
    ("dormouse", true, dormouse),
];

pub(super) fn rows(bench: &mut Bench) {
    // As the command does. Where it is refused, files are copied, and the rows show that.
    let _ = survive_cut_files();
    let spec =
        |heat: &str, peer: &str| Spec::new(format!("resolve/{heat}/{peer}"), "us").per("address").cpu();
    let all = PEERS.map(|(peer, ..)| spec("warm", peer));
    let Some(addrs) = bench.need(all, addresses(ADDRESSES).map_err(|error| format!("{error:#}"))) else {
        return;
    };
    bench.sample(Spec::new("resolve/many/dormouse", "ms").per("profile").cpu(), || {
        let addrs = addresses(MANY)?;
        let (took, answer) =
            cpu(|| dormouse().and_then(|mut ask| addrs.iter().try_for_each(|&addr| ask(addr).map(drop))));
        answer?;
        Ok(us(took) / 1_000.0)
    });
    let addrs = Rc::new(addrs);
    let target = bench.target();
    for (peer, has_cold, new) in PEERS {
        if has_cold {
            let addr = addrs[addrs.len() / 2];
            bench.sample(spec("cold", peer), move || {
                let (took, answer) = cpu(|| new().and_then(|mut ask| ask(addr)));
                answer?;
                Ok(us(took))
            });
        }
        let (addrs, mut warmed) = (Rc::clone(&addrs), None);
        bench.sample(spec("warm", peer), move || {
            let ask = match &mut warmed {
                Some(ask) => ask,
                none => none.insert(warm(&addrs, new)?),
            };
            let (mut took, mut asked) = (Duration::ZERO, 0);
            while took < target {
                let (time, answers) =
                    cpu(|| addrs.iter().try_for_each(|&addr| ask(addr).map(|name| drop(black_box(name)))));
                answers?;
                took += time;
                asked += addrs.len();
            }
            Ok(us(took) / asked as f64)
        });
    }
}

/// One in this many addresses may lie in a function that two readers name differently: a function
/// that the linker has merged with another has two names.
const NAMED_APART: usize = 50;

/// A reader that was asked for all addresses.
fn warm(addrs: &[u64], new: New) -> Result<Ask, Failure> {
    let (mut ask, mut right) = (new()?, blazesym(true)?);
    let mut apart = Vec::new();
    for &addr in addrs {
        let (name, right) = (ask(addr)?, right(addr)?);
        if last_part(&name) != last_part(&right) {
            apart.push(format!("{addr:#x} was said to lie in {name:?} and not in {right:?}"));
        }
        if name.is_empty() != right.is_empty() || apart.len() > addrs.len() / NAMED_APART {
            return Err(Failure::wrong(apart.join("; ")));
        }
    }
    Ok(ask)
}

/// The last part of a function's path, without generic arguments, because debug information may
/// contain only that part. A closure is `{closure#0}` in one kind of name and `{{closure}}` in
/// another, and so is the body of an `async` block: `{async_block#0}`. C compilers end the symbol
/// of a specialised copy in `.isra.0` and the like.
fn last_part(path: &str) -> String {
    let (mut depth, mut before, mut plain) = (0, ' ', String::new());
    for letter in path.chars() {
        match letter {
            '<' => depth += 1,
            // This is no arrow.
            '>' if before != '-' => depth -= 1,
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
        before = letter;
    }
    let last = plain.rsplit("::").find(|part| !part.is_empty()).unwrap_or_default();
    let kind = last.trim_start_matches('{');
    if last.starts_with('{') && ["closure", "async_"].iter().any(|made| kind.starts_with(made)) {
        return "{closure}".to_owned();
    }
    last.split('.').next().unwrap_or_default().to_owned()
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}

/// Addresses spread over the code of this program.
fn addresses(count: u64) -> anyhow::Result<Vec<u64>> {
    let space = AddressSpace::own()?;
    let code = rows as *const () as u64;
    let found = space.resolve_now(code)?.context("no mapping holds this program's code")?;
    let (start, last) = (found.start, found.last);
    Ok((0..count).map(|n| start + (last - start) / count * n + 1).collect())
}

fn blazesym(keeps_maps: bool) -> Result<Ask, Failure> {
    let reader = Reader::new();
    if keeps_maps {
        let mut cached = Cached::new(Pid::Slf);
        (cached.cache_vmas, cached.cache_perf_map) = (true, false);
        reader.cache(&Cache::Process(cached))?;
    }
    let source = Source::Process(Process::new(Pid::Slf));
    Ok(Box::new(move |addr| {
        let answer = reader.symbolize_single(&source, Input::AbsAddr(addr))?;
        Ok(answer.into_sym().map_or_else(String::new, |symbol| black_box(symbol).name.into_owned()))
    }))
}

fn dormouse() -> Result<Ask, Failure> {
    let (space, cache, mut symbolizer) = (AddressSpace::own()?, OwnCache::new(), Symbolizer::new());
    Ok(Box::new(move |addr| {
        let Some(mapping) = space.resolve(&cache, addr)? else { return Ok(String::new()) };
        let symbol = symbolizer.symbol(&space, &mapping, addr);
        Ok(symbol.function().map_or_else(String::new, |function| function.function.to_string()))
    }))
}

pub(super) fn compare(bench: &mut Bench) {
    for (heat, peer) in [("warm", "blazesym"), ("warm", "blazesym-maps"), ("cold", "blazesym")] {
        let [ours, theirs] = ["dormouse", peer].map(|peer| format!("resolve/{heat}/{peer}"));
        bench.times(format!("resolve-{heat}-over-{peer}/dormouse"), &ours, &theirs);
    }
    bench.at_most(
        "a first address in at most 1.3 times what the reader takes",
        "resolve-cold-over-blazesym/dormouse",
        1.3,
    );
    bench.at_most("10,000 addresses in at most 1 s", "resolve/many/dormouse", 1_000.0);
    bench.at_most("a warm address in at most 1 us", "resolve/warm/dormouse", 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_name_functions_alike() {
        let own = peers_name_functions_alike as *const () as u64;
        let mut peers = PEERS.map(|(peer, _, new)| (peer, new().unwrap()));
        for (peer, ask) in &mut peers {
            let name = ask(own).unwrap();
            assert!(name.contains("peers_name_functions_alike"), "{peer}: {name:?}");
        }
        for addr in addresses(ADDRESSES).unwrap() {
            let names = peers.each_mut().map(|(_, ask)| ask(addr).unwrap());
            let same = names.iter().all(|name| last_part(name) == last_part(&names[0]));
            assert!(same, "{addr:#x}: {names:?}");
        }
    }

    #[test]
    fn last_part_has_no_path_and_no_types() {
        for (path, right) in [
            ("tell", "tell"),
            ("dormouse::cmd::x::tell", "tell"),
            ("<a::B<C> as d::E>::tell::<fn() -> f::G>", "tell"),
            ("core::ptr::drop_in_place<alloc::string::String>", "drop_in_place"),
            ("a::b::{{closure}}", "{closure}"),
            ("{closure#0}<u8>", "{closure}"),
            ("a::{async_block#1}", "{closure}"),
            ("async_search", "async_search"),
            ("cellArea.isra.0", "cellArea"),
            ("", ""),
        ] {
            assert_eq!(last_part(path), right, "{path:?}");
        }
    }
}
