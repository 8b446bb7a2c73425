//! Traces of page faults: the mappings that programs made and the pages that they then touched, in
//! order of time.
//!
//! A trace is a sequence of [`FaultOp`]s over processes and threads, both numbered from 0 in order
//! of creation. Addresses are page numbers: mappings begin and end at pages, so the rest of an
//! address does not matter. A program that executes another one becomes a new process with a new
//! thread, because nothing of its address space survives.
//!
//! [`record`](super::record()) writes such a file, and the bench replays it through the caches. It
//! contains no memory contents, names or arguments of the recorded programs.
//!
//! # Format, version 1
//!
//! The format is gzip over: the magic `dmfault1`, then one byte for each operation and its operands
//! as LEB128 numbers. Page numbers are differences (zigzag): a fault's to the last fault of its
//! thread, a mapping's to the last mapping of any process. So most faults take two bytes before
//! compression.
//!
//! # Invariants
//!
//! A trace that was read refers to no process or thread before the operation that created it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const MAGIC: &[u8; 8] = b"dmfault1";

/// The most operations in a trace: a small file that decompresses to endlessly many must not take
/// all memory.
pub const MOST: usize = 1 << 26;

/// Page numbers have that many bits, so that addresses have 64.
const PAGE_NUMBER_BITS: u32 = 52;

/// Bytes that a [`FaultWriter`] keeps before it compresses them.
const BUFFER: usize = 1 << 16;

/// An event in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOp {
    /// The next process, with the mappings of `parent` if it has one (`fork`), else with none
    /// (`exec`).
    Process {
        /// The process that it was forked from.
        parent: Option<u32>,
    },
    /// The next thread, of `process`.
    Thread {
        /// The number of its process.
        process: u32,
    },
    /// `process` is gone.
    Exit {
        /// The process.
        process: u32,
    },
    /// `process` maps pages, over all mappings that were there.
    Map {
        /// The process.
        process: u32,
        /// First page.
        page: u64,
        /// Number of pages, at least one.
        pages: u64,
    },
    /// A mapping of `process` that lies inside these pages now reaches over all of them.
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
pub enum FaultTraceError {
    /// The file cannot be read or decompressed.
    #[error("cannot decompress the trace: {0}")]
    Compression(#[from] io::Error),
    /// The file is not a trace.
    #[error("not a trace of page faults: it does not begin with \"dmfault1\"")]
    Magic,
    /// The trace is damaged.
    #[error("the trace is damaged at operation {operation}: {what}")]
    Damaged {
        /// Index of the operation.
        operation: usize,
        /// The damage.
        what: &'static str,
    },
}

/// Why an operation cannot be part of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultWriteError {
    /// The file cannot be written.
    #[error("cannot write the trace: {0}")]
    Io(#[from] io::Error),
    /// The operation names a process or thread that no operation has made, or pages that are none.
    #[error("not part of a trace: {op:?}")]
    Meaningless {
        /// The operation.
        op: FaultOp,
    },
    /// The trace has [`MOST`] operations already.
    #[error("a trace has {MOST} operations at most")]
    Full,
}

/// The numbers that differences are counted from, and the processes and threads that are there.
#[derive(Debug, Default)]
struct Context {
    processes: u32,
    /// The last page of each thread.
    threads: Vec<u64>,
    thread: u32,
    mapped: u64,
}

/// Writes a trace, operation by operation. It is complete only after [`FaultWriter::finish`].
#[derive(Debug)]
pub struct FaultWriter<W: Write> {
    out: GzEncoder<W>,
    buffer: Vec<u8>,
    context: Context,
    len: usize,
}

impl<W: Write> FaultWriter<W> {
    /// Begins an empty trace.
    pub fn new(out: W) -> Self {
        Self {
            out: GzEncoder::new(out, Compression::best()),
            buffer: MAGIC.to_vec(),
            context: Context::default(),
            len: 0,
        }
    }

