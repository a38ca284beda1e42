//! Rx as a deterministic state machine without sockets, clocks or threads
