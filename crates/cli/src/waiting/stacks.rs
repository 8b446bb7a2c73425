//! The names of the places where tasks wait.

use std::collections::{BTreeSet, HashMap};

use dormouse_maps::SpaceError;
use dormouse_profile::{NameFinder, Node, Profile, SourceFrame, Symbols};
use dormouse_protocol::PlaceRow;

use crate::render::frame::CodeFrame;

/// The number of the place of all wakers whose stack is not known.
pub(crate) const UNKNOWN_PLACE: u32 = 1;

/// The number of the place of all wakers whose stack has functions that the service has not learned
/// yet. (In older services that of any place.)
pub(crate) const UNLEARNED_PLACE: u32 = 2;

/// It stands for functions of a stack that had no room.
pub(crate) const CUT: &str = "(cut: more functions than there is room for)";

/// It stands for the callers of a function whose caller no rule finds.
pub(crate) const LOST: &str = "(its callers are not known)";

/// The functions of these stacks, which belong to a process, the innermost first; and why they have
/// no names, if that is so.
///
/// Reads the files that the process has mapped.
pub(crate) fn named(
    finder: Result<NameFinder, SpaceError>,
    places: &HashMap<u32, PlaceRow>,
) -> (HashMap<u32, Vec<CodeFrame>>, Option<String>) {
    let addresses: BTreeSet<u64> = places.values().flat_map(|place| &place.stack).copied().collect();
    let nodes = addresses.into_iter().map(|address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks: nodes, ..Profile::default() };
    let (symbols, why) = match finder {
        Ok(mut finder) => (finder.symbols(&profile), None),
        Err(error) => (Symbols::default(), Some(error.to_string())),
    };
    let of = |place: &PlaceRow| {
        let inner = place.inner.map_or(place.stack.len(), |inner| inner as usize).min(place.stack.len());
        let (inner, outer) = place.stack.split_at(inner);
        let of = |stack: &[u64]| stack.iter().flat_map(|address| functions(&symbols, *address)).collect();
        let [mut frames, outer]: [Vec<CodeFrame>; 2] = [of(inner), of(outer)];
        frames.extend(place.cut.then(|| nameless(CUT.to_owned())));
        frames.extend(outer);
        frames.extend(place.lost.then(|| nameless(LOST.to_owned())));
        frames
    };
    let mut names: HashMap<u32, Vec<CodeFrame>> =
        places.iter().map(|(&number, place)| (number, of(place))).collect();
    names.insert(UNKNOWN_PLACE, vec![nameless("(stack unknown)".to_owned())]);
    let unlearned = || vec![nameless("(stack unknown: not yet learned)".to_owned())];
    names.entry(UNLEARNED_PLACE).or_insert_with(unlearned);
    (names, why)
}

/// The functions of one stack of a process, the innermost first: addresses, where there is no
/// finder.
pub(crate) fn names_of(finder: Option<&mut NameFinder>, stack: &[u64]) -> Vec<CodeFrame> {
    let nodes = stack.iter().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks: nodes, ..Profile::default() };
    let symbols = finder.map(|finder| finder.symbols(&profile)).unwrap_or_default();
    stack.iter().flat_map(|address| functions(&symbols, *address)).collect()
}

/// The functions at an address, the innermost first; else the address.
fn functions(symbols: &Symbols, address: u64) -> Vec<CodeFrame> {
    match symbols.get(address) {
        [] => vec![nameless(format!("{address:#x}"))],
        frames => frames.iter().map(|frame| code(frame, symbols)).collect(),
    }
}

fn nameless(function: String) -> CodeFrame {
    CodeFrame { function, inlined: false, file: None, line: None, is_own: false }
}

fn code(of: &SourceFrame, symbols: &Symbols) -> CodeFrame {
    let file = (!of.file.is_empty()).then(|| of.file.clone());
    CodeFrame {
        function: of.function.clone(),
        inlined: of.inlined,
        is_own: symbols.own().is_own(&of.function, file.as_deref()),
        file,
        line: (of.line > 0).then_some(of.line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_have_names_and_others_addresses() {
        let here = named as *const () as u64;
        let place = |cut| PlaceRow { number: 7, stack: vec![here, 1], cut, ..PlaceRow::default() };
        let (names, why) =
            named(NameFinder::of(std::process::id()), &[(7, place(false)), (8, place(true))].into());
        assert_eq!(why, None);
        assert!(names[&7].iter().any(|frame| frame.function.contains("stacks::named")), "{names:?}");
        assert_eq!(names[&7].last().unwrap().function, "0x1");
        let (whole, cut) = (&names[&7], &names[&8]);
        assert_eq!((&cut[..whole.len()], cut.last().unwrap().function.as_str()), (&whole[..], CUT));
        assert_eq!(names[&UNKNOWN_PLACE][0].function, "(stack unknown)");
        let amid = PlaceRow { inner: Some(1), lost: true, ..place(true) };
        let (names, _) = named(NameFinder::of(std::process::id()), &[(9, amid)].into());
        let outer: Vec<_> = names[&9].iter().rev().take(3).map(|frame| &*frame.function).collect();
        assert_eq!(outer, [LOST, "0x1", CUT], "in the middle");
    }
}
