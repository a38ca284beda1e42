//! The cell's keys on a server. Several versions are live at once: a ticket names the version that sealed
//! it, and what we make ourselves is sealed with the newest.
