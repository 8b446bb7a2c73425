//! Protocol buffers: messages of numbers, text and other messages, written and read.

mod read;

pub use read::{FieldValue, Fields, MalformedField, Packed};

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

/// A number in pieces of seven bits, and how many bytes that takes.
fn varint(mut value: u64) -> ([u8; 10], usize) {
    let (mut bytes, mut length) = ([0; 10], 0);
    for byte in &mut bytes {
        length += 1;
        if value < 0x80 {
            *byte = value as u8;
            break;
        }
        *byte = value as u8 | 0x80;
        value >>= 7;
    }
    (bytes, length)
}

impl Message {
    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// All bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Removes all bytes, and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// In line: most numbers are short, and those of fields are known to the compiler.
    #[inline]
    fn varint(&mut self, value: u64) {
        if value < 0x80 {
            self.0.push(value as u8);
        } else if value < 0x4000 {
            self.0.extend_from_slice(&[value as u8 | 0x80, (value >> 7) as u8]);
        } else {
            let (bytes, length) = varint(value);
            self.0.extend_from_slice(&bytes[..length]);
        }
    }

    /// Writes a number. A 0 is not written, because absent means 0.
    #[inline]
    pub fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.always(field, value);
        }
    }

    /// Writes a number, even 0: for one of several fields of which exactly one is present.
    #[inline]
    pub fn always(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// Writes a number of eight bytes: `fixed64`, or the bits of a `double`.
    #[inline]
    pub fn fixed(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes text, or bytes.
    #[inline]
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a message inside of this one.
    pub fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Calls `write` to write a message inside of this one, without a copy.
    #[inline]
    pub fn nest(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.varint(u64::from(field) << 3 | 2);
        self.delimit(write);
    }

    /// Calls `write` to write a message after its length, as in a stream of messages.
    #[inline]
    pub fn delimit(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        // Of most messages the length is a byte.
        self.0.push(0);
        write(self);
        match self.0.len() - at - 1 {
            length @ ..0x80 => self.0[at] = length as u8,
            length => {
                let (head, bytes) = varint(length as u64);
                let end = self.0.len();
                self.0.resize(end + bytes - 1, 0);
                self.0.copy_within(at + 1..end, at + bytes);
                self.0[at..at + bytes].copy_from_slice(&head[..bytes]);
            }
        }
    }

    /// Encodes a signed number (`sint32`, `sint64`) as an unsigned one that is small if its
    /// absolute value is.
    pub const fn zigzag(value: i64) -> u64 {
        (value << 1 ^ value >> 63).cast_unsigned()
    }

    /// Writes a packed list of numbers.
    #[inline]
    pub fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        self.nest(field, |packed| values.into_iter().for_each(|value| packed.varint(value)));
    }

    /// Appends the fields of another message.
    pub fn append(&mut self, fields: &Self) {
        self.0.extend_from_slice(&fields.0);
    }
}
