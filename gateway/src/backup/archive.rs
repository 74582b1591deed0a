//! The file of a backup: a tar archive (POSIX ustar) of a few regular files, as `tar` reads and writes it.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
/// Octal digits of a size: up to 8 GiB.
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const MAGIC: &[u8] = b"ustar";

/// Writes members one after the other.
pub struct Writer<W: Write>(W);

impl<W: Write> Writer<W> {
    pub fn new(to: W) -> Writer<W> {
        Writer(to)
    }

    /// Adds a file of `size` bytes, readable for its owner alone when `tar` unpacks it.
    ///
    /// # Errors
    /// A content that is shorter; a size beyond the format; those of writing.
    pub fn add(&mut self, name: &str, size: u64, time: u64, content: impl Read) -> io::Result<()> {
        let header = header(name, size, time)?;
        self.0.write_all(&header)?;
        if io::copy(&mut content.take(size), &mut self.0)? < size {
            return Err(io::Error::other(format!("{name} became shorter while it was read")));
        }
        self.0.write_all(&[0; BLOCK][..padding(size)])
    }

    /// Writes the end of the archive and returns what it was written to.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 2 * BLOCK])?;
        self.0.flush()?;
        Ok(self.0)
    }
}

fn padding(size: u64) -> usize {
    let over = size as usize % BLOCK;
    if over == 0 { 0 } else { BLOCK - over }
}

fn header(name: &str, size: u64, time: u64) -> io::Result<[u8; BLOCK]> {
    if name.len() > 100 || size >= 1 << 33 {
        return Err(io::Error::other(format!("{name} is too large for a tar archive")));
    }
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600");
    put(108, "0000000");
    put(116, "0000000");
    put(SIZE.start, &format!("{size:011o}"));
    put(136, &format!("{:011o}", time.min((1 << 33) - 1)));
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum = checksum(&header);
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// The sum of a header's bytes, its own place counted as spaces.
fn checksum(header: &[u8; BLOCK]) -> u64 {
    let byte = |(at, byte): (usize, &u8)| if CHECKSUM.contains(&at) { b' ' } else { *byte };
    header.iter().enumerate().map(|it| u64::from(byte(it))).sum()
}

/// A member of an archive; its content follows.
#[derive(Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub size: u64,
}

/// Reads members one after the other.
pub struct Reader<R: Read>(R);

impl<R: Read> Reader<R> {
    pub fn new(from: R) -> Reader<R> {
        Reader(from)
    }

    /// The next member, whose content is read by [`content`](Reader::content); `None` at the end of the archive.
    ///
    /// # Errors
    /// Anything that is not the header of a regular file; an archive that is cut off.
    pub fn next(&mut self) -> io::Result<Option<Member>> {
        let mut header = [0; BLOCK];
        self.0.read_exact(&mut header).map_err(cut_off)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let not = |what: &str| io::Error::other(format!("it is not a backup: {what}"));
        if !header[257..].starts_with(MAGIC) {
            return Err(not("no tar archive"));
        }
        if octal(&header[CHECKSUM]) != Some(checksum(&header)) {
            return Err(not("a header is damaged"));
        }
        if !matches!(header[156], 0 | b'0') {
            return Err(not("something other than a regular file is in it"));
        }
        let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let size = octal(&header[SIZE]).ok_or_else(|| not("a header is damaged"))?;
        Ok(Some(Member { name, size }))
    }

    /// Copies the content of a member.
    ///
    /// # Errors
    /// An archive that is cut off; those of writing.
    pub fn content(&mut self, member: &Member, mut to: impl Write) -> io::Result<()> {
        if io::copy(&mut self.0.by_ref().take(member.size), &mut to)? < member.size {
            return Err(cut_off(io::ErrorKind::UnexpectedEof.into()));
        }
        self.0.read_exact(&mut [0; BLOCK][..padding(member.size)]).map_err(cut_off)
    }
}

fn cut_off(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it is cut off: the rest of it is missing"),
        _ => error,
    }
}

/// A number in octal digits, ended by a space or a zero byte.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        for (name, content) in [("a", &b"first"[..]), ("empty", b""), ("block", &[7; BLOCK])] {
            writer.add(name, content.len() as u64, 1, content).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut reader = Reader::new(bytes);
        let mut members = Vec::new();
        while let Some(member) = reader.next()? {
            let mut content = Vec::new();
            reader.content(&member, &mut content)?;
            members.push((member.name, content));
        }
        Ok(members)
    }

    #[test]
    fn members_come_back_and_a_cut_archive_is_refused() {
        let bytes = archive();
        let members = read(&bytes).unwrap();
        assert_eq!(members[0], ("a".to_owned(), b"first".to_vec()));
        assert_eq!((members[1].1.len(), &members[2].1[..]), (0, &[7; BLOCK][..]));
        // Of the two blocks at the end, one is enough.
        for length in 0..bytes.len() - 2 * BLOCK + 1 {
            let error = read(&bytes[..length]).unwrap_err().to_string();
            assert!(error.contains("cut off"), "{length}: {error}");
        }
    }

    #[test]
    fn damaged_headers_and_other_files_are_refused() {
        for at in [0, 100, 124, 150, 257] {
            let mut bytes = archive();
            bytes[at] ^= 1;
            assert!(read(&bytes).unwrap_err().to_string().contains("not a backup"), "{at}");
        }
        assert!(read(&[b'x'; 2000]).unwrap_err().to_string().contains("no tar archive"));
        assert!(Writer::new(Vec::new()).add("a", 9, 1, &b"short"[..]).is_err());
    }

    #[test]
    fn tar_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar");
        std::fs::write(&file, archive()).unwrap();
        let listed = std::process::Command::new("tar").arg("tvf").arg(&file).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.status.success() && text.contains("-rw-------"), "{text}");
    }
}
