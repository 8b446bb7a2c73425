//! Resolving the addresses of a profile to names, with the files that the process has mapped.
//!
//! The service only reports addresses; names are resolved by a process that has time to read files.
//! An address is resolved to its mapping by the range map of the process and this finder's cache of
//! answers, and from there to functions by the symbols of the object. A process may end, and
//! objects may be unloaded, while it is profiled: [`NameFinder::see`] looks up the mappings of the
//! addresses so far, and the files are read when names are needed.
//!
//! A finder stays on one thread, as the reader of symbols does.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use dormouse_maps::symbols::{self, Crate, Symbolizer, file_that_was};
use dormouse_maps::{
    AddressSpace, Cache, CacheStats, Mapping, MappingKind, MapsLine, ObjectId, Perms, Region, SpaceError,
};

use crate::ends::stand_in;
use crate::kernel_names::KernelNames;
use crate::modules::Crates;
use crate::own::OwnCode;
use crate::{MappedRange, Profile, SourceFrame, Symbols};

/// An object with debug information that does not mention a function of it.
const PARTLY: &str = "functions only in the part that was built without debug information";

/// Resolves one process's addresses to names, and keeps the results.
#[derive(Debug)]
pub struct NameFinder {
    space: AddressSpace,
    cache: Cache<Region>,
    symbolizer: Symbolizer,
    known: HashMap<u64, Place>,
    kernel: KernelNames,
    crates: Crates,
    own: OwnCode,
    /// Objects whose crates are known.
    listed: HashSet<ObjectId>,
}

/// An address that was asked for.
#[derive(Debug)]
struct Place {
    /// `None`: nothing was mapped there.
    mapping: Option<Mapping<Region>>,
    /// The functions in the object's symbols. `None` if they were not needed yet.
    frames: Option<Vec<SourceFrame>>,
    /// Why there is less than functions and lines.
    lack: Option<String>,
}

impl NameFinder {
    /// A finder for profiles of this process.
    pub fn own() -> Result<Self, SpaceError> {
        Ok(Self::new(AddressSpace::own()?))
    }

    /// A finder for profiles of the process `pid`, as long as it executes the same program.
    pub fn of(pid: u32) -> Result<Self, SpaceError> {
        Ok(Self::new(AddressSpace::of(pid)?))
    }

    /// A finder for addresses of a process that may have ended, from its mappings at the time `at`.
    /// Names come from the files that are at their paths now, if these are the same files.
    pub fn recorded(mappings: &[MappedRange], at: SystemTime) -> Result<Self, SpaceError> {
        let line = |mapping: &MappedRange| {
            let id = bytes_of(&mapping.build_id);
            let file = file_that_was(Path::new(&mapping.path), id.as_deref(), at)?;
            let (kind, name) = (MappingKind::File, Cow::Owned(mapping.path.clone().into_bytes()));
            let (start, last, offset) = (mapping.start, mapping.end.checked_sub(1)?, mapping.offset);
            let perms = Perms::READ.union(Perms::EXECUTE);
            Some(MapsLine { start, last, perms, offset, file: Some(file), kind, name })
        };
        Ok(Self::new(AddressSpace::recorded(mappings.iter().filter_map(line).collect())?))
    }

    fn new(space: AddressSpace) -> Self {
        let (cache, symbolizer, known) = (Cache::new(), Symbolizer::new(), HashMap::new());
        let (kernel, crates, own, listed) = Default::default();
        Self { space, cache, symbolizer, known, kernel, crates, own, listed }
    }

    /// Looks up the mappings of a profile's addresses, while the process still exists.
    ///
    /// # Cost
    ///
    /// A look-up in memory for each new address.
    pub fn see(&mut self, profile: &Profile) {
        for node in &profile.stacks {
            let Self { space, cache, known, .. } = self;
            see(space, cache, known, node.address);
        }
        let is_generated = |it: Mapping<Region>| it.value.kind == MappingKind::Anonymous;
        if self.known.values().any(|place| place.mapping.is_some_and(is_generated)) {
            self.symbolizer.see_generated(&self.space);
        }
    }

