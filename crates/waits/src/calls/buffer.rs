//! Some bytes that become a name, in a buffer of fixed size.

/// How many bytes of a name are kept.
pub const LONGEST_PEER: usize = 120;

/// The bytes of a name. Those after its end are zeros.
#[derive(Clone, Copy)]
pub(super) struct NameBuffer {
    bytes: [u8; LONGEST_PEER],
    length: u8,
}

impl NameBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: [0; LONGEST_PEER], length: 0 }
    }

    /// All words of eight bytes in which the name has any.
    #[inline]
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.bytes.as_chunks::<8>();
        words.iter().take(usize::from(self.length).div_ceil(8)).map(|word| u64::from_le_bytes(*word))
    }

    pub(super) fn written(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    pub(super) fn is_full(&self) -> bool {
        usize::from(self.length) == LONGEST_PEER
    }

    pub(super) fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(usize::from(self.length)) {
            *place = byte;
            self.length += 1;
        }
    }

    pub(super) fn push_all(&mut self, bytes: &[u8]) {
        let begins = usize::from(self.length);
        let taken = bytes.len().min(LONGEST_PEER - begins);
        self.bytes[begins..begins + taken].copy_from_slice(&bytes[..taken]);
        self.length += taken as u8;
    }

    /// Takes back what follows the first `length` bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        if length < usize::from(self.length) {
            self.bytes[length..usize::from(self.length)].fill(0);
            self.length = length as u8;
        }
    }
}
