//! `resolve/…`: from an address to its function, line and inlined functions; for the first time, and again.
//!
//! The peer is the reader that ours stands on, as others use it: by process and address. Both answer the same addresses
//! of this program, and must give them the same names.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use blazesym::Pid;
use blazesym::symbolize::cache::{Cache, Process as Keep};
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolizer as Reader};
use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::Symbolizer;

use crate::clocks::cpu;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec};
use crate::workloads::{Measured, Settings, goal};

/// Addresses of this program's code.
const ADDRESSES: u64 = 512;

pub(super) const NOTE: &str = "resolve: CPU time from an address to its function, file and line, and what was inlined there; 512 addresses spread \
     over this program's code. cold: one address by a reader that has opened nothing yet. warm: all of them, which were asked for before. \
     blazesym: Source::Process, which reads the list of mappings for each call; blazesym-maps: the same with the mappings kept \
     (Symbolizer::cache), so that it does not notice when they change; dormouse: AddressSpace::own and Symbolizer, which looks each time \
     whether the loader has changed something";

/// What each answers: the functions' names, empty for none.
type Ask = Box<dyn FnMut(u64) -> Result<String, Failure>>;

/// A reader that has opened nothing yet.
type New = fn() -> Result<Ask, Failure>;

const PEERS: [(&str, bool, New); 3] = [
    ("blazesym", true, || blazesym(false)),
    // Cold, it does what it does without.
    ("blazesym-maps", false, || blazesym(true)),
    ("dormouse", true, dormouse),
];

pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let spec = |heat: &str, peer: &str| {
        Spec::new(format!("resolve/{heat}/{peer}"), "us")
            .with("per", "address")
            .with("clock", "thread CPU time")
    };
    let addrs = match addresses() {
        Ok(addrs) => Rc::new(addrs),
        Err(error) => {
            let specs = PEERS.iter().map(|(peer, ..)| spec("warm", peer)).collect();
            return vec![Case::unavailable(specs, format!("{error:#}"))];
        }
    };
    let target = settings.target();
    let mut cases = Vec::new();
    for (peer, has_cold, new) in PEERS {
        let shared = Rc::clone(&addrs);
        if has_cold {
            cases.push(Case::new(vec![spec("cold", peer)], move || {
                let addr = shared[shared.len() / 2];
                let (took, answer) = cpu(|| new().and_then(|mut ask| ask(addr)));
                answer?;
                Ok(vec![us(took)])
            }));
        }
        cases.push(warm(spec("warm", peer), target, Rc::clone(&addrs), new));
    }
    cases
}

/// A row of one reader that was asked everything before.
fn warm(spec: Spec, target: Duration, addrs: Rc<Vec<u64>>, new: New) -> Case<'static> {
    let mut warmed = None;
    Case::new(vec![spec], move || {
        let ask = match &mut warmed {
            Some(ask) => ask,
            none => {
                let mut ask = new()?;
                let mut right = blazesym(true)?;
                for &addr in addrs.iter() {
                    let (name, right) = (ask(addr)?, right(addr)?);
                    if name != right {
                        let wrong = format!("{addr:#x} was said to lie in {name:?} and not in {right:?}");
                        return Err(Failure::Wrong(wrong));
                    }
                }
                none.insert(ask)
            }
        };
        let (mut took, mut asked) = (Duration::ZERO, 0);
        while took < target {
            let (time, answers) =
                cpu(|| addrs.iter().try_for_each(|&addr| ask(addr).map(|name| drop(black_box(name)))));
            answers?;
            took += time;
            asked += addrs.len();
        }
        Ok(vec![us(took) / asked as f64])
    })
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}

/// Spread over the code of this program.
fn addresses() -> anyhow::Result<Vec<u64>> {
    let space = AddressSpace::own()?;
    let code = addresses as *const () as u64;
    let found = space.resolve_now(code)?.context("no mapping holds this program's code")?;
    let (start, last) = (found.mapping.start, found.mapping.last);
    Ok((0..ADDRESSES).map(|n| start + (last - start) / ADDRESSES * n + 1).collect())
}

fn blazesym(keeps_maps: bool) -> Result<Ask, Failure> {
    let reader = Reader::new();
    if keeps_maps {
        let mut keep = Keep::new(Pid::Slf);
        (keep.cache_vmas, keep.cache_perf_map) = (true, false);
        reader.cache(&Cache::Process(keep))?;
    }
    let source = Source::Process(Process::new(Pid::Slf));
    Ok(Box::new(move |addr| {
        let answer = reader.symbolize_single(&source, Input::AbsAddr(addr))?;
        Ok(answer.into_sym().map_or_else(String::new, |symbol| black_box(symbol).name.into_owned()))
    }))
}

fn dormouse() -> Result<Ask, Failure> {
    let (space, mut symbolizer) = (AddressSpace::own()?, Symbolizer::new());
    Ok(Box::new(move |addr| {
        let place = symbolizer.symbolize(&space, addr)?;
        let function = place.as_ref().and_then(|place| place.symbol.function());
        Ok(function.map_or_else(String::new, |function| function.function.to_string()))
    }))
}

/// What to say of the rows.
pub(super) fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let of = |heat: &str, peer: &str| find(rows, &format!("resolve/{heat}/{peer}"));
    let ours = of("warm", "dormouse");
    let mut computed = ["blazesym", "blazesym-maps"]
        .map(|peer| Row::times(&format!("resolve-warm-over-{peer}/dormouse"), &ours, &of("warm", peer)))
        .to_vec();
    computed.push(Row::times(
        "resolve-cold-over-blazesym/dormouse",
        &of("cold", "dormouse"),
        &of("cold", "blazesym"),
    ));
    measured.notes.push(goal("a warm address in at most 1 us", &ours, |x| x <= 1.0));
    measured.rows.append(&mut computed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_name_a_function_alike() {
        let addr = all_name_a_function_alike as *const () as u64;
        for (peer, _, new) in PEERS {
            let name = new().unwrap()(addr).unwrap();
            assert!(name.contains("all_name_a_function_alike"), "{peer}: {name:?}");
        }
    }
}
