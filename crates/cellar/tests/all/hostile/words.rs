//! A request composed word by word, including values that our own types refuse.

use cellar_wire::ids::Fid;

/// Bytes of a request, opcode first.
#[derive(Clone)]
pub(crate) struct Words(Vec<u8>);

impl Words {
    pub(crate) fn opcode(opcode: u32) -> Self {
        Self(opcode.to_be_bytes().to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn words<const N: usize>(self, words: [u32; N]) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    pub(crate) fn long(self, long: u64) -> Self {
        self.word((long >> 32) as u32).word(long as u32)
    }

    pub(crate) fn fid(self, fid: Fid) -> Self {
        self.words([fid.volume.0, fid.vnode.0, fid.uniquifier.0])
    }

    /// Length, bytes, padding.
    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        self = self.word(text.len() as u32);
        self.0.extend(text);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// An `AFSStoreStatus` that sets the mode.
    pub(crate) fn mode(self, bits: u32) -> Self {
        self.words([8, 0, 0, 0, bits, 0])
    }
}
