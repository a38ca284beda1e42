//! Names of tables, and the limits of what is in them.

/// A named ordered table: keys are compared as bytes.
///
/// Names are constants of the servers, so that a new one is a decision in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(&'static str);

impl Table {
    /// The table of that name; it is empty until something is put into it.
    ///
    /// # Panics
    /// When the name is empty or begins with `_`, which is the engines' own: a compile error in
    /// constants.
    pub const fn new(name: &'static str) -> Self {
        assert!(
            !name.is_empty() && name.as_bytes()[0] != b'_',
            "not a name for a table"
        );
        Self(name)
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// Bounds that every engine keeps, so that a cell can change its engine.
pub mod limits {
    /// Bytes in a key.
    pub const KEY_BYTES_MAX: usize = 1024;
    /// Bytes in a value: etcd takes requests of 1.5 MiB.
    pub const VALUE_BYTES_MAX: usize = 1 << 20;
    /// Rows that one transaction may change. Deleting a full group changes three for each of its
    /// 5000 members.
    pub const CHANGES_MAX: usize = 1 << 16;
    /// Transactions that a watch may lag behind.
    pub const HISTORY_TRANSACTIONS_MAX: usize = 8192;
    /// Bytes of keys and values kept for watches that lag.
    pub const HISTORY_BYTES_MAX: usize = 32 << 20;

    const _: () = assert!(HISTORY_BYTES_MAX > VALUE_BYTES_MAX);
}
