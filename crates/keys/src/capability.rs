//! What `dormouse doctor` says of static keys.

use dormouse_sys::Capability;

#[cfg(dormouse_patching)]
use crate::{Protocol, text};

/// Whether keys can be switched in this process, and if not, what to change.
///
/// # Cost
///
/// Makes one page of code writable and read-only again, writes a byte of it as it was through `/proc/self/mem`, and
/// reads the signal masks of all threads where int3 is used; a slow path.
#[cfg(dormouse_patching)]
pub fn capability() -> Vec<Capability> {
    let registry = match crate::registry::lock() {
        Ok(registry) => registry,
        Err(error) => return vec![Capability::unavailable("keys", error.to_string())],
    };
    let index = registry.index();
    let steps = index.any_site().and_then(|site| text::steps(site, index.segments()));
    let (keys, sites) = (index.keys().count(), index.site_count());
    let obstacle = (Protocol::of_process() != Protocol::Flip || index.needs_int3()).then(text::obstacle);
    let waiting = index.waiting().join("; ");
    drop(registry);

    let mut report = vec![match sites {
        0 => Capability::limited("keys.sites", "no site is linked into this process"),
        _ => Capability::ok("keys.sites", format!("{sites} sites of {keys} keys")),
    }];
    report.push(match crate::barrier::register() {
        Ok(()) => Capability::ok("keys.sync", "membarrier(SYNC_CORE)"),
        Err(error) => Capability::unavailable("keys.sync", error.to_string())
            .with_fix("allow the membarrier system call in the seccomp profile"),
    });
    report.extend(steps.iter().flat_map(ladder));
    report.push(match Protocol::of_process() {
        _ if text::fallback() => {
            Capability::limited("keys.protocol", "the int3 queue has failed: sites are written one by one")
        }
        Protocol::Flip => Capability::ok("keys.protocol", "flip"),
        Protocol::Int3 { .. } => Capability::limited("keys.protocol", "int3, by DORMOUSE_KEYS"),
    });
    if let Some(obstacle) = obstacle {
        report.push(match obstacle {
            None => Capability::ok("keys.int3", "no thread blocks SIGTRAP, and nobody has taken it"),
            Some(error) => Capability::limited("keys.int3", error.outside().to_string()),
        });
    }
    if !waiting.is_empty() {
        let detail = format!("sites that do not follow their keys since they were loaded: {waiting}");
        report.push(Capability::limited("keys.objects", detail));
    }
    if let Some(complaint) = Protocol::complaint() {
        report.push(Capability::limited("keys.setting", complaint).with_fix("unset DORMOUSE_KEYS"));
    }
    report
}

/// Which step of the ladder takes what is written, and why the other would not.
#[cfg(dormouse_patching)]
fn ladder(steps: &text::Steps) -> Vec<Capability> {
    let names = ["keys.write.mprotect", "keys.write.memory"];
    let seen = ["code can be made writable for a moment", "/proc/self/mem is open"];
    let each = [&steps.mprotect, &steps.memory];
    let taken = each.iter().position(|step| step.is_ok());
    let mut report = vec![match taken {
        Some(0) => Capability::ok("keys.write", "by mprotect"),
        Some(_) => Capability::ok("keys.write", "through /proc/self/mem, half a microsecond a site"),
        None => Capability::unavailable("keys.write", "neither step of the ladder works"),
    }];
    for (at, step) in each.into_iter().enumerate() {
        report.push(match step {
            Ok(()) => Capability::ok(names[at], seen[at]),
            Err((refused, setting)) => {
                let fix = setting.map(std::borrow::Cow::Borrowed);
                Capability { fix, ..Capability::limited(names[at], refused.to_string()) }
            }
        });
    }
    report
}

/// Whether keys can be switched in this process: always, where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn capability() -> Vec<Capability> {
    vec![Capability::limited("keys.sites", "sites load and test their key: patching is not built in")]
}
