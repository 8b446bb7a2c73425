//! The report of `dormouse doctor` on static keys.

use dormouse_sys::Capability;

#[cfg(dormouse_patching)]
use crate::{Protocol, text};

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
        let fix = "allow them in the filter, or have it answer with an error and call dormouse_keys::prepare() first";
        report.push(Capability::limited("keys.write", detail).with_fix(fix));
    } else {
        report.push(match text::register() {
            Ok(()) => Capability::ok("keys.sync", "membarrier(SYNC_CORE)"),
            Err(error) if is_int3 => Capability::unavailable("keys.sync", error.to_string()),
            Err(_) => {
                Capability::limited("keys.sync", "membarrier(SYNC_CORE) is refused: each batch waits 1 ms")
                    .with_fix("allow the membarrier system call in the seccomp profile")
            }
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
    report.push(processor(cpuid()));
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

/// This processor's vendor and signature, as `cpuid` gives them.
#[cfg(dormouse_patching)]
fn cpuid() -> ([u8; 12], u32) {
    let (leaf, mut vendor) = (dormouse_sys::cpuid(0), [0; 12]);
    for (part, register) in vendor.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    (vendor, dormouse_sys::cpuid(1).eax)
}

/// Family and model, as the vendors count them.
#[cfg(dormouse_patching)]
fn family_and_model(signature: u32) -> (u32, u32) {
    let bits = |from: u32, count: u32| signature >> from & ((1 << count) - 1);
    let base = bits(8, 4);
    let family = if base == 15 { base + bits(20, 8) } else { base };
    (family, if matches!(base, 6 | 15) { bits(16, 4) << 4 | bits(4, 4) } else { bits(4, 4) })
}

/// The word of a processor's vendor and of our tests on storing one byte of an instruction that
/// others run.
#[cfg(dormouse_patching)]
fn processor((vendor, signature): ([u8; 12], u32)) -> Capability {
    let known = match &vendor {
        b"AuthenticAMD" | b"HygonGenuine" => "flip has run its stress tests on processors of this kind",
        b"GenuineIntel" => {
            "its vendor guarantees only int3 (DORMOUSE_KEYS=int3); flip relies on the behaviour that just-in-time compilers rely on"
        }
        _ => "flip has not been run on it; DORMOUSE_KEYS=int3 is the kernel's way",
    };
    let (vendor, (family, model)) = (vendor.escape_ascii(), family_and_model(signature));
    Capability::ok("keys.processor", format!("{vendor}, family {family:#x}, model {model:#x}: {known}"))
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

#[cfg(all(test, dormouse_patching))]
mod tests {
    use super::*;

    #[test]
    fn a_signature_tells_family_and_model() {
        for (vendor, signature, family, model, said) in [
            (b"GenuineIntel", 0x000c_06f2, 6, 0xcf, "DORMOUSE_KEYS=int3"),
            (b"GenuineIntel", 0x0000_0f4a, 15, 4, "DORMOUSE_KEYS=int3"),
            (b"AuthenticAMD", 0x00a0_0f11, 0x19, 1, "stress tests"),
            (b"CentaurHauls", 0x0000_06fe, 6, 15, "not been run"),
        ] {
            assert_eq!(family_and_model(signature), (family, model));
            assert!(processor((*vendor, signature)).detail.contains(said));
        }
    }

    #[test]
    fn this_processor_is_known_by_name() {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split('\t').next() == Some(name)).unwrap();
            line.split(": ").nth(1).unwrap().to_owned()
        };
        let (vendor, signature) = cpuid();
        let (family, model) = family_and_model(signature);
        assert_eq!(vendor.escape_ascii().to_string(), field("vendor_id"));
        assert_eq!((family.to_string(), model.to_string()), (field("cpu family"), field("model")));
    }
}
