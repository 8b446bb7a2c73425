//! A gzip file, as it is written. Without the feature `gzip` its blocks are *stored*: every reader
//! of gzip reads them, they are just not smaller, and no compressor is linked.
//!
//! # References
//!
//! RFC 1952, gzip; RFC 1951 section 3.2.4, stored blocks.

use std::io::{self, Write};

#[cfg(feature = "gzip")]
use flate2::write::GzEncoder;

/// How hard a file is compressed: levels of zlib.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Level 1.
    Fast = 1,
    /// Level 6.
    Small = 6,
}

/// Writes gzip to `W`. [`Gzip::finish`] must be called at the end.
#[derive(Debug)]
#[must_use = "the file is not complete before `finish`"]
pub struct Gzip<W: Write> {
    #[cfg(feature = "gzip")]
    to: GzEncoder<W>,
    #[cfg(not(feature = "gzip"))]
    to: Stored<W>,
}

impl<W: Write> Gzip<W> {
    /// Begins a file whose header has `extra` as its extra field, if that is not empty.
    pub fn new(to: W, level: Level, extra: &[u8]) -> Self {
        #[cfg(feature = "gzip")]
        let to = {
            let header = flate2::GzBuilder::new();
            let header = if extra.is_empty() { header } else { header.extra(extra) };
            header.write(to, flate2::Compression::new(level as u32))
        };
        #[cfg(not(feature = "gzip"))]
        let to = Stored::new(to, level, extra);
        Self { to }
    }

    /// The underlying writer, which has all that is compressed by now but what is buffered.
    pub fn get_ref(&self) -> &W {
        #[cfg(feature = "gzip")]
        return self.to.get_ref();
        #[cfg(not(feature = "gzip"))]
        &self.to.to
    }

    /// Ends the file and returns the underlying writer.
    pub fn finish(self) -> io::Result<W> {
        self.to.finish()
    }
}

impl<W: Write> Write for Gzip<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Gzip whose blocks are stored: each call of `write` makes one.
#[cfg(any(test, not(feature = "gzip")))]
#[derive(Debug)]
struct Stored<W> {
    to: W,
    /// Not written yet.
    header: Vec<u8>,
    crc: u32,
    length: u32,
}

#[cfg(any(test, not(feature = "gzip")))]
impl<W: Write> Stored<W> {
    fn new(to: W, _: Level, extra: &[u8]) -> Self {
        // Deflate; a flag for the extra field; no time; an unknown system.
        let mut header = vec![0x1f, 0x8b, 8, 4 * u8::from(!extra.is_empty()), 0, 0, 0, 0, 0, 255];
        if !extra.is_empty() {
            header.extend((extra.len() as u16).to_le_bytes());
            header.extend(extra);
        }
        Self { to, header, crc: !0, length: 0 }
    }

    /// A block, the last one if it is empty.
    fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(&std::mem::take(&mut self.header))?;
        let length = bytes.len() as u16;
        self.to.write_all(&[u8::from(bytes.is_empty())])?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(&(!length).to_le_bytes())?;
        self.to.write_all(bytes)
    }

    fn finish(mut self) -> io::Result<W> {
        self.block(&[])?;
        self.to.write_all(&(!self.crc).to_le_bytes())?;
        self.to.write_all(&self.length.to_le_bytes())?;
        Ok(self.to)
    }
}

#[cfg(any(test, not(feature = "gzip")))]
impl<W: Write> Write for Stored<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        if !bytes.is_empty() {
            self.block(bytes)?;
            self.crc = bytes.iter().fold(self.crc, |crc, byte| crc >> 8 ^ CRC[usize::from(crc as u8 ^ byte)]);
            self.length = self.length.wrapping_add(bytes.len() as u32);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The remainder of each byte, for gzip's checksum.
#[cfg(any(test, not(feature = "gzip")))]
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn read(file: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut reader = flate2::read::GzDecoder::new(file);
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        (content, reader.header().unwrap().extra().map(<[u8]>::to_vec))
    }

    #[test]
    fn readers_of_gzip_read_stored_blocks() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        for content in [&content[..], b"tea", b""] {
            for extra in [&b"DM\x03\0tea"[..], b""] {
                let mut stored = Stored::new(Vec::new(), Level::Fast, extra);
                stored.write_all(content).unwrap();
                let file = stored.finish().unwrap();
                let (read, field) = read(&file);
                assert!(read == content);
                assert_eq!(field.unwrap_or_default(), extra);
            }
        }
    }

    #[test]
    fn both_ways_begin_a_file_alike() {
        let extra = b"DM\x03\0tea";
        let mut stored = Stored::new(Vec::new(), Level::Small, extra);
        let mut gzip = Gzip::new(Vec::new(), Level::Small, extra);
        for writer in [&mut stored as &mut dyn Write, &mut gzip] {
            writer.write_all(b"two cups").unwrap();
        }
        let [stored, gzip] = [stored.finish().unwrap(), gzip.finish().unwrap()];
        assert_eq!(stored[..4], gzip[..4]);
        assert_eq!(stored[10..12 + extra.len()], gzip[10..12 + extra.len()]);
        assert_eq!(read(&stored), read(&gzip));
    }
}
