//! Reading a profile from a file that was written earlier.
//!
//! The file is untrusted. The reader makes a bounded profile of it: [`UNPACKED`] bytes, [`ENTRIES`]
//! of each table and functions in all stacks, and [`TEXT`] bytes of names, which a file can repeat
//! many times.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Read as _;

use dormouse_encode::protobuf::{FieldValue as Value, Fields, Packed};
use dormouse_protocol::profile::{
    MappedRange, NO_GROUP, Node, Profile, ProfileGroup, ProfileKind, Sample, Thread,
};
use flate2::read::MultiGzDecoder;

use crate::error::Error;
use crate::pprof::read_comment;
use crate::pprof::{function, label, line, location, mapping, profile as field, sample, value_type};
use crate::symbols::{NO_SAMPLE, STACK_UNKNOWN, SourceFrame, Symbols};

/// The longest profile that is read, in uncompressed bytes.
pub const UNPACKED: u64 = 256 << 20;

/// The most entries of a table, and functions in all stacks.
pub const ENTRIES: usize = 4 << 20;

/// The most bytes of names.
pub const TEXT: usize = 256 << 20;

type Result<T> = std::result::Result<T, Error>;

/// Reads `profile.proto`, compressed or not, as [`crate::encode::pprof()`] and others write it.
///
/// Samples keep the labels `group`, `thread` and `tid`. Locations without an address, or with one
/// that another location has, get a new one from the end of the address space.
///
/// # Errors
///
/// [`Error::Unreadable`] if the bytes are not a profile, if it is too large, or if it is of no
/// [`ProfileKind`].
pub fn pprof(bytes: &[u8]) -> Result<(Profile, Symbols)> {
    let unpacked;
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        unpacked = unpack(bytes)?;
        &unpacked
    } else if bytes.len() as u64 > UNPACKED {
        return Err(too_large());
    } else {
        bytes
    };
    Reader::new(Tables::read(bytes)?)?.profile()
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(bytes)
        .take(UNPACKED + 1)
        .read_to_end(&mut unpacked)
        .map_err(|error| Error::Unreadable(format!("a damaged file: {error}")))?;
    if unpacked.len() as u64 > UNPACKED { Err(too_large()) } else { Ok(unpacked) }
}

fn too_large() -> Error {
    Error::Unreadable("a profile that is too large to be read".to_owned())
}

fn malformed(what: &str) -> Error {
    Error::Unreadable(format!("not a profile in pprof's format: {what}"))
}

fn put<T>(table: &mut Vec<T>, entry: T) -> Result<()> {
    if table.len() == ENTRIES {
        return Err(too_large());
    }
    table.push(entry);
    Ok(())
}

/// The fields of a message. Ends after an error.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u32, Value<'_>)>> {
    let cut = |_| malformed("a field that is cut off or of an unknown type");
    Fields::of(message).map(move |field| field.map_err(cut))
}

/// The numbers of a message that has no others that matter.
fn numbers<const N: usize>(message: &[u8]) -> Result<[u64; N]> {
    let mut numbers = [0; N];
    for field in fields(message) {
        if let (field, Value::Number(value)) = field?
            && let Some(number) = numbers.get_mut(field as usize)
        {
            *number = value;
        }
    }
    Ok(numbers)
}

/// A number of which the format allows negative ones, and we do not.
fn positive(value: u64) -> u64 {
    u64::try_from(value as i64).unwrap_or_default()
}

/// Adds the numbers of a repeated field, packed or single.
fn repeated(value: Value, to: &mut Vec<u64>) -> Result<()> {
    match value {
        Value::Number(number) => put(to, number),
        Value::Bytes(packed) => Packed::of(packed)
            .try_for_each(|number| put(to, number.map_err(|_| malformed("a list that is cut off"))?)),
    }
}

