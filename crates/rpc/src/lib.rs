//! Typed calls out, typed services in: drives rx over UDP
