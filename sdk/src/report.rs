//! What happened, from workers to the log, without waiting.
