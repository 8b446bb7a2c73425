//! The digits of ids in texts: two for each byte, from 0 to 9 and from `a` to `f`.

/// The digits of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdDigits<const N: usize>([[u8; 2]; N]);

impl<const N: usize> IdDigits<N> {
    /// The digits of `id`.
    pub fn of(id: [u8; N]) -> Self {
        Self(id.map(|byte| [byte >> 4, byte & 15].map(|half| b"0123456789abcdef"[usize::from(half)])))
    }

    /// The digits as bytes of a text.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// The id with these digits; `None` if there are too many or too few, or if one is not a digit.
pub fn id<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * N {
        return None;
    }
    let mut id = [0; N];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_two_digits_a_byte() {
        let digits = IdDigits::of([0x00, 0x9f, 0xa0, 0xff]);
        assert_eq!(digits.as_str(), "009fa0ff");
        assert_eq!(id(digits.as_bytes()), Some([0x00, 0x9f, 0xa0, 0xff]));
        for wrong in ["009fa0f", "009fa0fff", "009fa0fF", "009fa0fg", ""] {
            assert_eq!(id::<4>(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
