//! The volume store: versioned vnodes, directories, bodies, clones
