//! Small replicated tables under VL and PR: ordered, transactional, watched
