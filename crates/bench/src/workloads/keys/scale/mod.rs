//! `scale/…`: how the time of a batch grows with its sites; `list/…`, `select/…` and `keep/…`: the
//! time to find the same number of keys.
//!
//! Each site belongs to another key, which is the most work that a batch can have.

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod live;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod object;

use crate::bench::Bench;
use crate::row::Spec;

/// Sites of a batch.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// The ends of the rows' names, in the order of [`live::Way::ALL`].
const VARIANTS: [&str; 4] = ["", "/shuffled", "/int3", "/int3-one-queue"];

/// The numbers of keys for which look-ups are timed.
const LOOKED_UP: [usize; 2] = [1_000, 100_000];

const LOOK_UPS: [&str; 3] = ["list", "select", "keep"];

/// Adds the rows. They load an object that stays, so they come last.
pub(super) fn rows(bench: &mut Bench) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
    let reason = match object::load(&SIZES) {
        Ok(groups) => return groups.iter().for_each(|sites| rows_of(bench, sites)),
        Err(reason) => reason,
    };
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback))))]
    let reason = super::ways::NOT_PATCHED;
    let specs = SIZES.iter().flat_map(|&size| VARIANTS.map(|variant| spec("scale", size, variant)));
    let others = LOOKED_UP.iter().flat_map(|&size| LOOK_UPS.map(|what| spec(what, size, "")));
    bench.unavailable(specs.chain(others).collect::<Vec<_>>(), reason);
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
fn rows_of(bench: &mut Bench, sites: &object::Sites) {
    let size = sites.keys.len();
    for (variant, way) in VARIANTS.into_iter().zip(live::Way::ALL) {
        live::row(bench, spec("scale", size, variant), sites, way);
    }
    for what in LOOK_UPS.into_iter().filter(|_| LOOKED_UP.contains(&size)) {
        let keys = sites.keys;
        bench.sample(spec(what, size, ""), move || live::look_up(keys, what));
    }
}

fn spec(what: &str, size: usize, variant: &str) -> Spec {
    let spec = Spec::new(format!("{what}/{size}{variant}"), "us").with("keys", size).wall();
    if what == "scale" { spec.per("batch").with("sites", size) } else { spec.per("call") }
}

/// How far flip is ahead, at every size.
pub(super) fn compare(bench: &mut Bench) {
    let [flip, shuffled, at_once @ ..] = VARIANTS;
    let most = SIZES[SIZES.len() - 1];
    let text = format!("{most} sites in one batch in at most 5 ms");
    bench.at_most(&text, &format!("scale/{most}{flip}"), 5_000.0);
    bench.at_most("in no order in at most 8 ms", &format!("scale/{most}{shuffled}"), 8_000.0);
    for (size, int3) in SIZES.into_iter().flat_map(|size| at_once.map(|int3| (size, int3))) {
        let ratio = format!("scale-ratio/{size}{int3}");
        bench.times(ratio.as_str(), &format!("scale/{size}{int3}"), &format!("scale/{size}{flip}"));
        bench.goal("flip faster than batched int3", &ratio, |times| times > 1.0);
    }
}
