//! JSON into memory. One kind of writer serves all of a service's answers, to its sockets and into
//! its files, so that the code of each answer is in the program once.

use std::io::{self, Write};

use serde::Serialize;

/// Appends JSON to `bytes`, as long as there is memory.
pub fn write_json(bytes: &mut Vec<u8>, of: &impl Serialize) -> io::Result<()> {
    write_pieces(bytes, usize::MAX, &mut |_| Ok(()), of)
}

/// Appends JSON to `piece`, and calls `full`, which empties it, whenever `most` bytes are in it and
/// more come.
pub(crate) fn write_pieces(
    piece: &mut Vec<u8>,
    most: usize,
    full: &mut dyn FnMut(&mut Vec<u8>) -> io::Result<()>,
    of: &impl Serialize,
) -> io::Result<()> {
    Ok(serde_json::to_writer(Pieces { piece, most, full }, of)?)
}

/// How long the JSON is, up to the first part that cannot be written.
pub(crate) fn length(of: &impl Serialize) -> u64 {
    const PIECE: usize = 4096;
    let (mut piece, mut length) = (Vec::new(), 0);
    let mut full = |piece: &mut Vec<u8>| {
        length += piece.len() as u64;
        piece.clear();
        Ok(())
    };
    _ = write_pieces(&mut piece, PIECE, &mut full, of);
    length + piece.len() as u64
}

struct Pieces<'a> {
    piece: &'a mut Vec<u8>,
    most: usize,
    full: &'a mut dyn FnMut(&mut Vec<u8>) -> io::Result<()>,
}

impl Pieces<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.piece.try_reserve(bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.piece.extend_from_slice(bytes);
        Ok(())
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() >= self.most {
            (self.full)(self.piece)?;
        }
        let fits = bytes.len().min(self.most - self.piece.len());
        self.put(&bytes[..fits])?;
        Ok(fits)
    }

    // JSON comes by field and digit, in a thousand places of a program. Inlined it is half of their
    // code.
    #[inline(never)]
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while bytes.len() > self.most - self.piece.len() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
        }
        self.put(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_full_and_make_up_the_whole() {
        let of: Vec<String> = (0..40).map(|at| "x".repeat(at % 17)).collect();
        let mut whole = b"before".to_vec();
        write_json(&mut whole, &of).unwrap();
        assert_eq!(whole, [b"before".to_vec(), serde_json::to_vec(&of).unwrap()].concat());
        assert_eq!(length(&vec![&of; 40]), serde_json::to_vec(&vec![&of; 40]).unwrap().len() as u64);
        for most in 1..20 {
            let (mut piece, mut all) = (Vec::new(), Vec::new());
            let mut full = |piece: &mut Vec<u8>| {
                assert_eq!(piece.len(), most);
                all.append(piece);
                Ok(())
            };
            write_pieces(&mut piece, most, &mut full, &of).unwrap();
            assert!(!piece.is_empty() && piece.len() <= most);
            all.append(&mut piece);
            assert_eq!(all, whole[6..], "pieces of {most}");
        }
    }
}
