//! The report of `dormouse doctor` on static keys.

use dormouse_sys::Capability;

#[cfg(dormouse_patching)]
use crate::{Protocol, arch, text};

/// Whether keys can be switched in this process, and if not, the setting to change. Under a seccomp
/// filter nothing is tried, because the filter might end the process.
///
/// # Cost
///
/// Makes one page of code writable and read-only again, writes one byte unchanged through the
/// memory file, and, where int3 is used, reads the signal masks of all threads. A slow path.
#[cfg(dormouse_patching)]
pub fn capability() -> Vec<Capability> {
    let registry = match crate::registry::lock() {
        Ok(registry) => registry,
        Err(error) => return vec![Capability::unavailable("keys", error.to_string())],
    };
    let is_filtered = dormouse_sys::perf::is_filtered();
    let ways = if is_filtered { None } else { registry.ways_to_write() };
    let (keys, sites) = (registry.keys().len(), registry.keys().iter().map(|used| used.sites).sum::<usize>());
    let is_int3 = Protocol::of_process() != Protocol::Flip;
    let obstacle = is_int3.then(|| text::obstacle(registry.patch_lock()));
    let waiting = registry.waiting().join("; ");
    drop(registry);

    let mut report = vec![match sites {
        0 => Capability::limited("keys.sites", "no site is linked into this process"),
        _ => Capability::ok("keys.sites", format!("{sites} sites of {keys} keys")),
    }];
    if is_filtered {
        let detail = "not tried: a seccomp filter might end the process for membarrier, mprotect, or a write to \
                      /proc/thread-self/mem that it does not allow; there is no other way to find out";
        let fix = "allow them in the filter, or have it answer with an error and call dormouse::init() first, in C \
                   dormouse_init()";
        report.push(Capability::limited("keys.write", detail).with_fix(fix));
    } else {
        report.push(match text::register() {
            Ok(()) => Capability::ok("keys.sync", "membarrier(SYNC_CORE)"),
            Err(error) if is_int3 => Capability::unavailable("keys.sync", error.to_string()),
            Err(_) => Capability::limited("keys.sync", unsynchronised())
                .with_fix("allow the membarrier system call in the seccomp profile"),
        });
    }
    report.extend(ways.iter().flat_map(to_write));
    report.push(match Protocol::of_process() {
        _ if text::fallback() => {
            Capability::limited("keys.protocol", "the int3 queue has failed: sites are written one by one")
        }
        Protocol::Flip => Capability::ok("keys.protocol", "flip"),
        Protocol::Int3 { .. } => Capability::ok("keys.protocol", "int3, the kernel's way, by DORMOUSE_KEYS"),
    });
    report.push(arch::processor());
    if let Some(obstacle) = obstacle {
        report.push(match obstacle {
            None => Capability::ok("keys.int3", "no thread blocks SIGTRAP, and no other handler has it"),
            Some(error) => Capability::limited("keys.int3", error.outside().to_string()),
        });
    }
    if !waiting.is_empty() {
        let detail = format!("sites that do not follow their keys since they were loaded: {waiting}");
        report.push(Capability::limited("keys.objects", detail));
    }
    if let Some(error) = Protocol::config_error() {
        report.push(Capability::limited("keys.setting", error).with_fix("unset DORMOUSE_KEYS"));
    }
    report
}

/// The report where the kernel refuses the barrier.
#[cfg(dormouse_patching)]
fn unsynchronised() -> String {
    let ms = dormouse_sys::barrier::SETTLE_NS / 1_000_000;
    let rest = arch::UNSETTLED.map(|rest| format!("; {rest}")).unwrap_or_default();
    format!("membarrier(SYNC_CORE) is refused: each batch waits {ms} ms{rest}")
}

/// The way by which code is written, and why the other would not do.
#[cfg(dormouse_patching)]
fn to_write(ways: &[text::Way; 2]) -> Vec<Capability> {
    let names = ["keys.write.mprotect", "keys.write.memory"];
    let seen = ["code can be made writable for a moment", "/proc/thread-self/mem is open"];
    let mut report = vec![match ways.iter().position(Result::is_ok) {
        Some(0) => Capability::ok("keys.write", "by mprotect"),
        Some(_) => Capability::ok("keys.write", "through /proc/thread-self/mem, a microsecond a site"),
        None => Capability::unavailable("keys.write", "neither step of the ladder works"),
    }];
    for (at, way) in ways.iter().enumerate() {
        report.push(match way {
            Ok(()) => Capability::ok(names[at], seen[at]),
            Err((refused, setting)) => {
                let fix = setting.map(std::borrow::Cow::Borrowed);
                Capability { fix, ..Capability::limited(names[at], refused.to_string()) }
            }
        });
    }
    report
}

/// Whether keys can be switched in this process: always, because nothing is patched here.
#[cfg(not(dormouse_patching))]
pub fn capability() -> Vec<Capability> {
    vec![Capability::limited("keys.sites", "sites load and test their key: patching is not built in")]
}
