//! A writer of protocol buffers: messages of numbers, text and other messages.

/// A message as it is written.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forgets the bytes, and keeps the room.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number; 0 is what is not there.
    pub fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.always(field, value);
        }
    }

    /// A number, also 0: one of several fields of which one is there.
    pub fn always(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// A number of eight bytes: `fixed64`, or a `double`'s bits.
    pub fn fixed(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    /// Text, or bytes.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// A message in this one.
    pub fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Numbers one behind the other.
    pub fn packed(&mut self, field: u32, values: &[u64]) {
        let mut packed = Self::default();
        for &value in values {
            packed.varint(value);
        }
        self.message(field, &packed);
    }

    /// Further fields.
    pub fn append(&mut self, fields: &Self) {
        self.0.extend(&fields.0);
    }
}