    /// Appends `op`.
    ///
    /// # Errors
    ///
    /// If `op` cannot be part of this trace, which then is unchanged; or if writing fails.
    pub fn put(&mut self, op: &FaultOp) -> Result<(), FaultWriteError> {
        if self.len == MOST {
            return Err(FaultWriteError::Full);
        }
        self.context.put(*op, &mut self.buffer).ok_or(FaultWriteError::Meaningless { op: *op })?;
        self.len += 1;
        if self.buffer.len() >= BUFFER {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes the rest, and returns the underlying writer.
    ///
    /// # Errors
    ///
    /// If writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.buffer)?;
        let mut out = self.out.finish()?;
        out.flush()?;
        Ok(out)
    }
}

/// Reads a compressed trace.
///
/// # Errors
///
/// If it is not a valid trace.
pub fn read(compressed: impl Read) -> Result<Vec<FaultOp>, FaultTraceError> {
    let mut bytes = BufReader::with_capacity(BUFFER, GzDecoder::new(compressed));
    if !begins(&mut bytes)? {
        return Err(FaultTraceError::Magic);
    }
    let mut context = Context::default();
    let mut ops = Vec::new();
    while let Some(tag) = next(&mut bytes)? {
        let damaged = |what| FaultTraceError::Damaged { operation: ops.len(), what };
        if ops.len() == MOST {
            return Err(damaged("there are too many operations"));
        }
        let op = context.take(tag, || next(&mut bytes))?;
        ops.push(op.ok_or_else(|| damaged("it names a missing process or thread, or ends in the middle"))?);
    }
    Ok(ops)
}

/// Whether the first bytes are those of a trace.
///
/// # Errors
///
/// If reading fails. Data that cannot be decompressed is no error; the result is false.
pub fn is_trace(compressed: impl Read) -> io::Result<bool> {
    let is_other =
        |kind| matches!(kind, ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
    match begins(&mut GzDecoder::new(compressed)) {
        Err(error) if is_other(error.kind()) => Ok(false),
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

/// A part of an operation; an error if the file cannot be read, nothing if the bytes mean nothing.
type Taken<T> = io::Result<Option<T>>;

impl Context {
    /// Takes `op` in, if the processes and threads that it names are there.
    fn admit(&mut self, op: FaultOp) -> Option<()> {
        let has = |process: u32| (process < self.processes).then_some(());
        match op {
            FaultOp::Fault { thread, page } => {
                *self.threads.get_mut(thread as usize).filter(|_| is_page(page))? = page;
                self.thread = thread;
            }
            FaultOp::Process { parent } => {
                parent.map_or(Some(()), has)?;
                self.processes += 1;
            }
            FaultOp::Thread { process } => {
                has(process)?;
                self.threads.push(0);
            }
            FaultOp::Map { process, page, pages } | FaultOp::Grow { process, page, pages } => {
                has(process).filter(|()| are_pages(page, pages))?;
                self.mapped = page;
            }
            FaultOp::Exit { process } => has(process)?,
        }
        Some(())
    }

    /// Writes `op`, unless it means nothing here.
    fn put(&mut self, op: FaultOp, bytes: &mut Vec<u8>) -> Option<()> {
        let (thread_before, mapped) = (self.thread, self.mapped);
        let last = match op {
            FaultOp::Fault { thread, .. } => *self.threads.get(thread as usize)?,
            _ => 0,
        };
        self.admit(op)?;
        match op {
            FaultOp::Fault { thread, page } if thread == thread_before => {
                numbers(bytes, 0, &[zigzag(page, last)]);
            }
            FaultOp::Fault { thread, page } => numbers(bytes, 1, &[thread.into(), zigzag(page, last)]),
            FaultOp::Process { parent } => {
                numbers(bytes, 2, &[parent.map_or(0, |parent| u64::from(parent) + 1)]);
            }
            FaultOp::Thread { process } => numbers(bytes, 3, &[process.into()]),
            FaultOp::Map { process, page, pages } => {
                numbers(bytes, 4, &[process.into(), zigzag(page, mapped), pages]);
            }
            FaultOp::Grow { process, page, pages } => {
                numbers(bytes, 5, &[process.into(), zigzag(page, mapped), pages]);
            }
            FaultOp::Exit { process } => numbers(bytes, 6, &[process.into()]),
        }
        Some(())
    }

    /// The operation that begins with `tag` and goes on with the bytes that `next` gives.
    fn take(&mut self, tag: u8, mut next: impl FnMut() -> Taken<u8>) -> Taken<FaultOp> {
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
        let op = self.understand(tag, operands);
        Ok(op.filter(|&op| self.admit(op).is_some()))
    }

    fn understand(&self, tag: u8, [first, second, pages]: [u64; 3]) -> Option<FaultOp> {
        let small = |number: u64| u32::try_from(number).ok();
        let fault = |thread: u32, difference| {
            let last = *self.threads.get(thread as usize)?;
            Some(FaultOp::Fault { thread, page: unzigzag(difference, last) })
        };
        Some(match tag {
            0 => fault(self.thread, first)?,
            1 => fault(small(first)?, second)?,
            2 => FaultOp::Process {
                parent: first.checked_sub(1).map(|parent| small(parent).ok_or(())).transpose().ok()?,
            },
            3 => FaultOp::Thread { process: small(first)? },
            4 => FaultOp::Map { process: small(first)?, page: unzigzag(second, self.mapped), pages },
            5 => FaultOp::Grow { process: small(first)?, page: unzigzag(second, self.mapped), pages },
            _ => FaultOp::Exit { process: small(first)? },
        })
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

/// The difference as a number that is small when the difference is, negative or not.
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

    fn some() -> Vec<FaultOp> {
        vec![
            FaultOp::Process { parent: None },
            FaultOp::Thread { process: 0 },
            FaultOp::Map { process: 0, page: 0x7f_1234_5678, pages: 3 },
            FaultOp::Fault { thread: 0, page: 0x7f_1234_5679 },
            FaultOp::Process { parent: Some(0) },
            FaultOp::Thread { process: 1 },
            FaultOp::Grow { process: 1, page: 0x7f_1234_5670, pages: 300 },
            FaultOp::Fault { thread: 1, page: 0x7f_1234_5670 },
            FaultOp::Fault { thread: 0, page: 0x7f_1234_5678 },
            FaultOp::Fault { thread: 0, page: 0x7f_1234_567a },
            FaultOp::Map { process: 0, page: 1, pages: 1 },
            FaultOp::Exit { process: 1 },
        ]
    }

    fn packed(ops: &[FaultOp]) -> Vec<u8> {
        let mut writer = FaultWriter::new(Vec::new());
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
    fn trace_comes_back_as_it_went() {
        assert_eq!(read(&packed(&some())[..]).unwrap(), some());
        assert_eq!(read(&packed(&[])[..]).unwrap(), []);
    }

    #[test]
    fn trace_is_known_by_its_beginning() {
        let whole = packed(&some());
        for (bytes, is) in
            [(&whole[..], true), (&whole[..whole.len() - 1], true), (b"", false), (b"text", false)]
        {
            assert_eq!(is_trace(bytes).unwrap(), is);
        }
    }

    #[test]
    fn meaningless_operations_are_not_written() {
        let mut writer = FaultWriter::new(Vec::new());
        for op in some() {
            writer.put(&op).unwrap();
        }
        let top = 1 << PAGE_NUMBER_BITS;
        for op in [
            FaultOp::Process { parent: Some(2) },
            FaultOp::Thread { process: 2 },
            FaultOp::Exit { process: 9 },
            FaultOp::Fault { thread: 2, page: 0 },
            FaultOp::Fault { thread: 0, page: top },
            FaultOp::Map { process: 0, page: 1, pages: 0 },
            FaultOp::Grow { process: 0, page: top - 1, pages: 2 },
        ] {
            assert!(
                matches!(writer.put(&op), Err(FaultWriteError::Meaningless { op: refused }) if refused == op)
            );
        }
        let last = FaultOp::Map { process: 0, page: top - 1, pages: 1 };
        writer.put(&last).unwrap();
        let read = read(&writer.finish().unwrap()[..]).unwrap();
        assert_eq!((read.len(), read.last()), (some().len() + 1, Some(&last)));
    }

    #[test]
    fn any_difference_comes_back() {
        for (new, old) in [(0, u64::MAX), (u64::MAX, 0), (5, 7), (7, 5), (1 << 63, 1)] {
            assert_eq!(unzigzag(zigzag(new, old), old), new);
        }
        assert!(zigzag(4, 5) < 4 && zigzag(5, 4) < 4);
    }

    #[test]
    fn damage_is_refused_with_its_place() {
        let compressed = packed(&some());
        let whole = unpacked(&compressed);
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let cut = read(&gzip(&whole[..whole.len() - 1])[..]).unwrap_err();
        assert!(matches!(cut, FaultTraceError::Damaged { operation: 11, .. }), "{cut}");
        let unborn = [&MAGIC[..], &[3, 0]].concat();
        assert!(matches!(read(&gzip(&unborn)[..]), Err(FaultTraceError::Damaged { operation: 0, .. })));
        assert!(matches!(read(&gzip(b"something")[..]), Err(FaultTraceError::Magic)));
        assert!(matches!(read(&b"no gzip"[..]), Err(FaultTraceError::Compression(_))));
        // Also where the cut leaves whole operations.
        for len in 0..compressed.len() {
            assert!(read(&compressed[..len]).is_err(), "{len} of {} bytes", compressed.len());
        }
    }
}
