//! A reader of protocol buffers. The bytes are untrusted.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A number of varying length.
    Number(u64),
    /// Text, bytes, a message, a packed list, or a number of fixed size.
    Bytes(&'a [u8]),
}

/// A field that is cut off, or of no type that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedField;

/// The fields of a message, by number. Ends after an error.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

/// The numbers of a packed list. Ends after an error.
#[derive(Debug, Clone)]
pub struct Packed<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of this message.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Option<(u32, FieldValue<'a>)> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => FieldValue::Number(varint(&mut self.0)?),
            1 => FieldValue::Bytes(take(&mut self.0, 8)?),
            2 => {
                let length = varint(&mut self.0)?;
                FieldValue::Bytes(take(&mut self.0, length)?)
            }
            5 => FieldValue::Bytes(take(&mut self.0, 4)?),
            _ => return None,
        };
        Some((u32::try_from(key >> 3).ok().filter(|&it| it != 0)?, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, FieldValue<'a>), MalformedField>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(MalformedField))
    }
}

impl<'a> Packed<'a> {
    /// The numbers of this list.
    pub fn of(list: &'a [u8]) -> Self {
        Self(list)
    }
}

impl Iterator for Packed<'_> {
    type Item = Result<u64, MalformedField>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let number = varint(&mut self.0);
        if number.is_none() {
            self.0 = &[];
        }
        Some(number.ok_or(MalformedField))
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut message = Message::default();
        message.number(1, 300);
        message.fixed(2, 7);
        message.bytes(3, b"tea");
        message.packed(4, [0, 1, u64::MAX]);
        let fields: Vec<_> = Fields::of(message.as_bytes()).map(Result::unwrap).collect();
        let fixed = 7_u64.to_le_bytes();
        let (bytes, number) = (FieldValue::Bytes, FieldValue::Number);
        assert_eq!(fields[..3], [(1, number(300)), (2, bytes(&fixed)), (3, bytes(b"tea"))]);
        let (4, FieldValue::Bytes(list)) = fields[3] else { panic!("{fields:?}") };
        let numbers: Vec<_> = Packed::of(list).map(Result::unwrap).collect();
        assert_eq!(numbers, [0, 1, u64::MAX]);
        for length in 1..list.len() {
            assert!(Packed::of(&list[..list.len() - length]).count() <= 3);
        }
    }

    #[test]
    fn any_bytes_end_with_an_error() {
        for junk in [&[0x08_u8][..], &[0xff; 40], &[0x0a, 0xff, 0xff, 0x7f], &[0x0f], &[0x00, 0x00]] {
            let last = Fields::of(junk).last();
            assert_eq!(last, Some(Err(MalformedField)), "{junk:?}");
        }
    }
}
