//! Traces of page faults: what programs mapped, and which pages they then touched, in the order of time.
//!
//! A trace is a sequence of [`Op`]s over processes and threads, both numbered from 0 in the order in which
//! they came to be. Addresses are page numbers: mappings begin and end at pages, so the rest of an address
//! decides nothing. A program that executes another one becomes a new process with a new thread, because
//! nothing of its address space survives.
//!
//! `dormouse record --faults` writes such a file, `dormouse bench maps --trace` replays it through the caches.
//! Contents, names and arguments of the recorded programs are not in it.
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

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const MAGIC: &[u8; 8] = b"dmfault1";

/// Operations of a trace, at most: a small file that decompresses to endless ones must not take all memory.
pub const MOST: usize = 1 << 26;

/// Page numbers have that many bits, so that addresses have 64.
const PAGE_NUMBER_BITS: u32 = 52;

/// Bytes that a [`Writer`] keeps before it compresses them.
const BUFFER: usize = 1 << 16;

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
    /// It cannot be read or decompressed.
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

/// Why an operation cannot be part of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file cannot be written.
    #[error("cannot write the trace: {0}")]
    Io(#[from] io::Error),
    /// It names a process or thread that no operation has made, or pages that are none.
    #[error("not part of a trace: {op:?}")]
    Meaningless {
        /// The operation.
        op: Op,
    },
    /// There are [`MOST`] operations.
    #[error("a trace has {MOST} operations at most")]
    Full,
}

/// Where differences are counted from, and who is there.
#[derive(Debug, Default)]
struct Context {
    processes: u32,
    /// The last page of each thread.
    threads: Vec<u64>,
    thread: u32,
    mapped: u64,
}

/// Writes a trace, operation by operation. It is whole after [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: GzEncoder<W>,
    buffer: Vec<u8>,
    context: Context,
    len: usize,
}

impl<W: Write> Writer<W> {
    /// A trace of nothing so far.
    pub fn new(out: W) -> Self {
        Self {
            out: GzEncoder::new(out, Compression::best()),
            buffer: MAGIC.to_vec(),
            context: Context::default(),
            len: 0,
        }
    }

    /// Adds `op`.
    ///
    /// # Errors
    ///
    /// When it cannot be part of this trace, which then is as it was; when writing fails.
    pub fn put(&mut self, op: &Op) -> Result<(), WriteError> {
        if self.len == MOST {
            return Err(WriteError::Full);
        }
        self.context.put(op, &mut self.buffer).ok_or(WriteError::Meaningless { op: *op })?;
        self.len += 1;
        if self.buffer.len() >= BUFFER {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes what is still to be written, and gives back what it was written to.
    ///
    /// # Errors
    ///
    /// When writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.buffer)?;
        let mut out = self.out.finish()?;
        out.flush()?;
        Ok(out)
    }
}

/// Reads the trace in `compressed`.
///
/// # Errors
///
/// When it is none.
pub fn read(compressed: impl Read) -> Result<Vec<Op>, TraceError> {
    let mut bytes = BufReader::with_capacity(BUFFER, GzDecoder::new(compressed));
    if !begins(&mut bytes)? {
        return Err(TraceError::Magic);
    }
    let mut context = Context::default();
    let mut ops = Vec::new();
    while let Some(tag) = next(&mut bytes)? {
        let damaged = |what| TraceError::Damaged { operation: ops.len(), what };
        if ops.len() == MOST {
            return Err(damaged("there are too many operations"));
        }
        let op = context.take(tag, || next(&mut bytes))?;
        ops.push(op.ok_or_else(|| damaged("it names what is not there, or ends in the middle"))?);
    }
    Ok(ops)
}

/// Whether a trace begins here, by its first bytes.
///
/// # Errors
///
/// When it cannot be read; that it cannot be decompressed means no.
pub fn is_trace(compressed: impl Read) -> io::Result<bool> {
    match begins(&mut GzDecoder::new(compressed)) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof
            ) =>
        {
            Ok(false)
        }
        result => result,
    }
}

fn begins(bytes: &mut impl Read) -> io::Result<bool> {
    let mut magic = Vec::new();
    bytes.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic == MAGIC)
}

/// The next byte; none at the end, which is one only where the compressed file ends whole.
fn next(bytes: &mut impl BufRead) -> io::Result<Option<u8>> {
    let byte = bytes.fill_buf()?.first().copied();
    bytes.consume(usize::from(byte.is_some()));
    Ok(byte)
}

/// What keeps an operation from being read: the file (an error), or its meaning (nothing).
type Taken<T> = io::Result<Option<T>>;

impl Context {
    /// Writes `op`, unless it means nothing here.
    fn put(&mut self, op: &Op, bytes: &mut Vec<u8>) -> Option<()> {
        match *op {
            Op::Fault { thread, page } => {
                let last = self.threads.get_mut(thread as usize).filter(|_| is_page(page))?;
                let difference = zigzag(page, std::mem::replace(last, page));
                if std::mem::replace(&mut self.thread, thread) == thread {
                    numbers(bytes, 0, &[difference]);
                } else {
                    numbers(bytes, 1, &[u64::from(thread), difference]);
                }
            }
            Op::Process { parent } => {
                let parent =
                    parent.map(|parent| self.process(u64::from(parent)).ok_or(())).transpose().ok()?;
                numbers(bytes, 2, &[parent.map_or(0, |parent| u64::from(parent) + 1)]);
                self.processes += 1;
            }
            Op::Thread { process } => {
                self.process(u64::from(process))?;
                numbers(bytes, 3, &[u64::from(process)]);
                self.threads.push(0);
            }
            Op::Map { process, page, pages } | Op::Grow { process, page, pages } => {
                self.process(u64::from(process)).filter(|_| are_pages(page, pages))?;
                let difference = zigzag(page, std::mem::replace(&mut self.mapped, page));
                let tag = if matches!(op, Op::Map { .. }) { 4 } else { 5 };
                numbers(bytes, tag, &[u64::from(process), difference, pages]);
            }
            Op::Exit { process } => {
                self.process(u64::from(process))?;
                numbers(bytes, 6, &[u64::from(process)]);
            }
        }
        Some(())
    }

