//! Errors of policies, with what their author needs to correct them.

/// A text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: u32,
    /// The character in the line, from 1.
    pub column: u32,
    /// The expected text.
    pub expected: String,
    /// The text that was found.
    pub found: String,
}

/// Policies that cannot be compiled together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text of a policy does not parse.
    #[error("policy {id} ({name}): {error}")]
    Syntax {
        /// Which.
        id: u32,
        /// Its name.
        name: String,
        /// The fault.
        error: ParseError,
    },
    /// 0 and 1 have their meaning without a text.
    #[error("policy {id}: numbers of policies begin at 2")]
    Reserved {
        /// Which.
        id: u32,
    },
    /// Two have the same number.
    #[error("policy {id} is there twice")]
    Twice {
        /// Which.
        id: u32,
    },
    /// One uses another that is not there.
    #[error("policy {id} uses policy {used}, which does not exist")]
    Missing {
        /// Which.
        id: u32,
        /// The one that is missing.
        used: u32,
    },
    /// Policies use each other in a circle.
    #[error("policies use each other in a circle: {}", circle(.0))]
    Cycle(
        /// Each uses the next, the last the first.
        Vec<u32>,
    ),
    /// Policies that use others many times over.
    #[error(
        "policy {id} and those that it uses have more than {limit} rules in all, or are more than {depth} deep"
    )]
    TooLarge {
        /// Which.
        id: u32,
        /// Rules at most.
        limit: usize,
        /// Uses within uses at most.
        depth: usize,
    },
    /// The patterns of all policies together do not fit into one automaton.
    #[error("the patterns of all policies are too large together: {0}")]
    Patterns(
        /// The error of the automaton.
        String,
    ),
}

fn circle(ids: &[u32]) -> String {
    let mut text: Vec<String> = ids.iter().map(u32::to_string).collect();
    text.extend(ids.first().map(u32::to_string));
    text.join(" → ")
}
