//! The bytes of a file, from the first that is wanted to the last.

use std::sync::Arc;

use bytes::Bytes;
use sdk::World;
use sdk::budget::Reservation;
use sdk::chain::LocalFuture;
use sdk::files::{Files, PIECE, ReadAt};
use sdk::response_body::{BodySource, SourceError};

const SHORTER: &str = "the file became shorter while it was sent";
const FAILED: &str = "the file cannot be read";
const LATE: &str = "the file could not be read in time";

/// A part of a file. Its first piece is in memory.
pub(super) struct FilePart {
    first: Bytes,
    /// The end of the bytes that were read, and of those that are wanted.
    offset: u64,
    end: u64,
    length: u64,
    /// `None` once all of it was read.
    content: Option<Box<dyn ReadAt>>,
}

impl FilePart {
    /// A part without bytes, for a response that has none.
    pub(super) fn none() -> FilePart {
        FilePart { first: Bytes::new(), offset: 0, end: 0, length: 0, content: None }
    }

    /// Reads the first piece of the bytes from `from` to before `end`; blocks.
    pub(super) fn open(content: Box<dyn ReadAt>, from: u64, end: u64) -> Result<FilePart, SourceError> {
        let (first, content) = read(content, from, end)?;
        let offset = from + first.len() as u64;
        Ok(FilePart { first, offset, end, length: end - from, content })
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// All bytes, if they are in memory.
    pub(super) fn into_whole(self) -> Result<Bytes, FilePart> {
        if self.offset == self.end { Ok(self.first) } else { Err(self) }
    }
}

/// A part of a file as the body of a response.
pub(super) struct FileBody {
    pub(super) files: Arc<Files>,
    pub(super) part: FilePart,
    /// The reservation for one piece.
    pub(super) memory: Reservation,
}

impl FileBody {
    async fn more(&mut self, world: &dyn World) -> Result<Bytes, SourceError> {
        let part = &mut self.part;
        if !part.first.is_empty() {
            return Ok(std::mem::take(&mut part.first));
        }
        let content = part.content.take().ok_or(SourceError(SHORTER))?;
        let (offset, end) = (part.offset, part.end);
        let memory = std::mem::take(&mut self.memory);
        let reading = world.read_files(memory, self.files.read_timeout, move |_| read(content, offset, end));
        let (piece, memory) = reading.await.ok_or(SourceError(LATE))?;
        self.memory = memory;
        let (piece, content) = piece?;
        part.content = content;
        part.offset += piece.len() as u64;
        Ok(piece)
    }
}

impl BodySource for FileBody {
    fn next<'a>(&'a mut self, world: &'a dyn World) -> LocalFuture<'a, Result<Bytes, SourceError>> {
        Box::pin(self.more(world))
    }
}

/// A piece, and the file unless this was the last of it.
type Piece = (Bytes, Option<Box<dyn ReadAt>>);

/// Reads the next piece; blocks. An empty part has an empty piece.
fn read(content: Box<dyn ReadAt>, offset: u64, end: u64) -> Result<Piece, SourceError> {
    let wanted = usize::try_from(end - offset).unwrap_or(PIECE).min(PIECE);
    let mut piece = vec![0; wanted];
    let mut length = 0;
    while length < wanted {
        match content.read_at(&mut piece[length..], offset + length as u64) {
            Ok(0) => return Err(SourceError(SHORTER)),
            Ok(read) => length += read,
            Err(_) => return Err(SourceError(FAILED)),
        }
    }
    let is_last = offset + length as u64 == end;
    Ok((piece.into(), (!is_last).then_some(content)))
}
