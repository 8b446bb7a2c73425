//! `dormouse maps`: what a process has mapped, and what lies at an address of it.
//!
//! The information comes from the kernel, not from an agent, so this works for any process that
//! this user may inspect.

use std::io::{self, BufRead as _};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use dormouse_maps::symbols::{Frame, Symbol, Symbolizer};
use dormouse_maps::{AddressSpace, MappedObject, Mapping, Perms, Region, SpaceError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::system::sysinfo;
use serde::{Deserialize, Deserializer, Serialize};

use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{BAD, Context, DIM, GOOD, HEAD};
use crate::render::table::Table;
use crate::target::{Finder, Process};
use crate::text::{Clean, by_text, clean};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// A machine with less memory than this is treated as if it had this much.
const LEAST_MEMORY: u64 = 4 << 30;

/// List what a process has mapped, or what lies at addresses: function, line, mapping
///
/// Any process that you may look at, with dormouse in it or not. Ends with exit code 1 if nothing
/// is mapped at one of the addresses.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Addresses in hex, with or without 0x; - reads them from standard input
    #[arg(value_name = "ADDR")]
    #[serde(rename = "addr")]
    wanted: Vec<Wanted>,
}

/// An address, or where to read addresses: a client elsewhere has no standard input here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Addr(u64),
    Stdin,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        match text {
            "-" => Ok(Wanted::Stdin),
            _ => text.parse().map(|Addr(addr)| Wanted::Addr(addr)),
        }
    }
}

impl<'de> Deserialize<'de> for Wanted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Wanted, D::Error> {
        by_text(from).map(|Addr(addr)| Wanted::Addr(addr))
    }
}

/// An address in hex.
struct Addr(u64);

impl FromStr for Addr {
    type Err = String;

    fn from_str(text: &str) -> Result<Addr, String> {
        address(text).map(Addr)
    }
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    // The parser of numbers takes a sign.
    if digits.starts_with('+') {
        return Err("an address has no sign".into());
    }
    u64::from_str_radix(digits, 16).map_err(|error| format!("it is no address in hex: {error}"))
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Listing<'a> {
    pid: u32,
    name: &'a str,
    mappings: Vec<MappingRow>,
}

/// A mapping.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MappingRow {
    start: String,
    /// The address after the last one.
    end: String,
    perms: String,
    offset: u64,
    kind: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_id: Option<String>,
}

/// The mapping and the functions at an address.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Answer {
    pid: u32,
    addr: String,
    mapping: Option<MappingRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    /// Where in its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// The innermost first.
    frames: Vec<Call>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Call {
    function: String,
    inlined: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl Asked for Request {
    const NAME: &'static str = "maps";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn is_stream(&self) -> bool {
        self.wanted.len() > 1
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        // A server would keep the bound.
        if !context.is_remote() {
            bound_memory();
        }
        let process = Finder::new().process(&subject.target)?;
        run(&process, &self.wanted, context)
    }
}

fn run(process: &Process, wanted: &[Wanted], context: &mut Context) -> Outcome {
    let space = AddressSpace::of(process.pid).map_err(|error| Failure::from(&error))?;
    if wanted.is_empty() {
        return list(process, &space, context);
    }
    let (mut symbolizer, mut exit) = (Symbolizer::new(), Exit::Ok);
    let mut tell = |addr, context: &mut Context| -> Outcome<()> {
        if !resolve(&space, &mut symbolizer, addr, context)? {
            exit = Exit::Failed;
        }
        Ok(())
    };
    for wanted in wanted {
        match *wanted {
            Wanted::Addr(addr) => tell(addr, context)?,
            Wanted::Stdin => {
                for (number, line) in (1..).zip(io::stdin().lock().lines()) {
                    let broken = |what: String| {
                        Failure::new(Exit::Usage, format!("standard input, line {number}: {what}"))
                    };
                    let line = line.map_err(|error| broken(format!("cannot read it: {error}")))?;
                    for word in line.split_whitespace() {
                        let addr = address(word).map_err(|error| broken(format!("{word:?}: {error}")))?;
                        tell(addr, context)?;
                    }
                    // The writer of the next line may wait for this.
                    context.flush()?;
                }
            }
        }
    }
    Ok(exit)
}

/// Files of others are read here, and the only bound on what a reader allocates for them is this:
/// half of the machine's memory. If it is reached, only this command ends.
fn bound_memory() {
    let info = sysinfo();
    let most = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)).max(LEAST_MEMORY) / 2;
    let old = getrlimit(Resource::As);
    let most = old.current.map_or(most, |current| current.min(most));
    // It is a bound more, so the command goes on without it.
    let _ = setrlimit(Resource::As, Rlimit { current: Some(most), ..old });
}

