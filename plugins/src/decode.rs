//! Decoding of bodies that a server has compressed, in parts that a worker or the background pool has time for.

use std::io::{Cursor, ErrorKind, Read};

use flate2::read::MultiGzDecoder;
use sdk::Exchange;
use sdk::offload::Until;

/// A content coding (RFC 9110 section 8.4.1) that can be taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Brotli,
}

/// The coding of a response, as its head names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coded {
    Plain,
    As(Coding),
    /// It has several codings, or one that is not known here.
    Unknown,
}

impl Coded {
    /// As the response's head says.
    pub(crate) fn of(x: &Exchange<'_>) -> Coded {
        let mut codings = x.response().fields.all(b"Content-Encoding");
        let Some(coding) = codings.next() else { return Coded::Plain };
        let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
        match codings.next() {
            None if is("gzip") || is("x-gzip") => Coded::As(Coding::Gzip),
            None if is("br") => Coded::As(Coding::Brotli),
            _ => Coded::Unknown,
        }
    }
}

/// A body on its way from coded to plain.
pub(crate) struct Decoding {
    from: Box<dyn Read + Send>,
    /// Bytes of the decoder and of the coded body.
    own: usize,
    plain: Vec<u8>,
    /// Bytes of the plain body at most; the rest is left out.
    most: usize,
    /// The end of the coded body was left out.
    cut: bool,
}

/// How far [`Decoding::go_on`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoded {
    All,
    /// All that may be, which is not all there is.
    Cut,
    Paused,
    /// There is no room: it needs `least` bytes in all to go on; `wanted` spare the body from being moved often.
    Full {
        least: usize,
        wanted: usize,
    },
    /// The body is not what its coding says.
    Broken,
}

/// Bytes that are decoded at a time.
const PIECE: usize = 32 << 10;
/// Steps for a byte.
const STEPS: u64 = 8;

impl Decoding {
    pub(crate) fn new(coding: Coding, body: Vec<u8>, most: usize, cut: bool) -> Decoding {
        let held = body.capacity();
        let (window, from): (usize, Box<dyn Read + Send>) = match coding {
            Coding::Gzip => (64 << 10, Box::new(MultiGzDecoder::new(Cursor::new(body)))),
            Coding::Brotli => {
                let window = body.first().map_or(0, |&first| 1 << window_bits(first));
                (window + BROTLI, Box::new(brotli::Decompressor::new(Cursor::new(body), 4096)))
            }
        };
        Decoding { from, own: held + window, plain: Vec::new(), most, cut }
    }

    /// Goes on decoding. All of it together may take `room` bytes.
    pub(crate) fn go_on(&mut self, room: usize, until: &mut Until<'_>) -> Decoded {
        while self.plain.len() < self.most {
            if !until.allows(PIECE as u64 * STEPS) {
                return Decoded::Paused;
            }
            if let Err(full) = self.grow(room) {
                return full;
            }
            let length = self.plain.len();
            self.plain.resize(self.plain.capacity().min(length + PIECE).min(self.most), 0);
            let read = self.from.read(&mut self.plain[length..]);
            self.plain.truncate(length + read.as_ref().unwrap_or(&0));
            until.spend((1 + self.plain.len() - length) as u64 * STEPS);
            match read {
                Ok(0) => return if self.cut { Decoded::Cut } else { Decoded::All },
                Ok(_) if until.is_over() => return Decoded::Paused,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if self.cut => return Decoded::Cut,
                Err(_) => return Decoded::Broken,
            }
        }
        match self.from.read(&mut [0]) {
            Ok(0) => Decoded::All,
            Ok(_) => Decoded::Cut,
            Err(_) if self.cut => Decoded::Cut,
            Err(_) => Decoded::Broken,
        }
    }

    /// The plain body, as far as it is decoded.
    pub(crate) fn into_plain(self) -> Vec<u8> {
        self.plain
    }

    /// Makes room for a piece.
    fn grow(&mut self, room: usize) -> Result<(), Decoded> {
        let (length, capacity) = (self.plain.len(), self.plain.capacity());
        if length < capacity {
            return Ok(());
        }
        let least = (length + PIECE).min(self.most);
        let wanted = capacity.saturating_mul(2).min(self.most).max(least);
        if self.own + least > room {
            return Err(Decoded::Full { least: self.own + least, wanted: self.own + wanted });
        }
        self.plain.reserve_exact(wanted.min(room - self.own) - length);
        Ok(())
    }
}

/// Bytes of a brotli decoder beside its window: tables of codes, and the parts of a block.
const BROTLI: usize = 1 << 20;

