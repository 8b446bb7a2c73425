//! Files with debug information: where they are looked for, and which objects of a process have
//! none, so that a profile will have fewer names.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use dormouse_maps::symbols::Symbolizer;
use dormouse_maps::{AddressSpace, Mapping, ObjectId, Perms, Region};
use dormouse_protocol::{Check, CheckState};

const NAME: &str = "profile.names";
/// Objects that have a line of their own, those with the most code first.
const MOST_LINES: usize = 4;
/// Objects that are opened, those with the most code: a process may have mapped tens of thousands.
const MOST_OBJECTS: usize = 256;

/// The caches of debuginfod's clients, in which files are found by build id. Nothing is downloaded.
///
/// # References
///
/// `debuginfod_find_debuginfo(3)`, "FILES".
pub(crate) fn caches(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let of = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = of("HOME");
    let in_home = |cache: &str| home.as_ref().map(|home| home.join(cache));
    let caches = [
        of("DEBUGINFOD_CACHE_PATH"),
        of("XDG_CACHE_HOME").map(|cache| cache.join("debuginfod_client")),
        in_home(".cache/debuginfod_client"),
        in_home(".debuginfod_client_cache"),
    ];
    caches.into_iter().flatten().collect()
}

/// A check for each larger object of a process that has less than functions, inlined ones and
/// lines; one for all of them if none has less. Nothing if this user may not look at its mappings.
///
/// # Cost
///
/// Opens each of its objects, up to [`MOST_OBJECTS`], and copies or reads their debug information.
pub(crate) fn checks(pid: u32) -> Vec<Check> {
    let Ok(space) = AddressSpace::of(pid) else { return Vec::new() };
    let Ok(mappings) = space.mappings() else { return Vec::new() };
    let mut objects: HashMap<ObjectId, (u64, Mapping<Region>)> = HashMap::new();
    for mapping in mappings {
        let Region { kind, perms, object, .. } = mapping.value;
        if kind.has_file() && perms.contains(Perms::EXECUTE) {
            objects.entry(object).or_insert((0, mapping)).0 += mapping.last - mapping.start;
        }
    }
    let mut objects: Vec<(u64, Mapping<Region>)> = objects.into_values().collect();
    objects.sort_unstable_by_key(|&(length, mapping)| (u64::MAX - length, mapping.start));
    let mut symbolizer = Symbolizer::new();
    let (mut checks, mut left, all) = (Vec::new(), 0, objects.len());
    for (_, mapping) in objects.into_iter().take(MOST_OBJECTS) {
        let Some(lack) = symbolizer.lack(&space, &mapping) else { continue };
        if checks.len() == MOST_LINES {
            left += 1;
            continue;
        }
        let object = space.object(mapping.value.object);
        let name = object.map(|object| object.short_name().into_owned()).unwrap_or_default();
        let detail = format!("{name}: {}", lack.has);
        let fix = Some(format!("for {name}, {}", lack.change));
        checks.push(Check { name: NAME.into(), state: CheckState::Limited, detail, fix });
    }
    match checks.last_mut() {
        Some(last) if left > 0 => {
            let _ = write!(last.detail, " (and {left} smaller objects have less, too)");
        }
        Some(_) => {}
        None => {
            let which =
                if all > MOST_OBJECTS { format!("the {MOST_OBJECTS} largest of") } else { "all".into() };
            let detail = format!("functions, inlined ones and lines of {which} {all} objects with code");
            checks.push(Check { name: NAME.into(), state: CheckState::Ok, detail, fix: None });
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debuginfod_caches_are_found() {
        let of = |set: &'static [(&str, &str)]| {
            let dirs = caches(|name| set.iter().find(|(it, _)| *it == name).map(|(_, to)| to.into()));
            dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[("HOME", ""), ("DEBUGINFOD_CACHE_PATH", "/c")]), ["/c"]);
        let cached = ["/x/debuginfod_client", "/h/.cache/debuginfod_client", "/h/.debuginfod_client_cache"];
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), cached);
    }
}
