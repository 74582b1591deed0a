//! The files and variables that a file refers to.

/// Reads further files for an importer. The caller decides which folders are open.
pub trait Files {
    /// The text of a file. A relative path begins at the folder of the first file.
    ///
    /// # Errors
    /// See [`FileError`].
    fn read(&self, path: &str) -> Result<String, FileError>;

    /// The paths of the files that match a pattern with `*`, `?` and `[…]`, in order.
    ///
    /// # Errors
    /// See [`FileError`]. A pattern without a match is an empty list.
    fn matching(&self, pattern: &str) -> Result<Vec<String>, FileError>;
}

/// Looks up an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("the file does not exist")]
    Absent,
    #[error("the file is outside of the folder of the imported file; `--allow-outside` permits it")]
    Outside,
    #[error("the file has more than {0} bytes")]
    TooLarge(u64),
    #[error("the file cannot be read: {0}")]
    Unreadable(String),
}