/// The fields of the outermost message, by kind.
#[derive(Default)]
struct Tables<'a> {
    columns: Vec<&'a [u8]>,
    samples: Vec<&'a [u8]>,
    mappings: Vec<&'a [u8]>,
    locations: Vec<&'a [u8]>,
    functions: Vec<&'a [u8]>,
    strings: Vec<Cow<'a, str>>,
    comments: Vec<u64>,
    unix_ns: u64,
    duration_ns: u64,
    period: u64,
    /// The string of the name of the column that is shown.
    shown: u64,
}

impl<'a> Tables<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut it = Self::default();
        for field in fields(bytes) {
            match field? {
                (field::SAMPLE_TYPE, Value::Bytes(bytes)) => put(&mut it.columns, bytes)?,
                (field::SAMPLE, Value::Bytes(bytes)) => put(&mut it.samples, bytes)?,
                (field::MAPPING, Value::Bytes(bytes)) => put(&mut it.mappings, bytes)?,
                (field::LOCATION, Value::Bytes(bytes)) => put(&mut it.locations, bytes)?,
                (field::FUNCTION, Value::Bytes(bytes)) => put(&mut it.functions, bytes)?,
                (field::STRING, Value::Bytes(bytes)) => {
                    put(&mut it.strings, String::from_utf8_lossy(bytes))?;
                }
                (field::TIME, Value::Number(value)) => it.unix_ns = positive(value),
                (field::DURATION, Value::Number(value)) => it.duration_ns = positive(value),
                (field::PERIOD, Value::Number(value)) => it.period = positive(value),
                (field::DEFAULT_SAMPLE_TYPE, Value::Number(value)) => it.shown = value,
                (field::COMMENT, value) => repeated(value, &mut it.comments)?,
                _ => {}
            }
        }
        Ok(it)
    }

    fn string(&self, index: u64) -> Result<&str> {
        let string = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        string.map(AsRef::as_ref).ok_or_else(|| malformed("a name that is not there"))
    }

    /// The name of the column that is shown; empty if the file does not say it.
    fn shown(&self) -> &str {
        self.string(self.shown).unwrap_or_default()
    }

    /// The kind of the profile, and for each of its columns where it stands in a sample.
    fn kind(&self) -> Result<(ProfileKind, Vec<Option<usize>>)> {
        let mut there = Vec::new();
        for column in self.columns.iter().take(64) {
            let numbers: [u64; 3] = numbers(column)?;
            there.push((
                self.string(numbers[value_type::TYPE as usize])?,
                self.string(numbers[value_type::UNIT as usize])?,
            ));
        }
        for kind in [ProfileKind::Cpu, ProfileKind::Alloc, ProfileKind::Faults, ProfileKind::Wall] {
            let places: Vec<_> = kind
                .columns()
                .iter()
                .map(|it| there.iter().position(|there| *there == (it.name, it.unit)))
                .collect();
            if places[kind.main_column()].is_some() {
                return Ok((kind, places));
            }
        }
        let there: Vec<_> =
            there.iter().take(8).map(|(name, unit)| format!("{name:?} in {unit:?}")).collect();
        Err(Error::Unreadable(if there.is_empty() {
            "not a profile in pprof's format: it has no values".to_owned()
        } else {
            format!(
                "a profile of {}, which is neither CPU time, allocations, page faults nor wall time",
                there.join(", ")
            )
        }))
    }
}

/// The profile as it is made of the tables.
struct Reader<'a> {
    tables: Tables<'a>,
    /// Names that were copied, in bytes.
    text: usize,
    /// The functions at all nodes of stacks.
    frames: usize,
    profile: Profile,
    symbols: Symbols,
    columns: Vec<Option<usize>>,
    /// The sums of columns.
    sums: [i64; 4],
    /// The address of a location by its id; `None`: it stands for a stack that is not known.
    locations: HashMap<u64, Option<u64>>,
    nodes: HashMap<Node, u32>,
    /// Groups and threads by their strings, and by their names: a string can be there twice.
    groups: HashMap<u64, u32>,
    named_groups: HashMap<String, u32>,
    threads: HashMap<(u64, u64), u32>,
}

