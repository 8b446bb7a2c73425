//! What `dormouse doctor` says of static keys.

use dormouse_sys::Capability;

/// Whether keys can be switched in this process, and if not, what to change.
///
/// # Cost
///
/// Makes one page of code writable and read-only again; a slow path.
#[cfg(dormouse_patching)]
pub fn capability() -> Vec<Capability> {
    use crate::registry;

    let of_writing = match registry::lock() {
        Ok(registry) => of_writing(registry.index()),
        Err(error) => return vec![Capability::unavailable("keys", error.to_string())],
    };
    let sites = registry::list(|used| used.sites);
    let mut report = vec![match sites.len() {
        0 => Capability::limited("keys.sites", "no site is linked into this process"),
        keys => Capability::ok("keys.sites", format!("{} sites of {keys} keys", sites.iter().sum::<usize>())),
    }];
    report.push(match crate::barrier::register() {
        Ok(()) => Capability::ok("keys.sync", "membarrier(SYNC_CORE)"),
        Err(error) => Capability::unavailable("keys.sync", error.to_string())
            .with_fix("allow the membarrier system call in the seccomp profile"),
    });
    report.extend(of_writing);
    report.push(match crate::Protocol::of_process() {
        _ if crate::text::fallback() => {
            Capability::limited("keys.protocol", "the int3 queue has failed: sites are written one by one")
        }
        crate::Protocol::Flip => Capability::ok("keys.protocol", "flip"),
        crate::Protocol::Int3 { .. } => Capability::limited("keys.protocol", "int3, by DORMOUSE_KEYS"),
    });
    if let Some(complaint) = crate::protocol::complaint() {
        report.push(Capability::limited("keys.setting", complaint).with_fix("unset DORMOUSE_KEYS"));
    }
    report
}

/// Whether code can be written, and whether all of it follows its keys.
#[cfg(dormouse_patching)]
fn of_writing(index: &crate::registry::Index) -> Vec<Capability> {
    let mut report = Vec::new();
    if let Some(site) = index.first_site() {
        report.push(match crate::text::probe_write(site, index.segments()) {
            Ok(()) => Capability::ok("keys.write", "mprotect of code"),
            Err(error) => Capability::unavailable("keys.write", error.to_string())
                .with_fix("allow writable code (systemd: MemoryDenyWriteExecute=no; SELinux: execmod)"),
        });
    }
    let stray = index.waiting();
    if !stray.is_empty() {
        let detail =
            format!("sites that do not follow their keys since they were loaded: {}", stray.join("; "));
        report.push(Capability::limited("keys.objects", detail));
    }
    report
}

/// Whether keys can be switched in this process: always, where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn capability() -> Vec<Capability> {
    vec![Capability::limited("keys.sites", "sites load and test their key: patching is not built in")]
}
