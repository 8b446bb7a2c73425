//! Mapped bytes, and numbers read from them one after the other. The bytes may be anything: each
//! read returns whether it was possible.

/// How a pointer is written: its format, what it is relative to, and whether it leads to another.
const FORMAT: u8 = 0x0f;
const RELATION: u8 = 0x70;
const INDIRECT: u8 = 0x80;
/// There is no pointer.
const OMITTED: u8 = 0xff;

/// The word at an offset of a copy.
pub(crate) fn word_at(copy: &[u8], at: usize) -> Option<usize> {
    copy.get(at..)?.first_chunk().map(|word| usize::from_ne_bytes(*word))
}

/// Bytes, and the address at which they are mapped.
#[derive(Debug, Clone, Copy)]
pub struct MappedBytes<'a> {
    /// The address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> MappedBytes<'a> {
    /// A reader that begins at an address.
    pub(crate) fn at(self, address: u64) -> Option<Cursor<'a>> {
        let at = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (at <= self.bytes.len()).then_some(Cursor { of: self, at })
    }
}

/// A place in mapped bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    of: MappedBytes<'a>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.of.address.wrapping_add(self.at as u64)
    }

    /// Whether no byte is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.of.bytes.len()
    }

    /// The next `length` bytes, as a place of their own; this one skips them.
    pub(crate) fn split(&mut self, length: u64) -> Option<Self> {
        let (at, end) = (self.at, self.at.checked_add(usize::try_from(length).ok()?)?);
        let bytes = self.of.bytes.get(..end)?;
        self.at = end;
        Some(Self { of: MappedBytes { bytes, ..self.of }, at })
    }

    /// Skips bytes.
    pub(crate) fn skip(&mut self, length: u64) -> Option<()> {
        self.split(length).map(drop)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.of.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(bytes)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    pub(crate) fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    /// The bytes up to the next zero, which is skipped.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let rest = self.of.bytes.get(self.at..)?;
        let text = rest.split(|&byte| byte == 0).next()?;
        self.skip(text.len() as u64 + 1)?;
        Some(text)
    }

    /// A number in groups of seven bits, the lowest first (LEB128).
    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        self.groups().map(|(value, ..)| value)
    }

    /// Reads a signed number.
    pub(crate) fn signed(&mut self) -> Option<i64> {
        let (value, bits, last) = self.groups()?;
        let is_negative = last & 0x40 != 0 && bits < u64::BITS;
        Some((if is_negative { value | u64::MAX << bits } else { value }) as i64)
    }

    /// The value of the groups, how many bits they have, and the last of them. Bits beyond the
    /// highest of a value are left out.
    fn groups(&mut self) -> Option<(u64, u32, u8)> {
        let (mut value, mut bits) = (0, 0);
        loop {
            let group = self.byte()?;
            if bits < u64::BITS {
                value |= u64::from(group & 0x7f) << bits;
                bits += 7;
            }
            if group & 0x80 == 0 {
                return Some((value, bits, group));
            }
        }
    }

    /// A pointer; `table` is the address to which it may be relative. `None` also for one that
    /// leads to another pointer.
    pub(crate) fn pointer(&mut self, encoding: u8, table: u64) -> Option<u64> {
        let base = match encoding & (RELATION | INDIRECT) {
            0x00 => 0,
            0x10 => self.address(),
            0x30 => table,
            _ => return None,
        };
        Some(base.wrapping_add(self.offset(encoding)?))
    }

    /// Skips a pointer.
    pub(crate) fn skip_pointer(&mut self, encoding: u8) -> Option<()> {
        if encoding == OMITTED { Some(()) } else { self.offset(encoding).map(drop) }
    }

    /// A pointer as it is written.
    pub(crate) fn offset(&mut self, encoding: u8) -> Option<u64> {
        Some(match encoding & FORMAT {
            0x00 | 0x04 | 0x0c => u64::from_ne_bytes(self.take()?),
            0x02 => u64::from(self.half()?),
            0x03 => u64::from(self.word()?),
            0x0a => i64::from(i16::from_ne_bytes(self.take()?)) as u64,
            0x0b => i64::from(i32::from_ne_bytes(self.take()?)) as u64,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<'a, T>(bytes: &'a [u8], read: impl Fn(&mut Cursor<'a>) -> Option<T>) -> Vec<T> {
        let mut cursor = MappedBytes { address: 0x1000, bytes }.at(0x1000).unwrap();
        std::iter::from_fn(|| read(&mut cursor)).collect()
    }

    #[test]
    fn groups_of_bits_are_numbers() {
        let bytes = [2, 0x7f, 0x80, 1, 0xff, 0x7e, 0x80];
        assert_eq!(numbers(&bytes, Cursor::unsigned), [2, 127, 128, 16_255]);
        assert_eq!(numbers(&bytes, Cursor::signed), [2, -1, 128, -129]);
        let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0];
        assert_eq!(numbers(&long, Cursor::signed), [-1, 0]);
        assert_eq!(numbers(&long, Cursor::unsigned), [u64::MAX, 0]);
    }

    #[test]
    fn pointers_are_relative_to_their_place() {
        let minus_two = (-2_i32).to_ne_bytes();
        let pointers = |encoding| numbers(&minus_two.repeat(2), |cursor| cursor.pointer(encoding, 0x500));
        assert_eq!(pointers(0x1b), [0xffe, 0x1002]);
        assert_eq!(pointers(0x3b), [0x4fe, 0x4fe]);
        assert_eq!(pointers(0x03), [u64::from(u32::MAX) - 1; 2]);
        assert_eq!(pointers(0x9b), [0; 0]);
        assert_eq!(pointers(0xff), [0; 0]);
    }
}