impl<'a> Reader<'a> {
    fn new(tables: Tables<'a>) -> Result<Self> {
        let (kind, columns) = tables.kind()?;
        let profile = Profile {
            kind,
            live: kind.columns().iter().any(|it| it.is_level() && it.name == tables.shown()),
            unix_ns: tables.unix_ns,
            duration_ns: tables.duration_ns,
            period: tables.period,
            groups: vec![ProfileGroup::default()],
            ..Profile::default()
        };
        Ok(Self {
            tables,
            text: 0,
            frames: 0,
            profile,
            symbols: Symbols::default(),
            columns,
            sums: [0; 4],
            locations: HashMap::new(),
            nodes: HashMap::new(),
            groups: HashMap::new(),
            named_groups: HashMap::from([(String::new(), NO_GROUP)]),
            threads: HashMap::new(),
        })
    }

    fn profile(mut self) -> Result<(Profile, Symbols)> {
        self.mappings()?;
        self.locations()?;
        for index in 0..self.tables.samples.len() {
            self.sample(self.tables.samples[index])?;
        }
        for comment in std::mem::take(&mut self.tables.comments) {
            let comment = self.text(comment)?;
            read_comment(comment, &mut self.profile.coverage);
        }
        Ok((self.profile, self.symbols))
    }

    /// A copy of a string.
    fn text(&mut self, index: u64) -> Result<String> {
        let text = self.tables.string(index)?;
        self.text += text.len();
        if self.text > TEXT { Err(too_large()) } else { Ok(text.to_owned()) }
    }

    fn mappings(&mut self) -> Result<()> {
        for index in 0..self.tables.mappings.len() {
            let it: [u64; 11] = numbers(self.tables.mappings[index])?;
            let mapping = MappedRange {
                start: it[mapping::START as usize],
                end: it[mapping::LIMIT as usize],
                offset: it[mapping::OFFSET as usize],
                path: self.text(it[mapping::FILE as usize])?,
                build_id: self.text(it[mapping::BUILD_ID as usize])?,
            };
            self.profile.mappings.push(mapping);
        }
        if let Some(main) = self.profile.mappings.first() {
            self.profile.program.clone_from(&main.path);
        }
        Ok(())
    }

    fn locations(&mut self) -> Result<()> {
        let mut functions = HashMap::new();
        for message in &self.tables.functions {
            let it: [u64; 5] = numbers(message)?;
            functions.insert(
                it[function::ID as usize],
                (it[function::NAME as usize], it[function::FILE as usize]),
            );
        }
        let mut all = Vec::new();
        let mut addresses = HashSet::new();
        for index in 0..self.tables.locations.len() {
            let message = self.tables.locations[index];
            let it: [u64; 4] = numbers(message)?;
            let frames = self.frames(message, &functions)?;
            let address = it[location::ADDRESS as usize];
            addresses.insert(address);
            all.push((it[location::ID as usize], it[location::MAPPING as usize], address, frames));
        }
        // Addresses for those that have none of their own.
        let mut free = (0..=u64::MAX).rev().filter(|it| !addresses.contains(it));
        let mut seen = HashSet::new();
        for (id, mapping, mut address, frames) in all {
            let is_missing = |frame: &SourceFrame| {
                frame.file.is_empty() && [NO_SAMPLE, STACK_UNKNOWN].contains(&&*frame.function)
            };
            if mapping == 0 && address == 0 && matches!(&frames[..], [frame] if is_missing(frame)) {
                self.locations.insert(id, None);
                continue;
            }
            let has_own = seen.insert(address) && (address != 0 || frames.is_empty());
            if !has_own && self.symbols.get(address) != frames {
                address = free.next().unwrap_or_default();
            }
            if !frames.is_empty() {
                self.symbols.insert(address, frames);
            }
            self.locations.insert(id, Some(address));
        }
        Ok(())
    }

