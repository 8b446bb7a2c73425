//! The kernel's records: `PERF_RECORD_*` of `linux/perf_event.h`, those that [`Attr`](super::Attr)
//! can request.

use crate::arch;

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
/// Bytes of a sample before its reading, of the reading, which is passed over, and of pid, tid and
/// time at the end of other records.
const SAMPLE_BYTES: usize = 40;
const READING_BYTES: usize = 24;
const TRAILER: usize = 16;

/// `PERF_CONTEXT_MAX`: numbers from here on are no addresses; they mark whose code follows.
const CONTEXT_MAX: u64 = -4095_i64 as u64;

/// A record of an occurrence, with the kernel's time in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfRecord {
    /// The time by `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The occurrence.
    pub what: What,
}

/// The occurrence that a record describes.
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
        /// The memory that the event is about; 0 where it is about none. For a breakpoint its own
        /// address.
        addr: u64,
        /// The instruction and the return addresses of its callers, if
        /// [`Sampling`](super::Sampling) requests them.
        callchain: Vec<u64>,
        /// The copied stack, if [`Sampling`](super::Sampling) requests it.
        stack: Option<Box<UserStack>>,
    },
    /// A new mapping, or a mapping merged with its neighbours. The kernel does not record that a
    /// mapping goes.
    Mapping {
        /// The process.
        pid: u32,
        /// Its first address.
        start: u64,
        /// Its length in bytes.
        len: u64,
        /// Its offset in the file.
        offset: u64,
        /// The file's path, or the kernel's name for memory without one.
        file: Vec<u8>,
    },
    /// A new thread or process.
    Fork {
        /// The id of its process.
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
        /// The id of its thread.
        tid: u32,
    },
    /// The end of a thread.
    Exit {
        /// The id of its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// At least this many records did not fit.
    Lost(u64),
}

/// Registers and memory from which an unwinder can find the callers itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserStack {
    /// The instruction pointer, the stack pointer, the frame pointer, and on arm64 the link
    /// register.
    pub registers: [u64; 4],
    /// The memory from the stack pointer on.
    pub bytes: Vec<u8>,
    /// Whether the stack goes on behind it, or may do so: the record had no more room, or nothing
    /// could be read.
    pub is_cut: bool,
}

/// The meaning of a whole record, whose sample has a reading or not; none for kinds and shapes that
/// were not asked for.
pub(super) fn parse(record: &[u8], has_reading: bool) -> Option<PerfRecord> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let misc = u16::from_ne_bytes(*record.get(4..)?.first_chunk()?);
    let trailer = record.len().checked_sub(TRAILER).filter(|&at| at >= HEADER)?;
    let (time, what) = match u32_at(0)? {
        SAMPLE => {
            let (callchain, stack) =
                rest(record.get(SAMPLE_BYTES + if has_reading { READING_BYTES } else { 0 }..)?)?;
            let what = What::Sample {
                ip: u64_at(8)?,
                pid: u32_at(16)?,
                tid: u32_at(20)?,
                addr: u64_at(32)?,
                callchain,
                stack,
            };
            return Some(PerfRecord { time: u64_at(24)?, what });
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
    Some(PerfRecord { time: time?, what })
}

/// The parts behind the fixed one of a sample: the addresses of a callchain and a copied stack,
/// each of which may be missing as a whole. None if one breaks off.
fn rest(bytes: &[u8]) -> Option<(Vec<u64>, Option<Box<UserStack>>)> {
    let mut words = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
    let Some(count) = words.next() else { return Some((Vec::new(), None)) };
    let count = usize::try_from(count).ok().filter(|&count| count <= words.len())?;
    let callchain = words.by_ref().take(count).filter(|&word| word < CONTEXT_MAX).collect();
    // The kind of registers; 0 for none.
    let Some(kind) = words.next() else { return Some((callchain, None)) };
    if kind == 0 {
        return Some((callchain, None));
    }
    let mut stack = Box::<UserStack>::default();
    for &place in arch::REGISTER_PLACES {
        stack.registers[place] = words.next()?;
    }
    let size = usize::try_from(words.next()?).ok()?;
    if size > 0 {
        let from = bytes.len() / 8 * 8 - words.len() * 8;
        let copied = bytes.get(from..)?.get(..size)?;
        // How much of it the kernel could read.
        let is = usize::try_from(words.nth(size / 8)?).ok()?;
        stack.bytes = copied.get(..is)?.to_vec();
        stack.is_cut = is == size || is == 0;
    }
    Some((callchain, Some(stack)))
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
                What::Sample { pid: 3, tid: 4, ip: 0xabc, addr: 0xdef, callchain: Vec::new(), stack: None },
            ),
            (
                raw(SAMPLE, 0, &[0xabc, pair(3, 4), 77, 0xdef, 3, -512_i64 as u64, 0xabc, 0x123], b""),
                What::Sample {
                    pid: 3,
                    tid: 4,
                    ip: 0xabc,
                    addr: 0xdef,
                    callchain: vec![0xabc, 0x123],
                    stack: None,
                },
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
            assert_eq!(parse(&bytes, false), Some(PerfRecord { time: 77, what }));
        }
        let with_reading = raw(SAMPLE, 0, &[0xabc, pair(3, 4), 77, 0xdef, 1, 2, 3, 1, 0x123], b"");
        let what =
            What::Sample { pid: 3, tid: 4, ip: 0xabc, addr: 0xdef, callchain: vec![0x123], stack: None };
        assert_eq!(parse(&with_reading, true), Some(PerfRecord { time: 77, what }));
    }

    #[test]
    fn a_copied_stack_has_registers_and_bytes() {
        // A chain of one, 64-bit registers, 16 bytes of which 8 were read.
        let mut registers = [0; 4];
        let values = arch::REGISTER_PLACES.iter().zip(1..).map(|(&place, value)| {
            registers[place] = value;
            value
        });
        let words: Vec<u64> = [0xabc, pair(3, 4), 77, 0, 1, 0x123, 2]
            .into_iter()
            .chain(values)
            .chain([16, 0x1234, 0, 8])
            .collect();
        let of = |words: &[u64]| match parse(&raw(SAMPLE, 0, words, b""), false)?.what {
            What::Sample { callchain, stack, .. } => Some((callchain, stack)),
            _ => None,
        };
        let stack = UserStack { registers, bytes: 0x1234_u64.to_ne_bytes().to_vec(), is_cut: false };
        assert_eq!(of(&words), Some((vec![0x123], Some(Box::new(stack)))));
        // No registers, and a stack that breaks off.
        assert_eq!(of(&[1, 2, 3, 4, 0, 0, 0]), Some((Vec::new(), None)));
        assert!((8..words.len()).all(|len| of(&words[..len]).is_none()));
    }

    #[test]
    fn unknown_and_cut_records_are_passed_over() {
        assert_eq!(parse(&raw(COMM, 0, &[pair(5, 6)], b"renamed\0"), false), None);
        assert_eq!(parse(&raw(99, 0, &[1, 2, 3], b""), false), None);
        let too_long = [0xabc, pair(3, 4), 77, 0xdef, u64::MAX, 0xabc];
        assert_eq!(parse(&raw(SAMPLE, 0, &too_long, b""), false), None);
        for (bytes, _) in all() {
            for len in 0..bytes.len() {
                // Any answer will do, as long as it comes.
                let _ = parse(&bytes[..len], false);
            }
            assert_eq!(parse(&bytes[..HEADER], false), None);
        }
    }
}