fn list(process: &Process, space: &AddressSpace, context: &mut Context) -> Outcome {
    let mappings = space.mappings().map_err(|error| Failure::from(&SpaceError::from(error)))?;
    if context.json {
        let mappings = mappings.iter().map(|mapping| MappingRow::of(space, mapping)).collect();
        context.document(&Listing { pid: process.pid, name: process.name(), mappings })?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new([">START", ">END", "PERMS", ">OFFSET", "KIND", "NAME"]);
    for mapping in &mappings {
        let Region { kind, perms, offset, .. } = mapping.value;
        table.row([
            format!("{:x}", mapping.start),
            format!("{:x}", end(mapping)),
            perms.to_string(),
            format!("{offset:x}"),
            kind.name().to_owned(),
            space.object(mapping.value.object).map(|object| shown(object.name())).unwrap_or_default(),
        ]);
    }
    context.text(table.render(HEAD))?;
    Ok(Exit::Ok)
}

/// Tells what lies at an address; whether something does.
fn resolve(
    space: &AddressSpace,
    symbolizer: &mut Symbolizer,
    addr: u64,
    context: &mut Context,
) -> Outcome<bool> {
    let found = space.resolve_now(addr).map_err(|error| Failure::from(&error))?;
    let symbol = found.map(|found| symbolizer.symbol(space, &found, addr));
    if context.json {
        let mapping = found.map(|found| MappingRow::of(space, &found));
        context.document(&Answer::new(space.pid(), addr, mapping, symbol.as_deref()))?;
        return Ok(found.is_some());
    }
    let (Some(found), Some(symbol)) = (found, symbol) else {
        context.line(format_args!("{addr:#014x}  {BAD}nothing is mapped there{BAD:#}"))?;
        return Ok(false);
    };
    let object = space.object(found.value.object);
    let mut lines = lines(&symbol, &found.value, object.as_ref()).into_iter();
    context.line(format_args!("{addr:#014x}  {}", lines.next().unwrap_or_default()))?;
    for line in lines {
        context.line(format_args!("{:14}  {line}", ""))?;
    }
    Ok(true)
}

/// The lines about an address: functions, the innermost first, and the place in the mapping.
fn lines(symbol: &Symbol, region: &Region, object: Option<&Arc<MappedObject>>) -> Vec<String> {
    let mut lines: Vec<String> = symbol.frames.iter().map(frame).collect();
    let name = object.map(|object| shown(object.name())).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| clean(&symbol.object));
    let Region { perms, kind, .. } = region;
    lines.push(format!("{name}+{:#x}  {DIM}{perms} {}{DIM:#}", symbol.offset, kind.name()));
    lines
}

fn frame(frame: &Frame) -> String {
    let name = Clean(&frame.function);
    let place = frame.offset.map_or(" (inlined)".to_owned(), |offset| format!("+{offset:#x}"));
    let source = frame.source.as_ref().map(|source| format!(" at {}", clean(&source.to_string())));
    format!("{GOOD}{name}{GOOD:#}{place}{}", source.unwrap_or_default())
}

impl MappingRow {
    fn of(space: &AddressSpace, mapping: &Mapping<Region>) -> MappingRow {
        let Region { kind, perms, offset, object, .. } = mapping.value;
        let object = space.object(object);
        let file = object.as_ref().and_then(|object| object.file());
        // Of code only: the kernel reads it from the file each time.
        let build_id = perms.contains(Perms::EXECUTE).then(|| space.build_id(mapping)).flatten();
        MappingRow {
            start: format!("{:#x}", mapping.start),
            end: format!("{:#x}", end(mapping)),
            perms: perms.to_string(),
            offset,
            kind: kind.name(),
            name: object.map(|object| object.name().to_string_lossy().into_owned()).unwrap_or_default(),
            device: file.map(|file| format!("{}:{}", file.device.0, file.device.1)),
            inode: file.map(|file| file.inode),
            build_id: build_id
                .map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()),
        }
    }
}

impl Answer {
    fn new(pid: u32, addr: u64, mapping: Option<MappingRow>, symbol: Option<&Symbol>) -> Answer {
        let call = |frame: &Frame| Call {
            function: frame.function.to_string(),
            inlined: frame.offset.is_none(),
            offset: frame.offset,
            file: frame.source.as_ref().map(|source| source.file.to_string()),
            line: frame.source.as_ref().and_then(|source| source.line),
        };
        Answer {
            pid,
            addr: format!("{addr:#x}"),
            mapping,
            object: symbol.map(|symbol| symbol.object.to_string()),
            offset: symbol.map(|symbol| symbol.offset),
            frames: symbol.map(|symbol| symbol.frames.iter().map(call).collect()).unwrap_or_default(),
        }
    }
}

/// The address after a mapping, or the last of all.
fn end(mapping: &Mapping<Region>) -> u64 {
    mapping.last.saturating_add(1)
}

fn shown(name: &Path) -> String {
    clean(&name.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_hex_without_a_prefix() {
        for (text, right) in [("0x10", 0x10), ("10", 0x10), ("0XfF", 0xff), ("ffffffffffffffff", u64::MAX)] {
            assert_eq!(text.parse(), Ok(Wanted::Addr(right)), "{text}");
        }
        assert_eq!("-".parse(), Ok(Wanted::Stdin));
        for text in ["", "0x", "+1", "-1", "tea", "10000000000000000"] {
            assert!(text.parse::<Wanted>().is_err(), "{text:?}");
        }
    }
}
