//! The database servers: volume location, protection, votes
