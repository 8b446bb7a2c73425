//! The context of the process: a page that a reader finds by its name in the list of mappings.
//!
//! A header points to a message, which follows it. The time of publication is written last, and is
//! 0 before; so a reader that finds the same time before and after its copy has a complete one. The
//! mapping does not survive a fork: a child has no context until it publishes its own.
//!
//! The kernel shows a name in one of two ways, and the standard wants both tried: the name of a
//! `memfd`, and a name for anonymous memory, which not every kernel supports.
//!
//! # References
//!
//! OTEP 4719, *Publication Protocol*. prctl(2), `PR_SET_VMA`.
//!
//! # Safety
//!
//! The unsafe code makes, writes and unmaps a mapping that belongs to the value alone; readers are
//! other processes.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::process::identity;

const NAME: &std::ffi::CStr = c"OTEL_CTX";
/// The names that a reader looks for.
const SHOWN: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX"];
const VERSION: u32 = 2;

#[repr(C)]
struct Header {
    signature: [u8; 8],
    version: u32,
    payload_size: u32,
    published_at_ns: AtomicU64,
    payload: u64,
}

const _: () = assert!(size_of::<Header>() == 32 && std::mem::offset_of!(Header, published_at_ns) == 16);

/// Why the process cannot publish its context.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// A system call has failed.
    #[error("{what} for the process context failed: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The mapping would have no name.
    #[error(
        "the kernel gives the process context no name: it has no CONFIG_ANON_VMA_NAME, and memfd_create is \
         refused, or not tried under a system-call filter at a client's request"
    )]
    Nameless,
}

/// The process's context, which is published as long as this lives.
#[derive(Debug)]
pub struct ContextMapping {
    header: *mut Header,
    length: usize,
    /// The process that has it: a child has no such mapping.
    process: u64,
}

// SAFETY: the mapping belongs to the value, on whatever thread that is.
unsafe impl Send for ContextMapping {}

impl ContextMapping {
    /// Publishes a message (`opentelemetry.proto.processcontext.v1development.ProcessContext`). If
    /// `tried` is false, the calls of `memfd` are skipped, and the kernel must support names for
    /// anonymous memory.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a call, or cannot name the mapping.
    ///
    /// # Cost
    ///
    /// A page, and six system calls.
    pub fn publish(message: &[u8], tried: bool) -> Result<Self, MappingError> {
        let length = size_of::<Header>() + message.len();
        let (memory, has_file_name) = map(length, tried)?;
        let mapping = Self { header: memory.cast(), length, process: identity::id() };
        // SAFETY: the mapping is that long, and no pointer of Rust's leads there.
        unsafe {
            if libc::madvise(memory.cast(), length, libc::MADV_DONTFORK) != 0 {
                return Err(system("madvise"));
            }
            let payload = memory.add(size_of::<Header>());
            ptr::copy_nonoverlapping(message.as_ptr(), payload, message.len());
            mapping.header.write(Header {
                signature: *b"OTEL_CTX",
                version: VERSION,
                payload_size: message.len() as u32,
                published_at_ns: AtomicU64::new(0),
                payload: payload as u64,
            });
            // All of it comes before the time, for a reader on another processor.
            fence(Ordering::SeqCst);
            (*mapping.header).published_at_ns.store(boot_time_ns().max(1), Ordering::Relaxed);
        }
        // Also where the file has the name: a reader may wait for this very call.
        let is_named = name(memory, length);
        if is_named || has_file_name { Ok(mapping) } else { Err(MappingError::Nameless) }
    }
}

impl Drop for ContextMapping {
    fn drop(&mut self) {
        if self.process != identity::id() {
            // Other memory may be there in a child.
            return;
        }
        // SAFETY: the mapping is the value's own, and was not unmapped before.
        unsafe {
            (*self.header).published_at_ns.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            libc::munmap(self.header.cast(), self.length);
        }
    }
}

/// Whether the process has a context already, of another library or another copy.
///
/// # Errors
///
/// An error of reading `/proc`.
pub fn published_by_others() -> io::Result<bool> {
    // A path may be no text.
    let maps = fs::read("/proc/self/maps")?;
    let names =
        maps.split(|&byte| byte == b'\n').filter_map(|line| line.splitn(6, |&byte| byte == b' ').nth(5));
    Ok(names
        .map(<[u8]>::trim_ascii_start)
        .any(|name| SHOWN.iter().any(|shown| name.starts_with(shown.as_bytes()))))
}

/// Memory, and whether it has the name of a file.
fn map(length: usize, tried: bool) -> Result<(*mut u8, bool), MappingError> {
    let file = tried.then(|| memfd(length)).flatten();
    let (flags, fd) =
        file.map_or((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), |fd| (libc::MAP_PRIVATE, fd));
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, anywhere.
    let memory = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, fd, 0) };
    let error = system("mmap");
    if let Some(fd) = file {
        // SAFETY: just opened, and in no other use.
        unsafe { libc::close(fd) };
    }
    if memory == libc::MAP_FAILED { Err(error) } else { Ok((memory.cast(), file.is_some())) }
}

fn memfd(length: usize) -> Option<i32> {
    /// Linux 6.3; older kernels refuse it.
    const MFD_NOEXEC_SEAL: u32 = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    [flags | MFD_NOEXEC_SEAL, flags].into_iter().find_map(|flags| {
        // SAFETY: a terminated name, and a new descriptor.
        unsafe {
            let fd = libc::memfd_create(NAME.as_ptr(), flags);
            if fd >= 0 && libc::ftruncate(fd, length as libc::off_t) != 0 {
                libc::close(fd);
                return None;
            }
            (fd >= 0).then_some(fd)
        }
    })
}

fn name(memory: *mut u8, length: usize) -> bool {
    // SAFETY: names a mapping that is there; the kernel copies the name.
    let named =
        unsafe { libc::prctl(libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, memory, length, NAME.as_ptr()) };
    named == 0
}

fn boot_time_ns() -> u64 {
    crate::clock::ask_library(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

fn system(what: &'static str) -> MappingError {
    MappingError::System { what, source: io::Error::last_os_error() }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_there_until_dropped() {
        assert!(!published_by_others().unwrap());
        let mapping = ContextMapping::publish(b"message", true).unwrap();
        assert!(published_by_others().unwrap());
        // SAFETY: its own header, and the message behind it.
        let (header, message) = unsafe {
            let header = &*mapping.header;
            (header, std::slice::from_raw_parts(header.payload as *const u8, header.payload_size as usize))
        };
        assert_eq!((&header.signature, header.version, message), (b"OTEL_CTX", 2, &b"message"[..]));
        assert_ne!(header.published_at_ns.load(Ordering::Relaxed), 0);
        drop(mapping);
        assert!(!published_by_others().unwrap());
    }
}
