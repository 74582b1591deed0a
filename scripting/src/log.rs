//! Lines of scripts in the error log.

/// The level of a line in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// Takes lines for the error log. Called on workers: it must not block.
pub trait Log: Send + Sync {
    /// The least severe level that is written.
    fn level(&self) -> Level;

    fn line(&self, level: Level, text: String);
}
