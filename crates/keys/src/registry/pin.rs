//! Objects that stay loaded, because keys in them were handed out or are leased.
//!
//! Objects are pinned without the patch lock, because the loader's lock comes before it, and a key
//! that was seen under the patch lock may be unloaded by then. So the keys are chosen again, until
//! no object was loaded or unloaded between a choice and the pinning of its objects. Then a key
//! that lies in no object did not lie in an unloaded one.
//!
//! Nothing is cached for a key that lies in no object: it may be on the heap, or its object may be
//! gone and another may take its place later.

use std::collections::TryReserveError;
use std::ops::Range;

use dormouse_sys::loader::{self, PinError};

use super::{KeyUse, Registry, lock, position};
use crate::Error;
use crate::key::Key;
use crate::room::{collect, extend};

/// The keys that `wanted` holds for; no lock is held any more. Their objects stay; a key in an
/// object that cannot stay is left out.
pub(crate) fn select(wanted: impl Fn(&Key) -> bool) -> Result<Vec<KeyUse>, Error> {
    let is_wanted = |used: &&KeyUse| wanted(used.key);
    let choose = |registry: &Registry| collect(registry.keys().iter().filter(is_wanted).cloned());
    Ok(pinned(choose, |used| used.key)?.1)
}

/// The registry, with the objects of these keys pinned. The caller keeps the objects until then.
pub(crate) fn lock_pinned(keys: &(impl Iterator<Item = &'static Key> + Clone)) -> Result<Registry, Error> {
    let (registry, _, left_out) = pinned(|_| collect(keys.clone()), |&key| key)?;
    left_out.map_or(Ok(registry), |why| Err(why.into()))
}

/// The loader's answer about some keys.
#[derive(Debug, Default)]
struct Asked {
    /// The addresses, in order, of those that lie in no object, as far as the loader shows.
    loose: Vec<usize>,
    /// The memory of the others' objects, which stay now.
    stay: Vec<Range<usize>>,
    /// Why the object of one cannot stay.
    refused: Option<PinError>,
}

/// The registry and what `choose` found in it, where `key` extracts the keys. The keys' objects are
/// pinned; keys whose objects cannot be pinned are left out, and the reason for one of them is
/// returned.
fn pinned<T>(
    choose: impl Fn(&Registry) -> Result<Vec<T>, TryReserveError>,
    key: impl Fn(&T) -> &'static Key,
) -> Result<(Registry, Vec<T>, Option<PinError>), Error> {
    let mut asked: Option<(u64, Asked)> = None;
    loop {
        let mut registry = lock()?;
        if let Some((_, asked)) = &mut asked {
            registry.remember(std::mem::take(&mut asked.stay))?;
        }
        let mut chosen = choose(&registry)?;
        let might_leave = registry.not_pinned(chosen.iter().map(&key))?;
        if might_leave.is_empty() {
            return Ok((registry, chosen, None));
        }
        let generation = registry.local.index.generation();
        match asked {
            Some((of, Asked { loose, refused, .. })) if of == generation => {
                let mut left_out = None;
                chosen.retain(|one| {
                    let at = key(one).address();
                    let in_object = || registry.local.index.is_in_object(at);
                    let stays = registry.is_pinned(at) || loose.binary_search(&at).is_ok() && !in_object();
                    left_out = left_out.or((!stays).then_some(at));
                    stays
                });
                let unknown = |at| {
                    let object = format!("the object with the key at {at:#x}");
                    PinError { object, reason: "the loader does not show it".into() }
                };
                let left_out = left_out.map(|at| refused.unwrap_or_else(|| unknown(at)));
                return Ok((registry, chosen, left_out));
            }
            _ => {}
        }
        drop(registry);
        asked = Some((generation, ask(&might_leave)?));
    }
}

/// Has the loader pin the objects of keys at these addresses, which are in order. Not under the
/// patch lock.
fn ask(keys: &[usize]) -> Result<Asked, Error> {
    let mapped = loader::mapped()?;
    let segment = |key: usize| position(&mapped, key);
    let mut asked = Asked::default();
    // One question for all keys of a segment.
    for together in keys.chunk_by(|&a, &b| segment(a) == segment(b)) {
        if segment(together[0]).is_none() {
            extend(&mut asked.loose, together.iter().copied())?;
            continue;
        }
        match loader::pin(together[0]) {
            Ok(segments) => {
                extend(&mut asked.stay, segments.unwrap_or_default().into_iter().map(|s| s.range))?;
            }
            Err(why) => asked.refused = Some(why),
        }
    }
    Ok(asked)
}

impl Registry {
    /// Whether an address lies in an object that stays.
    fn is_pinned(&self, address: usize) -> bool {
        position(&self.local.pinned, address).is_some()
    }

    /// The addresses, in order, of those keys whose objects might leave.
    fn not_pinned(&self, keys: impl Iterator<Item = &'static Key>) -> Result<Vec<usize>, TryReserveError> {
        let mut might_leave = collect(keys.map(Key::address).filter(|&address| !self.is_pinned(address)))?;
        might_leave.sort_unstable();
        Ok(might_leave)
    }

    /// Remembers that the objects stay to which this memory belongs.
    fn remember(&mut self, ranges: Vec<Range<usize>>) -> Result<(), TryReserveError> {
        let pinned = &mut self.local.pinned;
        pinned.try_reserve(ranges.len())?;
        for range in ranges {
            let at = pinned.partition_point(|other| other.start < range.start);
            if pinned.get(at) != Some(&range) {
                pinned.insert(at, range);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{StaticKey, static_key};

    static_key! { static OWN: "registry.own" = false; }

    #[test]
    fn pinning_heap_keys_remembers_none() {
        let new = |_| StaticKey::<false>::new("heap", file!(), line!());
        let keys: &'static [StaticKey<false>] = Vec::leak((0..100_000).map(new).collect());
        let start = Instant::now();
        for _ in 0..2 {
            lock_pinned(&keys.iter().map(StaticKey::key).chain([OWN.key()])).unwrap();
        }
        // Each compared with each, it would take minutes.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let registry = lock().unwrap();
        assert_eq!(registry.not_pinned(keys.iter().map(StaticKey::key)).unwrap().len(), keys.len());
        assert!(registry.not_pinned([OWN.key()].into_iter()).unwrap().is_empty());
        assert!(registry.local.pinned.is_sorted_by_key(|range| range.start));
        assert!(registry.local.pinned.len() < 1000);
    }
}
