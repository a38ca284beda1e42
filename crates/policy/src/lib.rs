//! Policies: which files become objects, on what devices, and how they are spread.
//!
//! The language is that of AFS/OSD ("OpenAFS + Object Storage"), as `osd addpolicy` took it there:
//!
//! ```text
//! ~'*.log' => local, stop;
//! ~/\.(h5|root)$/i & >64m => osd, stripes=4, stripe_size=1m, copies=2;
//! gid=-210 => [dynamic,2,16,];
//! use(3);
//! ```
//!
//! Cellar adds conditions on directory, volume, owner and group, device classes, erasure codes
//! (`ec=4+2`), and steps by size. It allows up to 32 stripes in units of up to 16 MiB. The grammar
//! is at the head of `parse.rs`.
//!
//! A text is parsed into a [`Policy`], which can be printed in several forms. All policies of a
//! cell are compiled into [`Policies`], which evaluate a file in about a microsecond. The crate is
//! pure: it uses no clock and no I/O.

// Foreign bytes are parsed here: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod archiving;
mod english;
mod error;
mod parse;
mod pattern;
mod policies;
mod print;
mod rule;
mod text;
mod uses;

pub use archiving::{ARCHIVE_AFTER, Archiving, RecallMode};
pub use english::{bytes, shape};
pub use error::{ParseError, PolicyError};
pub use parse::parse_size;
pub use pattern::{Kind, Pattern};
pub use policies::{BY_SIZE, Facts, Needs, Policies, RULES_MAX, Reason, USES_DEEP_MAX, Verdict};
pub use print::{Form, time};
pub use rule::{Condition, Outcome, Policy, Rule, Spread, StorageTarget, Verdict as Said};
