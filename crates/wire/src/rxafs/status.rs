//! The status of a file as the file server returns it, and changes to it.

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, xdr_enum, xdr_struct};

use crate::abort::AbortCode;
use crate::acl::Rights;
use crate::ids::{AfsTime, Uniquifier, ViceId, VnodeId};

/// `lock_type`: a shared lock.
pub const LOCK_READ: i32 = 0;
/// `lock_type`: an exclusive lock.
pub const LOCK_WRITE: i32 = 1;
/// `lock_type`: extend the lock.
pub const LOCK_EXTEND: i32 = 2;
/// `lock_type`: release the lock.
pub const LOCK_RELEASE: i32 = 3;

xdr_enum! {
    /// The type of a vnode.
    pub enum FileType {
        /// No type: the slot of a fid that failed in InlineBulkStatus.
        Invalid = 0,
        /// A plain file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link, or a mount point (mode without execute bits).
        Symlink = 3,
    }
}

/// The status of a file (`AFSFetchStatus`, 21 words).
///
/// Length and data version are joined from their halves. Three fields are the same in every status
/// and are not represented: the interface version (1), the residency mask (1) and the sync counter
/// (0). Values that a peer sends there are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfsFetchStatus {
    /// File, directory or symbolic link.
    pub file_type: FileType,
    /// Directory entries that name it; for a directory 2, and one more for each subdirectory.
    pub link_count: u32,
    /// Bytes.
    pub length: u64,
    /// The data version, which rises when the contents change.
    pub data_version: u64,
    /// The user who last changed the contents.
    pub author: ViceId,
    /// The owner.
    pub owner: ViceId,
    /// The rights of the caller.
    pub caller_access: Rights,
    /// The rights of every caller (`system:anyuser`).
    pub anonymous_access: Rights,
    /// The low 12 bits of a Unix mode, without the type.
    pub unix_mode: u32,
    /// A directory has its own number here, anything else that of its directory.
    pub parent_vnode: VnodeId,
    /// The parent's uniquifier.
    pub parent_uniquifier: Uniquifier,
    /// When the contents changed, by the client's clock or as set.
    pub client_mod_time: AfsTime,
    /// When anything changed, by the server's clock.
    pub server_mod_time: AfsTime,
    /// The group.
    pub group: ViceId,
    /// 0 none, n readers, -1 one writer.
    pub lock_count: i32,
    /// 0; or in InlineBulkStatus the code of the failure, if this fid has no status.
    pub error_code: AbortCode,
}

impl AfsFetchStatus {
    /// The slot of a fid that failed in InlineBulkStatus.
    pub const fn failed(error_code: AbortCode) -> Self {
        Self {
            file_type: FileType::Invalid,
            link_count: 0,
            length: 0,
            data_version: 0,
            author: ViceId(0),
            owner: ViceId(0),
            caller_access: Rights::NONE,
            anonymous_access: Rights::NONE,
            unix_mode: 0,
            parent_vnode: VnodeId(0),
            parent_uniquifier: Uniquifier(0),
            client_mod_time: AfsTime(0),
            server_mod_time: AfsTime(0),
            group: ViceId(0),
            lock_count: 0,
            error_code,
        }
    }
}

const INTERFACE_VERSION: u32 = 1;
const RESIDENCY_MASK: u32 = 1;
const SYNC_COUNTER: u32 = 0;

impl Encode for AfsFetchStatus {
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        // A failed slot has zeros in all fields but the version and the code.
        let residency = if self.file_type == FileType::Invalid {
            0
        } else {
            RESIDENCY_MASK
        };
        out.words([
            INTERFACE_VERSION,
            self.file_type as u32,
            self.link_count,
            self.length as u32,
            self.data_version as u32,
            self.author.0 as u32,
            self.owner.0 as u32,
            self.caller_access.0,
            self.anonymous_access.0,
            self.unix_mode,
            self.parent_vnode.0,
            self.parent_uniquifier.0,
            residency,
            self.client_mod_time.0,
            self.server_mod_time.0,
            self.group.0 as u32,
            SYNC_COUNTER,
            (self.data_version >> 32) as u32,
            self.lock_count as u32,
            (self.length >> 32) as u32,
            self.error_code.0 as u32,
        ]);
    }
}

