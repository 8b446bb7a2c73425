//! Changes of a map, and changes that are refused.

use super::*;
use crate::cache::Cache;
use crate::{EditError, Overlap};

#[test]
fn refused_update_changes_nothing() {
    let map = RangeMap::<u8>::new();
    let refused = map.update(|edit| {
        edit.insert(0..10, 1, Overlap::Reject)?;
        edit.insert(5..6, 2, Overlap::Reject)
    });
    assert!(matches!(refused, Err(EditError::Overlaps { start: 5, .. })));
    assert_eq!((map.find(0), map.mappings()), (Ok(None), Ok(Vec::new())));
}

#[test]
fn panicking_update_leaves_a_usable_map() {
    let map = RangeMap::<u8>::new();
    map.update(|edit| edit.insert(0..10, 1, Overlap::Reject)).unwrap();
    let panicked = std::panic::catch_unwind(|| {
        map.update(|edit| -> Result<(), EditError> {
            edit.remove(..)?;
            std::panic::resume_unwind(Box::new(()))
        })
    });
    assert!(panicked.is_err());
    assert_eq!(map.find(5).unwrap().map(|mapping| mapping.value), Some(1));
    map.update(|edit| edit.remove(5..).map(drop)).unwrap();
    assert_eq!(map.find(5), Ok(None));
    assert_eq!(map.find(4).unwrap().map(|mapping| mapping.last), Some(4));
}

#[test]
fn tag_moves_only_when_answers_could_be_wrong() {
    let map = RangeMap::<u8>::new();
    assert!(!map.tag().is_open());
    map.update(|edit| edit.insert(0..10, 1, Overlap::Reject)).unwrap();
    let first = map.tag();
    map.update(|edit| edit.insert(20..30, 2, Overlap::Split)).unwrap();
    map.update(|edit| edit.grow(20..=u64::MAX)).unwrap();
    map.update(|edit| edit.remove(15..16).map(drop)).unwrap();
    assert_eq!(map.tag(), first);
    map.update(|edit| edit.remove(25..).map(drop)).unwrap();
    assert_ne!(map.tag(), first);
}

#[test]
fn answers_are_spared_under_the_present_tag_only() {
    let map = RangeMap::<u8>::new();
    map.update(|edit| {
        edit.insert(0..10, 1, Overlap::Reject)?;
        edit.insert(20..30, 2, Overlap::Reject)
    })
    .unwrap();
    let old = map.tag();
    map.update(|edit| edit.remove(20..30).map(drop)).unwrap();
    let (beside, touched) = (Extent { start: 0, last: 9 }, Extent { start: 29, last: 40 });
    let now = map.tag();
    assert!(map.spared(old, beside, now) && !map.spared(old, touched, now));
    map.update(|edit| edit.insert(20..30, 3, Overlap::Reject)).unwrap();
    map.update(|edit| edit.remove(20..30).map(drop)).unwrap();
    assert!(!map.spared(old, beside, now) && map.spared(old, beside, map.tag()));
}

#[test]
fn a_held_map_stays_as_it_was() {
    let (map, cache) = (RangeMap::<u8>::new(), Cache::new());
    assert_eq!(map.hold(|held| held.find(&cache, 5)), Ok(None));
    map.update(|edit| edit.insert(0..10, 1, Overlap::Reject)).unwrap();
    assert!(map.is_settled());
    let value = |mapping: Option<Mapping<u8>>| mapping.map(|mapping| mapping.value);
    map.hold(|held| {
        assert_eq!(value(held.find(&cache, 5)), Some(1));
        map.update(|edit| edit.insert(0..10, 2, Overlap::Replace)).unwrap();
        assert!(!map.is_settled());
        assert_eq!((value(held.find(&cache, 5)), value(held.find_uncached(5))), (Some(1), Some(1)));
        // A look-up inside has the new one.
        assert_eq!(map.hold(|held| value(held.find_uncached(5))), Ok(Some(2)));
        assert!(!map.is_settled());
    })
    .unwrap();
    assert!(map.is_settled());
    assert_eq!(map.hold(|held| value(held.find(&cache, 5))), Ok(Some(2)));
    let before = cache.stats();
    assert_eq!(map.hold(|held| value(held.find(&cache, 6))), Ok(Some(2)));
    assert_eq!(cache.stats().hits, before.hits + 1);
}