    /// The functions at a location.
    fn frames(&mut self, message: &[u8], functions: &HashMap<u64, (u64, u64)>) -> Result<Vec<SourceFrame>> {
        let mut frames: Vec<SourceFrame> = Vec::new();
        for field in fields(message) {
            let (location::LINE, Value::Bytes(bytes)) = field? else { continue };
            let it: [u64; 3] = numbers(bytes)?;
            let named = functions.get(&it[line::FUNCTION as usize]);
            let &(name, file) = named.ok_or_else(|| malformed("a function that is not there"))?;
            let frame = SourceFrame {
                function: self.text(name)?,
                file: self.text(file)?,
                line: u32::try_from(it[line::LINE as usize]).unwrap_or_default(),
                inlined: false,
            };
            // The one before it is inlined into this one.
            if let Some(last) = frames.last_mut() {
                last.inlined = true;
            }
            self.text += size_of::<SourceFrame>();
            frames.push(frame);
        }
        Ok(frames)
    }

    fn sample(&mut self, message: &[u8]) -> Result<()> {
        let (mut locations, mut values) = (Vec::new(), Vec::new());
        let (mut group, mut thread, mut tid) = (0, 0, 0);
        for field in fields(message) {
            match field? {
                (sample::LOCATION, value) => repeated(value, &mut locations)?,
                (sample::VALUE, value) => repeated(value, &mut values)?,
                (sample::LABEL, Value::Bytes(label)) => {
                    let it: [u64; 4] = numbers(label)?;
                    match self.tables.string(it[label::KEY as usize])? {
                        "group" => group = it[label::TEXT as usize],
                        "thread" => thread = it[label::TEXT as usize],
                        "tid" => tid = it[label::NUMBER as usize],
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let mut row = Sample {
            group: self.group(group)?,
            thread: self.thread(thread, tid)?,
            stack: self.stack(&locations)?,
            values: [0; 4],
        };
        for ((value, place), sum) in row.values.iter_mut().zip(&self.columns).zip(&mut self.sums) {
            let Some(place) = *place else { continue };
            let there = *values.get(place).ok_or_else(|| malformed("a sample without its values"))?;
            *value =
                u64::try_from(there as i64).map_err(|_| malformed("a value below zero: a difference?"))?;
            // A reader of the profile can add its values up.
            *sum = sum.checked_add(there as i64).ok_or_else(|| malformed("values that are too large"))?;
        }
        self.profile.samples.push(row);
        Ok(())
    }

    fn group(&mut self, name: u64) -> Result<u32> {
        if let Some(&group) = self.groups.get(&name) {
            return Ok(group);
        }
        let text = self.text(name)?;
        let next = self.profile.groups.len() as u32;
        let group = *self.named_groups.entry(text).or_insert_with_key(|name| {
            self.profile.groups.push(ProfileGroup { id: next, name: name.clone(), total: None });
            next
        });
        self.groups.insert(name, group);
        Ok(group)
    }

    fn thread(&mut self, name: u64, tid: u64) -> Result<u32> {
        if let Some(&thread) = self.threads.get(&(name, tid)) {
            return Ok(thread);
        }
        let thread = Thread { tid: u32::try_from(tid).unwrap_or_default(), name: self.text(name)? };
        self.text += size_of::<Thread>();
        self.profile.threads.push(thread);
        let thread = self.profile.threads.len() as u32 - 1;
        self.threads.insert((name, tid), thread);
        Ok(thread)
    }

    /// The stack of these locations, the innermost first.
    fn stack(&mut self, locations: &[u64]) -> Result<u32> {
        let mut stack = 0;
        for id in locations.iter().rev() {
            let address = self.locations.get(id).ok_or_else(|| malformed("a location that is not there"))?;
            // One that stands for a stack is alone, as we write it.
            let Some(address) = *address else { continue };
            let next = self.profile.stacks.len() as u32 + 1;
            let node = Node { parent: stack, address };
            stack = *self.nodes.entry(node).or_insert(next);
            if stack == next {
                self.profile.stacks.push(node);
                // A location may have many functions, and be in many stacks.
                self.frames += self.symbols.get(address).len().max(1);
            }
        }
        if self.frames > ENTRIES { Err(too_large()) } else { Ok(stack) }
    }
}