impl Decode for AfsFetchStatus {
    const MIN_SIZE: usize = 21 * 4;

    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let w = d.words::<21>()?;
        let join = |high: u32, low: u32| (u64::from(high) << 32) | u64::from(low);
        Ok(Self {
            file_type: FileType::from_word(w[1])
                .ok_or(DecodeError::Invalid("not a type of file"))?,
            link_count: w[2],
            length: join(w[19], w[3]),
            data_version: join(w[17], w[4]),
            author: ViceId(w[5] as i32),
            owner: ViceId(w[6] as i32),
            caller_access: Rights(w[7]),
            anonymous_access: Rights(w[8]),
            unix_mode: w[9],
            parent_vnode: VnodeId(w[10]),
            parent_uniquifier: Uniquifier(w[11]),
            client_mod_time: AfsTime(w[13]),
            server_mod_time: AfsTime(w[14]),
            group: ViceId(w[15] as i32),
            lock_count: w[18] as i32,
            error_code: AbortCode(w[20] as i32),
        })
    }
}

/// The parts of a status to change (`AFSStoreStatus`, 6 words: a mask and five values).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AfsStoreStatus {
    /// When the contents changed, by the client's clock.
    pub client_mod_time: Option<AfsTime>,
    /// The owner.
    pub owner: Option<ViceId>,
    /// The group.
    pub group: Option<ViceId>,
    /// The low 12 bits of a Unix mode.
    pub unix_mode: Option<u32>,
    /// Ignored by every server.
    pub segment_size: Option<u32>,
    /// Whether the data must be durable before the answer.
    pub fsync: bool,
}

const SET_MOD_TIME: u32 = 1;
const SET_OWNER: u32 = 2;
const SET_GROUP: u32 = 4;
const SET_MODE: u32 = 8;
const SET_SEGMENT_SIZE: u32 = 16;
const FSYNC: u32 = 1024;

impl Encode for AfsStoreStatus {
    fn encode(&self, out: &mut Encoder<'_>) {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let mask = bit(self.client_mod_time.is_some(), SET_MOD_TIME)
            | bit(self.owner.is_some(), SET_OWNER)
            | bit(self.group.is_some(), SET_GROUP)
            | bit(self.unix_mode.is_some(), SET_MODE)
            | bit(self.segment_size.is_some(), SET_SEGMENT_SIZE)
            | bit(self.fsync, FSYNC);
        out.words([
            mask,
            self.client_mod_time.map_or(0, |time| time.0),
            self.owner.map_or(0, |id| id.0 as u32),
            self.group.map_or(0, |id| id.0 as u32),
            self.unix_mode.unwrap_or(0),
            self.segment_size.unwrap_or(0),
        ]);
    }
}

impl Decode for AfsStoreStatus {
    const MIN_SIZE: usize = 6 * 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [mask, time, owner, group, mode, segment_size] = d.words()?;
        let set = |bit: u32| mask & bit != 0;
        Ok(Self {
            client_mod_time: set(SET_MOD_TIME).then_some(AfsTime(time)),
            owner: set(SET_OWNER).then_some(ViceId(owner as i32)),
            group: set(SET_GROUP).then_some(ViceId(group as i32)),
            unix_mode: set(SET_MODE).then_some(mode),
            segment_size: set(SET_SEGMENT_SIZE).then_some(segment_size),
            fsync: set(FSYNC),
        })
    }
}

xdr_struct! {
    /// A promise to call the client before the file changes for others (`AFSCallBack`, 3 words).
    #[derive(Copy, Default)]
    pub struct Callback {
        /// 1, or 0 in [`Callback::NONE`].
        pub version: u32,
        /// Seconds for which the promise holds, from the start of the call.
        pub expires_in_secs: u32,
        /// 1 exclusive, 2 shared, 3 dropped.
        pub callback_type: u32,
    }
}

impl Callback {
    /// No promise.
    pub const NONE: Self = Self {
        version: 0,
        expires_in_secs: 0,
        callback_type: 0,
    };
    /// `callback_type`: servers never give it.
    pub const EXCLUSIVE: u32 = 1;
    /// `callback_type`: the one that servers give.
    pub const SHARED: u32 = 2;
    /// `callback_type`: no longer held.
    pub const DROPPED: u32 = 3;

    /// The promise that servers give, for this number of seconds.
    pub const fn shared(expires_in_secs: u32) -> Self {
        Self {
            version: 1,
            expires_in_secs,
            callback_type: Self::SHARED,
        }
    }
}

/// The identity of one image of a volume (`AFSVolSync`, 6 words, five of them spare).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolSync {
    /// The creation date of the volume; for a read-only volume that of its clone.
    pub creation_date: AfsTime,
}

impl Encode for VolSync {
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.words([self.creation_date.0, 0, 0, 0, 0, 0]);
    }
}

impl Decode for VolSync {
    const MIN_SIZE: usize = 6 * 4;

    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [creation_date, ..] = d.words::<6>()?;
        Ok(Self {
            creation_date: AfsTime(creation_date),
        })
    }
}