/// RFC 7932 section 9.1: the stream begins with the size of its window, of which this is the exponent.
pub(crate) fn window_bits(first: u8) -> u32 {
    match first {
        byte if byte & 1 == 0 => 16,
        byte if byte & 0xf == 1 => match byte >> 4 & 7 {
            0 => 17,
            bits => u32::from(bits) + 8,
        },
        byte => u32::from(byte >> 1 & 7) + 17,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use sdk::offload::TimeSlice;
    use sdk::testing::{Probe, respond};

    use super::*;

    pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        coder.write_all(plain).unwrap();
        coder.finish().unwrap()
    }

    pub(crate) fn brotli(plain: &[u8]) -> Vec<u8> {
        let mut coder = brotli::CompressorWriter::new(Vec::new(), 4096, 4, 16);
        coder.write_all(plain).unwrap();
        coder.into_inner()
    }

    /// How it ends, and the plain body, where it may take this much room.
    fn decode(mut decoding: Decoding, most: usize, pauses: bool) -> (Decoded, Vec<u8>) {
        let mut room = 0;
        loop {
            match decoding.go_on(room, &mut Until::TimeSlice(&TimeSlice::new(&|| pauses))) {
                Decoded::Paused => assert!(pauses),
                Decoded::Full { least, wanted } if least <= most => {
                    assert!(room < least && least <= wanted);
                    room = wanted.min(most);
                }
                end => {
                    assert!(decoding.plain.capacity() <= room, "{room}");
                    return (end, decoding.into_plain());
                }
            }
        }
    }

    #[test]
    fn a_head_names_its_coding() {
        for (fields, coded) in [
            (&[][..], Coded::Plain),
            (&["gzip"], Coded::As(Coding::Gzip)),
            (&["X-GZip"], Coded::As(Coding::Gzip)),
            (&["br"], Coded::As(Coding::Brotli)),
            (&["br, gzip"], Coded::Unknown),
            (&["br", "gzip"], Coded::Unknown),
            (&["zstd"], Coded::Unknown),
            (&[""], Coded::Unknown),
        ] {
            let mut probe = Probe::get("/");
            let mut x = probe.exchange();
            respond(
                &mut x,
                200,
                &fields.iter().map(|coding| ("Content-Encoding", *coding)).collect::<Vec<_>>(),
            );
            assert_eq!(Coded::of(&x), coded, "{fields:?}");
        }
    }

    #[test]
    fn a_body_is_decoded_in_parts_within_its_bounds() {
        let text = b"0123456789".repeat(30_000);
        for (coding, coded) in [(Coding::Gzip, gzip(&text)), (Coding::Brotli, brotli(&text))] {
            let decoding = |most, coded: &[u8], cut| Decoding::new(coding, coded.to_vec(), most, cut);
            for pauses in [false, true] {
                assert!(
                    decode(decoding(1 << 20, &coded, false), usize::MAX, pauses)
                        == (Decoded::All, text.clone())
                );
            }
            assert!(
                decode(decoding(text.len(), &coded, false), usize::MAX, false)
                    == (Decoded::All, text.clone())
            );
            let short = text[..text.len() - 1].to_vec();
            assert!(decode(decoding(short.len(), &coded, false), usize::MAX, false) == (Decoded::Cut, short));
            // Its own memory counts beside the body.
            let own = decoding(1, &coded, false).own;
            let (end, plain) = decode(decoding(1 << 20, &coded, false), own + 100_000, false);
            assert!(matches!(end, Decoded::Full { .. }) && plain.len() <= 100_000, "{end:?}");
            // One that breaks off, and one that was cut here.
            let half = &coded[..coded.len() / 2];
            assert_eq!(decode(decoding(1 << 20, half, false), usize::MAX, false).0, Decoded::Broken);
            let (end, plain) = decode(decoding(1 << 20, half, true), usize::MAX, false);
            assert!(end == Decoded::Cut && text.starts_with(&plain), "{end:?}");
            let other = decoding(1 << 20, b"it is plain", false);
            assert_eq!(decode(other, usize::MAX, false).0, Decoded::Broken);
            // A worker does a part of it itself.
            let mut part = decoding(1 << 20, &coded, false);
            let mut until = Until::ON_WORKER;
            assert_eq!(part.go_on(usize::MAX, &mut until), Decoded::Paused);
            assert!((90_000..140_000).contains(&part.plain.len()), "{}", part.plain.len());
        }
        let two = [gzip(b"one "), gzip(b"two")].concat();
        let members = Decoding::new(Coding::Gzip, two, 100, false);
        assert_eq!(decode(members, usize::MAX, false), (Decoded::All, b"one two".to_vec()));
    }
}
