//! Traces of page faults: what programs mapped, and which pages they then touched, in the order of time.
//!
//! A trace is a sequence of [`Op`]s over processes and threads, both numbered from 0 in the order in which
//! they came to be. Addresses are page numbers: mappings begin and end at pages, so the rest of an address
//! decides nothing. A program that executes another one becomes a new process with a new thread, because
//! nothing of its address space survives.
//!
//! # Format, version 1
//!
//! gzip over: the magic `dmfault1`, then one byte an operation and its operands as LEB128 numbers;
//! page numbers are differences (zigzag), a fault's to the last fault of its thread, a mapping's to the
//! last mapping of any process. So most faults take two bytes before compression.
//!
//! # Invariants
//!
//! A trace that was read names no process or thread before the operation that made it.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const MAGIC: &[u8; 8] = b"dmfault1";

/// More operations than that are refused: a damaged length must not take all memory.
const MOST: usize = 1 << 26;

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The next process, with the mappings of `parent` if it has one (`fork`), else with none (`exec`).
    Process {
        /// The process that it was forked from.
        parent: Option<u32>,
    },
    /// The next thread, of `process`.
    Thread {
        /// Its process.
        process: u32,
    },
    /// `process` is gone.
    Exit {
        /// The process.
        process: u32,
    },
    /// `process` maps pages, over whatever was there.
    Map {
        /// The process.
        process: u32,
        /// First page.
        page: u64,
        /// Number of pages, at least one.
        pages: u64,
    },
    /// A mapping of `process` now reaches over these pages; it lies inside them.
    Grow {
        /// The process.
        process: u32,
        /// First page.
        page: u64,
        /// Number of pages, at least one.
        pages: u64,
    },
    /// `thread` touched a page that lies in a mapping.
    Fault {
        /// The thread.
        thread: u32,
        /// The page.
        page: u64,
    },
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It cannot be decompressed.
    #[error("cannot decompress the trace: {0}")]
    Compression(#[from] io::Error),
    /// It is something else.
    #[error("not a trace of page faults: it does not begin with \"dmfault1\"")]
    Magic,
    /// It is damaged.
    #[error("the trace is damaged at operation {operation}: {what}")]
    Damaged {
        /// Index of the operation.
        operation: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Where differences are counted from.
#[derive(Debug, Default)]
struct Context {
    processes: u32,
    /// The last page of each thread.
    threads: Vec<u64>,
    thread: u32,
    mapped: u64,
}

/// Writes `ops` to `out`.
///
/// # Errors
///
/// When `out` does, or when an operation names a thread that is not there.
pub fn write(ops: &[Op], out: impl Write) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    let mut context = Context::default();
    for op in ops {
        context.put(op, &mut bytes)?;
    }
    let mut encoder = GzEncoder::new(out, Compression::best());
    encoder.write_all(&bytes)?;
    encoder.finish()?.flush()
}

/// Reads the trace in `compressed`.
///
/// # Errors
///
/// When it is none.
pub fn read(compressed: &[u8]) -> Result<Vec<Op>, TraceError> {
    let mut bytes = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut bytes)?;
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(TraceError::Magic)?;
    let mut context = Context::default();
    let mut ops = Vec::new();
    while !rest.is_empty() {
        let op = context.take(&mut rest).ok_or("it names what is not there, or ends in the middle");
        let op = if ops.len() < MOST { op } else { Err("there are too many operations") };
        ops.push(op.map_err(|what| TraceError::Damaged { operation: ops.len(), what })?);
    }
    Ok(ops)
}

impl Context {
    fn put(&mut self, op: &Op, bytes: &mut Vec<u8>) -> io::Result<()> {
        match *op {
            Op::Fault { thread, page } => {
                let last = self.threads.get_mut(thread as usize).ok_or_else(|| {
                    io::Error::other(format!("a fault of thread {thread}, which is not there"))
                })?;
                let difference = zigzag(page, std::mem::replace(last, page));
                if std::mem::replace(&mut self.thread, thread) == thread {
                    numbers(bytes, 0, &[difference]);
                } else {
                    numbers(bytes, 1, &[u64::from(thread), difference]);
                }
            }
            Op::Process { parent } => {
                numbers(bytes, 2, &[parent.map_or(0, |parent| u64::from(parent) + 1)]);
                self.processes += 1;
            }
            Op::Thread { process } => {
                numbers(bytes, 3, &[u64::from(process)]);
                self.threads.push(0);
            }
            Op::Map { process, page, pages } | Op::Grow { process, page, pages } => {
                let difference = zigzag(page, std::mem::replace(&mut self.mapped, page));
                let tag = if matches!(op, Op::Map { .. }) { 4 } else { 5 };
                numbers(bytes, tag, &[u64::from(process), difference, pages]);
            }
            Op::Exit { process } => numbers(bytes, 6, &[u64::from(process)]),
        }
        Ok(())
    }

