//! Everything two AFS parties must agree on byte for byte
