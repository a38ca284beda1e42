//! Access lists: who has which rights on a directory and the files in it.
//!
//! 1. A list has up to 20 entries, each an id and rights; *positive* ones grant, *negative* ones
//!    take away.
//! 2. A caller's rights are the union of the positive entries whose id is in the caller's CPS,
//!    without the union of the negative ones. A CPS with `system:administrators` has every right.
//! 3. It is kept in 192 bytes with the vnode ([`AccessList::to_bytes`]); positive entries ascend
//!    from the front, negative ones from the back. Dumps carry that form.
//! 4. Clients read and write it as text with names ([`text`]).
//!
//! Source: behaviour of OpenAFS 1.8 (its acl package), seen in testdata/directories.

mod list;
mod rights;
pub mod text;

pub use list::{ACL_SIZE, AccessList, AclEntry, AclFull, BadAcl, ByteOrder, Cps, ENTRIES_MAX};
pub use rights::Rights;
