//! From a name to places: which symbols have the name, which of them the loader uses, where they
//! lie, and what the debug information contains about them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::StaticPlace;
use super::dwarf::Dwarf;
use super::error::StaticError;
use super::matching::{Fit, Near, Wanted};
use super::object::{Objects, Opened};
use super::query::Query;
use super::tables::{Entry, Kind, Table};
use super::types::Place;
use crate::AddressSpace;
use crate::symbols::elf::number;

/// Matches of a name; more are left out.
const MOST_FOUND: usize = 64;
/// Matches up to which each is worth a search of debug information for its type's name.
const MOST_TYPED: usize = 8;
/// Symbols whose names are compared when none is the wanted one.
const MOST_COMPARED: usize = 1 << 18;
/// Bytes that one watch may have when the type is not known.
const LONGEST_WORD: u64 = 8;

/// A symbol that has the wanted name.
struct Match {
    name: String,
    raw: Vec<u8>,
    object: usize,
    /// By the linker.
    addr: u64,
    size: u64,
    /// The object whose debug information describes it, and its address there.
    told: (usize, u64),
}

/// The symbols of all objects that have a name.
#[derive(Default)]
struct Matches {
    best: Option<Fit>,
    found: Vec<Match>,
    thread_local: Option<String>,
}

/// The variables, or parts of them, that a query names.
pub(super) fn variables(objects: &Objects<'_>, query: &Query<'_>) -> Result<Vec<StaticPlace>, StaticError> {
    // A compiler may have given the variable a name that reads as one with a field.
    let literal = if query.whole == query.name {
        Matches::default()
    } else {
        matches(objects, Kind::Variable, query.whole)
    };
    let whole = Query { name: query.whole, steps: Vec::new(), ..query.clone() };
    let (query, matches) = if literal.best == Some(Fit::Whole) {
        (&whole, literal)
    } else {
        (query, matches(objects, Kind::Variable, query.name))
    };
    let is_typed = !query.steps.is_empty() || matches.found.len() <= MOST_TYPED;
    collect(objects, &matches, query, Kind::Variable, |one, object| {
        if is_typed { parts(objects, object, one, query) } else { untyped(objects.space, object, one, query) }
    })
}

/// The functions that a query names, which has no steps.
pub(super) fn functions(objects: &Objects<'_>, query: &Query<'_>) -> Result<Vec<StaticPlace>, StaticError> {
    let matches = matches(objects, Kind::Function, query.name);
    collect(objects, &matches, query, Kind::Function, |one, object| {
        untyped(objects.space, object, one, query)
    })
}

