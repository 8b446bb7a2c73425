//! The number by which tokio identifies a task, and a place for it in a table.

use std::hash::{Hash, Hasher};

use ::tokio::task::Id;

/// The task's number. tokio does not return it, but the hash of a task's id is made from only this
/// number.
pub(crate) fn number(task: Id) -> u64 {
    let mut number = Number(0);
    task.hash(&mut number);
    number.0
}

/// The place of a number in a table of `1 << bits`: neighbours in number are not neighbours in
/// memory.
#[inline]
pub(crate) fn spread(number: u64, bits: u32) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - bits)) as usize
}

struct Number(u64);

impl Hasher for Number {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
