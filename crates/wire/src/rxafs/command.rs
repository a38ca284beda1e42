//! The open-ended command call (`FsCmd`), which OpenAFS's servers refuse and AFS/OSD uses.

use cellar_xdr::{WordBytes, xdr_struct};

use crate::ids::Fid;
use crate::rxafs::AfsFetchStatus;

xdr_struct! {
    /// A command.
    pub struct FsCmdInputs {
        /// The number of the command.
        pub command: i32,
        /// The file that the command applies to.
        pub fid: Fid,
        /// Numbers, defined by the command.
        pub int64s: [i64; 3],
        /// Words, defined by the command.
        pub int32s: [u32; 200],
        /// Characters, one in each word.
        pub chars: WordBytes<256>,
    }

    /// Its results.
    pub struct FsCmdOutputs {
        /// 0, or the code of the failure.
        pub code: i32,
        /// The status after the command.
        pub status: AfsFetchStatus,
        /// Numbers, defined by the command.
        pub int64s: [i64; 3],
        /// Words, defined by the command.
        pub int32s: [u32; 200],
        /// Characters, one in each word.
        pub chars: WordBytes<256>,
    }
}
