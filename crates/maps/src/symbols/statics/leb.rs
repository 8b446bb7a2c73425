//! Numbers of seven bits to a byte, and the tables of abbreviations that consist of them.
//!
//! # References
//!
//! DWARF 5, sections 7.5.3 (abbreviations) and 7.6 (LEB128).

use gimli::constants::DW_FORM_implicit_const;

/// How long the table of abbreviations is that `bytes` begin with.
pub(super) fn length_of_table(bytes: &[u8]) -> Option<usize> {
    length(bytes, false)
}

/// How long the first abbreviation of the table is that `bytes` begin with; for an empty table the
/// length of its end.
pub(super) fn length_of_first(bytes: &[u8]) -> Option<usize> {
    length(bytes, true)
}

fn length(bytes: &[u8], is_of_first: bool) -> Option<usize> {
    let mut rest = bytes;
    let mut next = || {
        let (number, size) = take_number(rest)?;
        rest = &rest[size..];
        Some((number, bytes.len() - rest.len()))
    };
    loop {
        let (code, end) = next()?;
        if code == 0 {
            return Some(end);
        }
        // Its tag, and in a byte whether it has children, which is 0 or 1.
        let _ = (next()?, next()?);
        loop {
            let (name, form) = (next()?.0, next()?.0);
            if form == u64::from(DW_FORM_implicit_const.0) {
                next()?;
            }
            if name == 0 && form == 0 {
                break;
            }
        }
        if is_of_first {
            return Some(bytes.len() - rest.len());
        }
    }
}

/// The number that `bytes` begin with, seven bits to a byte, and its size.
pub(super) fn take_number(bytes: &[u8]) -> Option<(u64, usize)> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let number = bytes[..=end].iter().rev().fold(0_u64, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
    Some((number, end + 1))
}

/// Adds a number, seven bits to a byte.
pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 0x7f, 0x80, 0x1234, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            assert_eq!(take_number(&[&bytes[..], &[1]].concat()), Some((number, bytes.len())));
        }
        assert_eq!(take_number(&[0x80, 0x80]), None);
    }

    #[test]
    fn table_ends_at_its_zero() {
        let table = [1, 0x11, 1, 0x25, 0x0e, 0, 0, 2, 0x34, 0, 0x49, 0x21, 0x85, 0x01, 0, 0, 0];
        assert_eq!(length_of_table(&[&table[..], &[7, 7]].concat()), Some(table.len()));
        for end in 0..table.len() {
            assert_eq!(length_of_table(&table[..end]), None);
        }
        assert_eq!((length_of_first(&table), length_of_first(&table[..6])), (Some(7), None));
    }
}
