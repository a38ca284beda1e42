//! The open-ended command call (`FsCmd`), which stock servers refuse and object storage uses.

use cellar_xdr::{WordBytes, xdr_struct};

use crate::ids::Fid;
use crate::rxafs::AfsFetchStatus;

xdr_struct! {
    /// A command.
    pub struct FsCmdInputs {
        /// Which.
        pub command: i32,
        /// What it is about.
        pub fid: Fid,
        /// Numbers, as the command says.
        pub int64s: [i64; 3],
        /// Words, as the command says.
        pub int32s: [u32; 200],
        /// Characters, a word each.
        pub chars: WordBytes<256>,
    }

    /// Its results.
    pub struct FsCmdOutputs {
        /// 0 or why it failed.
        pub code: i32,
        /// The status afterwards.
        pub status: AfsFetchStatus,
        /// Numbers, as the command says.
        pub int64s: [i64; 3],
        /// Words, as the command says.
        pub int32s: [u32; 200],
        /// Characters, a word each.
        pub chars: WordBytes<256>,
    }
}
