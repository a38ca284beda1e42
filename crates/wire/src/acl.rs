//! Access lists: who has which rights on a directory and the files in it.
//!
//! 1. A list has up to 20 entries, each an id and rights; *positive* ones grant, *negative* ones
//!    take away.
//! 2. The rights of a caller are the union of the positive entries for the ids in its CPS, minus
//!    the union of its negative ones. A CPS with `system:administrators` has every right.
//! 3. A vnode stores its list in 192 bytes ([`AccessList::to_bytes`]): positive entries ascend from
//!    the front, negative ones from the back. Dumps carry that form.
//! 4. Clients read and write it as text with names ([`text`]).
//!
//! Source: behaviour of OpenAFS 1.8 (its acl package), seen in testdata/directories.

mod list;
mod rights;
pub mod text;

pub use list::{ACL_SIZE, AccessList, AclEntry, AclFull, BadAcl, ByteOrder, Cps, ENTRIES_MAX};
pub use rights::Rights;
