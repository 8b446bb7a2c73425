//! Content that is compressed by zstd or xz: sections of debug information, and the symbols in
//! `.gnu_debugdata`. It is read with the feature `forms`, without which services are built.
//!
//! Both decoders are written without unsafe code. The caller bounds what it takes from them; the
//! window here bounds the memory that they use for it.
//!
//! Of a file by xz the first block is read, in which a table of symbols lies; check sums are not
//! compared, because broken symbols do no harm.
//!
//! # References
//!
//! RFC 8878; "The .xz File Format", 2.1.1 and 3.1.

use std::io::{self, Read};

/// Whether it is read.
pub(super) const IS_READ: bool = cfg!(feature = "forms");

/// Bytes of content that a decoder keeps because later content may repeat them: those of `xz -9`.
#[cfg(feature = "forms")]
const MOST_WINDOW: u64 = 64 << 20;

/// The content of `from`, which zstd has compressed.
#[cfg(feature = "forms")]
pub(super) fn zstd<'a>(from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(from, MOST_WINDOW);
    Ok(Box::new(decoder.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?))
}

/// The content of `from`, which xz has compressed.
#[cfg(feature = "forms")]
pub(super) fn xz<'a>(mut from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    const MAGIC: &[u8] = b"\xfd7zXZ\0";
    // The head of the file, and the length of the head of its first block in words, less one.
    let mut head = [0; 13];
    from.read_exact(&mut head)?;
    let mut block = vec![0; 4 * usize::from(head[12]) + 3];
    from.read_exact(&mut block)?;
    let window = window(&block).filter(|&window| head.starts_with(MAGIC) && window <= MOST_WINDOW);
    let window = window.ok_or_else(|| unread("its symbols are compressed in an unknown way"))?;
    Ok(Box::new(lzma_rust2::Lzma2Reader::new(from, window as u32, None)))
}

/// The bytes that a decoder has to keep for a block with that head, if LZMA2 is its only filter.
#[cfg(feature = "forms")]
fn window(block: &[u8]) -> Option<u64> {
    const LZMA2: u8 = 0x21;
    let (&flags, mut rest) = block.split_first()?;
    // The lengths of the block before and after: numbers that end with a byte below 128.
    for length in [0x40, 0x80] {
        if flags & length != 0 {
            let end = rest.iter().position(|&byte| byte < 0x80)?;
            rest = &rest[end + 1..];
        }
    }
    match rest {
        // One filter, its number, and one byte for it.
        [LZMA2, 1, power @ 0..40, ..] if flags.trailing_zeros() >= 2 => {
            Some(u64::from(2 | power & 1) << (power / 2 + 11))
        }
        _ => None,
    }
}

#[cfg(not(feature = "forms"))]
pub(super) fn zstd<'a>(_: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Err(unread("a section is compressed by zstd, which is not read"))
}

#[cfg(not(feature = "forms"))]
pub(super) fn xz<'a>(_: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Err(unread("its symbols are compressed by xz, which is not read"))
}

fn unread(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
