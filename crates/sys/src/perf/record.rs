//! What the kernel records: `PERF_RECORD_*` of `linux/perf_event.h`, as far as [`Attr`](super::Attr) asks for it.

/// `PERF_RECORD_{LOST, COMM, EXIT, FORK, SAMPLE, MMAP2}`.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC`: a new name by exec.
const COMM_EXEC: u16 = 1 << 13;

/// Bytes of `struct perf_event_header`.
pub(super) const HEADER: usize = 8;
/// Bytes of who and when at the end of what is no sample: pid, tid, time.
const TRAILER: usize = 16;

/// Something that happened, with the kernel's time in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When, by the clock of the scheduler: comparable between processors, and with nothing else.
    pub time: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The event.
    Sample {
        /// The process that it happened in.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The instruction; the one after it for a watched access.
        ip: u64,
        /// The memory that the event is about; 0 where it is about none.
        addr: u64,
    },
    /// A new mapping, or a mapping merged with its neighbours. That one went is not recorded.
    Mapping {
        /// In which process.
        pid: u32,
        /// Its first byte.
        start: u64,
        /// Its length in bytes.
        len: u64,
        /// Where in the file it begins.
        offset: u64,
        /// The file's path, or what the kernel calls memory without one.
        file: Vec<u8>,
    },
    /// A new thread or process.
    Fork {
        /// Its process.
        pid: u32,
        /// The process that it comes from: the same for a new thread.
        parent: u32,
        /// The new thread.
        tid: u32,
    },
    /// A process begins a new program.
    Exec {
        /// The process.
        pid: u32,
        /// Its thread.
        tid: u32,
    },
    /// The end of a thread.
    Exit {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// So many records, at least, did not fit.
    Lost(u64),
}

/// What a whole record says; none for kinds and shapes that were not asked for.
pub(super) fn parse(record: &[u8]) -> Option<Record> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let misc = u16::from_ne_bytes(*record.get(4..)?.first_chunk()?);
    let trailer = record.len().checked_sub(TRAILER).filter(|&at| at >= HEADER)?;
    let (time, what) = match u32_at(0)? {
        SAMPLE => {
            let what = What::Sample { ip: u64_at(8)?, pid: u32_at(16)?, tid: u32_at(20)?, addr: u64_at(32)? };
            return Some(Record { time: u64_at(24)?, what });
        }
        MMAP2 => {
            let name = record.get(72..trailer)?;
            let what = What::Mapping {
                pid: u32_at(8)?,
                start: u64_at(16)?,
                len: u64_at(24)?,
                offset: u64_at(32)?,
                file: name.split(|&byte| byte == 0).next()?.to_vec(),
            };
            (u64_at(trailer + 8), what)
        }
        FORK => (u64_at(trailer + 8), What::Fork { pid: u32_at(8)?, parent: u32_at(12)?, tid: u32_at(16)? }),
        EXIT => (u64_at(trailer + 8), What::Exit { pid: u32_at(8)?, tid: u32_at(16)? }),
        COMM if misc & COMM_EXEC != 0 => {
            (u64_at(trailer + 8), What::Exec { pid: u32_at(8)?, tid: u32_at(12)? })
        }
        LOST => (u64_at(trailer + 8), What::Lost(u64_at(16)?)),
        _ => return None,
    };
    Some(Record { time: time?, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of this kind whose body is `words`, with a trailer unless it is a sample.
    fn raw(kind: u32, misc: u16, words: &[u64], text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(misc.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(text);
        if kind != SAMPLE {
            bytes.extend(pair(1, 2).to_ne_bytes());
            bytes.extend(77_u64.to_ne_bytes());
        }
        bytes
    }

    /// Two 32-bit numbers in the order in which they lie in memory.
    fn pair(first: u32, second: u32) -> u64 {
        let [a, b] = [first, second].map(u32::to_ne_bytes);
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }

    fn all() -> Vec<(Vec<u8>, What)> {
        let mapping = [pair(3, 3), 0x1000, 0x2000, 0x3000, 0, 0, 0, 0];
        vec![
            (
                raw(SAMPLE, 0, &[0xabc, pair(3, 4), 77, 0xdef], b""),
                What::Sample { pid: 3, tid: 4, ip: 0xabc, addr: 0xdef },
            ),
            (
                raw(MMAP2, 0, &mapping, b"/bin/x\0\0"),
                What::Mapping {
                    pid: 3,
                    start: 0x1000,
                    len: 0x2000,
                    offset: 0x3000,
                    file: b"/bin/x".to_vec(),
                },
            ),
            (raw(FORK, 0, &[pair(5, 3), pair(6, 4), 0], b""), What::Fork { pid: 5, parent: 3, tid: 6 }),
            (raw(EXIT, 0, &[pair(5, 3), pair(6, 4), 0], b""), What::Exit { pid: 5, tid: 6 }),
            (raw(COMM, COMM_EXEC, &[pair(5, 6)], b"x\0\0\0\0\0\0\0"), What::Exec { pid: 5, tid: 6 }),
            (raw(LOST, 0, &[9, 12], b""), What::Lost(12)),
        ]
    }

    #[test]
    fn each_kind_of_record_is_read() {
        for (bytes, what) in all() {
            assert_eq!(parse(&bytes), Some(Record { time: 77, what }));
        }
    }

    #[test]
    fn what_was_not_asked_for_or_is_cut_short_is_passed_over() {
        assert_eq!(parse(&raw(COMM, 0, &[pair(5, 6)], b"renamed\0")), None);
        assert_eq!(parse(&raw(99, 0, &[1, 2, 3], b"")), None);
        for (bytes, _) in all() {
            for len in 0..bytes.len() {
                // Whatever it makes of it, it ends.
                let _ = parse(&bytes[..len]);
            }
            assert_eq!(parse(&bytes[..HEADER]), None);
        }
    }
}
