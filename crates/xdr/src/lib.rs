//! XDR (RFC 4506) encoding and decoding, and the macros that derive it