    fn take(&mut self, rest: &mut &[u8]) -> Option<Op> {
        let (&tag, after) = rest.split_first()?;
        *rest = after;
        Some(match tag {
            0 | 1 => {
                if tag == 1 {
                    self.thread = number(rest)?.try_into().ok()?;
                }
                let last = self.threads.get_mut(self.thread as usize)?;
                *last = unzigzag(number(rest)?, *last);
                Op::Fault { thread: self.thread, page: *last }
            }
            2 => {
                let parent = match number(rest)? {
                    0 => None,
                    parent => Some(self.process(parent - 1)?),
                };
                self.processes += 1;
                Op::Process { parent }
            }
            3 => {
                let process = self.process(number(rest)?)?;
                self.threads.push(0);
                Op::Thread { process }
            }
            4 | 5 => {
                let process = self.process(number(rest)?)?;
                let page = unzigzag(number(rest)?, self.mapped);
                self.mapped = page;
                let pages = number(rest)?;
                // Addresses, not only page numbers, must fit.
                let end = page.checked_add(pages)?;
                if pages == 0 || end > 1 << 52 {
                    return None;
                }
                if tag == 4 { Op::Map { process, page, pages } } else { Op::Grow { process, page, pages } }
            }
            6 => Op::Exit { process: self.process(number(rest)?)? },
            _ => return None,
        })
    }

    fn process(&self, number: u64) -> Option<u32> {
        number.try_into().ok().filter(|&process| process < self.processes)
    }
}

fn numbers(bytes: &mut Vec<u8>, tag: u8, values: &[u64]) {
    bytes.push(tag);
    for &value in values {
        let mut value = value;
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The difference as a number that is small when the difference is, whatever its sign.
fn zigzag(new: u64, old: u64) -> u64 {
    let difference = new.wrapping_sub(old).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn unzigzag(value: u64, old: u64) -> u64 {
    old.wrapping_add((value >> 1) ^ (value & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Op> {
        vec![
            Op::Process { parent: None },
            Op::Thread { process: 0 },
            Op::Map { process: 0, page: 0x7f_1234_5678, pages: 3 },
            Op::Fault { thread: 0, page: 0x7f_1234_5679 },
            Op::Process { parent: Some(0) },
            Op::Thread { process: 1 },
            Op::Grow { process: 1, page: 0x7f_1234_5670, pages: 300 },
            Op::Fault { thread: 1, page: 0x7f_1234_5670 },
            Op::Fault { thread: 0, page: 0x7f_1234_5678 },
            Op::Fault { thread: 0, page: 0x7f_1234_567a },
            Op::Map { process: 0, page: 1, pages: 1 },
            Op::Exit { process: 1 },
        ]
    }

    fn packed(ops: &[Op]) -> Vec<u8> {
        let mut out = Vec::new();
        write(ops, &mut out).unwrap();
        out
    }

    #[test]
    fn a_trace_comes_back_as_it_went() {
        assert_eq!(read(&packed(&some())).unwrap(), some());
    }

    #[test]
    fn the_difference_of_any_two_numbers_comes_back() {
        for (new, old) in [(0, u64::MAX), (u64::MAX, 0), (5, 7), (7, 5), (1 << 63, 1)] {
            assert_eq!(unzigzag(zigzag(new, old), old), new);
        }
        assert!(zigzag(4, 5) < 4 && zigzag(5, 4) < 4);
    }

    #[test]
    fn what_is_cut_short_or_names_the_unborn_is_refused_with_its_place() {
        let whole = {
            let mut bytes = Vec::new();
            GzDecoder::new(&packed(&some())[..]).read_to_end(&mut bytes).unwrap();
            bytes
        };
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let cut = read(&gzip(&whole[..whole.len() - 1])).unwrap_err();
        assert!(matches!(cut, TraceError::Damaged { operation: 11, .. }), "{cut}");
        let unborn = [&MAGIC[..], &[3, 0]].concat();
        assert!(matches!(read(&gzip(&unborn)), Err(TraceError::Damaged { operation: 0, .. })));
        assert!(matches!(read(&gzip(b"something")), Err(TraceError::Magic)));
        assert!(matches!(read(b"no gzip"), Err(TraceError::Compression(_))));
        assert!(write(&[Op::Fault { thread: 0, page: 0 }], Vec::new()).is_err());
    }
}
