//! Page faults and mappings of a program and all that it starts, from the kernel's event interface.
//!
//! One software event on each processor, inherited by children: every page fault is a sample with the address
//! that was touched, and the same buffers get a record of every new mapping, fork and exec. (An inherited
//! event can only have a buffer when it is bound to a processor: `perf_event_open(2)`.)
//!
//! # Invariants
//!
//! The kernel alone moves `data_head`, this reader alone `data_tail`; bytes between the two are not
//! written.
//!
//! # Safety
//!
//! The unsafe code is the system call, the mapping of the buffer and the copies out of it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a processor's buffer, without its first page.
const BUFFER: usize = 64 << 20;
const PAGE: usize = 4096;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS: u64 = 2;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_ADDR: u64 = 1 << 3;

/// Bits of `perf_event_attr`: disabled, inherit, mmap, comm, `enable_on_exec`, task, `mmap_data`,
/// `sample_id_all`, `comm_exec`, mmap2.
const FLAGS: u64 = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 23 | 1 << 24;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
const RECORD_MMAP2: u32 = 10;
/// In `misc` of a COMM record: by exec.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// `struct perf_event_attr` up to its first published size.
#[repr(C)]
#[derive(Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attr>() == 64);

/// A record, with the kernel's time in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) time: u64,
    pub(crate) what: What,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Fault { pid: u32, tid: u32, addr: u64 },
    Mmap { pid: u32, start: u64, len: u64, offset: u64, file: Vec<u8> },
    Fork { pid: u32, parent: u32, tid: u32 },
    Exec { pid: u32, tid: u32 },
    Exit { pid: u32, tid: u32 },
    Lost(u64),
}

/// The event on one processor.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: NonNull<u8>,
    _event: OwnedFd,
}

impl Buffer {
    /// Opens the event for `pid`, from its next exec on.
    pub(crate) fn open(pid: u32, cpu: usize) -> io::Result<Self> {
        let attr = Attr {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: PERF_COUNT_SW_PAGE_FAULTS,
            sample_period: 1,
            sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_ADDR,
            flags: FLAGS,
            ..Attr::default()
        };
        // SAFETY: `attr` is as long as it says.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid as i32, cpu as i32, -1, 8)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE + BUFFER,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { base, _event: event.into() })
    }

    /// Takes out what there is.
    pub(crate) fn drain(&mut self, records: &mut Vec<Record>) {
        // `struct perf_event_mmap_page`: head and tail stand at 1024 and 1032.
        // SAFETY: inside the first page, aligned, and only accessed atomically.
        let (head, tail) = unsafe {
            (
                self.base.add(1024).cast::<AtomicU64>().as_ref(),
                self.base.add(1032).cast::<AtomicU64>().as_ref(),
            )
        };
        let mut at = tail.load(Ordering::Relaxed);
        // Pairs with the kernel's barrier before it moves the head.
        let end = head.load(Ordering::Acquire);
        while at < end {
            let header = self.bytes(at, 8);
            let size = u16::from_ne_bytes([header[6], header[7]]) as usize;
            if size < 8 {
                break;
            }
            records.extend(parse(&self.bytes(at, size)));
            at += size as u64;
        }
        // Pairs with the kernel's barrier after it reads the tail.
        tail.store(at, Ordering::Release);
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let from = at as usize % BUFFER;
        let first = len.min(BUFFER - from);
        let mut bytes = vec![0; len];
        // SAFETY: both pieces lie in the buffer, between tail and head, where the kernel does not write.
        unsafe {
            let data = self.base.add(PAGE);
            data.add(from).copy_to_nonoverlapping(NonNull::from(&mut bytes[0]), first);
            if first < len {
                data.copy_to_nonoverlapping(NonNull::from(&mut bytes[first]), len - first);
            }
        }
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, with this length; no reference into it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE + BUFFER) };
    }
}

/// What a whole record says; none for kinds and shapes that are not looked for.
fn parse(record: &[u8]) -> Option<Record> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let misc = u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?);
    // All but samples end with pid, tid and time (`sample_id_all`).
    let trailing_time = u64_at(record.len().checked_sub(8)?);
    let (time, what) = match u32_at(0)? {
        RECORD_SAMPLE => {
            let what = What::Fault { pid: u32_at(8)?, tid: u32_at(12)?, addr: u64_at(24)? };
            (u64_at(16), what)
        }
        RECORD_MMAP2 => {
            let name = record.get(72..record.len().checked_sub(16)?)?;
            let what = What::Mmap {
                pid: u32_at(8)?,
                start: u64_at(16)?,
                len: u64_at(24)?,
                offset: u64_at(32)?,
                file: name.split(|&byte| byte == 0).next()?.to_vec(),
            };
            (trailing_time, what)
        }
        RECORD_FORK => (trailing_time, What::Fork { pid: u32_at(8)?, parent: u32_at(12)?, tid: u32_at(16)? }),
        RECORD_EXIT => (trailing_time, What::Exit { pid: u32_at(8)?, tid: u32_at(16)? }),
        RECORD_COMM if misc & MISC_COMM_EXEC != 0 => {
            (trailing_time, What::Exec { pid: u32_at(8)?, tid: u32_at(12)? })
        }
        RECORD_LOST => (trailing_time, What::Lost(u64_at(16)?)),
        _ => return None,
    };
    Some(Record { time: time?, what })
}