/// The places of all matches that have one.
fn collect(
    objects: &Objects<'_>,
    matches: &Matches,
    query: &Query<'_>,
    kind: Kind,
    places: impl Fn(&Match, &Opened<'_>) -> Result<Vec<StaticPlace>, StaticError>,
) -> Result<Vec<StaticPlace>, StaticError> {
    let (mut found, mut failed) = (Vec::new(), None);
    for one in &matches.found {
        let Some(object) = objects.open(one.object) else { continue };
        match places(one, &object) {
            Ok(more) => found.extend(more),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    found.sort_by_key(|place: &StaticPlace| (place.addr, place.len));
    found.dedup_by_key(|place| (place.addr, place.len));
    match (failed, &matches.thread_local) {
        _ if !found.is_empty() => Ok(found),
        (Some(error), _) => Err(error),
        (None, Some(name)) => Err(StaticError::ThreadLocal { name: name.clone() }),
        (None, None) => Err(not_found(objects, kind, query.name)),
    }
}

/// The symbols of each object, with its number.
fn tables(objects: &Objects<'_>) -> impl Iterator<Item = (usize, Table)> {
    objects.opened().filter_map(|(number, object)| Some((number, object.table().ok()??)))
}

/// The symbols of that name: those that have it whole, or if there are none, at their end.
fn matches(objects: &Objects<'_>, kind: Kind, name: &str) -> Matches {
    let (wanted, mut matches) = (Wanted::new(name), Matches::default());
    for (object, table) in tables(objects) {
        for Entry { name: raw, addr, size, is_thread_local } in table.entries(kind) {
            if is_thread_local {
                let new = || wanted.fit_inside(raw);
                matches.thread_local = matches.thread_local.take().or_else(new);
                continue;
            }
            let Some((fit, name)) = wanted.fit(raw) else { continue };
            if matches.best < Some(fit) {
                matches.best = Some(fit);
                matches.found.clear();
            }
            if matches.best == Some(fit) && matches.found.len() < MOST_FOUND {
                let (raw, told) = (raw.to_vec(), (object, addr));
                // Functions of assemblers have no size.
                let size = if kind == Kind::Function { size.max(1) } else { size };
                matches.found.push(Match { name, raw, object, addr, size, told });
            }
        }
    }
    bind(objects, &mut matches.found);
    matches
}

/// Leaves out what the loader has left out. Where the program and a library export one name, all of
/// them use the program's variable; mostly it is the linker's copy of the library's, and only the
/// library's debug information contains the type.
fn bind(objects: &Objects<'_>, found: &mut Vec<Match>) {
    let is_exported = |one: &Match, by_program: bool| {
        let object = objects.open(one.object).filter(|object| object.object.is_program == by_program);
        object.is_some_and(|object| object.exports(&one.raw))
    };
    if found.len() < 2 {
        return;
    }
    let Some(own) = found.iter().position(|one| is_exported(one, true)) else { return };
    let raw = found[own].raw.clone();
    let is_bound = |one: &Match| one.raw == raw && is_exported(one, false);
    if let Some(other) = found.iter().find(|one| is_bound(one)) {
        found[own].told = other.told;
        found.retain(|one| !is_bound(one));
    }
}

fn not_found(objects: &Objects<'_>, kind: Kind, name: &str) -> StaticError {
    let (mut near, mut left) = (Near::new(name), MOST_COMPARED);
    for (_, table) in tables(objects) {
        for entry in table.entries(kind).filter(|entry| !entry.is_thread_local).take(left) {
            near.offer(entry.name);
            left -= 1;
        }
    }
    let program = objects.opened().map(|(_, object)| object).find(|object| object.object.is_program);
    let stripped = program.filter(Opened::is_stripped).map(|object| Arc::clone(&object.object.name));
    let what = match kind {
        Kind::Variable => "static variable",
        Kind::Function => "function",
    };
    StaticError::NotFound { what, name: name.to_owned(), near: near.names(), stripped }
}

/// The wanted parts of a variable: one for each time that its object is loaded.
fn parts(
    objects: &Objects<'_>,
    object: &Opened<'_>,
    one: &Match,
    query: &Query<'_>,
) -> Result<Vec<StaticPlace>, StaticError> {
    let other = if one.told.0 == one.object { None } else { objects.open(one.told.0) };
    let teller = other.as_ref().unwrap_or(object);
    let (name, addrs) = (&object.object.name, object.placed(one.addr));
    let typed = teller.with_debug(|dwarf| {
        let Some(at) = dwarf.variable(one.told.1)? else { return Ok(None) };
        let die = dwarf.die(at)?;
        let type_ = dwarf.type_of(&die)?;
        let new = |&addr| {
            let place = Place { name: one.name.clone(), object: name, addr, type_, len: None };
            part(objects.space, dwarf, place, one, query)
        };
        Ok(Some(addrs.iter().map(new).collect::<Vec<_>>()))
    });
    let teller = || Arc::clone(&teller.object.name);
    match typed {
        Ok(Some(Some(parts))) => parts.into_iter().collect(),
        _ if query.steps.is_empty() => untyped(objects.space, object, one, query),
        Err(error) => Err(StaticError::Broken { object: teller(), error }),
        _ => Err(StaticError::NoType { name: one.name.clone(), object: teller() }),
    }
}

/// A whole variable or function, from the symbols alone.
fn untyped(
    space: &AddressSpace,
    object: &Opened<'_>,
    one: &Match,
    query: &Query<'_>,
) -> Result<Vec<StaticPlace>, StaticError> {
    let whole = |addr| cut(space, &object.object.name, one.name.clone(), (addr, one.size), query, None);
    object.placed(one.addr).into_iter().map(whole).collect()
}

/// The part to which the steps lead from a whole variable, whose type is known.
fn part(
    space: &AddressSpace,
    dwarf: &mut Dwarf<'_>,
    mut place: Place<'_>,
    one: &Match,
    query: &Query<'_>,
) -> Result<StaticPlace, StaticError> {
    for &step in &query.steps {
        place.go(dwarf, step, |name, addr, width| pointer(space, name, addr, width))?;
    }
    let len = match one.size {
        size if query.steps.is_empty() && size > 0 => Some(size),
        _ => place.size(dwarf)?,
    };
    let len = len.ok_or_else(|| place.no_type())?;
    let type_name = place.type_name(dwarf).ok();
    cut(space, place.object, place.name, (place.addr, len), query, type_name)
}

/// The bytes behind the offset that the query has, if they are the process's memory.
fn cut(
    space: &AddressSpace,
    object: &Arc<str>,
    mut name: String,
    (mut addr, mut len): (u64, u64),
    query: &Query<'_>,
    mut type_name: Option<String>,
) -> Result<StaticPlace, StaticError> {
    if len == 0 {
        return Err(StaticError::ZeroSized { name });
    }
    if query.offset > 0 {
        if query.offset >= len {
            return Err(StaticError::BeyondEnd { name, length: len, unit: "bytes" });
        }
        addr = addr.wrapping_add(query.offset);
        let word = 1 << (len - query.offset).min(LONGEST_WORD).ilog2();
        len = word.min(1 << addr.trailing_zeros().min(3));
        name = format!("{name}+{:#x}", query.offset);
        type_name = None;
    }
    let is_memory = addr.checked_add(len - 1).is_some() && space.resolve_now(addr)?.is_some();
    if !is_memory {
        return Err(StaticError::Dangling { name, to: addr });
    }
    Ok(StaticPlace { name, addr, len, type_name, object: Arc::clone(object) })
}

/// The pointer that lies at an address of the process.
fn pointer(space: &AddressSpace, name: &str, addr: u64, width: u64) -> Result<u64, StaticError> {
    let mut bytes = [0; 8];
    let own = &mut bytes[..width as usize];
    let memory = File::open(format!("/proc/{}/mem", space.pid()));
    let read: io::Result<()> = memory.and_then(|memory| memory.read_exact_at(own, addr));
    match read {
        Ok(()) => Ok(number::<8>(&bytes, 0)),
        Err(error) => Err(StaticError::Unreadable { name: name.to_owned(), pid: space.pid(), addr, error }),
    }
}