    /// The names of all addresses of a profile.
    ///
    /// # Cost
    ///
    /// Reads the debug information of each object that has addresses, once.
    pub fn symbols(&mut self, profile: &Profile) -> Symbols {
        let Self { space, cache, symbolizer, known, kernel, crates, own, listed } = self;
        for node in &profile.stacks {
            let Place { mapping, frames, lack } = see(space, cache, known, node.address);
            frames.get_or_insert_with(|| {
                let kernels = || kernel.get(node.address).map(str::to_owned);
                if let Some(function) = stand_in(node.address).or_else(kernels) {
                    return vec![SourceFrame { function, ..SourceFrame::default() }];
                }
                let symbol = mapping.as_ref().map(|it| symbolizer.symbol(space, it, node.address));
                if mapping.is_none() {
                    *lack =
                        Some("[unknown]: addresses at which nothing was mapped when it was asked".to_owned());
                }
                if let (Some(mapping), Some(symbol)) = (mapping, &symbol) {
                    let is_object = mapping.value.kind.has_file();
                    let why = if is_object || symbol.frames.is_empty() {
                        symbolizer.lack(space, mapping)
                    } else {
                        None
                    };
                    let object = if is_object { &*symbol.object } else { "[unknown]" };
                    let has_no_line = symbol.function().is_some_and(|outer| outer.source.is_none());
                    let partly = || (is_object && has_no_line).then(|| PARTLY.to_owned());
                    let why = why.map(|why| why.to_string()).or_else(partly);
                    *lack = why.map(|why| format!("{object}: {why}"));
                    if listed.insert(mapping.value.object)
                        && let Some(found) = symbolizer.crates(mapping)
                    {
                        for Crate { name, root } in &found.all {
                            crates.learn_crate(name, root);
                            own.learn_crate(name, root);
                        }
                        found.workspace.iter().for_each(|directory| own.learn_workspace(directory));
                    }
                }
                let frames: Vec<_> =
                    symbol.map(|symbol| symbol.frames.iter().map(frame).collect()).unwrap_or_default();
                for frame in &frames {
                    crates.learn(frame);
                }
                frames
            });
        }
        let mut found = Symbols::default();
        for node in &profile.stacks {
            let Some(Place { mapping, frames, lack }) = known.get_mut(&node.address) else { continue };
            if let Some(frames) = frames.as_ref().filter(|frames| !frames.is_empty())
                && found.get(node.address).is_empty()
            {
                found.insert(node.address, crates.all_qualified(frames));
            }
            if let Some(why) = lack {
                found.insert_lack(node.address, why.clone());
            }
            // Other code may be generated there.
            if mapping.is_some_and(|it| it.value.kind == MappingKind::Anonymous) {
                *frames = None;
            }
        }
        found.set_own(own.clone());
        found
    }

    /// How the cache of mappings has performed so far.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

/// The bytes of hexadecimal digits, if there are some.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<Vec<u8>>>().filter(|bytes| !bytes.is_empty())
}

fn see<'a>(
    space: &AddressSpace,
    cache: &Cache<Region>,
    known: &'a mut HashMap<u64, Place>,
    address: u64,
) -> &'a mut Place {
    match known.entry(address) {
        Entry::Occupied(place) => place.into_mut(),
        Entry::Vacant(vacant) => {
            // Of a process that has ended, the mappings seen before answer.
            let mapping = space.resolve(cache, address).unwrap_or_default();
            vacant.insert(Place { mapping, frames: None, lack: None })
        }
    }
}

fn frame(of: &symbols::Frame) -> SourceFrame {
    let source = of.source.as_ref();
    SourceFrame {
        function: of.function.to_string(),
        file: source.map(|source| source.file.to_string()).unwrap_or_default(),
        line: source.and_then(|source| source.line).unwrap_or(0),
        inlined: of.offset.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[inline(never)]
    fn steep() -> u64 {
        std::hint::black_box(1)
    }

    fn profile_of(addresses: &[u64]) -> Profile {
        let stacks = addresses.iter().map(|&address| Node { parent: 0, address }).collect();
        Profile { stacks, ..Profile::default() }
    }

    #[test]
    fn own_functions_have_names_and_lines() {
        let address = steep as fn() -> u64 as usize as u64;
        let mut finder = NameFinder::own().unwrap();
        let symbols = finder.symbols(&profile_of(&[address, 1]));
        let frame = symbols.get(address).last().expect("a function of this program");
        assert!(frame.function.ends_with("names::tests::steep"), "{frame:?}");
        assert!(frame.file.ends_with("names.rs") && frame.line > 0 && !frame.inlined, "{frame:?}");
        assert!(symbols.get(1).is_empty());
    }

    #[test]
    fn recorded_mappings_have_names() {
        let address = steep as fn() -> u64 as usize as u64;
        let of = |mappings: &[MappedRange], at| {
            let mut finder = NameFinder::recorded(mappings, at).unwrap();
            finder.symbols(&profile_of(&[address])).get(address).last().map(|frame| frame.function.clone())
        };
        let mut mappings = crate::own_mappings();
        let now = SystemTime::now();
        assert!(of(&mappings, now).is_some_and(|name| name.ends_with("names::tests::steep")));
        for mapping in &mut mappings {
            mapping.build_id.clear();
        }
        assert!(of(&mappings, now).is_some(), "older than the record");
        assert_eq!(of(&mappings, SystemTime::UNIX_EPOCH), None, "changed since");
        for mapping in &mut mappings {
            mapping.build_id = "00112233445566778899".to_owned();
        }
        assert_eq!(of(&mappings, now), None, "another file");
    }

    #[test]
    fn mappings_are_asked_for_once() {
        let address = steep as fn() -> u64 as usize as u64;
        let mut finder = NameFinder::own().unwrap();
        let asked = |finder: &NameFinder| finder.cache_stats().hits + finder.cache_stats().misses;
        finder.see(&profile_of(&[address, address + 1]));
        assert_eq!(asked(&finder), 2);
        let symbols = finder.symbols(&profile_of(&[address, address + 1, address]));
        assert_eq!((asked(&finder), symbols.get(address).is_empty()), (2, false));
    }
}
