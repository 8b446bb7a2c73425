//! A list of mappings is read up to its first fault, and what was read can be looked at.

use dormouse_maps::{AddressSpace, MapsLine, parse};

/// Bytes are the text of a `/proc/PID/maps`.
///
/// # Panics
///
/// When a mapping has no place behind the one before it, or is not found where it lies.
pub fn check(bytes: &[u8]) {
    let lines: Vec<_> = parse(bytes).map_while(Result::ok).collect();
    assert!(lines.iter().all(|line| line.start <= line.last));
    assert!(lines.windows(2).all(|pair| pair[0].last < pair[1].start));
    let own = |line: &MapsLine<'_>| MapsLine { name: line.name.clone().into_owned().into(), ..line.clone() };
    // Files are not looked for.
    let owned = lines.iter().map(|line| MapsLine { file: None, ..own(line) });
    let Ok(space) = AddressSpace::recorded(owned.collect()) else { return };
    for line in &lines {
        let found = space.resolve_now(line.last).expect("a reader's slot").expect("a mapping");
        assert_eq!((found.start, found.value.perms), (line.start, line.perms));
    }
}
