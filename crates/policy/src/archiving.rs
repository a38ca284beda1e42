//! The properties of a verdict that concern archives.

/// Seconds from the last change of a file to its first copy in an archive, if no rule names them.
/// The value is that of AFS/OSD.
pub const ARCHIVE_AFTER: u32 = 3600;

/// The copies of a file in archives that the policies ask for, and the behaviour of opening it
/// while it is wiped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archiving {
    /// The number of archives that have a copy; 0: no copies are made.
    pub archives: u32,
    /// Archives of that class only; `None`: of any.
    pub class: Option<String>,
    /// Seconds from the last change to the first copy.
    pub after: u32,
    /// The behaviour of a call that needs the bytes of the file while it is wiped.
    pub recall: RecallMode,
}

/// The behaviour of a call that needs the bytes of a wiped file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecallMode {
    /// `wait`: the recall begins, and the call waits for it for some time.
    #[default]
    Wait,
    /// `retry`: the recall begins, and the client is told at once to repeat the call.
    Retry,
    /// `refuse`: the call fails, and no recall begins.
    Refuse,
}

impl RecallMode {
    /// The word of the language.
    pub fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Retry => "retry",
            Self::Refuse => "refuse",
        }
    }

    /// The mode of a word of the language.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let all = [Self::Wait, Self::Retry, Self::Refuse];
        all.into_iter().find(|mode| mode.word() == word)
    }
}