    /// The operation that begins with `tag` and goes on with the bytes that `next` gives.
    fn take(&mut self, tag: u8, mut next: impl FnMut() -> Taken<u8>) -> Taken<Op> {
        let count = match tag {
            0 | 2 | 3 | 6 => 1,
            1 => 2,
            4 | 5 => 3,
            _ => return Ok(None),
        };
        let mut operands = [0; 3];
        for operand in &mut operands[..count] {
            let Some(number) = number(&mut next)? else { return Ok(None) };
            *operand = number;
        }
        Ok(self.understand(tag, operands))
    }

    fn understand(&mut self, tag: u8, operands: [u64; 3]) -> Option<Op> {
        let [first, second, third] = operands;
        Some(match tag {
            0 | 1 => {
                let (thread, difference) =
                    if tag == 1 { (first.try_into().ok()?, second) } else { (self.thread, first) };
                let last = self.threads.get_mut(thread as usize)?;
                let page = Some(unzigzag(difference, *last)).filter(|&page| is_page(page))?;
                (self.thread, *last) = (thread, page);
                Op::Fault { thread, page }
            }
            2 => {
                let parent = match first {
                    0 => None,
                    parent => Some(self.process(parent - 1)?),
                };
                self.processes += 1;
                Op::Process { parent }
            }
            3 => {
                let process = self.process(first)?;
                self.threads.push(0);
                Op::Thread { process }
            }
            4 | 5 => {
                let process = self.process(first)?;
                let (page, pages) = (unzigzag(second, self.mapped), third);
                if !are_pages(page, pages) {
                    return None;
                }
                self.mapped = page;
                if tag == 4 { Op::Map { process, page, pages } } else { Op::Grow { process, page, pages } }
            }
            6 => Op::Exit { process: self.process(first)? },
            _ => return None,
        })
    }

    fn process(&self, number: u64) -> Option<u32> {
        number.try_into().ok().filter(|&process| process < self.processes)
    }
}

fn is_page(page: u64) -> bool {
    page >> PAGE_NUMBER_BITS == 0
}

fn are_pages(page: u64, pages: u64) -> bool {
    pages > 0 && page.checked_add(pages).is_some_and(|end| end <= 1 << PAGE_NUMBER_BITS)
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

fn number(next: &mut impl FnMut() -> Taken<u8>) -> Taken<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some(byte) = next()? else { return Ok(None) };
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(Some(value));
        }
    }
    Ok(None)
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
        let mut writer = Writer::new(Vec::new());
        for op in ops {
            writer.put(op).unwrap();
        }
        writer.finish().unwrap()
    }

    fn unpacked(compressed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_trace_comes_back_as_it_went() {
        assert_eq!(read(&packed(&some())[..]).unwrap(), some());
        assert_eq!(read(&packed(&[])[..]).unwrap(), []);
    }

    #[test]
    fn a_trace_is_told_from_other_files_by_how_it_begins() {
        let whole = packed(&some());
        for (bytes, is) in
            [(&whole[..], true), (&whole[..whole.len() - 1], true), (b"", false), (b"text", false)]
        {
            assert_eq!(is_trace(bytes).unwrap(), is);
        }
    }

    #[test]
    fn what_means_nothing_is_not_written_and_leaves_no_trace() {
        let mut writer = Writer::new(Vec::new());
        for op in some() {
            writer.put(&op).unwrap();
        }
        let top = 1 << PAGE_NUMBER_BITS;
        for op in [
            Op::Process { parent: Some(2) },
            Op::Thread { process: 2 },
            Op::Exit { process: 9 },
            Op::Fault { thread: 2, page: 0 },
            Op::Fault { thread: 0, page: top },
            Op::Map { process: 0, page: 1, pages: 0 },
            Op::Grow { process: 0, page: top - 1, pages: 2 },
        ] {
            assert!(matches!(writer.put(&op), Err(WriteError::Meaningless { op: refused }) if refused == op));
        }
        let last = Op::Map { process: 0, page: top - 1, pages: 1 };
        writer.put(&last).unwrap();
        let read = read(&writer.finish().unwrap()[..]).unwrap();
        assert_eq!((read.len(), read.last()), (some().len() + 1, Some(&last)));
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
        let compressed = packed(&some());
        let whole = unpacked(&compressed);
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let cut = read(&gzip(&whole[..whole.len() - 1])[..]).unwrap_err();
        assert!(matches!(cut, TraceError::Damaged { operation: 11, .. }), "{cut}");
        let unborn = [&MAGIC[..], &[3, 0]].concat();
        assert!(matches!(read(&gzip(&unborn)[..]), Err(TraceError::Damaged { operation: 0, .. })));
        assert!(matches!(read(&gzip(b"something")[..]), Err(TraceError::Magic)));
        assert!(matches!(read(&b"no gzip"[..]), Err(TraceError::Compression(_))));
        // Also where the cut leaves whole operations.
        for len in 0..compressed.len() {
            assert!(read(&compressed[..len]).is_err(), "{len} of {} bytes", compressed.len());
        }
    }
}
