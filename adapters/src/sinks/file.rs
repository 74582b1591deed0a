//! A file, or an output of the process: each entry is appended as soon as it arrives.

use std::cell::RefCell;
use std::io::{self, Write};

use sdk::chain::LocalFuture;
use sdk::sink::{Batch, Deliver, Destination, Outcome};
use serde::Deserialize;

use super::{Context, Kind, LogDestination};

pub const KIND: Kind = Kind { name: "file", blocks: true, make };

#[derive(Debug, Deserialize)]
struct Settings {
    path: String,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let Settings { path } = super::settings(to)?;
    let place = LogDestination::of_plugin(&path, &context.folders).map_err(|invalid| invalid.to_string())?;
    Ok(Box::new(File::new("file-logger", place, None)))
}

/// A file that is appended to.
pub struct File {
    /// The log's name in messages: `the access log`.
    what: &'static str,
    place: LogDestination,
    open: RefCell<Open>,
}

#[derive(Default)]
struct Open {
    /// None before it is opened. A FIFO is not before it has a reader.
    file: Option<std::fs::File>,
    /// The last write broke off within a line.
    within_line: bool,
    /// Entries that are joined to one write.
    together: Vec<u8>,
}

impl File {
    /// Writes into `file`, or opens the place with the first line.
    pub fn new(what: &'static str, place: LogDestination, file: Option<std::fs::File>) -> File {
        File { what, place, open: RefCell::new(Open { file, ..Open::default() }) }
    }

    fn write(&self, batch: Batch<'_>) -> Outcome {
        let open = &mut *self.open.borrow_mut();
        let written = match batch.records {
            [one] => open.write(&self.place, one.bytes()),
            all => {
                let mut together = std::mem::take(&mut open.together);
                together.clear();
                all.iter().for_each(|one| together.extend_from_slice(one.bytes()));
                let written = open.write(&self.place, &together);
                open.together = together;
                written
            }
        };
        match written {
            Ok(()) => Outcome::Delivered,
            Err(error) if open.file.is_none() => Outcome::Rejected(format!(
                "failed to open file: {}, error info: {error}; {} loses entries",
                self.place, self.what
            )),
            Err(error) => Outcome::Rejected(format!("cannot write {}, {}: {error}", self.what, self.place)),
        }
    }
}

impl Deliver for File {
    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(std::future::ready(self.write(batch)))
    }

    fn reopen(&self) {
        let open = &mut *self.open.borrow_mut();
        // A FIFO stays the same, and opening it again could wait for a reader.
        if open.file.is_none() || self.place.is_fifo() {
            return;
        }
        match self.place.open() {
            Ok(file) => (open.file, open.within_line) = (Some(file), false),
            Err(error) => tracing::error!(
                "cannot reopen {}, {} still goes to the old file: {error}",
                self.place,
                self.what
            ),
        }
    }
}

impl Open {
    fn write(&mut self, place: &LogDestination, mut bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(place.open()?),
        };
        if self.within_line {
            file.write_all(b"\n")?;
            self.within_line = false;
        }
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(n) => {
                    self.within_line = n > 0 && bytes[n - 1] != b'\n';
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
