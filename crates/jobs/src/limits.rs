//! Bounds of what a job may hold.

/// Bytes of a job's arguments and of its step data, as JSON text, at most. Larger lists belong into
/// jobs of their own or into tables of the kind.
pub const ARGUMENTS_BYTES_MAX: usize = 64 << 10;
/// Bytes of the names of user, resource, group and of the unique name, at most.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of the name of an item, at most: a path of AFS. Longer ones are cut.
pub const ITEM_NAME_BYTES_MAX: usize = 1024;
/// Bytes of an error text, at most. Longer ones are cut.
pub const ERROR_BYTES_MAX: usize = 1024;
/// Items of a job that are recorded, at most. The counts in [`crate::Progress`] go on.
pub const ITEMS_MAX: u64 = 1 << 20;
/// Items that a step may hold before it makes a checkpoint. The engine makes one by itself at the
/// end of a step only; further items are counted and not recorded.
pub const ITEMS_PENDING_MAX: usize = 10_000;
/// Rows that one transaction of this crate changes, at most: well below the bound of a database.
pub(crate) const ROWS_AT_A_TIME_MAX: usize = 10_000;

/// The beginning of a text, at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    text.get(..text.floor_char_boundary(most))
        .unwrap_or_default()
        .to_owned()
}
